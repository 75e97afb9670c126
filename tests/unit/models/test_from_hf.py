"""Hugging Face configurations become the models that presets describe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.models import presets
from foretrace.models.from_hf import _BUILDERS, model_from_hf
from foretrace.models.model import Experts, Model
from foretrace.models.parameters import parameters


def dense(
    kind: str, hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        **more,
    }


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama3-8b": dense("llama", 4096, 32, 32, 8, 14336, 128256, hidden_act="silu", rope_scaling=None, head_dim=None),
    "llama3.2-1b": dense("llama", 2048, 16, 32, 8, 8192, 128256, tie_word_embeddings=True, head_dim=64),
    "mistral-7b": dense("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096),
    "mixtral-8x7b": dense(
        *("mixtral", 4096, 32, 32, 8, 14336, 32000), num_local_experts=8, num_experts_per_tok=2, sliding_window=None
    ),
    "qwen2.5-7b": dense("qwen2", 3584, 28, 28, 4, 18944, 152064, use_sliding_window=False, sliding_window=131072),
    "qwen2-57b-a14b": dense(
        *("qwen2_moe", 3584, 28, 28, 4, 18944, 151936),
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=2560,
        shared_expert_intermediate_size=20480,
    ),
    "qwen3-8b": dense("qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128, attention_bias=False),
    "qwen3-30b-a3b": dense(
        *("qwen3_moe", 2048, 48, 32, 4, 6144, 151936),
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
    "deepseek-v2-lite": dense(
        *("deepseek_v2", 2048, 27, 16, 16, 10944, 102400),
        n_routed_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        n_shared_experts=2,
        **{"first_k_dense_replace": 1, "q_lora_rank": None, **LATENT},
    ),
    "deepseek-v3": dense(
        *("deepseek_v3", 7168, 61, 128, 128, 18432, 129280),
        n_routed_experts=256,
        num_experts_per_tok=8,
        n_group=8,
        topk_group=4,
        moe_intermediate_size=2048,
        n_shared_experts=1,
        **{"first_k_dense_replace": 3, "q_lora_rank": 1536, "num_nextn_predict_layers": 1, **LATENT},
    ),
    "gpt-oss-120b": dense(
        *("gpt_oss", 2880, 36, 64, 8, 2880, 201088),
        head_dim=64,
        num_local_experts=128,
        num_experts_per_tok=4,
        sliding_window=128,
        attention_bias=True,
        layer_types=["sliding_attention", "full_attention"] * 18,
    ),
    "llama4-maverick": dense(
        *("llama4_text", 5120, 48, 40, 8, 8192, 202048),
        head_dim=128,
        num_local_experts=128,
        num_experts_per_tok=1,
        intermediate_size_mlp=16384,
        interleave_moe_layer_step=2,
        attention_chunk_size=8192,
        no_rope_layers=[1, 1, 1, 0] * 12,
    ),
    "nemotron4-15b": dense("nemotron", 6144, 32, 48, 8, 24576, 256000, hidden_act="relu2"),
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "n_inner": None,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox",
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "vocab_size": 50432,
        "hidden_act": "gelu_fast",
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
    },
    "mpt-7b": {
        "model_type": "mpt",
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "expansion_ratio": 4,
        "vocab_size": 50368,
        "max_seq_len": 2048,
        "no_bias": False,
        "learned_pos_emb": True,
        "attn_config": {"alibi": False},
    },
}


def read(tmp_path: Path, config: dict[str, Any]) -> tuple[Model, tuple[Diagnostic, ...]]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    return model_from_hf(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_its_preset(name: str, tmp_path: Path) -> None:
    model, _ = read(tmp_path, CONFIGS[name])
    preset = presets.model(name)
    about = {"name": "", "title": "", "sources": (), "notes": (), "seq_len": 0, "published_parameters": None}
    assert replace(model, **about) == replace(preset, **about)  # type: ignore[arg-type]
    assert parameters(model) == parameters(preset)


def test_every_known_type_is_tested() -> None:
    tested = {config["model_type"] for config in CONFIGS.values()} | {"llama4"}
    assert tested == set(_BUILDERS)


def test_the_released_mpt_has_alibi_and_no_biases(tmp_path: Path) -> None:
    model, _ = read(
        tmp_path, {**CONFIGS["mpt-7b"], "vocab_size": 50432, "no_bias": True, "attn_config": {"alibi": True}}
    )
    assert parameters(model) == 6_649_286_656
    assert (model.position_kind, model.positions) == ("alibi", 0)


def test_a_model_that_sees_is_read_as_far_as_it_reads(tmp_path: Path) -> None:
    config = {"model_type": "llama4", "text_config": CONFIGS["llama4-maverick"], "vision_config": {"hidden_size": 1408}}
    model, said = read(tmp_path, config)
    assert parameters(model) == parameters(presets.model("llama4-maverick"))
    assert said[0].code == "not-modelled" and "the text model only" in said[0].message


def test_chunks_without_a_list_leave_out_every_fourth_layer(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIGS["llama4-maverick"].items() if key != "no_rope_layers"}
    model, _ = read(tmp_path, config)
    assert model.layers == presets.model("llama4-maverick").layers


@pytest.mark.parametrize(
    ("said", "called"),
    [
        ({"_name_or_path": "meta-llama/Meta-Llama-3-8B"}, "Meta-Llama-3-8B"),
        ({"_name_or_path": "/data/models/ours/"}, "ours"),
        ({"_name_or_path": "jobs/U"}, "llama 8.0B"),
        ({"_name_or_path": ".."}, "llama 8.0B"),
        ({}, "llama 8.0B"),
        ({"num_hidden_layers": 1, "vocab_size": 32000}, "llama 480M"),
    ],
)
def test_what_a_model_is_called(said: dict[str, Any], called: str, tmp_path: Path) -> None:
    assert read(tmp_path, {**CONFIGS["llama3-8b"], **said})[0].name == called


def test_guesses_are_said(tmp_path: Path) -> None:
    config = {**CONFIGS["llama3-8b"], "max_position_embeddings": 131072, "quantization_config": {"bits": 8}}
    del config["num_key_value_heads"], config["tie_word_embeddings"]
    model, said = read(tmp_path, config)
    messages = " | ".join(one.message for one in said)
    assert "num_key_value_heads is not given: taken as 32" in messages
    assert "tie_word_embeddings is not given: taken as false" in messages
    assert "the context of 131,072 tokens is no training length: seq_len is taken as 4,096" in messages
    assert "the plan's precision counts" in messages
    assert (model.tied, model.seq_len) == (False, 4096)


def test_nothing_is_said_where_nothing_is_guessed(tmp_path: Path) -> None:
    assert read(tmp_path, CONFIGS["llama3-8b"])[1] == ()


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(("llama3-8b", field) for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")),
        ("llama3-8b", "intermediate_size"),
        ("mixtral-8x7b", "num_local_experts"),
        ("mixtral-8x7b", "num_experts_per_tok"),
        ("deepseek-v3", "kv_lora_rank"),
        ("qwen2-57b-a14b", "shared_expert_intermediate_size"),
        ("gpt2", "n_embd"),
        ("gpt2", "n_positions"),
        ("mpt-7b", "max_seq_len"),
        ("llama3-8b", "model_type"),
    ],
)
def test_a_field_that_is_missing_is_named(name: str, field: str, tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIGS[name].items() if key != field}
    with pytest.raises(InputError, match=f"field {field} is missing") as refused:
        read(tmp_path, config)
    assert refused.value.exit_code == 3
    assert refused.value.where == f"{tmp_path / 'config.json'}:1"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "lama"}, '"lama" is not known; did you mean llama?'),
        ({"hidden_act": "mish"}, 'hidden_act "mish" is not known'),
        ({"num_attention_heads": 0}, "num_attention_heads 0 cannot be meant"),
        ({"num_attention_heads": -3}, "-3"),
        ({"num_key_value_heads": 5}, "is no multiple of num_key_value_heads 5"),
        ({"hidden_size": "wide"}, "wide"),
        ({"hidden_size": 4097}, "hidden_size 4097 is no multiple of num_attention_heads 32"),
        ({"hidden_size": [1]}, "hidden_size"),
        ({"tie_word_embeddings": "maybe"}, "neither true nor false"),
        ({"layer_types": "all"}, "layer_types: a list"),
        ({"layer_types": ["full_attention"]}, "1 entries for 32 layers"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, {**CONFIGS["llama3-8b"], **change})
    assert problem in str(refused.value)
    assert refused.value.where is not None
    assert refused.value.where.startswith(str(tmp_path))


def test_more_experts_for_a_token_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot go to 9 of 8 experts"):
        read(tmp_path, {**CONFIGS["mixtral-8x7b"], "num_experts_per_tok": 9})


def test_experts_are_where_the_lists_say(tmp_path: Path) -> None:
    model, _ = read(tmp_path, {**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": [0, 5]})
    assert [n for n, layer in enumerate(model.layers) if not isinstance(layer.feed_forward, Experts)] == [0, 5]
