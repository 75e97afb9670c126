"""Model FLOPs against formulas that others published, and against the count of parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.models import presets
from foretrace.models.flops import attention_pairs, forward_flops, model_flops
from foretrace.models.parameters import active_parameters, parameter_parts


def test_gpt_as_in_megatrons_paper() -> None:
    """Narayanan et al. (SC 2021), equation 3 without recomputation, attention whole: 72 s l h² (1 + s/6h + V/12lh)."""
    model, seq = presets.model("gpt-145.6b"), 2048
    layers, hidden, vocab = 80, 12288, 51200
    expected = 72 * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    assert model_flops(model, seq, causal=False) == pytest.approx(expected, rel=1e-12)


def test_causal_attention_counts_half() -> None:
    model = presets.model("llama3-70b")
    half, whole = (forward_flops(model, 8192, causal) for causal in (True, False))
    assert 2 * half.attention == whole.attention
    assert (half.linear, half.head) == (whole.linear, whole.head)
    assert half.attention == 80 * 2 * 64 * 256 * 8192**2 / 2


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "deepseek-v2"])
def test_linear_work_is_two_flop_for_each_active_weight(name: str) -> None:
    """All active parameters but tables, norms, biases and sinks are weights of products: within 1 %."""
    model = presets.model(name)
    parts = parameter_parts(model)
    weights = active_parameters(model) - parts["embedding"]
    flops = forward_flops(model, 1024)
    assert (flops.linear + flops.head) / 1024 == pytest.approx(2 * weights, rel=0.01)


def test_documents_cut_attention_and_nothing_else() -> None:
    model = presets.model("llama3-8b")
    packed, whole = forward_flops(model, 8192, documents=[4096, 4096]), forward_flops(model, 8192)
    assert 2 * packed.attention == whole.attention
    assert packed.linear == whole.linear


def test_pairs_of_a_window() -> None:
    assert attention_pairs(1000, None) == 500_000
    assert attention_pairs(1000, 1000) == attention_pairs(1000, 5000) == 500_000
    # Each query sees 100, but for those at the start.
    assert attention_pairs(1000, 100) == 1000 * 100 - 100**2 / 2
    assert attention_pairs(1000, 100, causal=False) == 1e6


def test_every_second_layer_of_gpt_oss_sees_a_window() -> None:
    flops = forward_flops(presets.model("gpt-oss-120b"), 4096).attention
    each = 2 * 64 * 128
    assert flops == 18 * each * (attention_pairs(4096, None) + attention_pairs(4096, 128))


def test_latent_attention_has_wider_queries_than_values() -> None:
    flops = forward_flops(presets.model("deepseek-v2"), 4096).attention
    assert flops == 60 * 2 * 128 * (128 + 64 + 128) * 4096**2 / 2


def test_prediction_modules_add_a_layer_a_projection_and_a_head() -> None:
    model = presets.model("deepseek-v3")
    without = forward_flops(replace(model, mtp=0), 4096)
    whole = forward_flops(model, 4096)
    assert whole.head == 2 * without.head
    assert whole.attention == without.attention * 62 / 61
    assert whole.linear - without.linear > 2 * 4096 * 2 * 7168**2


def test_training_is_three_times_the_forward() -> None:
    model = presets.model("llama2-7b")
    assert model_flops(model, 4096) == 3 * forward_flops(model, 4096).total
