"""One slow rank in tp 2 · pp 2 · dp: who waits for it, for how long, and how many rank classes it makes.

1F1B with two microbatches. A forward is 4 µs and an all-reduce over tp of 2 µs on the same lane, a backward 8 and 2 µs; a
transfer between stages 2 µs; in the end gradients are reduced over dp (4 µs) and the optimizer runs (2 µs). Rank 1, of
stage 0, takes 1.5 times as long for everything, its own part of a collective included.
"""

from __future__ import annotations

import pytest

from foretrace import Mesh, Program, ProgramBuilder, Transfer, pipeline, schedule, simulate
from foretrace.schedules import Action, ActionKind
from golden.reading import US, parts_us, seconds, step_us, times, us

SLOW = {1: 1.5}


def program(dp: int) -> Program:
    build = ProgramBuilder(Mesh(tp=2, pp=2, dp=dp), repeats=False)
    blocks = {}
    for kind, duration in ((ActionKind.FORWARD, 4), (ActionKind.BACKWARD, 8)):
        block = blocks[kind] = build.block(kind.letter)
        computed = block.compute(kind.letter, duration * US)
        block.collective(
            "all_reduce", build.communicator("tp"), 2 * US, name=f"{kind.letter} tp", lane="compute", after=computed
        )
    line = pipeline(build, schedule("1f1b", 2, 2), lambda _, action: blocks[action.kind], Transfer(duration_s=2 * US))
    for stage, role in enumerate(line.stages):
        last = line.placed[stage, Action(ActionKind.BACKWARD, 1)]["out"]
        reduced = role.collective("all_reduce", build.communicator("dp"), 4 * US, name="gradients", after=last)
        role.compute("optimizer", 2 * US, phase="optimizer", after=reduced)
    return build.program()


def test_timeline_of_every_rank() -> None:
    """Ranks 0 to 3 are stage 0, 4 to 7 stage 1; 0-1, 2-3, 4-5, 6-7 are the tp pairs, 0-2, 1-3, 4-6, 5-7 the dp pairs.
    Times are those of the computation | its tp all-reduce.

    Replica 0     rank 0 (tp)            rank 1 (slow)           ranks 4, 5
    F0            0-4   | 6-8            0-6   | 6-9             10-14, 11-15 | 15-17
    F1            8-12  | 15-17          9-15  | 15-18           27-31 | 31-33
    B0            29-37 | 42-44          30-42 | 42-45           17-25 | 25-27
    B1            45-53 | 58-60          46-58 | 58-61           33-41 | 41-43
    a0, a1        8-10, 17-19            9-12, 18-21             as rank 0; 9-11, 18-20
    g0, g1        27-29, 43-45           27-30, 43-46            27-29, 43-45
    gradients     60-64                  61-67                   43-47
    optimizer     64-66                  67-70                   47-49

    Replica 1     ranks 2, 3             ranks 6, 7
    F0            0-4   | 4-6            8-12  | 12-14
    F1            6-10  | 10-12          24-28 | 28-30
    B0            26-34 | 34-36          14-22 | 22-24
    B1            42-50 | 50-52          30-38 | 38-40
    a0, a1        6-8, 12-14
    g0, g1        24-26, 40-42
    gradients     60-64, 61-65           43-47
    optimizer     64-66, 65-67           47-49
    """
    answer = simulate(program(2), stragglers=SLOW)
    drawn = {
        (0, "F"): [(0, 4), (8, 12)],
        (0, "F tp"): [(6, 8), (15, 17)],
        (0, "B"): [(29, 37), (45, 53)],
        (0, "B tp"): [(42, 44), (58, 60)],
        (0, "send forward"): [(8, 10), (17, 19)],
        (0, "receive backward"): [(27, 29), (43, 45)],
        (0, "gradients"): (60, 64),
        (0, "optimizer"): (64, 66),
        (1, "F"): [(0, 6), (9, 15)],
        (1, "F tp"): [(6, 9), (15, 18)],
        (1, "B"): [(30, 42), (46, 58)],
        (1, "B tp"): [(42, 45), (58, 61)],
        (1, "send forward"): [(9, 12), (18, 21)],
        (1, "receive backward"): [(27, 30), (43, 46)],
        (1, "gradients"): (61, 67),
        (1, "optimizer"): (67, 70),
        (4, "F"): [(10, 14), (27, 31)],
        (5, "F"): [(11, 15), (27, 31)],
        (4, "receive forward"): [(8, 10), (17, 19)],
        (5, "receive forward"): [(9, 11), (18, 20)],
        (2, "gradients"): (60, 64),
        (3, "gradients"): (61, 65),
        (2, "optimizer"): (64, 66),
        (3, "optimizer"): (65, 67),
    }
    for rank in (4, 5):
        drawn |= {
            (rank, "F tp"): [(15, 17), (31, 33)],
            (rank, "B"): [(17, 25), (33, 41)],
            (rank, "B tp"): [(25, 27), (41, 43)],
            (rank, "send backward"): [(27, 29), (43, 45)],
        }
    for rank in (2, 3):
        drawn |= {
            (rank, "F"): [(0, 4), (6, 10)],
            (rank, "F tp"): [(4, 6), (10, 12)],
            (rank, "B"): [(26, 34), (42, 50)],
            (rank, "B tp"): [(34, 36), (50, 52)],
            (rank, "send forward"): [(6, 8), (12, 14)],
            (rank, "receive backward"): [(24, 26), (40, 42)],
        }
    for rank in (6, 7):
        drawn |= {
            (rank, "F"): [(8, 12), (24, 28)],
            (rank, "F tp"): [(12, 14), (28, 30)],
            (rank, "B"): [(14, 22), (30, 38)],
            (rank, "B tp"): [(22, 24), (38, 40)],
            (rank, "receive forward"): [(6, 8), (12, 14)],
            (rank, "send backward"): [(24, 26), (40, 42)],
        }
    for rank in (4, 5, 6, 7):
        drawn |= {(rank, "gradients"): (43, 47), (rank, "optimizer"): (47, 49)}
    assert times(answer) == us(drawn)
    assert step_us(answer) == 70
    # Healthy, every replica is as replica 1 up to 52, then gradients and optimizer.
    assert step_us(simulate(program(2))) == 58


