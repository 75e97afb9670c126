"""1F1B whose transfers are batched: one lane for them, and computation waits for it.

Forward 2 µs, backward 4 µs, a transfer 1 µs, whether it goes one way or both. aN is the activation of microbatch N,
gN its gradient; `x aN gM` is the exchange in which aN goes down and gM comes up.
"""

from __future__ import annotations

from foretrace import Mesh, Program, ProgramBuilder, Transfer, pipeline, schedule, simulate
from foretrace.schedules import Action, ActionKind
from golden.reading import US, mean_us, parts_us, step_us, times, us, waits

DOWN, UP = "send forward, receive backward", "send backward, receive forward"


def batched_1f1b(stages: int, *, repeats: bool) -> Program:
    build = ProgramBuilder(Mesh(pp=stages), repeats=repeats)
    blocks = {kind: build.block(kind.letter) for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)}
    blocks[ActionKind.FORWARD].compute("F", 2 * US, phase="forward")
    blocks[ActionKind.BACKWARD].compute("B", 4 * US, phase="backward")

    def block(_: int, action: Action):
        return blocks[action.kind]

    pipeline(build, schedule("1f1b", stages, 4), block, Transfer(duration_s=1 * US), transfers="batched")
    return build.program()


TWO_STAGES = us(
    {
        (0, "F"): [(0, 2), (3, 5), (14, 16), (21, 23)],
        (0, "B"): [(10, 14), (17, 21), (24, 28), (31, 35)],
        (1, "F"): [(3, 5), (10, 12), (17, 19), (24, 26)],
        (1, "B"): [(5, 9), (12, 16), (19, 23), (26, 30)],
        (0, "send forward"): {0: (2, 3)},
        (1, "receive forward"): {0: (2, 3)},
        (0, DOWN): {1: (9, 10), 2: (16, 17), 3: (23, 24)},
        (1, UP): {0: (9, 10), 1: (16, 17), 2: (23, 24)},
        (1, "send backward"): {3: (30, 31)},
        (0, "receive backward"): {3: (30, 31)},
    }
)


def test_two_stages() -> None:
    """Every send that is followed by a receive from the same neighbour is one exchange with it, on both sides:

        0   2 3   5       9 10  12  14  16    19  21  23    26  28  30        35
    0   | F0|a| F1|.......|x|   B0  | F2|x|   B1  | F3|x|   B2  |...|g|   B3  |
    1   |...|a| F0|   B0  |x| F1|   B1  |x| F2|   B2  |x| F3|   B3  |g|
                         a1,g0         a2,g1         a3,g2          g3

    Stage 0 has F1 done at 5, but its exchange of a1 for g0 waits until stage 1 has g0, at 9. F1 itself starts at 3, not
    2: it waits for a0 to be sent.
    """
    answer = simulate(batched_1f1b(2, repeats=False))
    assert times(answer) == TWO_STAGES
    assert waits(answer) == {
        (1, "receive forward", 0): 2000,
        (0, DOWN, 1): 4000,
        (0, "receive backward", 3): 2000,
    }
    assert step_us(answer) == 35
    # Waiting for B0 (5 to 9) and for B3 (28 to 30) is a bubble.
    assert parts_us(answer, 0) == {"compute": 24, "pp exposed": 5, "bubble": 6}
    # Waiting for F0 (0 to 2) is a bubble; after 31 nothing is left to do.
    assert parts_us(answer, 1) == {"compute": 24, "pp exposed": 5, "bubble": 2, "idle": 4}


def test_two_stages_step_after_step() -> None:
    """Stage 0 is never done before 35, so the period is 35 as well; what was idle on stage 1 is now a wait for the
    next F0, from 31 to 37, and the receive was posted 4 µs before the step began."""
    answer = simulate(batched_1f1b(2, repeats=True))
    assert times(answer) == TWO_STAGES
    assert waits(answer)[1, "receive forward", 0] == 6000
    assert step_us(answer) == 35
    assert parts_us(answer, 0) == parts_us(answer, 1) == {"compute": 24, "pp exposed": 5, "bubble": 6}
    assert mean_us(answer) == {"compute": 24, "pp exposed": 5, "bubble": 6}


def test_three_stages() -> None:
    """The middle stage sends down and then receives from above while it warms up (a0, a1), and sends up and then
    receives from below when it drains (g2, g3): different neighbours, no exchange, one after the other on its lane.

        0   2 3   5 6 7 8 9     12    15  17  19  21  23  25  27  29  31  33  35    38  40        45
    0   | F0|a| F1|.|a| F2|...............|x|   B0  | F3|.|x|   B1  |.....|g|   B2  |...|g|   B3  |
    1   |...|a| F0|a|a| F1|.....|x|   B0  |x| F2|x|   B1  |x| F3|x|   B2  |g|.|g|   B3  |g|
    2   |.........|a| F0|   B0  |x| F1|   B1  |.|x| F2|   B2  |.|x| F3|   B3  |g|

    0-1:  a0 2-3   a1 6-7   (a2 g0) 17-18   (a3 g1) 25-26   g2 33-34   g3 40-41
    1-2:  a0 5-6   (a1 g0) 12-13   (a2 g1) 20-21   (a3 g2) 28-29   g3 35-36
    """
    answer = simulate(batched_1f1b(3, repeats=False))
    assert times(answer) == us(
        {
            (0, "F"): [(0, 2), (3, 5), (7, 9), (22, 24)],
            (0, "B"): [(18, 22), (26, 30), (34, 38), (41, 45)],
            (1, "F"): [(3, 5), (7, 9), (18, 20), (26, 28)],
            (1, "B"): [(13, 17), (21, 25), (29, 33), (36, 40)],
            (2, "F"): [(6, 8), (13, 15), (21, 23), (29, 31)],
            (2, "B"): [(8, 12), (15, 19), (23, 27), (31, 35)],
            (0, "send forward"): [(2, 3), (6, 7)],
            (1, "receive forward"): [(2, 3), (6, 7)],
            (1, "send forward"): {0: (5, 6)},
            (2, "receive forward"): {0: (5, 6)},
            # stage 1 meets stage 2 with its forwards and stage 0 with its backwards
            (1, DOWN): {1: (12, 13), 2: (20, 21), 3: (28, 29)},
            (2, UP): {0: (12, 13), 1: (20, 21), 2: (28, 29)},
            (0, DOWN): {2: (17, 18), 3: (25, 26)},
            (1, UP): {0: (17, 18), 1: (25, 26)},
            (1, "send backward"): {2: (33, 34), 3: (40, 41)},
            (0, "receive backward"): {2: (33, 34), 3: (40, 41)},
            (2, "send backward"): {3: (35, 36)},
            (1, "receive backward"): {3: (35, 36)},
        }
    )
    assert waits(answer) == {
        (1, "receive forward", 0): 2000,
        (2, "receive forward", 0): 5000,
        (0, "send forward", 1): 1000,  # stage 1 is still sending a0 on
        (1, DOWN, 1): 3000,
        (0, DOWN, 2): 8000,
        (2, UP, 1): 1000,
        (0, DOWN, 3): 1000,
        (2, UP, 2): 1000,
        (0, "receive backward", 2): 3000,
        (1, "receive backward", 3): 1000,
        (0, "receive backward", 3): 2000,
    }
    assert step_us(answer) == 45
