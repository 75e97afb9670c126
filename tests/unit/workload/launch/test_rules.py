"""The tables of frameworks: every field of a plan has a place in each."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest

from foretrace.export.launch import WRITERS
from foretrace.models import presets
from foretrace.workload.launch.rules import ESSENTIAL, LaunchFormat, has_effect, launch_value
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.stacks import STACKS

FORMATS = [pytest.param(layout, id=layout.name) for layout, _ in WRITERS.values()]
PLAN_FIELDS = {field.name for field in fields(Plan)}
EXPRESSED = {
    "megatron-lm": PLAN_FIELDS - {"reshard", "prefetch", "pp_overlap", "documents"},
    "megatron-bridge": PLAN_FIELDS - {"reshard", "prefetch", "pp_overlap", "documents"},
    "torchtitan": {
        *("gpus", "mbs", "gbs", "seq_len", "tp", "cp", "cp_comm", "pp", "vpp", "ep", "zero", "shard", "reshard"),
        *("stage_layers", "layout", "account_for", "first_stage_layers", "last_stage_layers", "schedule", "stack"),
        *("sequence_parallel", "precision", "recompute", "recompute_layers", "recompute_modules", "tp_overlap"),
        *("dispatcher", "grad_overlap", "routing"),
    },
    "deepspeed": {
        *("gpus", "mbs", "gbs", "seq_len", "tp", "cp", "cp_comm", "pp", "vpp", "schedule", "zero", "shard", "stack"),
        *("stage_layers", "layout", "account_for", "first_stage_layers", "last_stage_layers", "grad_overlap"),
        *("precision", "master_dtype", "moment_dtype", "grad_dtype", "offload_optimizer"),
        *("recompute", "recompute_layers", "recompute_modules", "routing"),
    },
}
EXPRESSED["torchtitan-toml"] = EXPRESSED["torchtitan"] | {"etp"}


@pytest.mark.parametrize("layout", FORMATS)
def test_every_field_of_a_plan_has_one_place(layout: LaunchFormat) -> None:
    places = Counter([name for rule in layout.rules for name in rule.fields] + [*layout.fixed])
    assert set(places) == PLAN_FIELDS
    assert set(places.values()) == {1}
    assert {name for rule in layout.rules for name in rule.fields} == EXPRESSED[layout.name]
    assert set(ESSENTIAL) <= PLAN_FIELDS


@pytest.mark.parametrize("layout", FORMATS)
def test_stacks_are_those_of_plans(layout: LaunchFormat) -> None:
    assert {*layout.stacks, layout.reads_as} <= set(STACKS)


@pytest.mark.parametrize("layout", FORMATS)
def test_the_usual_value_of_a_field_without_option_is_not_reported(layout: LaunchFormat) -> None:
    choices: dict[str, object] = {
        "sequence_parallel": None if layout.name == "torchtitan" else layout.name == "torchtitan-toml"
    }
    choices |= {"zero": 2} if layout.name == "deepspeed" else {}
    plan = Plan(gpus=8, gbs=16, tp=2, stack=layout.reads_as, **choices)  # type: ignore[arg-type]
    assert list(layout.lacks(settle(presets.model("llama3-8b"), plan))) == []


@pytest.mark.parametrize(
    ("layout", "name", "value"),
    [
        ("megatron-lm", "reshard", False),
        ("megatron-lm", "rank_order", "cp-tp-ep-dp-pp"),
        ("megatron-lm", "precision", "tf32"),
        ("megatron-lm", "documents", (4096, 4096)),
        ("megatron-lm", "pp_overlap", True),
        ("megatron-lm", "param_overlap", True),
        ("megatron-lm", "tp_overlap", True),
        ("megatron-lm", "dispatcher", "low_latency"),
        ("megatron-bridge", "moment_dtype", "bf16"),
        ("torchtitan", "precision", "fp8"),
        ("torchtitan", "prefetch", 2),
        ("torchtitan", "recompute_layers", 2),
        ("torchtitan", "offload_layers", 2),
        ("torchtitan-toml", "sequence_parallel", False),
        ("deepspeed", "recompute", "full"),
        ("deepspeed", "seq_len", 4096),
        ("deepspeed", "cuda_graphs", "full"),
    ],
)
def test_a_value_without_option_is_reported(layout: str, name: str, value: object) -> None:
    chosen = WRITERS[layout][0]
    more: dict[str, object] = {"tp": 2} if layout == "torchtitan-toml" else {}
    more |= {"recompute": "full"} if name == "recompute_layers" else {}
    more |= {"zero": 3} if name == "reshard" else {}
    more |= {"pp": 2} if name in ("pp_overlap", "rank_order") else {}
    more |= {"grad_overlap": False} if name == "param_overlap" else {}
    more |= {"tp": 2, "sequence_parallel": False} if name == "tp_overlap" else {}
    model = "mixtral-8x7b" if name == "dispatcher" else "llama3-8b"
    more |= {"ep": 2} if name == "dispatcher" else {}
    plan = Plan(gpus=8, gbs=16, stack=chosen.reads_as, **{name: value, **more})  # type: ignore[arg-type]
    setting = settle(presets.model(model), plan)
    assert name in {lack.field for lack in chosen.lacks(setting)}
    assert {lack.diagnostic.code for lack in chosen.lacks(setting)} == {"not-expressible"}


def test_a_field_without_effect_is_not_reported() -> None:
    plan = Plan(gpus=8, gbs=16, cp_comm="a2a", schedule="zb-h1", moe_overlap=True, reshard=False, prefetch=4)
    setting = settle(presets.model("llama3-8b"), plan)
    assert not any(has_effect(setting, name) for name in ("cp_comm", "schedule", "moe_overlap", "reshard", "prefetch"))
    assert list(WRITERS["megatron-lm"][0].lacks(setting)) == []
    assert launch_value(setting, "vpp") == 1