def test_what_the_others_lose() -> None:
    """A gap is the straggler's where the chain that ends it left the rank through tp or dp, and a bubble where it left
    through pp, whatever made the other stage late.

    Rank 0: tp all-reduces 6-8 and 58-60 after waiting for rank 1 from 4 and from 53; 12-29 and 37-45 end with a gradient
    from stage 1 (2 µs of transfer each, 15 + 6 of bubble); gradients 60-64; idle from 66.
    Rank 2: 10-26 and 34-42 end with a gradient (14 + 6 of bubble); 50-60 it waits for rank 0, which waits for rank 1.
    Rank 5: 0-9 it waits for rank 1's slow F0, across pp; idle from 49.
    Rank 1: itself waits for nobody but stage 1: 15-27 and 42-43.
    """
    answer = simulate(program(2), stragglers=SLOW)
    own = {"compute": 24, "optimizer": 2, "pp exposed": 4, "dp exposed": 4}
    assert parts_us(answer, 0) == own | {"tp exposed": 4, "bubble": 21, "straggler": 7, "idle": 4}
    assert parts_us(answer, 2) == own | {"tp exposed": 2, "bubble": 20, "straggler": 10, "idle": 4}
    assert parts_us(answer, 5) == own | {"pp exposed": 2, "tp exposed": 8, "bubble": 9, "idle": 21}
    assert parts_us(answer, 1) == {
        "compute": 36,
        "optimizer": 3,
        "tp exposed": 6,
        "pp exposed": 6,
        "dp exposed": 6,
        "bubble": 13,
    }


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_folded_and_unfolded_agree_to_the_last_bit(dp: int) -> None:
    """On each stage the ranks divide into the slow one's own place, its tp partner, its dp partners and the rest: 4 classes
    a stage, however large dp is. With dp = 2 each of the 8 holds one rank. Without a slow rank there are 2."""
    folded = simulate(program(dp), stragglers=SLOW)
    unfolded = simulate(program(dp), stragglers=SLOW, folded=False)
    classes = folded.timeline.graph.classes
    assert sorted(classes.count.tolist()) == [1] * 4 + [dp - 1] * 4
    assert len(unfolded.timeline.graph.classes) == 4 * dp
    assert seconds(folded) == seconds(unfolded)
    assert folded.step_time_s == unfolded.step_time_s
    per_rank = folded.breakdown.per_class_s[classes.of_rank]
    assert per_rank.tolist() == unfolded.breakdown.per_class_s.tolist()
    assert len(simulate(program(dp)).timeline.graph.classes) == 2
