"""Plans that their software refuses are refused, with the code of the rule and the nearest plan that runs."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.models.presets import model as preset
from foretrace.workload.nearest_plans import nearest_plans
from foretrace.workload.plan import OffloadModule, Plan
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.settle import settle

ORDER = "tp-cp-ep-dp-pp"


@pytest.mark.parametrize(
    "plan",
    [
        Plan(8, grad_dtype="bf16"),
        Plan(8, grad_dtype="bf16", stack="fsdp"),
        Plan(8, zero=2, grad_dtype="bf16", stack="llm-foundry"),
        Plan(8, master_dtype="fp32", stack="torch-eager"),
        Plan(8, moment_dtype="fp8", master_dtype="fp16"),
        Plan(8, moment_dtype="fp32", zero=0),
        Plan(8, moment_dtype="fp32", stack="fsdp"),
        Plan(8, fp8_params=True, precision="fp8_block"),
        Plan(8, fp8_params=True, precision="fp8", zero=3, stack="megatron-core"),
    ],
)
def test_dtypes_that_the_software_has_are_taken(plan: Plan) -> None:
    settle(preset("llama3-8b"), plan)


def changes(before: Plan, after: Plan) -> dict[str, Any]:
    return {name: getattr(after, name) for name in before.__slots__ if getattr(before, name) != getattr(after, name)}


@pytest.mark.parametrize(
    ("name", "plan", "code", "nearest"),
    [
        ("llama3-8b", Plan(60, tp=8), "not-divisible", {"tp": 4}),
        ("llama3-8b", Plan(64, cp=3), "not-divisible", {"cp": 2}),
        ("llama3-8b", Plan(64, pp=3, gbs=128), "not-divisible", {"pp": 2}),
        ("llama3-8b", Plan(16, gbs=20), "not-divisible", {"gbs": 16}),
        ("llama3-8b", Plan(32, mbs=4, gbs=64), "not-divisible", {"mbs": 2}),
        ("llama3-8b", Plan(96, tp=3), "not-divisible", {"tp": 2}),
        ("llama3-8b", Plan(64, tp=16, stack="fsdp"), "not-divisible", {"tp": 8}),
        ("llama3-8b", Plan(64, tp=16, stack="megatron-2021"), "not-divisible", {"tp": 8}),
        ("llama3-70b", Plan(128, cp=16, cp_comm="a2a"), "not-divisible", {"cp": 8}),
        ("llama3-8b", Plan(64, tp=4, cp=4, cp_comm="a2a"), "not-divisible", {"cp": 2}),
        ("mixtral-8x7b", Plan(64, ep=16), "not-divisible", {"ep": 8}),
        ("mixtral-8x7b", Plan(36, etp=3), "not-divisible", {"etp": 2}),
        ("llama3-8b", Plan(8, ep=2), "bad-plan", {"ep": 1}),
        ("mixtral-8x7b", Plan(4, ep=8), "not-divisible", {"ep": 4}),
        ("llama3-8b", Plan(8, cp=8, seq_len=8200), "not-divisible", {"seq_len": 8192}),
        ("llama3-8b", Plan(8, tp=8, seq_len=4100), "not-divisible", {"seq_len": 4096}),
        ("llama3-8b", Plan(8, documents=(4096, 4000)), "bad-plan", {"seq_len": 8096}),
        ("llama3-8b", Plan(8, zero=1, shard=4), "bad-plan", {"zero": 3}),
        ("llama3-8b", Plan(8, zero=3, shard=3), "not-divisible", {"shard": 2}),
        ("llama3-8b", Plan(8, grad_dtype="bf16", precision="fp32"), "bad-plan", {"grad_dtype": None}),
        ("llama3-8b", Plan(8, grad_dtype="bf16", stack="megatron-2021"), "bad-plan", {"grad_dtype": None}),
        ("llama3-8b", Plan(8, grad_dtype="fp32", stack="torch-eager"), "bad-plan", {"grad_dtype": None}),
        ("llama3-8b", Plan(8, master_dtype="fp16", stack="torch-eager"), "bad-plan", {"master_dtype": None}),
        ("llama3-8b", Plan(8, moment_dtype="bf16", stack="fsdp"), "bad-plan", {"moment_dtype": None}),
        ("llama3-8b", Plan(8, moment_dtype="bf16", stack="megatron-2021"), "bad-plan", {"moment_dtype": None}),
        ("llama3-8b", Plan(8, zero=0, moment_dtype="bf16"), "bad-plan", {"zero": 1}),
        ("llama3-8b", Plan(8, zero=0, fp8_params=True, precision="fp8"), "bad-plan", {"zero": 1}),
        ("llama3-8b", Plan(8, fp8_params=True), "bad-plan", {"fp8_params": False}),
        ("llama3-8b", Plan(8, fp8_params=True, precision="nvfp4"), "bad-plan", {"fp8_params": False}),
        ("llama3-8b", Plan(8, zero=3, fp8_params=True, precision="fp8"), "bad-plan", {"zero": 1}),
        ("llama3-8b", Plan(8, stack="fsdp", fp8_params=True, precision="fp8"), "bad-plan", {"fp8_params": False}),
        ("llama3-8b", Plan(8, vpp=2), "invalid-schedule", {"vpp": 1}),
        ("llama3-8b", Plan(64, pp=64), "bad-plan", {"pp": 32}),
        ("llama3-8b", Plan(64, pp=4, stage_layers=(16, 16)), "bad-plan", {"stage_layers": None}),
        ("llama3-70b", Plan(64, pp=4, vpp=2, gbs=48), "not-divisible", {"gbs": 64}),
        ("llama3-8b", Plan(16, pp=4, gbs=16, schedule="dualpipe"), "invalid-schedule", {"gbs": 32}),
        ("llama3-8b", Plan(8, recompute_layers=4), "bad-plan", {"recompute": "full"}),
        ("llama3-8b", Plan(8, recompute="full", recompute_layers=99), "bad-plan", {"recompute_layers": 32}),
        ("llama3-8b", Plan(8, offload_layers=99), "bad-plan", {"offload_layers": 32}),
        ("mixtral-8x7b", Plan(8, routing=(1.0, 1.5)), "bad-plan", {"routing": 1.5}),
        ("mixtral-8x7b", Plan(16, tp=2, pp=2, ep=4, rank_order="tp-pp-cp-ep-dp"), "bad-mesh", {"rank_order": ORDER}),
        ("llama3-8b", Plan(16, cp=2, pp=2, rank_order="tp-cp-ep-pp-dp"), "bad-mesh", {"rank_order": ORDER}),
        ("llama3-8b", Plan(8, gbs=10**12), "too-large", {"gbs": 100_000}),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_with_the_nearest_that_runs(
    name: str, plan: Plan, code: str, nearest: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        settle(preset(name), plan)
    assert caught.value.code == code
    runs = next(nearest_plans(PlanSizes.of(preset(name), plan)))
    assert changes(plan, runs) == nearest
    settle(preset(name), runs)


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        (Plan(8, seq_len=8190, documents=(4095, 4095), cp=4), "--seq 8192 --documents 4095,4097"),
        (Plan(8, seq_len=8190, documents=(910,) * 9, cp=4), "--seq 8192 without --documents"),
        (Plan(64, pp=3, stage_layers=(11, 11, 10)), "--pp 2 without --stage-layers"),
        (Plan(64, pp=4, vpp=2, schedule="1f1b", stage_layers=(4,) * 8), "--schedule interleaved-1f1b"),
    ],
)
def test_a_hint_names_all_that_must_change(plan: Plan, options: str) -> None:
    with pytest.raises(InputError) as caught:
        settle(preset("llama3-8b"), plan)
    assert options in (caught.value.hint or "")


def test_several_broken_rules_keep_the_gpus_and_the_batch_where_axes_are_enough() -> None:
    plan = Plan(2048, tp=3, pp=16, ep=64, etp=5, gbs=15360)
    for runs in islice(nearest_plans(PlanSizes.of(preset("deepseek-v3"), plan)), 2):
        assert set(changes(plan, runs)) == {"tp", "etp"}
        settle(preset("deepseek-v3"), runs)


def test_a_plan_that_breaks_most_rules_has_one_near_it_that_runs() -> None:
    plan = Plan(
        1000, mbs=2, gbs=17, seq_len=8191, tp=24, cp=8, cp_comm="a2a", pp=24, vpp=3, schedule="zb-v", ep=24, etp=5,
        stage_layers=(16, 16), shard=3, documents=(4096, 4096), rank_order="tp-pp-cp-ep-dp", stack="megatron-core",
    )  # fmt: skip
    settle(preset("llama3-8b"), next(nearest_plans(PlanSizes.of(preset("llama3-8b"), plan))))


def test_another_zero_stage_brings_its_software() -> None:
    sizes = PlanSizes.of(preset("llama3-8b"), Plan(64, tp=16, shard=4))
    plans = list(nearest_plans(sizes))
    assert plans[0].shard is None, "zero 3 runs on software that does not copy heads for tp 16"
    for plan in plans:
        settle(preset("llama3-8b"), plan)


def test_megatron_core_copies_heads_that_tp_is_a_multiple_of() -> None:
    settle(preset("llama3-8b"), Plan(64, tp=16))


@pytest.mark.parametrize(("stack", "warns"), [("megatron-core", True), ("megatron-2021", False), ("fsdp", False)])
def test_recomputing_fused_attention_saves_nothing(stack: str, warns: bool) -> None:
    diagnostics = settle(preset("llama3-8b"), Plan(8, recompute="selective", stack=stack)).diagnostics
    assert ("recompute-saves-nothing" in {each.code for each in diagnostics}) == warns


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("llama3-8b", Plan(8, recompute="full", recompute_modules=("mlp",))),
        ("llama3-8b", Plan(8, recompute_modules=("mlp",), stack="fsdp")),
        ("llama3-8b", Plan(8, recompute_modules=("mlp", "core_attn"), stack="megatron-2021")),
        ("llama3-8b", Plan(8, recompute_modules=("layernorm",), stack="torch-compile")),
        ("llama3-8b", Plan(8, offload_modules=("core_attn",), stack="fsdp")),
        ("llama3-8b", Plan(8, offload_modules=("attn_proj",))),
        ("llama3-8b", Plan(8, offload_modules=("core_attn",), offload_layers=2)),
        ("mixtral-8x7b", Plan(8, offload_modules=("core_attn", "moe_act"), recompute_modules=("moe",))),
        ("llama3-8b", Plan(8, fp8_activation_input=True, stack="torch-eager")),
        ("gpt3-2.7b", Plan(8, fp8_activation_input=True)),
    ],
)
def test_modules_that_the_software_does_not_take(name: str, plan: Plan) -> None:
    with pytest.raises(InputError) as caught:
        settle(preset(name), plan)
    assert caught.value.code == "bad-plan"
    settle(preset(name), next(nearest_plans(PlanSizes.of(preset(name), plan))))


def test_modules_mean_selective_recompute() -> None:
    setting = settle(preset("llama3-8b"), Plan(8, recompute_modules=("mlp",)))
    assert setting.plan.recompute == "selective"
    assert settle(preset("llama3-8b"), Plan(8, recompute_modules=())).plan.recompute == "none"


@pytest.mark.parametrize(
    ("name", "fields", "idle"),
    [
        ("llama3-8b", {"recompute_modules": ("core_attn",)}, 1),
        ("llama3-8b", {"recompute_modules": ("core_attn",), "precision": "fp8"}, 1),
        ("llama3-8b", {"recompute_modules": ("core_attn",), "precision": "fp8", "stack": "torch-eager"}, 0),
        ("llama3-8b", {"recompute_modules": ("layernorm", "mla_up_proj", "moe_act", "moe", "shared_experts")}, 5),
        ("llama3-8b", {"recompute_modules": ("mlp",)}, 0),
        ("llama3-8b", {"recompute_modules": ("layernorm",), "stack": "torch-eager"}, 0),
        ("mixtral-8x7b", {"recompute_modules": ("mlp", "layernorm")}, 1),
        ("mixtral-8x7b", {"recompute_modules": ("moe", "moe_act")}, 1),
        ("deepseek-v3", {"recompute_modules": ("layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts")}, 0),
        ("deepseek-v3", {"recompute_modules": ("moe_act",), "precision": "mxfp8", "fp8_activation_input": True}, 1),
    ],
)
def test_modules_that_save_nothing_are_named(name: str, fields: dict[str, Any], idle: int) -> None:
    diagnostics = settle(preset(name), Plan(8, **fields)).diagnostics
    assert [each.code for each in diagnostics].count("recompute-saves-nothing") == idle


@pytest.mark.parametrize(("modules", "ignored"), [(("core_attn",), False), (("core_attn", "expert_fc1"), True)])
def test_offloaded_modules_without_effect_are_noted(modules: tuple[OffloadModule, ...], ignored: bool) -> None:
    diagnostics = settle(preset("llama3-8b"), Plan(8, offload_modules=modules)).diagnostics
    assert ("field-ignored" in {each.code for each in diagnostics}) == ignored


def test_zero_3_takes_fsdp_and_says_so() -> None:
    setting = settle(preset("llama3-8b"), Plan(8, zero=3))
    assert setting.stack.name == "fsdp"
    assert "assumed" in {each.code for each in setting.diagnostics}
