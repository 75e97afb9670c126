"""A proof simulates as few plans as bounds allow, keeps what it has, and says what it has not decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.proof import BATCHES, Limits, Prover, plan_key, rounded
from foretrace.search.planner.simulator import SimulatedPlan
from foretrace.workload.plan import Plan


@dataclass
class FakeSimulator:
    """Knows the step of each plan by its number of microbatches' sequences, and remembers what it was asked for."""

    steps_s: Sequence[float]
    needed_bytes: Sequence[int]
    fits: Sequence[bool]
    interrupt_at: int | None = None
    asked: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def run(self, plans: Sequence[Plan]) -> list[SimulatedPlan]:
        if self.interrupt_at is not None and len(self.asked) + len(plans) > self.interrupt_at:
            raise KeyboardInterrupt
        rows = [plan.mbs - 1 for plan in plans]
        self.asked += rows
        self.batches.append(len(rows))
        return [
            SimulatedPlan(self.steps_s[row], needed := self.needed_bytes[row], needed, needed - (not self.fits[row]))
            for row in rows
        ]


def prover(
    steps_s: Sequence[float],
    bounds_s: Sequence[float],
    estimates_s: Sequence[float] | None = None,
    *,
    needed_bytes: Sequence[int] | None = None,
    fits: Sequence[bool] | None = None,
    interrupt_at: int | None = None,
    weights: Sequence[float] | None = None,
) -> tuple[Prover, FakeSimulator]:
    """A proof over plans that differ in `mbs`, and its simulator."""
    count = len(steps_s)
    simulator = FakeSimulator(steps_s, needed_bytes or [10] * count, fits or [True] * count, interrupt_at)
    table = PlanTable.of([Plan(8, mbs=row + 1, gbs=64) for row in range(count)])
    guesses = np.array(steps_s if estimates_s is None else estimates_s, dtype=float)
    own = None if weights is None else np.array(weights, dtype=float)
    return Prover(table, np.array(bounds_s, dtype=float), guesses, simulator, own), simulator


def test_simulates_by_estimate_until_bounds_exceed_the_best() -> None:
    proving, simulator = prover([5.0, 3.0, 4.0, 9.0], [4.0, 2.9, 3.5, 8.0])
    proof = proving.prove(Limits())
    assert simulator.asked == [1]
    assert proving.best() == 1
    assert proving.best_s() == proving.lower_bound_s() == 3.0
    assert not proving.undecided() and proof.stopped_by is None


def test_a_wrong_order_of_estimates_costs_simulations_but_not_the_winner() -> None:
    proving, simulator = prover([5.0, 3.0, 4.0, 9.0], [2.0, 2.9, 2.8, 8.0], [1.0, 9.0, 2.0, 3.0])
    proving.prove(Limits())
    assert proving.best() == 1
    assert sorted(simulator.asked) == [0, 1, 2]


def test_a_bound_equal_to_the_best_step_is_simulated() -> None:
    proving, simulator = prover([3.0, 3.0, 4.0], [3.0, 3.0 * (1 + 1e-9), 3.0 * (1 + 1e-8)])
    proving.prove(Limits())
    assert simulator.asked == [0, 1]


def test_ties_go_to_less_memory_then_to_the_smaller_fields() -> None:
    steps = [3.0, 3.0, 3.0, 3.0]
    bounds = [2.9] * 4
    assert prover_best(steps, bounds, [20, 12, 11, 15]) == 2
    assert prover_best(steps, bounds, [20, 12, 12, 15]) == 1
    # What rounding hides does not decide.
    assert prover_best([3.0, 3.0 * (1 - 1e-11), 3.0, 3.0], bounds, [12, 13, 14, 15]) == 0
    assert plan_key(Plan(8, mbs=1)) < plan_key(Plan(8, mbs=2))
    assert plan_key(Plan(8, gbs=None)) < plan_key(Plan(8, gbs=1))


def prover_best(steps_s: Sequence[float], bounds_s: Sequence[float], needed_bytes: Sequence[int]) -> int | None:
    proving, _ = prover(steps_s, bounds_s, needed_bytes=needed_bytes)
    proving.prove(Limits())
    return proving.best()


def test_a_gap_ends_the_proof_early_and_says_what_is_left() -> None:
    steps, bounds = [3.0, 2.99, 2.98], [2.96, 2.975, 2.97]
    proving, simulator = prover(steps, bounds, [1.0, 2.0, 3.0])
    proof = proving.prove(Limits(gap=0.02))
    assert simulator.asked == [0]
    assert proof.stopped_by == "gap"
    assert proving.undecided() == [1, 2] and not proving.undecided(0.02)
    assert proving.lower_bound_s() == 2.97
    closed, _ = prover([3.0, 4.0], [2.9, 3.9])
    assert closed.prove(Limits(gap=0.02)).stopped_by is None


