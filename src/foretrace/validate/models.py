"""Reads the model of a measured run from the columns of a table.

Tables give sizes, not styles. Whether a feed-forward layer is gated, embeddings are tied or positions are learned
follows from the model's name; a note says what is assumed if the name does not tell.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from foretrace.basics.errors import InputError, quoted
from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model, SelfAttention
from foretrace.models.presets import model as preset_model
from foretrace.validate.training_runs import RunConfig

_DESCRIBING: Final = {"layers": "layers", "hidden": "hidden", "ffn": "ffn_hidden", "heads": "heads"}
"""Without which no model is described, and the columns they are in."""

_VOCABULARIES: Final = (
    (r"nemotron", 256_000),
    (r"gpt", 51_200),
    (r"mpt", 50_368),
    (r"llama-?_? ?2|llama-?[0-9]+b", 32_000),
    (r"llama", 128_256),
    (r"mi[sx]tral", 32_000),
    (r"qwen", 151_936),
    (r"deepseek", 102_400),
)
"""Where a table leaves the vocabulary out: by the name, the first that fits. GPT: 50,257 as Megatron pads it with
tp 8 (2205.05198 states 51,200)."""


_MTP: Final = re.compile(r"[\s_(-]*\b(w/o|without|no|w/|with)\s*mtp\)?\s*$", re.IGNORECASE)
"""How a name ends that says whether multi-token prediction is trained: `DeepSeekV3 (w/o MTP)`."""


_LAYERS_LEFT: Final = re.compile(r"[ _-]+L\d+$")
"""How a name ends that says how many layers are left of a model: `Llama3 70B L12`."""

_REMARK: Final = re.compile(r"\s*\([^()]*\)\s*$")
"""Words in parentheses after a name: `DeepSeekV3 (tokendrop)`."""


def model_of(config: RunConfig) -> tuple[Model, tuple[str, ...]]:
    """The model of a run, with what was assumed about it."""
    name = config.model.lower()
    if config.style:
        return _styled(config), ()
    if re.match(r"mpt\b", name):
        return _mpt(config), ()
    known = _preset(config.model)
    remark = _REMARK.search(config.model)
    if known is None and remark is not None and (known := _preset(config.model[: remark.start()])) is not None:
        model, notes = _adapted(known, config)
        return model, (*notes, f'"{remark[0].strip()}" of the model\'s name is not modelled')
    if known is None:
        _check_described(config)
    if re.match(r"gpt", name) and "oss" not in name and (config.heads is not None or known is None):
        return _gpt(config)
    if known is not None:
        return _adapted(known, config)
    if "nemotron" in name:
        return _nemotron(config)
    notes = () if re.search(r"llama|qwen|mi[sx]tral", name) else (f"{quoted(config.model)} is taken to be like Llama",)
    return _llama(config, notes)


def _preset(name: str) -> Model | None:
    """The preset that is called so; `L12` at the end of a name says how many layers are left of it."""
    says_mtp = _MTP.search(name)
    try:
        known = preset_model(_LAYERS_LEFT.sub("", _MTP.sub("", name)))
    except InputError:
        return None
    if says_mtp is None:
        return known
    return replace(known, mtp=max(known.mtp, 1) if says_mtp[1].lower() in ("w/", "with") else 0)


def _check_described(config: RunConfig) -> None:
    """Raises an error if the row of a model that is not a preset does not describe it."""
    missing = [column for field, column in _DESCRIBING.items() if getattr(config, field) is None]
    if missing:
        *first, last = missing
        columns = f"{', '.join(first)} and {last}" if first else last
        problem = f"no preset is called {config.model}, and the row does not give {columns}"
        raise InputError(
            "missing-field", problem, where=config.where, hint="see foretrace list models, or fill in the columns"
        )


def _needed(config: RunConfig, field: str) -> int:
    value = getattr(config, field)
    if value is None:
        raise InputError(
            "missing-field", f"{field} of {config.model} is not said", where=config.where, hint="fill in the column"
        )
    return int(value)


def _vocab(config: RunConfig) -> tuple[int, tuple[str, ...]]:
    if config.vocab is not None:
        return config.vocab, ()
    vocab = next((size for words, size in _VOCABULARIES if re.search(words, config.model.lower())), None)
    if vocab is None:
        return _needed(config, "vocab"), ()
    return vocab, (f"vocabulary of {vocab:,} by the model's name",)


def _latent(config: RunConfig) -> LatentAttention:
    return LatentAttention(
        _needed(config, "heads"),
        config.q_lora_rank,
        _needed(config, "kv_lora_rank"),
        nope_dim=_needed(config, "nope_dim"),
        rope_dim=_needed(config, "rope_dim"),
        v_dim=_needed(config, "v_dim"),
    )


def _attention(config: RunConfig, bias: bool, rope: bool) -> SelfAttention:
    heads, hidden = _needed(config, "heads"), _needed(config, "hidden")
    if config.head_dim is None and hidden % heads:
        raise InputError("not-divisible", f"{heads} heads do not divide the hidden size {hidden}", where=config.where)
    width = config.head_dim or hidden // heads
    return SelfAttention(heads, config.kv_heads or heads, width, qkv_bias=bias, out_bias=bias, rope=rope)


def _styled(config: RunConfig) -> Model:
    """Returns a model of runs measured on one GPU: no position embedding in either style, an untied head without bias.

    A vocabulary of 0 means that there is no embedding, final norm or head.
    """
    gpt = config.style == "gpt"
    mlp = Mlp(_needed(config, "ffn"), gated=not gpt, activation="gelu" if gpt else "silu", bias=gpt)
    feed_forward: Mlp | Experts = mlp
    if config.experts is not None:
        shared = None if config.shared_ffn is None else replace(mlp, ffn=config.shared_ffn)
        expert = replace(mlp, ffn=config.expert_ffn or mlp.ffn)
        feed_forward = Experts(config.experts, _needed(config, "topk"), expert, shared)
    latent = config.kv_lora_rank is not None
    attention = _latent(config) if latent else _attention(config, bias=gpt, rope=not gpt)
    layer = Layer(attention, feed_forward)
    return Model(
        name=config.model,
        hidden=_needed(config, "hidden"),
        layers=(layer,) * _needed(config, "layers"),
        vocab=config.vocab or 0,
        norm="layernorm" if gpt else "rmsnorm",
        tied=False,
        position_kind="none" if gpt else "rope",
        seq_len=_needed(config, "seq_len"),
    )


def _mpt(config: RunConfig) -> Model:
    """MPT of llm-foundry: tied embeddings, learned positions for every token of the sequence, and biases (MPTConfig's
    default): only with them do its published parameter counts come out."""
    layer = Layer(
        _attention(config, bias=True, rope=False),
        Mlp(_needed(config, "ffn"), gated=False, activation="gelu", bias=True),
    )
    return Model(
        name=config.model,
        hidden=_needed(config, "hidden"),
        layers=(layer,) * _needed(config, "layers"),
        vocab=_vocab(config)[0],
        norm="layernorm",
        tied=True,
        positions=_needed(config, "seq_len"),
        position_kind="learned",
        seq_len=_needed(config, "seq_len"),
    )


def _gpt(config: RunConfig) -> tuple[Model, tuple[str, ...]]:
    """GPT as Megatron trains it: biases, dropout, tied embeddings, learned positions."""
    vocab, notes = _vocab(config)
    layer = Layer(
        _attention(config, bias=True, rope=False),
        Mlp(_needed(config, "ffn"), gated=False, activation="gelu", bias=True),
    )
    model = Model(
        name=config.model,
        hidden=_needed(config, "hidden"),
        layers=(layer,) * _needed(config, "layers"),
        vocab=vocab,
        norm="layernorm",
        tied=True,
        positions=_needed(config, "seq_len"),
        position_kind="learned",
        dropout=True,
        seq_len=_needed(config, "seq_len"),
    )
    return model, notes


def _nemotron(config: RunConfig) -> tuple[Model, tuple[str, ...]]:
    """Nemotron: squared ReLU, rotary positions, untied, no biases but the norms'."""
    return _plain(config, Mlp(_needed(config, "ffn"), gated=False, activation="relu2"), "layernorm", ())


