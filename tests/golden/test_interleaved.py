"""Interleaved 1F1B, two stages with two chunks each, whose pieces of the model differ in length.

Piece     0 (stage 0)   1 (stage 1)   2 (stage 0, chunk 1)   3 (stage 1, chunk 1)
forward   2             2             3                      1
backward  4             4             6                      2                       µs; a transfer takes 1 µs
"""

from __future__ import annotations

import pytest

from foretrace import Mesh, ProgramBuilder, Transfer, pipeline, schedule, simulate
from foretrace.schedules import Action, ActionKind
from golden.reading import US, parts_us, step_us, times, us

FORWARD_US = ((2, 3), (2, 1))
"""Of each stage's chunks."""


@pytest.mark.parametrize("executor", ["fixed", "shared"])
def test_uneven_chunks(executor: str) -> None:
    """The forwards and backwards of each piece, by microbatch:

                0        1        2        3                       0        1        2        3
    F  piece 0  0-2      2-4      12-14    20-22      B  piece 3   11-13    14-16    34-36    40-42
       piece 1  3-5      5-7      16-18    25-27         piece 2   14-20    22-28    42-48    48-54
       piece 2  6-9      9-12     28-31    35-38         piece 1   21-25    29-33    49-53    55-59
       piece 3  10-11    13-14    33-34    39-40         piece 0   31-35    38-42    54-58    60-64

    What a piece makes leaves at once and arrives 1 µs later. Stage 0 has 60 µs of work and waits twice: for piece 1 of
    microbatch 0 (4-6) and for its last gradient (58-60). Stage 1 has 36, and waits whenever piece 2 is in the way.
    """
    build = ProgramBuilder(Mesh(pp=2))
    order = schedule("interleaved-1f1b", 2, 4, 2)
    assert [order.line(stage) for stage in (0, 1)] == [
        "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3",
    ]

    def block(stage: int, action: Action):
        made = build.block(f"{action} on stage {stage}")
        longer = 1 if action.kind == ActionKind.FORWARD else 2
        made.compute(action.kind.letter, longer * FORWARD_US[stage][action.chunk] * US, chunk=action.chunk)
        return made

    pipeline(build, order, block, Transfer(duration_s=1 * US))
    answer = simulate(build.program(), executor=executor)

    piece = {
        "F": [
            [(0, 2), (2, 4), (12, 14), (20, 22)],
            [(3, 5), (5, 7), (16, 18), (25, 27)],
            [(6, 9), (9, 12), (28, 31), (35, 38)],
            [(10, 11), (13, 14), (33, 34), (39, 40)],
        ],
        "B": [
            [(31, 35), (38, 42), (54, 58), (60, 64)],
            [(21, 25), (29, 33), (49, 53), (55, 59)],
            [(14, 20), (22, 28), (42, 48), (48, 54)],
            [(11, 13), (14, 16), (34, 36), (40, 42)],
        ],
    }
    leaves = {way: [[(end, end + 1) for _, end in spans] for spans in piece[way]] for way in piece}
    drawn = {}
    for way in ("F", "B"):
        for number, name in enumerate([way, way, f"{way}.1", f"{way}.1"]):
            drawn[number % 2, name] = piece[way][number]
    drawn |= {
        (0, "send forward"): leaves["F"][0],
        (1, "receive forward"): leaves["F"][0],
        (1, "send forward"): leaves["F"][1],
        (0, "receive forward.1"): leaves["F"][1],
        (0, "send forward.1"): leaves["F"][2],
        (1, "receive forward.1"): leaves["F"][2],
        (1, "send backward.1"): leaves["B"][3],
        (0, "receive backward.1"): leaves["B"][3],
        (0, "send backward.1"): leaves["B"][2],
        (1, "receive backward"): leaves["B"][2],
        (1, "send backward"): leaves["B"][1],
        (0, "receive backward"): leaves["B"][1],
    }
    assert times(answer) == us(drawn)
    assert step_us(answer) == 64
    assert parts_us(answer, 0) == {"compute": 60, "pp exposed": 2, "bubble": 2}
    # Gaps of stage 1, bubble + transfer: from the last B to the next step's first F 6 + 2 (the gradient it sent, then
    # the activation it gets), 7-10 2 + 1, 18-21 2 + 1, 27-29 1 + 1, 36-39 2 + 1, 42-49 6 + 1, 53-55 1 + 1.
    assert parts_us(answer, 1) == {"compute": 36, "pp exposed": 8, "bubble": 20}
