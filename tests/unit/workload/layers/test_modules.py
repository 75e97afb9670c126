"""Parts of a layer that are recomputed or offloaded by name: what runs again, what is dropped, what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrace.models.model import Experts, Model
from foretrace.program.columns import Phase
from foretrace.step.spec import Work
from foretrace.workload.layers import layer_work, mtp_work
from foretrace.workload.stacks import STACKS
from unit.workload.layers.settings import LLAMA, MIXTURE, setting, streams, talks

S, H = 1024, 1024
QUERY, VALUE = 16 * (64 + 32), 16 * 64
ROWS, FFN, SHARED = 6 * S, 512, 1024
STATISTICS = 4 * S
"""Of an RMS norm."""
UP_PROJECTIONS = [
    "q norm",
    "q up",
    "kv norm",
    "kv up",
    "rope",
]
EXPERTS = [
    "dispatch preprocess",
    "dispatch permute",
    "experts up",
    "experts activation",
    "experts down",
    "combine unpermute",
]
SHARED_EXPERTS = ["shared experts up", "shared experts activation", "shared experts down"]


def _work(model: Model, stack: str = "megatron-core", *modules: str, **plan: Any) -> Work:
    recompute = "selective" if modules else "none"
    of = setting(model, stack, recompute=recompute, recompute_modules=modules or None, **plan)
    return layer_work(of, model.layers[0], 0)


def _dropped(model: Model, stack: str, *modules: str, **plan: Any) -> int:
    return _work(model, stack, **plan).saved_bytes - _work(model, stack, *modules, **plan).saved_bytes


def _again(model: Model, stack: str, *modules: str, **plan: Any) -> list[str]:
    return [item.name for item in _work(model, stack, *modules, **plan).recompute]


NORMED = 2 * (2 * S * H + STATISTICS)
QKV = 2 * S * (2 * QUERY + VALUE + 512 + 256) + 2 * STATISTICS
PRODUCT = 2 * ROWS * FFN
SHARED_BYTES = 2 * S * 3 * SHARED
MIXTURE_BYTES = S * 64 * 4 + ROWS * 8 + 2 * ROWS * (H + 2 * FFN) + PRODUCT + SHARED_BYTES


@pytest.mark.parametrize(
    ("module", "dropped", "again"),
    [
        ("layernorm", NORMED, ["mlp norm", "attention norm"]),
        ("mla_up_proj", QKV, UP_PROJECTIONS),
        ("moe_act", PRODUCT, ["experts activation"]),
        ("shared_experts", SHARED_BYTES, SHARED_EXPERTS),
        ("moe", MIXTURE_BYTES, [*SHARED_EXPERTS, "shared experts sum", "router", *EXPERTS]),
        ("mlp", 0, []),
    ],
)
def test_modules_of_megatron_core(module: str, dropped: int, again: list[str]) -> None:
    """By hand, for latent attention with experts in 16 bits."""
    assert _dropped(MIXTURE, "megatron-core", module) == dropped
    assert _again(MIXTURE, "megatron-core", module) == again
    assert _work(MIXTURE, "megatron-core", module).recomputed_bytes <= dropped


def test_norms_inside_linear_layers() -> None:
    """Transformer Engine's LayerNormLinear is one module: its norm cannot be recomputed alone, but with its MLP."""
    mlp = 2 * S * 3 * 2816
    assert _dropped(LLAMA, "megatron-core", "layernorm") == 0
    assert _dropped(LLAMA, "megatron-core", "mlp") == mlp + 2 * S * H + STATISTICS
    assert _again(LLAMA, "megatron-core", "mlp") == ["mlp norm", "mlp up", "mlp activation", "mlp down"]
    assert _dropped(LLAMA, "torch-eager", "layernorm") == NORMED
    assert _dropped(LLAMA, "torch-eager", "mlp") == mlp + 2 * S * 2816  # and SiLU's own output
    assert _again(LLAMA, "torch-eager", "mlp") == ["mlp up", "mlp activation"], "stops before the last product"


def test_8_bit_operands_are_quantised_again() -> None:
    norms = _again(MIXTURE, "megatron-core", "layernorm", precision="mxfp8")
    # Shared experts keep the norm's output as the router does, and quantise it again in any case.
    assert norms == ["mlp norm", "attention norm", "q down quantize"]
    assert _dropped(MIXTURE, "megatron-core", "layernorm", precision="mxfp8") == 3 * S * H + 2 * STATISTICS
    acts = _again(MIXTURE, "megatron-core", "moe_act", precision="mxfp8")
    assert acts == ["experts activation", "experts down quantize"]


def test_a_checkpoint_keeps_its_input_in_16_bits() -> None:
    """PyTorch's checkpoint around an MLP keeps what comes in, before it is quantised."""
    kept, without = (_work(LLAMA, "torch-eager", *modules, precision="fp8") for modules in (("mlp",), ()))
    mlp = S * (H + 2 * 2 * 2816 + 2 * 2816 + 2816)
    assert without.saved_bytes - kept.saved_bytes == mlp - 2 * S * H


def test_recomputed_tensors_that_are_alive_together() -> None:
    """The norm's output is there while the experts' backward runs; attention's tensors come when that is over."""
    work = _work(MIXTURE, "megatron-core", "layernorm", "moe_act", "mla_up_proj")
    assert work.recomputed_bytes == NORMED // 2 + max(PRODUCT, QKV)
    assert {item.phase for item in work.recompute} == {Phase.RECOMPUTE}
    dropped = _dropped(MIXTURE, "megatron-core", "layernorm", "moe_act", "mla_up_proj")
    assert dropped == NORMED + PRODUCT + QKV > work.recomputed_bytes