def _llama(config: RunConfig, notes: tuple[str, ...]) -> tuple[Model, tuple[str, ...]]:
    mlp = Mlp(_needed(config, "ffn"), gated=True, activation="silu")
    feed_forward: Mlp | Experts = mlp
    if config.experts is not None:
        feed_forward = Experts(config.experts, _needed(config, "topk"), mlp)
    return _plain(config, feed_forward, "rmsnorm", notes)


def _plain(
    config: RunConfig, feed_forward: Mlp | Experts, norm: str, notes: tuple[str, ...]
) -> tuple[Model, tuple[str, ...]]:
    vocab, vocab_notes = _vocab(config)
    layer = Layer(_attention(config, bias=False, rope=True), feed_forward)
    model = Model(
        name=config.model,
        hidden=_needed(config, "hidden"),
        layers=(layer,) * _needed(config, "layers"),
        vocab=vocab,
        norm="layernorm" if norm == "layernorm" else "rmsnorm",
        tied=False,
        seq_len=_needed(config, "seq_len"),
    )
    return model, (*notes, *vocab_notes)


def _adapted(known: Model, config: RunConfig) -> tuple[Model, tuple[str, ...]]:
    """A preset with the sizes of the table where it gives them, and as many layers."""
    count = config.layers or len(known.layers)
    layers = (known.layers + known.layers[-1:] * count)[:count]
    dense = re.search(r"dense_layers=([0-9]{1,6})(?![0-9])", config.notes)
    if dense is not None:
        plain = [layer for layer in known.layers if isinstance(layer.feed_forward, Mlp)]
        routed = [layer for layer in known.layers if isinstance(layer.feed_forward, Experts)]
        if plain and routed:
            few = min(int(dense[1]), count)
            layers = (plain[0],) * few + (routed[0],) * (count - few)
    changed = {fromkey: _resized(fromkey, config) for fromkey in dict.fromkeys(layers)}
    notes = () if count == len(known.layers) else (f"{count} of {known.name}'s {len(known.layers)} layers",)
    model = replace(
        known,
        name=config.model,
        hidden=config.hidden or known.hidden,
        layers=tuple(changed[layer] for layer in layers),
        vocab=config.vocab or known.vocab,
        mtp=known.mtp if count == len(known.layers) else 0,
        seq_len=config.seq_len or known.seq_len,
        published_parameters=None,
    )
    return model, notes


def _resized(layer: Layer, config: RunConfig) -> Layer:
    """A layer with the sizes of the table. The feed-forward size of a mixture is one expert's, so that its dense layers
    keep the preset's."""
    attention, feed_forward = layer.attention, layer.feed_forward
    heads = config.heads or attention.heads
    if isinstance(attention, LatentAttention):
        attention = replace(attention, heads=heads)
    else:
        width = config.head_dim or attention.head_dim
        attention = replace(attention, heads=heads, kv_heads=config.kv_heads or attention.kv_heads, head_dim=width)
    if isinstance(feed_forward, Experts):
        expert = replace(feed_forward.expert, ffn=config.ffn or feed_forward.expert.ffn)
        count, topk = config.experts or feed_forward.count, config.topk or feed_forward.topk
        feed_forward = replace(feed_forward, expert=expert, count=count, topk=topk)
    elif config.experts is None:
        feed_forward = replace(feed_forward, ffn=config.ffn or feed_forward.ffn)
    return Layer(attention, feed_forward)
