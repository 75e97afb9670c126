"""The pipeline drawn with letters."""

from __future__ import annotations

from foretrace import Mesh, ProgramBuilder, simulate
from foretrace.report.gantt import gantt, legend


def test_letters_are_in_proportion_to_time() -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    role.compute("f", 2.0, phase="forward")
    role.compute("b", 4.0, phase="backward")
    role.compute("o", 1.0, phase="optimizer", after=role.host("wait", 9.0))
    rows = gantt(simulate(build.program()).timeline, 20)
    assert rows == [("stage 0", "FFFFBBBBBBBB......OO")]
    assert legend(rows) == "F forward   B backward   O optimizer   . waiting"


def test_what_runs_past_the_step_is_drawn_at_its_start() -> None:
    """The second stream works 3 s from 2 s on, in a step of 4 s: its last second falls into the next step."""
    build = ProgramBuilder(Mesh())
    role = build.role("stage 0", [0])
    role.compute("late", 3.0, lane="second", phase="backward", after=role.host("launch", 2.0))
    role.host("rest", 2.0)
    timeline = simulate(build.program()).timeline
    assert timeline.step_time_s == 4.0
    assert gantt(timeline, 8) == [("stage 0", "BB..BBBB")]


def test_too_many_roles_are_not_drawn() -> None:
    build = ProgramBuilder(Mesh(pp=17))
    for stage in range(17):
        build.role(f"stage {stage}", [stage]).compute("f", 1.0)
    assert gantt(simulate(build.program()).timeline, 20) == []
