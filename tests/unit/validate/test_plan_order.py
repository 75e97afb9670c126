"""The order of plans, their regret and the spread of their errors, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foretrace.validate.plan_order import PLAN_ERRORS, PlanGroup, order_by, order_of, plan_groups, row_groups
from foretrace.validate.results import Compared, RowResult
from foretrace.validate.training_runs import RunConfig

BASE = RunConfig(
    id="",
    where="runs.csv:2",
    family="megatron-bridge",
    grade="A",
    model="llama3-8b",
    layers=None,
    hidden=None,
    ffn=None,
    heads=None,
    kv_heads=None,
    vocab=None,
    seq_len=8192,
    gpu="H100",
    gpus=16,
    mbs=1,
    gbs=128,
    dtype="BF16",
    recompute="none",
    notes="container 26.02; recipe",
)

Run = tuple[RunConfig, RowResult]


def run(name: str, measured: float | None, predicted: float = 1.0, **fields: Any) -> Run:
    config = replace(BASE, id=name, **fields)
    step = None if measured is None else Compared(measured, predicted)
    row = RowResult(name, config.family, config.grade, "h100-sxm", (), step, None, None, {}, True, "", ())
    return config, row


def groups_of(runs: Sequence[Run], *free: Any) -> tuple[PlanGroup, ...]:
    return plan_groups([config for config, _ in runs], [row for _, row in runs], free)


def ids(groups: Sequence[PlanGroup]) -> list[list[tuple[str, ...]]]:
    return [[plan.ids for plan in group.plans] for group in groups]


THREE = (run("a", 10.0, 12.0), run("b", 12.0, 11.0, tp=2), run("c", 20.0, 18.0, tp=4))


def test_a_pair_out_of_order_and_its_regret() -> None:
    order = order_of(groups_of(THREE))
    assert (order.groups, order.plans, order.pairs) == (1, 3, 3)
    assert [(pair.faster.ids, pair.slower.ids) for pair in order.wrong] == [(("a",), ("b",))]
    assert order.right_share == pytest.approx(2 / 3)
    assert order.tau == pytest.approx(1 / 3)
    assert order.mean_regret == order.max_regret == pytest.approx(0.2)


def test_a_common_error_leaves_no_spread() -> None:
    runs = [run("a", 10.0, 13.0), run("b", 20.0, 26.0, tp=2)]
    assert order_of(groups_of(runs)).spread == pytest.approx(0.0)


def test_the_spread_is_pooled_over_groups() -> None:
    runs = [
        run("a", 10.0, 10.0),
        run("b", 10.0, 10.0 * math.exp(0.2), tp=2),
        run("c", 10.0, 10.0, gpus=32),
        run("d", 10.0, 10.0, gpus=32, tp=2),
    ]
    # Two groups of two: squares 0.1² + 0.1² over two degrees of freedom.
    assert order_of(groups_of(runs)).spread == pytest.approx(0.1)


@pytest.mark.parametrize(("slower", "pairs"), [(10.49, 0), (10.51, 1)])
def test_near_ties_are_not_ordered(slower: float, pairs: int) -> None:
    order = order_of(groups_of([run("a", 10.0, 9.0), run("b", slower, 8.0, tp=2)]))
    assert order.pairs == len(order.wrong) == pairs
    assert order.tau == -1.0
    assert order.right_share == (0.0 if pairs else None)


def test_equal_predictions_are_not_right() -> None:
    runs = [run("a", 10.0, 9.0), run("b", 12.0, 9.0, overlap="an option that is not modelled")]
    order = order_of(groups_of(runs))
    assert (order.pairs, len(order.wrong), order.tau) == (1, 1, 0.0)
    # A reader of equal predictions may choose either plan.
    assert order.mean_regret == pytest.approx(0.2)


def test_groups_of_one_plan_say_nothing() -> None:
    assert not groups_of([run("a", 10.0), run("b", 11.0)])
    assert not groups_of([run("a", 10.0), run("b", None, tp=2)])
    order = order_of(())
    assert (order.groups, order.pairs) == (0, 0)
    assert order.right_share is order.tau is order.mean_regret is order.max_regret is order.spread is None


def test_rows_of_one_plan_are_one_measurement() -> None:
    (group,) = groups_of([run("a", 8.0, 10.0), run("again", 18.0, 10.0), run("b", 24.0, 10.0, tp=2)])
    assert ids([group]) == [[("a", "again"), ("b",)]]
    assert [pair.difference for pair in group.pairs] == [pytest.approx(1.0)]


@pytest.mark.parametrize(
    "fields",
    [
        {"family": "nemo"},
        {"model": "llama3-70b"},
        {"gpu": "H200"},
        {"gpus": 32},
        {"gpus_per_node": 4},
        {"interconnect": "8x200Gb"},
        {"seq_len": 4096},
        {"grade": "B"},
        {"sharding": "ZeRO-3 (DeepSpeed)"},
    ],
)
def test_other_jobs_and_machines_are_other_groups(fields: dict[str, Any]) -> None:
    runs = [run("a", 10.0), run("b", 10.0, tp=2, **fields)]
    assert not groups_of(runs, "batch", "compilation", "precision", "release")


@pytest.mark.parametrize(
    ("freedom", "fields"),
    [
        ("batch", {"gbs": 256}),
        ("precision", {"dtype": "FP8"}),
        ("release", {"notes": "container 26.04; recipe"}),
    ],
)
def test_plans_differ_in_what_is_free(freedom: str, fields: dict[str, Any]) -> None:
    runs = [run("a", 10.0), run("b", 10.0, tp=2, **fields)]
    assert not groups_of(runs)
    assert ids(groups_of(runs, freedom)) == [[("a",), ("b",)]]


def test_compiled_plans_are_free_to_be_compared() -> None:
    runs = [run("a", 10.0, family="torchtitan", notes="eager"), run("b", 8.0, family="torchtitan", notes="compile")]
    assert not groups_of(runs, "batch")
    assert ids(groups_of(runs, "compilation")) == [[("a",), ("b",)]]


def test_time_per_token_makes_batches_comparable() -> None:
    """A pair that differs in nothing but the batch is not a pair of plans."""
    runs = [run("a", 10.0, 10.0), run("b", 22.0, 30.0, tp=2, gbs=256), run("c", 30.0, 30.0, gbs=256)]
    (group,) = groups_of(runs, "batch")
    named = {(pair.faster.ids[0], pair.slower.ids[0]): pair for pair in group.pairs}
    assert named.keys() == {("a", "b"), ("b", "c")}
    assert named["a", "b"].difference == pytest.approx(0.1)
    assert named["a", "b"].predicted_difference == pytest.approx(0.5)
    assert named["b", "c"].predicted_difference == 0.0


def test_orders_by_name() -> None:
    runs = [*THREE, run("d", 10.0, 9.0, model="mixtral-8x7b"), run("e", 12.0, 11.0, model="mixtral-8x7b", ep=8)]
    orders = order_by(groups_of(runs), lambda group: "experts" if group.has_experts else "dense")
    assert {kind: (order.plans, len(order.wrong)) for kind, order in orders.items()} == {
        "dense": (3, 1),
        "experts": (2, 0),
    }
    assert orders.keys() == PLAN_ERRORS.keys()


class TestRows:
    """Rows of one model and one kind of GPU: GPU seconds per 8,192 tokens are gpus x step / gbs."""

    RUNS = (
        run("a", 8.0, 6.0, gpus=16, gbs=128),  # 1.0 measured, 0.75 predicted
        run("b", 16.0, 16.0, gpus=8, gbs=64, tp=2),  # 2.0, 2.0
        run("c", 8.32, 8.0, gpus=16, gbs=128, grade="B", mbs=2),  # 1.04, 1.0
        run("d", 4.0, 2.0, gpus=64, gbs=64, family="nemo", model="llama3_8b", dtype="FP8"),  # 4.0, 2.0
        run("e", 2.0, 8.0, gpu="H100-80GB", seq_len=4096, gbs=64),  # 1.0, 4.0: 2 x 16 / 32
    )

    @staticmethod
    def groups(runs: Sequence[Run], releases: bool = True) -> tuple[PlanGroup, ...]:
        return row_groups([config for config, _ in runs], [row for _, row in runs], releases=releases)

    def test_every_pair_counts(self) -> None:
        (group,) = self.groups(self.RUNS)
        order = order_of([group])
        # Of ten pairs, a-e, a-c and c-e are nearer than 5 %. e is predicted to be the slowest: out of order with b and
        # d. b and d are predicted to be equal.
        assert (order.groups, order.plans, order.pairs) == (1, 5, 7)
        assert {(pair.faster.ids[0], pair.slower.ids[0]) for pair in order.wrong} == {
            ("b", "d"),
            ("e", "b"),
            ("e", "d"),
        }
        assert order.right_share == pytest.approx(4 / 7)
        # In order: a-b, a-c, a-d, b-c, c-d, and a-e, whose measured times are equal, in the order of the table.
        assert order.tau == pytest.approx((6 - 3) / 10)
        assert order.max_regret == 0.0
        assert group.family == "megatron-bridge, nemo"

    def test_regret_is_that_of_the_predicted_fastest(self) -> None:
        runs = [run("a", 10.0, 12.0), run("b", 15.0, 11.0, gpus=8, gbs=128), run("c", 20.0, 30.0, tp=4)]
        # GPU times: 160, 120, 320 measured; 192, 88, 480 predicted. Without b: a is chosen, and is the fastest.
        assert order_of(self.groups(runs)).mean_regret == 0.0
        runs[1] = run("b", 25.0, 11.0, gpus=8, gbs=128)  # 200 measured: chosen, 25 % slower than a
        assert order_of(self.groups(runs)).mean_regret == pytest.approx(0.25)

    def test_rows_of_one_plan_are_pairs(self) -> None:
        repeats = (run("a", 10.0, 10.0), run("again", 15.0, 10.0))
        order = order_of(self.groups(repeats))
        assert (order.plans, order.pairs, len(order.wrong)) == (2, 1, 1)
        assert order.mean_regret == pytest.approx(0.5)

    def test_releases_can_be_left_out(self) -> None:
        newer = run("newer", 8.0, 10.0, notes="container 26.04; recipe")
        other = run("other", 12.0, 11.0, tp=2, notes="container 26.04; recipe")
        runs = [run("a", 10.0, 10.0), newer, other]
        assert order_of(self.groups(runs)).pairs == 3
        (group,) = self.groups(runs, releases=False)
        assert {(pair.faster.ids[0], pair.slower.ids[0]) for pair in group.pairs} == {
            ("a", "other"),
            ("newer", "other"),
        }
        # Both rows of the configuration that is chosen are faster than the other one.
        assert group.regret == 0.0
        assert not self.groups(runs[:2], releases=False)

    @pytest.mark.parametrize("fields", [{"model": "llama3-70b"}, {"gpu": "H200"}, {"gpu": "H100 500 W"}])
    def test_other_models_and_gpus_are_not_compared(self, fields: dict[str, Any]) -> None:
        assert not self.groups([run("a", 10.0), run("b", 12.0, **fields)])
