"""Memory under 1F1B: a forward takes its activations, the backward gives them back."""

from __future__ import annotations

import pytest

from foretrace import Mesh, Program, ProgramBuilder, Transfer, pipeline, schedule, simulate
from foretrace.schedules import ActionKind
from golden.reading import US, step_us, times, us

ACTIVATION = 1_000
WEIGHTS = 10_000


def program(stages: int, microbatches: int) -> Program:
    """Forward 2 µs, backward 4 µs, transfer 1 µs; stage s holds s · 500 bytes of weights less than stage 0."""
    build = ProgramBuilder(Mesh(pp=stages))
    forward, backward = build.block("F"), build.block("B")
    forward.compute("F", 2 * US, alloc={"activations": ACTIVATION})
    backward.compute("B", 4 * US, free={"activations": ACTIVATION})
    blocks = {ActionKind.FORWARD: forward, ActionKind.BACKWARD: backward}
    line = pipeline(
        build,
        schedule("1f1b", stages, microbatches),
        lambda _, action: blocks[action.kind],
        Transfer(duration_s=1 * US),
    )
    for stage, role in enumerate(line.stages):
        role.resident(weights=WEIGHTS - 500 * stage)
    return build.program()


def test_the_track_of_two_stages() -> None:
    """Microbatches whose activations are held, below each stage; at one moment, freed comes before taken.

         0   2   4           10      14  16      20  22  24      28  30      34
    0    | F0| F1|...........|   B0  | F2|   B1  | F3|...|   B2  |...|   B3  |
          1   2                       2           2               1           0

               3   5       9   11      15  17  19      23  25      29
    1    |.....| F0|   B0  | F1|   B1  |...| F2|   B2  | F3|   B3  |
                1           1           0   1           1           0
    """
    answer = simulate(program(2, 4))
    drawn = {key: span for key, span in times(answer).items() if key[1] in "FB"}
    assert drawn == us(
        {
            (0, "F"): [(0, 2), (2, 4), (14, 16), (20, 22)],
            (0, "B"): [(10, 14), (16, 20), (24, 28), (30, 34)],
            (1, "F"): [(3, 5), (9, 11), (17, 19), (23, 25)],
            (1, "B"): [(5, 9), (11, 15), (19, 23), (25, 29)],
        }
    )
    assert step_us(answer) == 34

    moments, held = answer.memory_by_rank()[0]
    assert [round(moment * 1e9) // 1000 for moment in moments] == [0, 0, 2, 14, 14, 20, 20, 28, 34]
    assert (held["activations"] // ACTIVATION).tolist() == [0, 1, 2, 1, 2, 1, 2, 1, 0]
    assert set(held["weights"].tolist()) == {WEIGHTS}

    moments, held = answer.memory_by_rank()[1]
    assert [round(moment * 1e9) // 1000 for moment in moments] == [0, 3, 9, 9, 15, 17, 23, 23, 29]
    assert (held["activations"] // ACTIVATION).tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert set(held["weights"].tolist()) == {WEIGHTS - 500}

    assert [track.peak_bytes for track in answer.memory_tracks] == [
        WEIGHTS + 2 * ACTIVATION,
        WEIGHTS - 500 + ACTIVATION,
    ]
    assert answer.peak_memory is not None
    assert (answer.peak_memory.rank, answer.peak_memory.role) == (0, "stage 0")
    assert answer.peak_memory.by_category == {"weights": WEIGHTS, "activations": 2 * ACTIVATION}
    assert not answer.diagnostics


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 3), (3, 1)])
def test_the_peak_of_every_stage(stages: int, microbatches: int) -> None:
    """Stage s of p has p − s microbatches in flight, or all there are: resident + min(m, p − s) · activation."""
    answer = simulate(program(stages, microbatches))
    assert [track.peak_bytes for track in answer.memory_tracks] == [
        WEIGHTS - 500 * stage + min(microbatches, stages - stage) * ACTIVATION for stage in range(stages)
    ]


def test_what_is_held_over_several_steps() -> None:
    """Four lanes work on four steps at once: an op of 1 µs on each, the period is 1 µs. The first takes a buffer, the
    last gives it back 4 µs later, when three more have been taken.

    lane 0    |take|take|take|take| ...         step 0 holds its buffer from 0 to 4, step 1 from 1 to 5, …:
    lane 1         | 1  | 1  | 1  | ...         four at any time
    lane 2              | 2  | 2  | ...
    lane 3                   |give| ...
    """
    build = ProgramBuilder()
    role = build.role("rank", [0])
    before = role.compute("take", 1 * US, lane="0", alloc={"buffers": 1})
    for lane in ("1", "2"):
        before = role.compute(lane, 1 * US, lane=lane, after=before)
    role.compute("give", 1 * US, lane="3", after=before, free={"buffers": 1})
    answer = simulate(build.program())
    assert times(answer) == us({(0, "take"): (0, 1), (0, "1"): (1, 2), (0, "2"): (2, 3), (0, "give"): (3, 4)})
    assert step_us(answer) == 1
    (track,) = answer.memory_tracks
    assert track.peak_bytes == 4
    assert track.time_s.max() <= 1 * US * (1 + 1e-9)
