"""What the calls of a block cost its own computation follows from the block alone."""

from __future__ import annotations

import pytest

from foretrace.cost.local_overlap import MAX_COST, BlockOps, local_cost

COMPUTE, TP, DP = range(3)


def block(*ops: tuple[int, float, tuple[int, ...]]) -> BlockOps:
    """Ops as lane, seconds and what they wait for; those on the lane `tp` have use 0, on `dp` use 1."""
    lanes = [lane for lane, _, _ in ops]
    return BlockOps(
        alone_s=[seconds for _, seconds, _ in ops],
        lane=lanes,
        kernel=[0 if lane == COMPUTE else -1 for lane in lanes],
        use=[lane - TP if lane != COMPUTE else -1 for lane in lanes],
        after=[after for _, _, after in ops],
    )


def test_a_call_next_to_the_following_product_slows_that_product_alone() -> None:
    ops = block((COMPUTE, 1.0, ()), (TP, 3.0, (0,)), (COMPUTE, 1.0, ()), (COMPUTE, 1.0, (1,)))
    cost = local_cost(ops, [[1.5]])
    assert cost.cost_s == pytest.approx([0.0, 0.0, 0.5, 0.0])
    assert cost.rests == ()
    assert cost.last == 3


def test_a_call_is_followed_through_the_computations_after_its_start() -> None:
    # At half the pace, 2.5 s of a call cover 1.25 s of work.
    ops = block((COMPUTE, 1.0, ()), (TP, 2.5, (0,)), (COMPUTE, 1.0, ()), (COMPUTE, 1.0, ()))
    assert local_cost(ops, [[2.0]]).cost_s == pytest.approx([0.0, 0.0, 1.0, 0.25])


def test_what_a_call_leaves_to_what_follows_is_told() -> None:
    ops = block((COMPUTE, 1.0, ()), (TP, 5.0, (0,)), (COMPUTE, 1.0, ()), (TP, 1.0, (2,)))
    cost = local_cost(ops, [[2.0]])
    assert cost.covered[0][2] == pytest.approx(1.0)
    # The first call lasts 3 s longer than what it covers, and the second starts when it has ended.
    assert [(rest.past_s, rest.last_s) for rest in cost.rests] == [
        (pytest.approx(0.0), pytest.approx(3.0)),
        (pytest.approx(3.0), pytest.approx(1.0)),
    ]


def test_a_call_before_all_computation_covers_what_it_reaches() -> None:
    ops = block((TP, 1.0, ()), (DP, 2.0, ()), (COMPUTE, 1.0, (0,)))
    assert local_cost(ops, [[9.0, 1.25]]).cost_s == pytest.approx([0.0, 0.0, 0.2])


def test_calls_of_two_uses_at_once_leave_less_of_the_pace() -> None:
    ops = block((TP, 4.0, ()), (DP, 4.0, ()), (COMPUTE, 1.0, ()))
    assert local_cost(ops, [[1.5, 1.25]]).cost_s[2] == pytest.approx(0.75)


def test_calls_leave_a_share_of_the_pace() -> None:
    ops = block((TP, 1e9, ()), (COMPUTE, 1.0, ()))
    assert local_cost(ops, [[1e6]]).cost_s[1] == pytest.approx(MAX_COST)


def test_a_block_without_computation_leaves_its_calls_to_a_run() -> None:
    cost = local_cost(block((TP, 1.0, ())), [[2.0]])
    assert cost.last == -1
    assert cost.cost_s == [0.0]
