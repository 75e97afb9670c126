"""Exact counts of parameters, and how ranks share them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.models import presets
from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model, SelfAttention
from foretrace.models.parameters import (
    active_parameters,
    attention_parameters,
    head_parameters,
    layer_parameters,
    mlp_parameters,
    mtp_parameters,
    norm_parameters,
    parameter_parts,
    parameters,
)

GATED = Mlp(96, True, "silu")


def one_layer(layer: Layer, **changes: object) -> Model:
    return replace(Model("tiny", 32, (layer,), 100, "rmsnorm", False), **changes)  # type: ignore[arg-type]


def test_a_layer_by_hand() -> None:
    attention = SelfAttention(4, 2, 8, qkv_bias=True, out_bias=True, qk_norm=True, sinks=True)
    # Queries 32x32, keys and values 32x16 each, output 32x32; biases 32+16+16 and 32; two norms of 8; 4 sinks.
    assert attention_parameters(attention, 32) == 1024 + 2 * 512 + 1024 + 64 + 32 + 16 + 4
    assert mlp_parameters(GATED, 32) == 3 * 32 * 96
    assert mlp_parameters(Mlp(96, False, "gelu", bias=True), 32) == 2 * 32 * 96 + 96 + 32


def test_a_gate_on_attention_is_one_more_matrix_of_queries() -> None:
    plain, gated = SelfAttention(4, 4, 8), SelfAttention(4, 4, 8, output_gate=True)
    assert attention_parameters(gated, 32) - attention_parameters(plain, 32) == 32 * 32


def test_whole_model_by_hand() -> None:
    model = one_layer(Layer(SelfAttention(4, 4, 8), GATED))
    assert parameters(model) == 2 * 100 * 32 + 4 * 1024 + 3 * 32 * 96 + 3 * 32
    assert parameters(replace(model, tied=True)) == parameters(model) - 100 * 32
    assert parameters(replace(model, norm="layernorm")) == parameters(model) + 3 * 32
    assert parameters(replace(model, norm="layernorm", norm_bias=False)) == parameters(model)
    assert parameters(replace(model, positions=7)) == parameters(model) + 7 * 32
    assert parameters(replace(model, head_bias=True)) == parameters(model) + 100


def test_without_a_vocabulary_there_are_layers_and_nothing_else() -> None:
    model = one_layer(Layer(SelfAttention(4, 4, 8), GATED), vocab=0)
    assert parameters(model) == layer_parameters(model.layers[0], 32, 32).total
    assert set(parameter_parts(model)) == {"attention", "feed forward", "norms"}


@pytest.mark.parametrize("name", presets.names())
def test_parts_sum_to_the_whole_and_active_ones_are_no_more(name: str) -> None:
    model = presets.model(name)
    parts = parameter_parts(model)
    assert sum(parts.values()) - parts.get("mtp", 0) == parameters(model)
    has_experts = any(isinstance(layer.feed_forward, Experts) for layer in model.layers)
    assert (active_parameters(model) < parameters(model)) == has_experts


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("mixtral-8x7b", 12.9e9),
        ("deepseek-v2", 21e9),
        ("deepseek-v3", 37e9),
        ("qwen3-30b-a3b", 3.3e9),
        ("qwen3-235b-a22b", 22e9),
    ],
)
def test_active_parameters_as_published(name: str, published: float) -> None:
    assert active_parameters(presets.model(name)) == pytest.approx(published, rel=0.02)


def test_ranks_of_tensor_parallelism_split_matrices_and_keep_norms() -> None:
    layer = presets.model("llama3-70b").layers[0]
    whole, part = (layer_parameters(layer, 8192, 8192, tp=tp) for tp in (1, 8))
    assert part.attention * 8 == whole.attention
    assert part.feed_forward * 8 == whole.feed_forward
    assert part.norms == whole.norms


def test_biases_of_rows_are_whole_on_every_rank() -> None:
    layer = presets.model("gpt3-175b").layers[0]
    whole, part = (layer_parameters(layer, 12288, 2 * 12288, tp=tp) for tp in (1, 8))
    assert part.attention == (whole.attention - 12288) // 8 + 12288
    assert part.feed_forward == (whole.feed_forward - 12288) // 8 + 12288


def test_fewer_key_value_heads_than_ranks_are_copied() -> None:
    attention = SelfAttention(64, 4, 128)
    assert attention_parameters(attention, 8192, tp=8) == 8192 * 128 * (8 + 2 + 8)


def test_down_projections_of_latent_attention_are_whole_on_every_rank() -> None:
    attention = LatentAttention(128, 1536, 512, 128, 64, 128)
    whole, part = (attention_parameters(attention, 7168, tp=tp) for tp in (1, 8))
    kept = 7168 * 1536 + 1536 + 7168 * (512 + 64) + 512
    assert (whole - kept) == 8 * (part - kept)


def test_experts_are_split_over_their_own_axes() -> None:
    layer = presets.model("deepseek-v3").layers[-1]
    whole = layer_parameters(layer, 7168, 7168)
    part = layer_parameters(layer, 7168, 7168, tp=4, ep=32, etp=2)
    assert part.experts * 64 == whole.experts
    assert part.feed_forward * 4 == whole.feed_forward  # the shared expert
    assert part.router == whole.router == 256 * 7169
    assert part.total == part.dense + part.experts


def test_ends_are_split_by_vocabulary() -> None:
    model = presets.model("gpt3-175b")
    assert head_parameters(model, tp=8) == norm_parameters(model) == 2 * 12288  # tied
    llama = presets.model("llama3-8b")
    assert head_parameters(llama, tp=2) == 4096 + 64128 * 4096


def test_a_prediction_module_is_a_layer_a_projection_and_three_norms() -> None:
    model = presets.model("deepseek-v3")
    layer = layer_parameters(model.layers[-1], 7168, 7168)
    assert mtp_parameters(model).total == layer.total + 2 * 7168**2 + 3 * 7168
    assert parameter_parts(model)["mtp"] == mtp_parameters(model).total
