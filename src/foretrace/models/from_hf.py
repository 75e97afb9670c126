"""Turns Hugging Face configurations into models: what the fields of each model type mean.

Defaults are those of the `transformers` configuration classes. A note reports each default that is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, did_you_mean
from foretrace.basics.files import AnyFile
from foretrace.basics.numbers import whole_field
from foretrace.models.compose import MAX_LAYERS, compose_layers
from foretrace.models.hf_config import HfConfig, read_hf_config
from foretrace.models.model import Activation, Experts, LatentAttention, Layer, Mlp, Model, Norm, SelfAttention
from foretrace.models.parameters import parameters

_ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu"), "gelu"),
}
_UNMODELLED: Final = {
    "use_parallel_residual": "attention and feed-forward beside each other are taken one after the other",
    "partial_rotary_factor": "only part of each head is rotated; all of it is counted",
    "quantization_config": "the checkpoint is quantised; the plan's precision counts",
    "attn_logit_softcapping": "capping of attention logits is left out",
    "use_qk_norm": "queries and keys are normalised without parameters: left out",
}
"""Fields that change the work a little, and what is done about them."""
MAX_TOKENS: Final = 10**9
SEQ_LEN_LIMIT: Final = 8192
"""A context longer than this is no sequence length of pretraining."""


@dataclass(slots=True)
class _Reading:
    """A configuration, and what was guessed on the way."""

    config: HfConfig
    notes: list[Diagnostic] = field(default_factory=list)

    def say(self, code: str, message: str, name: str = "") -> None:
        """A guess that a reader of the result should know."""
        self.notes.append(
            Diagnostic("note", code, message, self.config.where(name) if name else self.config.document.path)
        )

    def count(self, name: str, *others: str, guess: int) -> int:
        """Reads a field that may be absent; a note reports the guess."""
        if not any(field in self.config for field in (name, *others)):
            self.say("assumed", f"{name} is not given: taken as {guess:,}")
        return self.config.count(name, *others, default=guess, most=MAX_TOKENS)

    def flag(self, name: str, guess: bool, *, quiet: bool = False) -> bool:
        """A field that may be absent."""
        if name not in self.config and not quiet:
            self.say("assumed", f"{name} is not given: taken as {'true' if guess else 'false'}")
        return self.config.flag(name, guess)

    def activation(self, name: str, guess: str) -> Activation:
        """The function between the matrices of a feed-forward part."""
        text = self.config.text(name, guess)
        if text not in _ACTIVATIONS:
            problem = f'{name} "{text}" is not known{did_you_mean(text, _ACTIVATIONS)}'
            raise InputError(
                "unknown-name", problem, where=self.config.where(name), hint=f"known: {' '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[text]


def model_from_hf(path: AnyFile) -> tuple[Model, tuple[Diagnostic, ...]]:
    """The model that a `config.json` describes, and what was guessed or left out."""
    config = read_hf_config(path)
    reading = _Reading(config)
    inner = config.inner("text_config")
    if inner is not None:
        reading.say("not-modelled", "the text model only: everything else in this file is left out", "text_config")
        reading.config = config = inner
    build = _BUILDERS.get(config.model_type)
    if build is None:
        problem = f'model_type "{config.model_type}" is not known{did_you_mean(config.model_type, _BUILDERS)}'
        raise InputError(
            "unknown-name", problem, where=config.where("model_type"), hint=f"known: {' '.join(_BUILDERS)}"
        )
    model = build(reading)
    if not model.name:
        called = f"{config.model_type} {_rounded(parameters(model))}"
        model = replace(model, name=called, title=called)
    for name in config.given(tuple(_UNMODELLED)):
        reading.say("not-modelled", _UNMODELLED[name], name)
    return model, tuple(reading.notes)


def _rounded(count: int) -> str:
    """A number of parameters as models are called by it: 8.0B, 124M."""
    return f"{count / 1e9:.1f}B" if count >= 10**9 else f"{count / 1e6:.0f}M"


def _llama(reading: _Reading) -> Model:
    """Llama and its kin: Mistral, Qwen 2 and 3, their mixtures of experts, gpt-oss, Llama 4."""
    config = reading.config
    count, kind = config.count("num_hidden_layers", most=MAX_LAYERS), config.model_type
    activation = reading.activation("hidden_act", "silu")
    bias = config.flag("mlp_bias", False)
    dense_ffn = ("intermediate_size_mlp", "intermediate_size") if kind.startswith("llama4") else ("intermediate_size",)
    experts = _experts(reading, activation)
    dense = _dense_layers(reading, count) if experts else frozenset()
    mlp = Mlp(config.count(*dense_ffn), True, activation, bias) if experts is None or dense else None
    attention = _grouped(reading)
    unlimited, without_rope = _exceptions(reading, attention, count)
    layers = compose_layers(count, attention, mlp, experts, dense=dense, unlimited=unlimited, without_rope=without_rope)
    return _model(reading, layers, "rmsnorm")


def _grouped(reading: _Reading) -> SelfAttention:
    config, kind = reading.config, reading.config.model_type
    heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", default=_whole_share(config, heads))
    bias = config.flag("attention_bias", kind == "gpt_oss")
    always_biased = kind in ("qwen2", "qwen2_moe")
    window = None
    if kind.startswith("llama4"):
        window = config.count("attention_chunk_size", default=8192)
    elif "sliding_window" in config and config.flag("use_sliding_window", kind in ("mistral", "mixtral", "gpt_oss")):
        window = config.count("sliding_window", most=MAX_TOKENS)
    kv_heads = reading.count("num_key_value_heads", guess=heads)
    if heads % kv_heads:
        problem = f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        raise InputError("not-divisible", problem, where=config.where("num_key_value_heads"))
    return SelfAttention(
        heads,
        kv_heads,
        head_dim,
        qkv_bias=bias or always_biased,
        # Qwen's attention_bias is of queries, keys and values alone.
        out_bias=bias and not kind.startswith("qwen"),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        window=window,
        sinks=kind == "gpt_oss",
    )


def _whole_share(config: HfConfig, heads: int) -> int:
    """The hidden size of one head, which must be whole unless `head_dim` is given."""
    hidden = config.count("hidden_size")
    if hidden % heads and "head_dim" not in config:
        problem = f"hidden_size {hidden} is no multiple of num_attention_heads {heads}"
        raise InputError("not-divisible", problem, where=config.where("num_attention_heads"), hint="give head_dim")
    return hidden // heads


def _exceptions(reading: _Reading, attention: SelfAttention, count: int) -> tuple[frozenset[int], frozenset[int]]:
    """The layers without a window, and those that do not rotate."""
    config = reading.config
    types = config.texts("layer_types")
    if types and len(types) != count:
        problem = f"layer_types has {len(types)} entries for {count} layers"
        raise InputError("conflicting-values", problem, where=config.where("layer_types"))
    unlimited = frozenset(number for number, type_ in enumerate(types) if type_ == "full_attention")
    if not types and config.model_type == "gpt_oss":
        reading.say("assumed", "layer_types is not given: every second layer sees all tokens")
        unlimited = frozenset(range(1, count, 2))
    if not config.model_type.startswith("llama4"):
        return unlimited if attention.window else frozenset(), frozenset()
    rotates = config.texts("no_rope_layers")  # named so, and 1 where a layer does rotate
    without = frozenset(n for n, flag in enumerate(rotates) if flag == "0")
    if not rotates:
        without = frozenset(range(3, count, config.count("no_rope_layer_interval", default=4)))
    return unlimited or without, without


def _experts(reading: _Reading, activation: Activation) -> Experts | None:
    config, kind = reading.config, reading.config.model_type
    count = config.count("num_local_experts", "num_experts", "n_routed_experts", default=0, least=0)
    moe_types = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "llama4", "llama4_text")
    if not count or kind not in (*moe_types, "deepseek_v2", "deepseek_v3"):
        if kind in moe_types:
            config.count("num_local_experts", "num_experts")
        return None
    ffn = config.count("moe_intermediate_size", "intermediate_size")
    topk = config.count("num_experts_per_tok", "experts_per_token")
    if topk > count:
        where = config.where("num_experts_per_tok")
        raise InputError("out-of-range", f"a token cannot go to {topk} of {count} experts", where=where)
    expert = Mlp(ffn, True, activation, kind == "gpt_oss", clamp=kind == "gpt_oss")
    shared = config.count("n_shared_experts", default=0, least=0) * ffn
    if kind == "qwen2_moe":
        shared = config.count("shared_expert_intermediate_size")
    elif kind.startswith("llama4"):
        shared = ffn
    limited = config.text("topk_method", "noaux_tc") in ("noaux_tc", "group_limited_greedy")
    groups = config.count("n_group", default=1) if limited else 1
    correction = kind == "deepseek_v3" and config.text("topk_method", "noaux_tc") == "noaux_tc"
    return Experts(
        count,
        topk,
        expert,
        Mlp(shared, True, activation) if shared else None,
        shared_gate=kind == "qwen2_moe",
        router_bias=kind == "gpt_oss" or correction,
        groups=groups,
        topk_groups=config.count("topk_group", default=groups, most=groups) if groups > 1 else 1,
    ).checked(config.where("n_group"))


def _dense_layers(reading: _Reading, count: int) -> frozenset[int]:
    """Which layers have no experts: the first few (DeepSeek), those listed (Qwen), or all but every n-th."""
    config = reading.config
    first = config.count("first_k_dense_replace", default=0, least=0)
    dense = set(range(min(first, count)))
    dense |= _listed_layers(config, "mlp_only_layers")
    step = config.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    if "moe_layers" in config:
        return frozenset(range(count)) - _listed_layers(config, "moe_layers")
    return frozenset(dense | {number for number in range(count) if (number + 1) % step})


def _listed_layers(config: HfConfig, name: str) -> set[int]:
    """Returns the layers of a list; one that the model does not have, as `[-1]` for none, is not counted."""
    where, hint = config.where(name), "expected numbers of layers"
    return {whole_field(name, text, where, least=-1, most=10 * MAX_LAYERS, hint=hint) for text in config.texts(name)}


def _deepseek(reading: _Reading) -> Model:
    config = reading.config
    count, activation = config.count("num_hidden_layers", most=MAX_LAYERS), reading.activation("hidden_act", "silu")
    experts = _experts(reading, activation)
    dense = _dense_layers(reading, count) if experts else frozenset()
    mlp = Mlp(config.count("intermediate_size"), True, activation) if experts is None or dense else None
    attention = LatentAttention(
        config.count("num_attention_heads"),
        config.count("q_lora_rank") if "q_lora_rank" in config else None,
        config.count("kv_lora_rank"),
        config.count("qk_nope_head_dim"),
        config.count("qk_rope_head_dim"),
        config.count("v_head_dim"),
    )
    return _model(reading, compose_layers(count, attention, mlp, experts, dense=dense), "rmsnorm")


def _gpt2(reading: _Reading) -> Model:
    config = reading.config
    hidden, heads = config.count("n_embd"), config.count("n_head")
    attention = SelfAttention(heads, heads, _share(config, "n_embd", hidden, heads), True, True, rope=False)
    mlp = Mlp(
        config.count("n_inner", default=4 * hidden), False, reading.activation("activation_function", "gelu"), True
    )
    positions = config.count("n_positions", "n_ctx", most=MAX_TOKENS)
    layers = compose_layers(config.count("n_layer", most=MAX_LAYERS), attention, mlp)
    return _model(reading, layers, "layernorm", hidden=hidden, positions=positions, tied=True, dropout=True)


def _gpt_neox(reading: _Reading) -> Model:
    config = reading.config
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    bias = config.flag("attention_bias", True)
    attention = SelfAttention(heads, heads, _share(config, "hidden_size", hidden, heads), bias, bias)
    mlp = Mlp(config.count("intermediate_size"), False, reading.activation("hidden_act", "gelu"), True)
    layers = compose_layers(config.count("num_hidden_layers", most=MAX_LAYERS), attention, mlp)
    return _model(reading, layers, "layernorm")


def _mpt(reading: _Reading) -> Model:
    config = reading.config
    hidden, heads = config.count("d_model"), config.count("n_heads")
    bias = not reading.flag("no_bias", False)
    inner = config.inner("attn_config") or config
    kv_heads = inner.count("kv_n_heads", default=heads)
    alibi, learned = inner.flag("alibi", False), config.flag("learned_pos_emb", True)
    seq_len = config.count("max_seq_len", most=MAX_TOKENS)
    head_dim = _share(config, "d_model", hidden, heads)
    attention = SelfAttention(heads, kv_heads, head_dim, bias, bias, rope=inner.flag("rope", False))
    mlp = Mlp(config.count("expansion_ratio", default=4) * hidden, False, "gelu", bias)
    layers = compose_layers(config.count("n_layers", most=MAX_LAYERS), attention, mlp)
    positions = seq_len if learned and not alibi else 0
    model = _model(reading, layers, "layernorm", hidden=hidden, positions=positions, tied=True, norm_bias=bias)
    return replace(model, position_kind="alibi") if alibi else model


def _nemotron(reading: _Reading) -> Model:
    config = reading.config
    mlp_bias = config.flag("mlp_bias", False)
    mlp = Mlp(config.count("intermediate_size"), False, reading.activation("hidden_act", "relu2"), mlp_bias)
    layers = compose_layers(config.count("num_hidden_layers", most=MAX_LAYERS), _grouped(reading), mlp)
    return _model(reading, layers, "layernorm")


def _share(config: HfConfig, name: str, hidden: int, heads: int) -> int:
    if hidden % heads:
        raise InputError(
            "not-divisible", f"{name} {hidden} is no multiple of its {heads} heads", where=config.where(name)
        )
    return hidden // heads


def _model(
    reading: _Reading,
    layers: tuple[Layer, ...],
    norm: Norm,
    *,
    hidden: int | None = None,
    positions: int = 0,
    tied: bool | None = None,
    dropout: bool = False,
    norm_bias: bool = True,
) -> Model:
    config = reading.config
    attention = layers[0].attention
    rotates = isinstance(attention, LatentAttention) or attention.rope
    mtp = (
        config.count("num_nextn_predict_layers", default=0, least=0, most=MAX_LAYERS)
        if config.model_type == "deepseek_v3"
        else 0
    )
    return Model(
        name=config.name,
        hidden=config.count("hidden_size") if hidden is None else hidden,
        layers=layers,
        vocab=config.count("vocab_size"),
        norm=norm,
        tied=reading.flag("tie_word_embeddings", bool(tied), quiet=tied is not None),
        norm_bias=norm_bias,
        positions=positions,
        position_kind="learned" if positions else "rope" if rotates else "none",
        mtp=mtp,
        dropout=dropout,
        seq_len=_seq_len(reading),
        title=config.name,
        sources=(config.document.path,),
    )


def _seq_len(reading: _Reading) -> int:
    """The context, but no more than sequences of pretraining have."""
    context = reading.count("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", guess=4096)
    if context <= SEQ_LEN_LIMIT:
        return context
    reading.say("assumed", f"the context of {context:,} tokens is no training length: seq_len is taken as 4,096")
    return 4096


_BUILDERS: Final[dict[str, Callable[[_Reading], Model]]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gpt_oss"), _llama),
    **dict.fromkeys(("llama4", "llama4_text"), _llama),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _deepseek),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mpt": _mpt,
    "nemotron": _nemotron,
}
