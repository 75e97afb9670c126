"""Laws of fields without effect: plans that differ in nothing else are the same step, kernel by kernel."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from foretrace.models.presets import model as preset
from foretrace.workload.constraints import broken
from foretrace.workload.plan import Plan
from foretrace.workload.rules.idle_fields import IDLE, first_equal_order
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec

VALUES: dict[str, tuple[Any, ...]] = {
    "sequence_parallel": (False, True),
    "cp_comm": ("p2p", "all_gather", "a2a"),
    "dispatcher": ("alltoall", "deepep", "hybridep"),
    "moe_overlap": (False, True),
    "routing": (None, 1.0, 1.5),
    "tp_overlap": (False, True),
    "schedule": (None, "1f1b", "interleaved-1f1b", "zb-h1", "gpipe"),
    "pp_overlap": (False, True),
    "account_for": (None, (), ("loss",), ("embedding", "loss")),
    "shard": (None, 1, 2, 4),
    "grad_overlap": (False, True),
    "param_overlap": (False, True),
}
STATED = ("diagnostics", "pp_overlap")
"""Fields of a step that repeat what the plan says."""
PAIRS = 2


def is_same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if is_dataclass(left):
        names = [field.name for field in fields(left) if field.name not in STATED]
        return all(is_same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(value, right[key]) for key, value in left.items())
    is_nan = isinstance(left, float) and math.isnan(left) and math.isnan(right)
    return bool(left == right or is_nan or callable(left))


def random_plans(name: str) -> Iterator[PlanSizes]:
    """Yields sizes of plans that run."""
    source, model = random.Random(3), preset(name)
    sizes = PlanSizes.of(model, Plan(1))
    while True:
        plan = Plan(
            source.choice((1, 2, 4)),
            gbs=16,
            tp=source.choice((1, 1, 2)),
            cp=source.choice((1, 1, 2)),
            pp=source.choice((1, 2)),
            vpp=source.choice((1, 1, 2)),
            ep=source.choice((1, 2)) if model.has_experts else 1,
            zero=source.choice((0, 1, 2, 3)),
            stack=source.choice(("megatron-core", "fsdp", "torch-eager")),
            **{field: source.choice(values) for field, values in VALUES.items()},
        )
        candidate = sizes.with_plan(plan)
        if not any(broken(candidate)):
            yield candidate


@pytest.mark.parametrize("name", ["llama3.2-1b", "mixtral-8x7b"])
def test_a_field_without_effect_changes_nothing_of_the_step(name: str) -> None:
    assert set(VALUES) == set(IDLE)
    compared = Counter(dict.fromkeys(VALUES, 0))
    for sizes in random_plans(name):
        for field in (field for field in VALUES if compared[field] < PAIRS and IDLE[field](sizes)):
            others = (sizes.with_plan(replace(sizes.plan, **{field: value})) for value in VALUES[field])
            same = [
                other for other in others if other.plan != sizes.plan and IDLE[field](other) and not any(broken(other))
            ]
            if same:
                compared[field] += 1
                steps = [step_spec(settle(sizes.model, each.plan)) for each in (sizes, same[-1])]
                assert is_same(*steps), (field, sizes.plan)
        if min(compared.values()) == PAIRS:
            break


def test_a_field_with_effect_changes_the_step() -> None:
    model = preset("llama3.2-1b")
    plans = [Plan(4, tp=2, gbs=8), Plan(4, tp=2, gbs=8, sequence_parallel=False)]
    assert not IDLE["sequence_parallel"](PlanSizes.of(model, plans[0]))
    assert not is_same(*(step_spec(settle(model, plan)) for plan in plans))


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *(("llama3-8b", plan) for plan in (Plan(8, tp=2), Plan(8, tp=2, pp=2), Plan(8, pp=8), Plan(8, tp=2, cp=2))),
        ("mixtral-8x7b", Plan(8, tp=2, etp=2, pp=2)),
        ("mixtral-8x7b", Plan(8, tp=4, ep=4, pp=2)),
    ],
)
def test_rank_orders_with_equal_groups_are_one(name: str, plan: Plan) -> None:
    orders = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "cp-tp-ep-dp-pp")
    meshes = [PlanSizes.of(preset(name), replace(plan, rank_order=order)) for order in orders]

    def has_equal_groups(left: PlanSizes, right: PlanSizes) -> bool:
        axes = ("tp", "cp", "dp", "pp", *(("ep", "edp") if left.facts.experts else ()))
        return all(np.array_equal(left.mesh.groups(axis), right.mesh.groups(axis)) for axis in axes)

    for sizes in meshes:
        equal = [number for number, other in enumerate(meshes) if has_equal_groups(other, sizes)]
        assert first_equal_order(sizes, orders) == equal[0]
