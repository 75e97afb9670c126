"""Predictions order the measured plans of models on one H200 (benchmarks/truth/h200_plans.jsonl)."""

from __future__ import annotations

from foretrace import Machine, PriceSources
from foretrace.validate.plan_order import order_of, plan_groups
from foretrace.validate.training_runs import read_training_runs
from foretrace.validate.validate import validate
from shared_files import ROOT

TRUTH = ROOT / "benchmarks" / "truth"


def test_plans_of_one_batch_are_in_order() -> None:
    runs = read_training_runs(TRUTH / "h200_plans.jsonl")
    validation = validate(runs, Machine(prices=PriceSources(silicon=False)), bands=False, workers=1)
    order = order_of(plan_groups([run.config for run in runs.runs], validation.rows, free=()))
    assert (order.groups, order.plans, order.pairs) == (16, 68, 98)
    assert order.right_share is not None and order.right_share >= 0.95
    assert order.max_regret is not None and order.max_regret < 0.01
