"""One slow rank in tp 2 · pp 2 · dp: who waits for it, for how long, and how many rank classes it makes.

1F1B with two microbatches. A forward is 4 µs and an all-reduce over tp of 2 µs on the same lane, a backward 8 and 2
µs; a transfer between stages 2 µs; in the end gradients are reduced over dp (4 µs) and the optimizer runs (2 µs).
Rank 1, of stage 0, takes 1.5 times as long to compute.
"""

from __future__ import annotations

import pytest

from foretrace import Mesh, Program, ProgramBuilder, Scenario, Transfer, pipeline, schedule, simulate
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
    Times are those of the computation | its tp all-reduce; aN goes from stage 0 to 1, gN back.

                  replica 0                                       replica 1
                  rank 0           rank 1        ranks 4, 5       ranks 2, 3       ranks 6, 7
    F0            0-4   | 6-8      0-6           10-14 | 14-16    0-4   | 4-6      8-12  | 12-14
    F1            8-12  | 14-16    8-14          26-30 | 30-32    6-10  | 10-12    24-28 | 28-30
    B0            28-36 | 40-42    28-40         16-24 | 24-26    26-34 | 34-36    14-22 | 22-24
    B1            44-52 | 56-58    44-56         32-40 | 40-42    42-50 | 50-52    30-38 | 38-40
    a0, a1        8-10, 16-18                                     6-8, 12-14
    g0, g1        26-28, 42-44                                    24-26, 40-42
    gradients     58-62            58-62         42-46            58-62            42-46
    optimizer     62-64            62-65         46-48            62-64            46-48
    """
    answer = simulate(program(2), None, Scenario(stragglers=SLOW))
    drawn = {
        (0, "F"): [(0, 4), (8, 12)],
        (1, "F"): [(0, 6), (8, 14)],
        (0, "B"): [(28, 36), (44, 52)],
        (1, "B"): [(28, 40), (44, 56)],
        (0, "optimizer"): (62, 64),
        (1, "optimizer"): (62, 65),
    }
    for rank in (0, 1):
        drawn |= {
            (rank, "F tp"): [(6, 8), (14, 16)],
            (rank, "B tp"): [(40, 42), (56, 58)],
            (rank, "send forward"): [(8, 10), (16, 18)],
            (rank, "receive backward"): [(26, 28), (42, 44)],
            (rank, "gradients"): (58, 62),
        }
    for rank in (4, 5):
        drawn |= {
            (rank, "F"): [(10, 14), (26, 30)],
            (rank, "F tp"): [(14, 16), (30, 32)],
            (rank, "B"): [(16, 24), (32, 40)],
            (rank, "B tp"): [(24, 26), (40, 42)],
            (rank, "receive forward"): [(8, 10), (16, 18)],
            (rank, "send backward"): [(26, 28), (42, 44)],
        }
    for rank in (2, 3):
        drawn |= {
            (rank, "F"): [(0, 4), (6, 10)],
            (rank, "F tp"): [(4, 6), (10, 12)],
            (rank, "B"): [(26, 34), (42, 50)],
            (rank, "B tp"): [(34, 36), (50, 52)],
            (rank, "send forward"): [(6, 8), (12, 14)],
            (rank, "receive backward"): [(24, 26), (40, 42)],
            (rank, "gradients"): (58, 62),
            (rank, "optimizer"): (62, 64),
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
        drawn |= {(rank, "gradients"): (42, 46), (rank, "optimizer"): (46, 48)}
    assert times(answer) == us(drawn)
    assert step_us(answer) == 65
    # Healthy, every replica is as replica 1 up to 52, then gradients and optimizer.
    assert step_us(simulate(program(2))) == 58


def test_what_the_others_lose() -> None:
    """A gap is the straggler's where the chain that ends it left the rank through tp or dp, and a bubble where it left
    through pp, whatever made the other stage late.

    Rank 0: the tp all-reduces at 6 and at 56 have waited for rank 1 since 4 and 52; 12-28 and 36-44 end with a gradient
    from stage 1 (14 + 6 of bubble, 2 µs of transfer each); gradients 58-62; idle from 64.
    Rank 2: 10-26 and 34-42 end with a gradient (14 + 6 of bubble); 50-58 it waits for rank 0, which waits for rank 1.
    Rank 5: 0-8 it waits for rank 1's slow F0, across pp; idle from 48.
    Rank 1: itself waits for nobody but stage 1: 14-26 and 40-42.
    """
    answer = simulate(program(2), None, Scenario(stragglers=SLOW))
    own = {"compute": 24, "optimizer": 2, "pp exposed": 4, "dp exposed": 4}
    assert parts_us(answer, 0) == own | {"tp exposed": 4, "bubble": 20, "straggler": 6, "idle": 1}
    assert parts_us(answer, 2) == own | {"tp exposed": 2, "bubble": 20, "straggler": 8, "idle": 1}
    assert parts_us(answer, 5) == own | {"pp exposed": 2, "tp exposed": 8, "bubble": 8, "idle": 17}
    assert parts_us(answer, 1) == own | {"compute": 36, "optimizer": 3, "tp exposed": 4, "bubble": 14}


def test_a_slow_link_slows_all_who_meet_over_it() -> None:
    """Rank 1 takes twice as long over dp: its group, 1 and 3, reduces 52-60, all others as ever; 60 + 2 = 62."""
    answer = simulate(program(2), None, Scenario(slow_links={(1, "dp"): 2}))
    gradients = {rank: span for (rank, name, _), span in times(answer).items() if name == "gradients"}
    slow, healthy, second = (52_000, 60_000), (52_000, 56_000), (40_000, 44_000)
    assert gradients == {0: healthy, 1: slow, 2: healthy, 3: slow} | dict.fromkeys(range(4, 8), second)
    assert step_us(answer) == 62


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_folded_and_unfolded_agree_to_the_last_bit(dp: int) -> None:
    """On each stage the ranks divide into the slow one's own place, its tp partner, its dp partners and the rest: 4
    classes a stage, however large dp is. With dp = 2 each of the 8 holds one rank. Without a slow rank there are 2."""
    folded = simulate(program(dp), None, Scenario(stragglers=SLOW))
    unfolded = simulate(program(dp), None, Scenario(stragglers=SLOW), folded=False)
    classes = folded.timeline.graph.classes
    assert sorted(classes.count.tolist()) == [1] * 4 + [dp - 1] * 4
    assert len(unfolded.timeline.graph.classes) == 4 * dp
    assert seconds(folded) == seconds(unfolded)
    assert folded.step_time_s == unfolded.step_time_s
    per_rank = folded.breakdown.per_class_s[classes.of_rank]
    assert per_rank.tolist() == unfolded.breakdown.per_class_s.tolist()
    assert len(simulate(program(dp)).timeline.graph.classes) == 2
