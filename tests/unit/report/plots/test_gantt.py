"""The pipeline drawn with letters."""

from __future__ import annotations

from foretrace import Mesh, ProgramBuilder, simulate
from foretrace.report.plots.gantt import gantt, legend


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


def _pipeline_of_layers(recompute: bool) -> str:
    """Four microbatches of eight layers, the kinds of backward one after the other in every layer."""
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    for _ in range(4):
        role.compute("f", 8.0, phase="forward")
        for _ in range(8):
            if recompute:
                role.compute("r", 1.0, phase="recompute")
            role.compute("b", 0.8, phase="backward")
            role.compute("i", 0.6, phase="backward_input")
            role.compute("w", 0.6, phase="backward_weight")
    ((_, letters),) = gantt(simulate(build.program()).timeline, 16 if recompute else 12)
    return letters


def test_the_kinds_of_backward_count_together() -> None:
    """None of them takes as long as a layer's forward or recomputation, all of them twice as long."""
    assert _pipeline_of_layers(recompute=False) == "FBB" * 4
    assert _pipeline_of_layers(recompute=True) == "FBBB" * 4


def test_a_stretch_in_parts_shows_the_largest() -> None:
    """A forward of 0.4 and a weight gradient of 0.6 share the second of three stretches."""
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    role.compute("f", 1.4, phase="forward")
    role.compute("w", 0.6, phase="backward_weight")
    role.compute("r", 0.55, phase="recompute")
    role.compute("b", 0.45, phase="backward")
    rows = gantt(simulate(build.program()).timeline, 3)
    assert rows == [("stage 0", "FWR")]
    assert legend(rows) == "F forward   W weight gradient   R recompute"


def test_waiting_is_drawn_where_it_takes_most() -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    role.compute("f", 0.3, phase="forward")
    role.compute("b", 0.3, phase="backward", after=role.host("wait", 0.7))
    assert gantt(simulate(build.program()).timeline, 1) == [("stage 0", ".")]
