"""The pipeline drawn with letters."""

from __future__ import annotations

from collections import Counter

import pytest

from foretrace import Answer, Mesh, ProgramBuilder, simulate
from foretrace.report.plots.gantt import gantt, legend


def test_letters_are_in_proportion_to_time() -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    role.compute("f", 2.0, phase="forward")
    role.compute("b", 4.0, phase="backward")
    role.compute("o", 1.0, phase="optimizer", after=role.host("wait", 9.0))
    rows = gantt(simulate(build.program()), 20)
    assert rows == [("stage 0", "FFFFBBBBBBBB......OO")]
    assert legend(rows) == "F forward   B backward   O optimizer   . waiting"


def test_what_runs_past_the_step_is_drawn_at_its_start() -> None:
    """The second stream works 3 s from 2 s on, in a step of 4 s: its last second falls into the next step."""
    build = ProgramBuilder(Mesh())
    role = build.role("stage 0", [0])
    role.compute("late", 3.0, lane="second", phase="backward", after=role.host("launch", 2.0))
    role.host("rest", 2.0)
    answer = simulate(build.program())
    assert answer.step_time_s == 4.0
    assert gantt(answer, 8) == [("stage 0", "BB..BBBB")]


def test_too_many_roles_are_not_drawn() -> None:
    build = ProgramBuilder(Mesh(pp=17))
    for stage in range(17):
        build.role(f"stage {stage}", [stage]).compute("f", 1.0)
    assert gantt(simulate(build.program()), 20) == []


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
    ((_, letters),) = gantt(simulate(build.program()), 16 if recompute else 12)
    return letters


def test_the_kinds_of_backward_count_together() -> None:
    """None of them takes as long as a layer's forward or recomputation, all of them twice as long."""
    assert _pipeline_of_layers(recompute=False) == "FBB" * 4
    assert Counter(_pipeline_of_layers(recompute=True)) == {"F": 4, "R": 4, "B": 8}


def test_a_stretch_in_parts_shows_the_largest() -> None:
    """A forward of 0.4 and a weight gradient of 0.6 share the second of three stretches."""
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    role.compute("f", 1.4, phase="forward")
    role.compute("w", 0.6, phase="backward_weight")
    role.compute("r", 0.55, phase="recompute")
    role.compute("b", 0.45, phase="backward")
    rows = gantt(simulate(build.program()), 3)
    assert rows == [("stage 0", "FWR")]
    assert legend(rows) == "F forward   W weight gradient   R recompute"


def test_waiting_is_drawn_where_it_takes_most() -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    role.compute("f", 0.3, phase="forward")
    role.compute("b", 0.3, phase="backward", after=role.host("wait", 0.7))
    assert gantt(simulate(build.program()), 1) == [("stage 0", ".")]


def _steps_of(parts: dict[str, float], microbatches: int) -> Answer:
    """Two ranks that take the same parts in turn: forward, backward, communication and host work, in seconds."""
    build = ProgramBuilder(Mesh(tp=2), repeats=False)
    role = build.role("stage 0", [0, 1])
    tp = build.communicator("tp")
    before = None
    for _ in range(microbatches):
        after = {} if before is None else {"after": before}
        before = role.compute("f", parts["F"], phase="forward", **after)
        before = role.collective("all_reduce", tp, parts["-"], after=before)
        before = role.host("wait", parts["."], after=before)
        before = role.compute("b", parts["B"], phase="backward", after=before)
    return simulate(build.program())


def test_a_mixed_cell_shows_what_most_of_it_is() -> None:
    assert gantt(_steps_of({"F": 0.40, "-": 0.35, ".": 0.25, "B": 0.0}, 1), 1) == [("stage 0", "F")]
    assert gantt(_steps_of({"F": 0.35, "-": 0.40, ".": 0.25, "B": 0.0}, 1), 1) == [("stage 0", "-")]


def test_a_cell_that_is_one_thing_shows_it() -> None:
    rows = gantt(_steps_of({"F": 2.0, "-": 1.0, ".": 3.0, "B": 4.0}, 3), 30)
    assert rows == [("stage 0", "FF-...BBBB" * 3)]
    assert legend(rows) == "F forward   B backward   - communication   . waiting"


@pytest.mark.parametrize("width", [54, 74, 100, 194])
@pytest.mark.parametrize("microbatches", [3, 16, 50, 700])
def test_signs_take_their_share_of_the_row_at_any_width(width: int, microbatches: int) -> None:
    parts = {"F": 0.26, "-": 0.17, ".": 0.08, "B": 0.49}
    ((_, signs),) = gantt(_steps_of(parts, microbatches), width)
    counts = Counter(signs)
    assert len(signs) == width
    for sign, share in parts.items():
        assert counts[sign] / width == pytest.approx(share, abs=0.03)


def test_ops_many_steps_ahead_of_the_host_are_drawn() -> None:
    """The device is three steps behind what the host of a step posts."""
    build = ProgramBuilder(Mesh())
    role = build.role("stage 0", [0])
    posted = role.host("launch", 1.0)
    for number in range(3):
        posted = role.host("delay", 9.0, lane=f"thread {number}", after=posted)
    role.compute("f", 3.0, phase="forward", after=posted)
    answer = simulate(build.program())
    ((_, signs),) = gantt(answer, 36)
    assert answer.step_time_s == 9.0
    assert Counter(signs) == {"F": 12, ".": 24}
