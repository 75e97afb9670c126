from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.models.presets import model as preset
from foretrace.program.kernels import GroupedGemm
from foretrace.step.spec import Compute
from foretrace.workload.layers import layer_work
from foretrace.workload.plan import Plan
from foretrace.workload.setting import settled_plan
from foretrace.workload.settle import settle
from hand_written_work import STACK, model, setting_of


def test_what_follows_from_the_sizes() -> None:
    setting = setting_of(8, Plan(64, tp=2, cp=2, pp=4, mbs=2, gbs=64))
    assert (setting.dp, setting.microbatches, setting.tokens) == (4, 8, 128)
    assert str(setting.mesh) == "tp=2,cp=2,dp=4,pp=4"
    assert setting.chunks == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert setting.shard == 8, "the distributed optimizer splits over dp and cp"


def test_choices_left_open_are_made_and_said() -> None:
    setting = setting_of(8, Plan(16, tp=2, pp=4))
    assert (setting.gbs, setting.schedule, setting.zero) == (8, "1f1b", 1)
    assert setting.sequence_parallel
    said = setting.diagnostics[0].message
    for what in ("by hand", "seq_len 128", "gbs 8", "zero 1", "sequence parallelism on", "schedule 1f1b"):
        assert what in said


def test_choices_that_are_made_are_not_said() -> None:
    plan = Plan(
        8, tp=2, pp=2, gbs=8, seq_len=128, sequence_parallel=False, schedule="1f1b", zero=1, stack="x",
        grad_overlap=True, param_overlap=False,
    )  # fmt: skip
    setting = setting_of(4, plan)
    assert setting.diagnostics == ()
    assert (setting.sequence_parallel, setting.param_overlap) == (False, False)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(0), "gpus is 0"),
        (Plan(10, tp=4), "gpus 10 cannot be divided by tp·cp·pp"),
        (Plan(48, tp=3), "attention heads 8 cannot be divided by tp 3"),
        (Plan(8, gbs=12), "gbs 12 cannot be divided by mbs·dp"),
        (Plan(8, vpp=2), "vpp is 2, but pp is 1"),
        (Plan(8, pp=2, gbs=4, schedule="1f1c"), 'schedule "1f1c" is not known; did you mean 1f1b'),
        (Plan(8, pp=2, vpp=2, gbs=12, schedule="interleaved"), "microbatches"),
        (Plan(8, cp=8, seq_len=120), "seq_len 120 cannot be divided by 2·cp"),
        (Plan(8, tp=8, seq_len=100), "as sequence parallelism asks"),
        (Plan(8, ep=2), "has no experts"),
        (Plan(8, zero=1, shard=4), "shard is a choice of zero 3"),
        (Plan(8, zero=3, shard=3), "shard 3 does not split"),
        (Plan(8, zero=4), "zero is 4"),  # type: ignore[arg-type]
        (Plan(8, recompute_layers=2), "but recompute is none"),
        (Plan(8, recompute="full", recompute_layers=99), "recompute_layers is 99"),
        (Plan(8, documents=(100, 20)), "documents add up to 120 tokens, seq_len is 128"),
        (Plan(8, precision="fp9"), 'precision "fp9" is not known; did you mean fp8'),  # type: ignore[arg-type]
        (Plan(8, routing=0.5), "routing 0.5 is less than 1"),
        (Plan(8, routing=float("nan")), "routing nan is not a finite number"),
        (Plan(8, pp=8, stage_layers=(4, 4)), "stage_layers has 2 parts of 8 layers"),
        (Plan(16, pp=16), "8 layers cannot fill 16 parts"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(plan: Plan, said: str) -> None:
    with pytest.raises(InputError) as caught:
        setting_of(8, plan)
    assert said in str(caught.value)


def test_experts_must_divide() -> None:
    with pytest.raises(InputError, match="experts 6 cannot be divided by ep 4") as caught:
        setting_of(4, Plan(8, ep=4), experts=6)
    assert caught.value.code == "not-divisible"
    with pytest.raises(InputError, match="ep=16 does not divide") as caught:
        setting_of(4, Plan(8, ep=16), experts=16)
    assert caught.value.code == "not-divisible"


def test_the_rank_order_numbers_the_ranks() -> None:
    setting = setting_of(4, Plan(16, tp=2, pp=2, rank_order="tp-cp-ep-pp-dp"))
    assert setting.mesh.groups("pp")[0].tolist() == [0, 2]
    assert setting.mesh.order == settled_plan(setting)["rank_order"] == "tp-cp-ep-pp-dp"


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ("tp-cp-xp-dp-pp", "unknown-name"),
        ("tp-tp-ep-dp-pp", "duplicate-name"),
        ("tp-dp-pp", "bad-mesh"),
        ("tp-cp-ep-pp-dp", "bad-mesh"),  # stages of experts would be other ranks
        ("tp-pp-cp-ep-dp", "bad-mesh"),  # the same stages, and still refused by Megatron-core
        (7, "bad-value"),
    ],
)
def test_a_rank_order_that_megatron_refuses_is_refused(order: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        setting_of(4, Plan(16, tp=2, pp=2, ep=4, rank_order=order), experts=8)
    assert caught.value.code == code


def test_hsdp_splits_within_and_replicates_across() -> None:
    setting = setting_of(4, Plan(32, cp=2, zero=3, shard=8))
    assert (setting.shard, setting.mesh.size("shard"), setting.mesh.replicate) == (8, 4, 4)


def test_a_vocabulary_is_padded_as_the_stack_does() -> None:
    setting = settle(replace(model(2), vocab=1000), Plan(2, tp=2), replace(STACK, padded_vocab=128))
    assert setting.vocab == 1024
    assert any(note.code == "vocabulary-padded" and "1,024" in note.message for note in setting.diagnostics)


def test_a_schedule_brings_its_own_chunks() -> None:
    assert len(setting_of(16, Plan(4, pp=4, gbs=16, schedule="zb-v")).chunks) == 8
    assert len(setting_of(16, Plan(4, pp=4, gbs=16, schedule="dualpipe")).chunks) == 4
    assert len(setting_of(16, Plan(4, pp=4, vpp=4, gbs=16)).chunks) == 16


@pytest.mark.parametrize(
    "field",
    [
        {"gpus": "8"},
        {"gpus": 8.0},
        {"mbs": True},
        {"zero": True},
        {"schedule": 5},
        {"schedule": ""},
        {"stack": ["fsdp"]},
        {"precision": "BF16"},
        {"precision": ["bf16"]},
        {"stage_layers": 8},
        {"stage_layers": "4,4"},
        {"stage_layers": (4.0, 4.0)},
        {"documents": 128},
        {"documents": (64.0, 64.0)},
        {"reshard": None},
        {"sequence_parallel": "yes"},
        {"prefetch": None},
        {"offload_layers": None},
        {"seq_len": 10**9},
        {"gpus": 10**12},
    ],
)
def test_values_of_another_kind_or_size_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(field))):
        settle(model(8), Plan(**{"gpus": 8, **field}), STACK)


