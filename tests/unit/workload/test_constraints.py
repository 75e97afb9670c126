"""Plans that their software refuses are refused, with the code of the rule and the nearest plan that runs."""

from __future__ import annotations

from itertools import islice

import pytest

from foretrace.basics.errors import InputError
from foretrace.models.presets import model as preset
from foretrace.workload.constraints import CONSTRAINTS, PlanSizes, broken
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle


@pytest.mark.parametrize(
    ("name", "plan", "rule", "nearest"),
    [
        ("llama3-8b", Plan(60, tp=8), "gpus-by-ranks", {"gpus": 56}),
        ("llama3-8b", Plan(16, gbs=20), "batch-by-ranks", {"gbs": 16}),
        ("llama3-8b", Plan(96, tp=3), "heads-by-tp", {"tp": 2}),
        ("llama3-8b", Plan(64, tp=16, stack="fsdp"), "kv-heads-by-tp", {"tp": 8}),
        ("llama3-8b", Plan(64, tp=16, stack="megatron-2021"), "kv-heads-by-tp", {"tp": 8}),
        ("llama3-70b", Plan(128, cp=16, cp_comm="a2a"), "heads-by-cp", {"cp": 8}),
        ("llama3-8b", Plan(64, tp=4, cp=4, cp_comm="a2a"), "heads-by-cp", {"cp": 2}),
        ("mixtral-8x7b", Plan(64, ep=16), "experts-by-ep", {"ep": 8}),
        ("mixtral-8x7b", Plan(36, etp=3), "expert-ffn-by-etp", {"etp": 2}),
        ("llama3-8b", Plan(8, ep=2), "ep-without-experts", {"ep": 1}),
        ("mixtral-8x7b", Plan(4, ep=8), "ep-by-ranks", {"ep": 4}),
        ("llama3-8b", Plan(8, cp=8, seq_len=8200), "sequence-by-cp", {"seq_len": 8192}),
        ("llama3-8b", Plan(8, tp=8, seq_len=4100), "sequence-by-tp", {"seq_len": 4096}),
        ("llama3-8b", Plan(8, zero=3, shard=3), "shard-by-ranks", {"shard": 2}),
        ("llama3-8b", Plan(8, vpp=2), "chunks-by-schedule", {"vpp": 1}),
        ("llama3-8b", Plan(64, pp=64), "layers-by-stages", {"pp": 32}),
        ("llama3-70b", Plan(64, pp=4, vpp=2, gbs=48), "microbatches-by-stages", {"gbs": 64}),
        ("llama3-8b", Plan(16, pp=4, gbs=16, schedule="dualpipe"), "microbatches-both-ways", {"gbs": 32}),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_with_the_nearest_that_runs(
    name: str, plan: Plan, rule: str, nearest: dict[str, int]
) -> None:
    sizes = PlanSizes.of(preset(name), plan)
    constraint = broken(sizes)
    assert constraint is not None and constraint.name == rule
    with pytest.raises(InputError) as caught:
        settle(preset(name), plan)
    assert caught.value.code == constraint.code
    runs = next(constraint.nearest(sizes))
    assert {field: getattr(runs, field) for field in nearest} == nearest
    settle(preset(name), runs)


def test_megatron_core_copies_heads_that_tp_is_a_multiple_of() -> None:
    settle(preset("llama3-8b"), Plan(64, tp=16))


def test_several_broken_rules_are_repaired_together() -> None:
    sizes = PlanSizes.of(preset("llama3-8b"), Plan(96, tp=3, cp=8, seq_len=8200, gbs=7))
    constraint = broken(sizes)
    assert constraint is not None
    (runs,) = islice(constraint.nearest(sizes), 1)
    settle(preset("llama3-8b"), runs)


def test_rules_have_names_of_their_own() -> None:
    assert len({constraint.name for constraint in CONSTRAINTS}) == len(CONSTRAINTS)


@pytest.mark.parametrize(("stack", "warns"), [("megatron-core", True), ("megatron-2021", False), ("fsdp", False)])
def test_recomputing_fused_attention_saves_nothing(stack: str, warns: bool) -> None:
    diagnostics = settle(preset("llama3-8b"), Plan(8, recompute="selective", stack=stack)).diagnostics
    assert ("recompute-saves-nothing" in {each.code for each in diagnostics}) == warns


def test_zero_3_takes_fsdp_and_says_so() -> None:
    setting = settle(preset("llama3-8b"), Plan(8, zero=3))
    assert setting.stack.name == "fsdp"
    assert any(each.code == "assumed" and setting.stack.title in each.message for each in setting.diagnostics)
