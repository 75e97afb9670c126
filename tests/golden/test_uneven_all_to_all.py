"""An all-to-all in which ranks have different amounts to send and come at different times."""

from __future__ import annotations

import pytest

from foretrace import Mesh, Program, ProgramBuilder, simulate
from golden.reading import US, mean_us, parts_us, step_us, times, us, waits

BEFORE_US = (3, 5, 4, 8)
SENDS_KB = ((0, 0, 0, 4), (0, 0, 0, 1), (0, 0, 0, 1), (3, 1, 2, 0))
"""From each rank to each; at 1 KB/µs either way a rank takes as long as the greater of what it sends and gets."""


def program(*, repeats: bool) -> Program:
    build = ProgramBuilder(Mesh(dp=4, ep=4), repeats=repeats)
    ep = build.communicator("ep")
    for rank, before_us in enumerate(BEFORE_US):
        sent, received = sum(SENDS_KB[rank]), sum(row[rank] for row in SENDS_KB)
        sends = {to: 1000 * size for to, size in enumerate(SENDS_KB[rank])}
        role = build.role(f"rank {rank}", [rank])
        before = role.compute("before", before_us * US)
        moved = role.collective(
            "all_to_all", ep, max(sent, received) * US, bytes=1000 * sent, sends=sends, after=before
        )
        role.compute("after", 2 * US, after=moved)
    return build.program()


def test_all_start_together_and_each_ends_with_its_own() -> None:
    """Rank 3 comes last, at 8, and has most to move.

         0        3  4  5        8  9  10 11 12    14    16
    0    | before |..............|    a2a    |after|
    1    |    before    |........|  |after|
    2    |   before  |...........| a2a |after|
    3    |         before        |       a2a       |after|
    """
    answer = simulate(program(repeats=False))
    assert times(answer) == us(
        {
            (0, "before"): (0, 3),
            (1, "before"): (0, 5),
            (2, "before"): (0, 4),
            (3, "before"): (0, 8),
            (0, "all_to_all"): (8, 12),
            (1, "all_to_all"): (8, 9),
            (2, "all_to_all"): (8, 10),
            (3, "all_to_all"): (8, 14),
            (0, "after"): (12, 14),
            (1, "after"): (9, 11),
            (2, "after"): (10, 12),
            (3, "after"): (14, 16),
        }
    )
    assert waits(answer) == {(0, "all_to_all", -1): 5000, (1, "all_to_all", -1): 3000, (2, "all_to_all", -1): 4000}
    assert step_us(answer) == 16
    # Waiting for rank 3 is not transfer, but imbalance.
    assert parts_us(answer, 0) == {"compute": 5, "ep exposed": 4, "imbalance": 5, "idle": 2}
    assert parts_us(answer, 1) == {"compute": 7, "ep exposed": 1, "imbalance": 3, "idle": 5}
    assert parts_us(answer, 2) == {"compute": 6, "ep exposed": 2, "imbalance": 4, "idle": 4}
    assert parts_us(answer, 3) == {"compute": 10, "ep exposed": 6}


def test_step_after_step_the_straggler_sets_the_period() -> None:
    """The others are ready for the next all-to-all earlier still, and wait for rank 3 for all they are ahead."""
    answer = simulate(program(repeats=True))
    assert step_us(answer) == 16
    assert parts_us(answer, 0) == {"compute": 5, "ep exposed": 4, "imbalance": 7}
    assert parts_us(answer, 1) == {"compute": 7, "ep exposed": 1, "imbalance": 8}
    assert parts_us(answer, 2) == {"compute": 6, "ep exposed": 2, "imbalance": 8}
    assert parts_us(answer, 3) == {"compute": 10, "ep exposed": 6}
    assert mean_us(answer) == {"compute": 7, "ep exposed": 3.25, "imbalance": 5.75}
    # Rank 1 begins a step first, 5 µs before rank 3 does.
    assert times(answer)[1, "before", -1] == (0, 5000)
    assert times(answer)[3, "before", -1] == (5000, 13000)
    assert waits(answer)[1, "all_to_all", -1] == 8000


@pytest.mark.parametrize("shared", ["held SMs", "drawn link"])
def test_a_member_that_has_ended_leaves_what_it_shared(shared: str) -> None:
    """Rank 0 has 2 µs to move and rank 1 6 µs. What rank 0 held, and its link, are its own again from 2 on:

         0     2     4     6     8
    0    | a2a |after|
    1    |       a2a       |after|
    """
    build = ProgramBuilder(Mesh(dp=2, ep=2), repeats=False)
    sm, link = build.resource("sm", 1.0), build.resource("link", 1e9)
    ep = build.communicator("ep")
    for rank, moves_us in enumerate((2, 6)):
        role = build.role(f"rank {rank}", [rank])
        holds = {sm: 0.5} if shared == "held SMs" else None
        moved = role.collective("all_to_all", ep, moves_us * US, draws={link: 1000.0 * moves_us}, holds=holds)
        role.compute("after", 2 * US, draws={sm: 2 * US} if holds else {link: 2000.0}, after=moved)
    assert times(simulate(build.program())) == us(
        {(0, "all_to_all"): (0, 2), (1, "all_to_all"): (0, 6), (0, "after"): (2, 4), (1, "after"): (6, 8)}
    )