def test_prefetch_has_an_effect_where_something_is_fetched() -> None:
    def ignored(**facts: Any) -> bool:
        notes = settle(model(8), Plan(8, prefetch=2, **facts), STACK).diagnostics
        return "field-ignored" in {note.code for note in notes}

    assert ignored()
    assert not ignored(zero=3)
    assert not ignored(offload_layers=2)


def test_ends_that_count_as_layers_have_an_effect_in_a_pipeline() -> None:
    def ignored(pp: int) -> bool:
        notes = settle(model(6), Plan(8, pp=pp, account_for=("embedding", "loss")), STACK).diagnostics
        return "field-ignored" in {note.code for note in notes}

    assert ignored(1)
    assert not ignored(2)


def test_offloaded_modules_have_an_effect_in_layers_that_are_not_recomputed() -> None:
    def ignored(layers: int | None) -> bool:
        modules = {"offload_modules": ("core_attn", "attn_proj"), "stack": "megatron-core"}
        plan = Plan(2, pp=2, recompute="full", recompute_layers=layers, **modules)  # type: ignore[arg-type]
        return "field-ignored" in {note.code for note in settle(preset("llama3-8b"), plan).diagnostics}

    assert ignored(None)
    assert ignored(16)
    assert not ignored(15)


def test_lists_are_as_good_as_tuples() -> None:
    setting = settle(model(8), Plan(8, pp=2, stage_layers=[3, 5], documents=[64, 64]), STACK)  # type: ignore[arg-type]
    assert (setting.plan.stage_layers, setting.plan.documents) == ((3, 5), (64, 64))


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (Plan(8, gbs=10**12), "125,000,000,000 microbatches of 8 layers are more than can be run"),
        (Plan(8, pp=2, vpp=10**12), "8 layers cannot fill 2000000000000 parts"),
    ],
)
def test_a_schedule_that_nobody_could_write_down(plan: Plan, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        settle(model(8), plan, STACK)


def test_what_is_known_to_be_too_good_is_a_warning() -> None:
    def warnings(**plan: Any) -> list[str]:
        found = settle(preset("llama3-8b"), Plan(gpus=32, gbs=64, **plan)).diagnostics
        return [one.code for one in found if one.level == "warning"]

    assert warnings() == []
    assert warnings(zero=2) == []
    assert warnings(cp=4) == warnings(cp=2, stack="fsdp") == []
    assert len(warnings(cp=4, stack="fsdp")) == 1


def test_routing_may_differ_by_layer() -> None:
    mixture = preset("qwen3-30b-a3b")
    uneven = (1.0,) * 24 + (1.5,) * 24
    setting = settle(mixture, Plan(gpus=8, ep=8, routing=uneven))
    rows = [
        next(
            kernel.m
            for item in layer_work(setting, mixture.layers[number], number).forward
            if isinstance(item, Compute)
            for _, kernel in item.kernels
            if isinstance(kernel, GroupedGemm)
        )
        for number in (0, 47)
    ]
    assert rows[1] == 1.5 * rows[0]
    assert any("up to 1.5 times the mean" in one.message for one in setting.diagnostics)
    with pytest.raises(InputError, match="routing is of 2 layers, qwen3-30b-a3b has 48"):
        settle(mixture, Plan(gpus=8, ep=8, routing=(1.0, 1.5)))
    with pytest.raises(InputError, match=r"routing 0\.5 is less than 1") as caught:
        settle(mixture, Plan(gpus=8, ep=8, routing=(0.5,) * 48))
    assert caught.value.code == "out-of-range"


def _codes(stack: str) -> list[tuple[str, str]]:
    setting = settle(preset("llama3-8b"), Plan(8, gbs=8, tp=2, stack=stack))
    return [(note.level, note.code) for note in setting.diagnostics if note.code == "nearest-version"]


def test_a_version_that_is_not_known_is_warned_of() -> None:
    assert _codes("megatron-core@0.12") == _codes("megatron-bridge@26.05") == [("warning", "nearest-version")]
    assert _codes("megatron-core@0.15") == _codes("megatron-core") == _codes("torch-eager") == []


def test_the_version_that_is_taken_is_said_where_none_is_asked_for() -> None:
    def said(stack: str) -> str:
        setting = settle(preset("llama3-8b"), Plan(8, gbs=8, tp=2, stack=stack))
        return " ".join(note.message for note in setting.diagnostics if note.code == "assumed")

    assert "megatron-core 0.16" in said("megatron-core")
    assert "megatron-core" not in said("megatron-core@0.15")
    assert settle(preset("llama3-8b"), Plan(8, gbs=8, tp=2, stack="megatron-core@0.15")).stack.version == "0.15"


def test_graphs_of_routers_need_routers() -> None:
    plan = Plan(8, gbs=8, tp=2, cuda_graphs="router")
    dense, experts = (settle(preset(name), plan) for name in ("llama3-8b", "mixtral-8x7b"))
    codes = [[note.code for note in setting.diagnostics].count("field-ignored") for setting in (dense, experts)]
    assert codes == [1, 0]


def test_what_has_no_effect_is_reported() -> None:
    def idle(name: str, plan: Plan) -> bool:
        return "field-ignored" in {note.code for note in settle(preset(name), plan).diagnostics}

    assert idle("llama3-8b", Plan(gpus=8, moe_overlap=True))
    assert idle("mixtral-8x7b", Plan(gpus=8, moe_overlap=True))
    assert not idle("mixtral-8x7b", Plan(gpus=8, ep=8, moe_overlap=True))
    assert idle("llama3-8b", Plan(gpus=8, stack="fsdp-compile-rowwise"))
    assert not idle("llama3-8b", Plan(gpus=8, stack="fsdp-compile-rowwise", precision="fp8"))
