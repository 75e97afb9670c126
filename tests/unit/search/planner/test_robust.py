"""Draws of price errors say which plans cannot be told from the best, and which differ in what is not measured yet."""

from __future__ import annotations

import numpy as np

from foretrace.models.presets import model as preset
from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.robust import MEASURED_FIRST, MIN_TIES, front_of, rivals_of
from foretrace.workload.plan import Plan

DENSE, EXPERTS = preset("llama3-8b"), preset("mixtral-8x7b")


def table(*plans: Plan) -> PlanTable:
    return PlanTable.of(plans)


def test_a_plan_that_is_far_off_is_not_a_rival() -> None:
    plans = table(Plan(8, tp=1), Plan(8, tp=2), Plan(8, tp=4))
    rivals = rivals_of(plans, np.array([1.0, 1.01, 3.0]), 0, DENSE)
    assert rivals.rows.tolist() == [0, 1]
    assert rivals.indistinguishable == [0, 1]
    assert rivals.wins.sum() == 1.0
    assert rivals.wins[0] > rivals.wins[1] and 0 < rivals.ties[1] < 0.5


def test_the_best_comes_first_even_where_another_is_estimated_to_be_faster() -> None:
    rivals = rivals_of(table(Plan(8, tp=1), Plan(8, tp=2)), np.array([1.0, 0.99]), 0, DENSE)
    assert rivals.rows.tolist() == [0, 1]


def test_plans_that_share_all_errors_are_told_apart_by_any_difference() -> None:
    # Plans that differ in the batch only have the same layers and the same pipeline.
    alike = rivals_of(table(Plan(8, gbs=8), Plan(8, gbs=16)), np.array([1.0, 1.001]), 0, DENSE)
    assert alike.ties[1] == 0 and alike.indistinguishable == [0]
    partly = rivals_of(table(Plan(8, mbs=1), Plan(8, mbs=2)), np.array([1.0, 1.001]), 0, DENSE)
    assert partly.ties[1] >= MIN_TIES


def test_predictions_of_models_with_experts_err_more() -> None:
    plans, steps = table(Plan(8, tp=1), Plan(8, tp=2)), np.array([1.0, 1.1])
    assert rivals_of(plans, steps, 0, EXPERTS).spread > rivals_of(plans, steps, 0, DENSE).spread


def test_the_plans_to_measure_first_are_of_different_families() -> None:
    plans = table(*(Plan(64, tp=tp, zero=zero) for tp in (1, 2, 4, 8) for zero in (0, 1)))
    rivals = rivals_of(plans, np.linspace(1.0, 1.02, 8), 0, DENSE)
    chosen = rivals.measure_first
    assert chosen[0] == 0 and len(chosen) == MEASURED_FIRST
    assert len({int(rivals.families[place]) for place in chosen}) == MEASURED_FIRST
    assert set(chosen) <= set(rivals.indistinguishable)


def test_draws_are_the_same_every_time() -> None:
    plans, steps = table(*(Plan(64, tp=tp) for tp in (1, 2, 4))), np.array([1.0, 1.01, 1.02])
    first, second = (rivals_of(plans, steps, 0, DENSE) for _ in range(2))
    assert first.wins.tolist() == second.wins.tolist() and first.ties.tolist() == second.ties.tolist()


def test_a_front_has_the_plans_of_which_none_is_both_faster_and_smaller() -> None:
    assert front_of([3.0, 1.0, 2.0, 2.0, 4.0], [5, 9, 7, 6, 5]) == [1, 3, 0]
    assert front_of([1.0, 1.0], [5, 5]) == [0]
    assert front_of([], []) == []