def test_parts_of_a_recomputed_mixture_run_once() -> None:
    together, whole = (_work(MIXTURE, "megatron-core", "moe", *more) for more in (("moe_act", "shared_experts"), ()))
    assert (together.recompute, together.saved_bytes) == (whole.recompute, whole.saved_bytes)
    assert together.recomputed_bytes < whole.recomputed_bytes, "what they drop is not there at once"
    names = _again(MIXTURE, "megatron-core", "moe", "layernorm")
    assert names.count("mlp norm") == 1
    assert _dropped(MIXTURE, "megatron-core", "moe", "layernorm") == MIXTURE_BYTES + NORMED


def test_recomputed_collectives() -> None:
    work = _work(MIXTURE, "megatron-core", "moe", "mla_up_proj", ep=4, tp=2)
    assert [call.name for call in talks(work.recompute, "ep")] == [
        "dispatch counts",
        "dispatch all-to-all",
        "dispatch probabilities",
        "combine all-to-all",
    ]
    assert {"q up gather", "kv up gather"} <= {call.name for call in talks(work.recompute, "tp")}


def test_direct_queries_are_part_of_the_up_projections() -> None:
    """Without low rank, the queries' projection is inside of Megatron's checkpoint, which keeps the normed input."""
    latent = replace(MIXTURE.layers[0].attention, q_lora_rank=None)
    direct = replace(MIXTURE, layers=(replace(MIXTURE.layers[0], attention=latent),) * 2)
    assert _again(direct, "megatron-core", "mla_up_proj") == ["q", "kv norm", "kv up", "rope"]
    narrow = _dropped(direct, "megatron-core", "mla_up_proj", precision="mxfp8")
    assert narrow == 2 * S * (2 * QUERY + VALUE) + S * 256 + STATISTICS - 2 * S * H


def test_gates_of_shared_experts_run_again() -> None:
    experts = MIXTURE.layers[0].feed_forward
    assert isinstance(experts, Experts)
    gated = replace(MIXTURE, layers=(replace(MIXTURE.layers[0], feed_forward=replace(experts, shared_gate=True)),) * 2)
    assert _again(gated, "megatron-core", "shared_experts")[-1] == "shared experts output gate"
    assert _dropped(gated, "megatron-core", "shared_experts") == SHARED_BYTES + 2 * S * H


def test_mtp_recomputes_the_same_modules() -> None:
    model = replace(MIXTURE, mtp=1)
    for plan in ({}, {"recompute": "selective"}):
        assert (
            mtp_work(setting(model, **plan)).recompute
            == layer_work(setting(model, **plan), model.layers[0], 0).recompute
        )
    of = setting(model, recompute="selective", recompute_modules=("mla_up_proj",))
    assert [item.name for item in mtp_work(of).recompute] == UP_PROJECTIONS


def test_swiglu_s_input_in_8_bits() -> None:
    for model, inputs in ((LLAMA, 2 * S * 2816), (MIXTURE, 2 * ROWS * FFN + 2 * S * SHARED)):
        wide, narrow = (_work(model, fp8_activation_input=on) for on in (False, True))
        assert wide.saved_bytes - narrow.saved_bytes == inputs
        casts = streams(narrow.forward)["cast"], streams(narrow.backward)["cast"]
        assert casts == (1, 1) if model is LLAMA else casts == (2, 2)
    both = _work(MIXTURE, "megatron-core", "moe_act", fp8_activation_input=True)
    only = _work(MIXTURE, "megatron-core", "moe_act")
    assert only.saved_bytes - both.saved_bytes == 2 * S * SHARED, "the experts' checkpoint keeps 16 bits"


@pytest.mark.parametrize(
    ("modules", "offloaded"),
    [
        (("core_attn",), 2 * S * (2 * QUERY + VALUE)),
        (("core_attn", "attn_proj"), 2 * S * (2 * QUERY + 2 * VALUE)),
        (("attn_norm",), 2 * S * H),
        (("mlp_norm",), 2 * S * H),
        (("qkv_linear",), 2 * S * (H + 2 * 512 + 2 * 256)),
        (("expert_fc1", "moe_act"), 2 * ROWS * (H + 2 * FFN)),
    ],
)
def test_offloaded_bytes(modules: tuple[str, ...], offloaded: int) -> None:
    work = _work(MIXTURE, offload_modules=modules)
    assert work.offloaded_bytes == offloaded <= work.saved_bytes


def test_what_stays_on_the_gpu() -> None:
    """Norms inside linear layers are offloaded with attention's projections; dropped tensors are not offloaded."""
    assert _work(LLAMA, offload_modules=("attn_norm", "mlp_norm")).offloaded_bytes == 0
    assert _work(LLAMA, offload_modules=("qkv_linear",)).offloaded_bytes == 4 * S * H
    assert _work(LLAMA, "torch-eager", offload_modules=("attn_norm", "mlp_norm")).offloaded_bytes == 4 * S * H
    recomputed = _work(MIXTURE, "megatron-core", "mla_up_proj", offload_modules=("core_attn", "qkv_linear"))
    assert recomputed.offloaded_bytes == 2 * S * (H + 512 + 256)
    assert (
        layer_work(setting(LLAMA, recompute="full", offload_modules=("core_attn",)), LLAMA.layers[0], 0).offloaded_bytes
        == 0
    )


def test_stacks_name_their_modules() -> None:
    assert STACKS["megatron-2021"].recompute_modules == ("core_attn",)
    assert {stack.name for stack in STACKS.values() if not stack.recompute_modules} == {
        "fsdp",
        "fsdp-compile",
        "fsdp-compile-rowwise",
    }
    offloading = {stack.name for stack in STACKS.values() if stack.offloads_modules}
    assert offloading == {"megatron-core", "megatron-bridge", "torch-eager"}
