"""Bytes that a parameter takes between steps, by hand, for the dtypes and ZeRO stages of each stack."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.models.compose import compose_layers
from foretrace.models.model import Experts, Mlp, Model, SelfAttention
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import optimizer_of, step_spec, tied_embedding, works_of

HIDDEN, FFN, LAYERS = 256, 512, 4
LINEAR = 4 * HIDDEN**2 + 3 * HIDDEN * FFN
DP = 8


def small(*, experts: int = 0) -> Model:
    """A model whose embedding, head and norms are small next to its layers, but not nothing."""
    mlp = Mlp(FFN, True, "silu")
    mixture = Experts(experts, 2, mlp) if experts else None
    layers = compose_layers(LAYERS, SelfAttention(8, 8, HIDDEN // 8), mlp, mixture)
    return Model("small", HIDDEN, layers, 1024, "rmsnorm", tied=False, seq_len=128)


def held(plan: Plan, *, experts: int = 0) -> dict[str, int]:
    (role,) = step_spec(settle(small(experts=experts), plan)).roles
    return dict(role.resident)


def count(plan: Plan, *, experts: int = 0) -> int:
    works = works_of(settle(small(experts=experts), plan))
    listed = [*works.layers, works.embedding, works.head]
    return sum(work.parameters + work.expert_parameters for work in listed if work is not None)


@pytest.mark.parametrize(
    ("facts", "weights", "gradients", "optimizer"),
    [
        ({}, 2, 4, 12 / DP),
        ({"zero": 0}, 2, 4, 12),
        ({"grad_dtype": "bf16"}, 2, 2, 12 / DP),
        ({"grad_dtype": "bf16", "moment_dtype": "bf16"}, 2, 2, (4 + 2 + 2) / DP),
        ({"grad_dtype": "bf16", "moment_dtype": "bf16", "master_dtype": "fp16"}, 2, 2, (2 + 2 + 2) / DP),
        ({"moment_dtype": "fp8"}, 2, 4, (4 + 1 + 1) / DP),
        ({"zero": 2}, 2, 4 / DP, 12 / DP),
        ({"zero": 3, "stack": "megatron-core"}, 2 / DP, 4 / DP, 12 / DP),
        ({"precision": "fp32"}, 4, 4, 8 / DP),
        ({"precision": "tf32", "zero": 0}, 4, 4, 8),
        ({"stack": "torch-eager"}, 2, 0, 4),
        ({"stack": "torch-eager", "precision": "fp32"}, 4, 0, 8),
        ({"stack": "torch-eager", "master_dtype": "fp32"}, 2, 0, 12),
        ({"stack": "fsdp"}, 4 / DP, 4 / DP, 8 / DP),
        ({"stack": "fsdp", "zero": 2}, 4 / DP, 4 / DP, 8 / DP),
        ({"stack": "fsdp", "zero": 0}, 4, 0, 8),
        ({"stack": "llm-foundry"}, 4 / DP, 4 / DP, 8 / DP),
        ({"stack": "megatron-2021"}, 2, 4, 12),
        ({"offload_optimizer": True}, 2, 4, 0),
    ],
)
def test_bytes_of_a_parameter(facts: dict[str, Any], weights: float, gradients: float, optimizer: float) -> None:
    plan = Plan(gpus=DP, **facts)
    parameters, found = count(plan), held(plan)
    for kind, expected in (("weights", weights), ("gradients", gradients), ("optimizer", optimizer)):
        assert found[kind] == pytest.approx(expected * parameters, rel=1e-4), kind


@pytest.mark.parametrize(
    ("precision", "fp8_params", "each"),
    [
        ("bf16", False, 2),
        ("fp8", False, 4),
        ("fp8", True, 2),
        ("fp8_block", True, 2 * (1 + 4 / 128**2)),
        ("mxfp8", False, 2 + 2 * 33 / 32),
        ("mxfp8", True, 2 * 33 / 32),
        ("nvfp4", False, 2 + 2 * 9 / 16),
    ],
)
def test_bytes_of_a_parameter_of_a_quantized_layer(precision: Any, fp8_params: bool, each: float) -> None:
    plan = Plan(gpus=DP, precision=precision, fp8_params=fp8_params)
    others = count(plan) - LAYERS * LINEAR
    assert held(plan)["weights"] == 2 * others + round(each * LAYERS * LINEAR)
    for zero in (0, 1):
        assert held(Plan(gpus=DP, precision="fp8", stack="torch-eager", zero=zero))["weights"] == 2 * count(plan)  # type: ignore[arg-type]


def test_experts_are_quantized_too_and_routers_are_not() -> None:
    plan = Plan(gpus=DP, precision="fp8", ep=2)
    quantized = LAYERS * (4 * HIDDEN**2 + 4 // 2 * 3 * HIDDEN * FFN)
    assert held(plan, experts=4)["weights"] == 2 * count(plan, experts=4) + 2 * quantized


@pytest.mark.parametrize(
    ("precision", "zero", "gathered"), [("fp8", 1, 1.0), ("mxfp8", 1, None), ("fp8", 3, 1.0), ("mxfp8", 3, 33 / 32)]
)
def test_what_parameters_in_8_bits_are_gathered_as(precision: Any, zero: Any, gathered: float | None) -> None:
    plan = Plan(gpus=DP, precision=precision, fp8_params=True, zero=zero, stack="megatron-core")
    spec = step_spec(settle(small(), plan))
    assert optimizer_of(settle(small(), plan)).narrow_gathered_bytes == gathered
    if zero == 1:
        calls = [end.item.bytes for end in spec.roles[0].end if end.item.name == "gather parameters"]  # type: ignore[union-attr]
        narrow = LAYERS * LINEAR
        assert sum(calls) == 2 * (count(plan) - narrow) + (narrow if gathered else 2 * narrow)


@pytest.mark.parametrize(
    ("facts", "copies"),
    [
        ({}, False),
        ({"grad_dtype": "bf16"}, True),
        ({"grad_dtype": "bf16", "moment_dtype": "fp32"}, False),
        ({"grad_dtype": "bf16", "moment_dtype": "bf16", "precision": "mxfp8"}, True),
        ({"grad_dtype": "bf16", "moment_dtype": "bf16", "precision": "mxfp8", "master_dtype": "fp16"}, False),
        ({"stack": "torch-eager", "master_dtype": "fp32"}, True),
        ({"grad_dtype": "bf16", "offload_optimizer": True}, False),
        ({"stack": "torch-eager"}, False),
    ],
)
def test_gradients_are_copied_to_fp32_where_the_optimizer_is_not_precision_aware(
    facts: dict[str, Any], copies: bool
) -> None:
    assert optimizer_of(settle(small(), Plan(gpus=DP, **facts))).copies_gradients is copies


def test_sixteen_bit_gradients_halve_what_is_sent_and_written() -> None:
    settings = [settle(small(), Plan(gpus=DP, grad_dtype=dtype)) for dtype in ("fp32", "bf16")]
    wide, narrow = (step_spec(setting).roles[0] for setting in settings)

    def sent(role: Any) -> int:
        return sum(end.item.bytes for end in role.end if end.item.name == "reduce gradients")

    assert sent(wide) == 2 * sent(narrow) > 0
    assert tied_embedding(settings[0]).bytes == 2 * tied_embedding(settings[1]).bytes
    outs = [
        {
            kernel.out
            for item in setting_works.layers[0].backward
            for _, kernel in getattr(item, "kernels", ())
            if getattr(kernel, "layout", "") == "nt"
        }
        for setting_works in map(works_of, settings)
    ]
    assert outs == [{"fp32"}, {"bf16"}]


def test_the_stack_keeps_its_name_and_the_settled_plan_its_dtypes() -> None:
    setting = settle(small(), Plan(gpus=DP, grad_dtype="bf16", moment_dtype="fp8"))
    assert setting.stack.name == "megatron-core"
    assert (setting.stack.gradient_dtype, setting.stack.optimizer_state_dtype) == ("bf16", "fp8")
