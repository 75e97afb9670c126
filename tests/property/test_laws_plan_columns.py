"""Laws of constraints over columns: they hold where they hold for the single plan, and where `settle` runs it."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.models.presets import model as preset
from foretrace.search.planner.plan_table import PlanTable
from foretrace.workload.constraints import CONSTRAINTS
from foretrace.workload.layout import Layout
from foretrace.workload.plan import Plan
from foretrace.workload.rules.idle_fields import IDLE
from foretrace.workload.rules.launchers import LAUNCH_CONSTRAINTS
from foretrace.workload.rules.sizes import ModelSizes, PlanColumns, PlanSizes
from foretrace.workload.settle import settle
from foretrace.workload.stacks import STACKS

RULES = {constraint.name: constraint.holds for constraint in (*CONSTRAINTS, *LAUNCH_CONSTRAINTS)} | IDLE
MODELS = ("llama3-8b", "llama3-70b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3")


def choices(layers: int) -> dict[str, tuple[Any, ...]]:
    """Values of every field of a plan for a model of `layers` layers, the usual one first."""
    even = {parts: tuple(layers // parts + (part < layers % parts) for part in range(parts)) for parts in (1, 2, 4, 8)}
    return {
        "gpus": (64, 8, 12, 96, 512),
        "mbs": (1, 2, 3),
        "gbs": (None, 48, 64, 128, 600, 10**9),
        "seq_len": (None, 2048, 4100, 8190),
        "tp": (1, 2, 3, 8, 16),
        "sequence_parallel": (None, False, True),
        "cp": (1, 2, 3, 4),
        "cp_comm": ("p2p", "all_gather", "a2a"),
        "pp": (1, 2, 3, 4, 8, 64),
        "vpp": (1, 2, 3),
        "stage_layers": (None, even[2], even[4], (*even[2][:-1], 1)),
        "layout": (None, str(Layout.of(even[4])), str(Layout.of(even[8], 1)), "EtL"),
        "account_for": (None, (), ("loss",), ("embedding", "loss")),
        "first_stage_layers": (None, 0, 7, 8, layers // 4),
        "last_stage_layers": (None, 5, layers // 4),
        "schedule": (None, "1f1b", "Interleaved", "zb-v", "dualpipe", "dualpipe-v", "interleaved-zb", "zb-h1"),
        "ep": (1, 2, 3, 8),
        "etp": (1, 2, 3),
        "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "tp-pp-cp-ep-dp", "cp-tp-ep-dp-pp", "dp"),
        "zero": (None, 0, 1, 2, 3),
        "shard": (None, 1, 2, 3, 8),
        "recompute": ("none", "selective", "full"),
        "recompute_layers": (None, 1, 200),
        "recompute_modules": (None, (), ("core_attn",), ("mlp",), ("layernorm", "moe")),
        "precision": ("bf16", "fp32", "fp8", "nvfp4"),
        "grad_dtype": (None, "fp32", "bf16"),
        "master_dtype": (None, "fp32", "fp16"),
        "moment_dtype": (None, "fp32", "bf16", "fp8"),
        "fp8_params": (False, True),
        "fp8_activation_input": (False, True),
        "offload_layers": (0, 2, 200),
        "offload_modules": ((), ("core_attn",), ("attn_proj",), ("core_attn", "moe_act")),
        "documents": (None, (4096, 4096), (1024, 1024), (100,)),
        "routing": (None, 1.0, (1.5,) * layers, (1.0, 2.0), 99.0),
        "stack": (None, *STACKS),
        **dict.fromkeys(("tp_overlap", "moe_overlap", "pp_overlap"), (False, True)),
        **dict.fromkeys(("grad_overlap", "param_overlap"), (None, False, True)),
        "dispatcher": ("alltoall", "deepep"),
    }


def random_plans(layers: int, count: int, share: float) -> list[Plan]:
    """Plans whose every field has an unusual value with a probability of `share`."""
    source = random.Random(layers * count)
    values = choices(layers)
    return [
        Plan(
            **{
                name: source.choice(known[1:]) if source.random() < share else known[0]
                for name, known in values.items()
            }
        )
        for _ in range(count)
    ]


def columns_of(table: PlanTable, facts: ModelSizes) -> PlanColumns:
    return PlanColumns(facts, table.base, table.values, table.codes)


@pytest.mark.parametrize("name", MODELS)
def test_each_rule_holds_in_columns_where_it_holds_for_the_plan(name: str) -> None:
    model = preset(name)
    facts = ModelSizes.of(model)
    plans = [plan for share in (0.05, 0.15, 0.4) for plan in random_plans(len(model.layers), 300, share)]
    columns = columns_of(PlanTable.of(plans), facts)
    sizes = [PlanSizes(facts, plan) for plan in plans]
    for rule, holds in RULES.items():
        held = np.broadcast_to(holds(columns), len(plans))
        assert held.dtype == np.bool_
        assert held.tolist() == [holds(each) for each in sizes], rule


@pytest.mark.parametrize("name", MODELS)
def test_settle_takes_exactly_the_plans_of_which_all_rules_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.workload.nearest_plans.nearest_plans", lambda _: iter(()))
    model = preset(name)
    plans = [plan for share in (0.02, 0.05, 0.1) for plan in random_plans(len(model.layers), 60, share)]
    columns = columns_of(PlanTable.of(plans), ModelSizes.of(model))
    runs = np.ones(len(plans), dtype=np.bool_)
    for constraint in CONSTRAINTS:
        runs &= constraint.holds(columns)
    assert 10 < runs.sum() < len(plans) - 10

    def settles(plan: Plan) -> bool:
        try:
            settle(model, plan)
        except InputError:
            return False
        return True

    assert runs.tolist() == [settles(plan) for plan in plans]


@pytest.mark.parametrize("name", MODELS)
def test_a_grid_has_the_rules_of_its_plans(name: str) -> None:
    model = preset(name)
    facts, source = ModelSizes.of(model), random.Random(7)
    values = choices(len(model.layers))
    for _ in range(8):
        axes = source.sample(list(values), 3)
        base = random_plans(len(model.layers), source.randrange(100), 0.05)
        plan = base[-1] if base else Plan(64)
        codes = {
            axis: np.arange(len(values[axis])).reshape([-1 if other == axis else 1 for other in axes]) for axis in axes
        }
        shape = tuple(len(values[axis]) for axis in axes)
        columns = PlanColumns(facts, plan, {axis: values[axis] for axis in axes}, codes)
        cells = [
            PlanSizes(facts, replace(plan, **{axis: values[axis][code] for axis, code in zip(axes, cell, strict=True)}))
            for cell in np.ndindex(shape)
        ]
        for rule, holds in RULES.items():
            held = np.broadcast_to(holds(columns), shape)
            assert held.ravel().tolist() == [holds(each) for each in cells], rule


def test_software_that_is_given_apart_holds_for_all_plans() -> None:
    model = preset("llama3-8b")
    plans = random_plans(len(model.layers), 200, 0.2)
    table, facts, stack = PlanTable.of(plans), ModelSizes.of(model), STACKS["fsdp"]
    columns = PlanColumns(facts, table.base, table.values, table.codes, stack)
    for constraint in CONSTRAINTS:
        held = np.broadcast_to(constraint.holds(columns), len(plans))
        assert held.tolist() == [constraint.holds(PlanSizes(facts, plan, stack)) for plan in plans], constraint.name


def test_the_plans_of_these_laws_break_every_rule() -> None:
    unbroken = {*CONSTRAINTS, *LAUNCH_CONSTRAINTS}
    for name in (*MODELS, "gpt3-2.7b"):
        model = preset(name)
        columns = columns_of(PlanTable.of(random_plans(len(model.layers), 600, 0.3)), ModelSizes.of(model))
        unbroken -= {constraint for constraint in unbroken if not np.all(constraint.holds(columns))}
    assert not unbroken


def test_names_of_rules_and_fields_are_known() -> None:
    rules = (*CONSTRAINTS, *LAUNCH_CONSTRAINTS)
    assert len({rule.name for rule in rules}) == len(rules)
    known = {field.name for field in fields(Plan)}
    assert all(set(rule.fields) <= known for rule in rules)