def test_limits_of_simulations_and_time_keep_what_is_done() -> None:
    steps, bounds = [3.0, 2.9, 2.8, 2.7], [1.0, 1.1, 1.2, 1.3]
    proving, simulator = prover(steps, bounds, [1.0, 2.0, 3.0, 4.0])
    proof = proving.prove(Limits(simulations=2))
    assert proof.stopped_by == "simulations" and simulator.asked == [0, 1]
    assert proving.best() == 1 and proving.undecided() == [2, 3]
    assert proving.lower_bound_s() == 1.2
    proving, simulator = prover(steps, bounds, [1.0, 2.0, 3.0, 4.0])
    proof = proving.prove(Limits(time_s=1e-12))
    assert proof.stopped_by == "time"
    assert simulator.asked == [0], "one plan is always simulated"
    assert proving.undecided() == [1, 2, 3]


def test_a_limit_that_is_reached_as_all_is_decided_stopped_nothing() -> None:
    for limits in (Limits(simulations=1), Limits(time_s=1e-12)):
        proving, _ = prover([3.0, 5.0], [2.9, 4.9])
        assert proving.prove(limits).stopped_by is None
        assert not proving.undecided()


def test_an_interrupt_keeps_the_results_before_it() -> None:
    proving, simulator = prover([3.0, 2.9, 2.8], [1.0, 1.1, 1.2], [1.0, 2.0, 3.0], interrupt_at=2)
    proof = proving.prove(Limits())
    assert proof.stopped_by == "interrupt"
    assert simulator.asked == [0, 1] and proving.best() == 1
    assert proving.undecided() == [2]


def test_a_plan_that_does_not_fit_after_all_is_never_the_best() -> None:
    proving, simulator = prover([2.0, 3.0], [1.9, 2.9], fits=[False, True])
    proving.prove(Limits())
    assert simulator.asked == [0, 1] and proving.best() == 1
    assert proving.proof.refuted == {0}
    assert proving.expected_s().tolist() == [np.inf, 3.0]
    nothing, _ = prover([2.0], [1.9], fits=[False])
    nothing.prove(Limits())
    assert nothing.best() is None and not nothing.undecided()


def test_sizes_of_batches_do_not_depend_on_anything_else() -> None:
    count = sum(BATCHES) + 20
    proving, simulator = prover([3.0] * count, [1.0] * count)
    proving.prove(Limits())
    assert tuple(simulator.batches[: len(BATCHES)]) == BATCHES
    assert sorted(simulator.asked) == list(range(count))


def test_a_run_at_the_level_of_actions_saves_simulations() -> None:
    proving, simulator = prover([3.0, 3.5, 4.0], [2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    exact = [2.9, 3.4, 2.95]
    proving.action_s = lambda plan: exact[plan.mbs - 1]
    proof = proving.prove(Limits())
    assert simulator.asked == [0, 2]
    assert proof.action_runs == 2
    assert proof.values[1] == 3.4
    assert not proving.undecided()


def test_weights_count_the_tokens_of_a_step() -> None:
    # The second plan's step is longer, but it trains twice as many tokens in it.
    proving, _ = prover([3.0, 4.0], [2.9, 1.9], [2.9, 1.9], weights=[1.0, 0.5])
    proving.prove(Limits())
    assert proving.best() == 1 and proving.best_s() == 2.0
    assert proving.expected_s().tolist() == [2.9, 4.0]


def test_estimates_below_their_bounds_are_not_believed() -> None:
    proving, _ = prover([3.0, 5.0], [2.9, 4.9], [2.9, 4.0])
    proving.prove(Limits())
    assert proving.expected_s().tolist() == [3.0, 4.9]


@pytest.mark.parametrize(("seconds", "expected"), [(1.23456789049, 1.23456789), (0.0, 0.0), (1e-30, 1e-30)])
def test_steps_are_compared_in_nine_digits(seconds: float, expected: float) -> None:
    assert rounded(seconds) == expected


def test_time_ends_runs_at_the_level_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("foretrace.search.planner.proof.time.monotonic", lambda: float(next(clock)))
    count = 50
    proving, _ = prover([5.0] + [9.0] * (count - 1), [1.0] * count, [1.0] + [2.0] * (count - 1))
    proving.action_s = lambda _: 8.0
    proof = proving.prove(Limits(time_s=8.0))
    assert proof.stopped_by == "time" and 0 < proof.action_runs < count - 1
    assert proving.undecided()


def test_time_does_not_end_a_proof_before_a_plan_fits() -> None:
    proving, _ = prover([1.0, 2.0, 3.0, 4.0], [0.5] * 4, fits=[False, False, True, True])
    proving.prove(Limits(time_s=0.0))
    assert proving.best() == 2
