"""Describes models by Megatron-LM's arguments, in both directions.

Defaults are those of megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Final

from foretrace.basics.errors import InputError, shortened
from foretrace.basics.numbers import NumberError, real_field, whole_number
from foretrace.models import presets
from foretrace.models.compose import MAX_LAYERS, compose_layers
from foretrace.models.model import Activation, Experts, LatentAttention, Mlp, Model, PositionKind, SelfAttention
from foretrace.workload.launch.rules import Options, Reading

_POSITIONS: Final[dict[str, PositionKind]] = {
    **dict.fromkeys(("rope", "mrope", "yarn"), "rope"),
    "learned_absolute": "learned",
    "none": "none",
}
_PATTERN: Final = re.compile(r"\(?\[[01,]+\](\*[0-9]{1,5})?(\+\[[01,]+\](\*[0-9]{1,5})?)*\)?")
"""Lists of flags as Python adds and repeats them: `([0]*3+[1]*58)`."""
_ABOUT: Final = ("name", "title", "published_parameters", "sources", "notes", "seq_len")
"""Fields of a model that do not change what a step of a plan does."""


def read_model(reading: Reading) -> Model:
    """Returns the model that arguments describe."""
    reading.has("max-position-embeddings")  # Megatron asks for it whatever the kind of positions
    count, hidden = reading.count("num-layers", most=MAX_LAYERS), reading.count("hidden-size")
    rms = reading.word("normalization", "LayerNorm", ("LayerNorm", "RMSNorm")) == "RMSNorm"
    kind = _position_kind(reading)
    experts = _experts(reading, hidden)
    dense = _dense_layers(reading, count) if experts else frozenset()
    layers = compose_layers(count, _attention(reading, hidden, kind), _mlp(reading, hidden), experts, dense=dense)
    name = Path(reading.args.path).stem
    return Model(
        name=name,
        hidden=hidden,
        layers=layers,
        vocab=_vocab(reading),
        norm="rmsnorm" if rms else "layernorm",
        tied=not reading.has("untie-embeddings-and-output-weights"),
        positions=reading.count("max-position-embeddings") if kind == "learned" else 0,
        position_kind=kind,
        mtp=reading.count("mtp-num-layers", 0, least=0, most=MAX_LAYERS),
        dropout=_drops(reading),
        seq_len=reading.count("seq-length", 4096),
        title=name,
        sources=(reading.args.path,),
    )


def _drops(reading: Reading) -> bool:
    if not reading.has("hidden-dropout") or not reading.has("attention-dropout"):
        names = " or ".join(map(reading.args.shown, ("hidden-dropout", "attention-dropout")))
        reading.say("assumed", f"{names} is not given: Megatron's default, 0.1")
    return max(_dropout(reading, name) for name in ("hidden-dropout", "attention-dropout")) > 0


def _dropout(reading: Reading, name: str) -> float:
    args, hint = reading.args, "a dropout is from 0 to 1"
    return real_field(args.shown(name), reading.text(name, "0.1"), args.where(name), most=1, hint=hint)


def _position_kind(reading: Reading) -> PositionKind:
    if reading.has("use-rotary-position-embeddings"):
        return "rope"
    return _POSITIONS[reading.word("position-embedding-type", "learned_absolute", _POSITIONS)]


def _attention(reading: Reading, hidden: int, kind: PositionKind) -> SelfAttention | LatentAttention:
    heads = reading.count("num-attention-heads")
    if reading.has("multi-latent-attention"):
        return LatentAttention(
            heads,
            reading.count("q-lora-rank") if reading.has("q-lora-rank") else None,
            reading.count("kv-lora-rank", 32),
            reading.count("qk-head-dim", 128),
            reading.count("qk-pos-emb-head-dim", 64),
            reading.count("v-head-dim", 128),
        )
    if hidden % heads and not reading.has("kv-channels"):
        shown = reading.args.shown
        problem = f"{shown('hidden-size')} {hidden} is no multiple of {shown('num-attention-heads')} {heads}"
        hint = f"give {shown('kv-channels')}"
        raise InputError("not-divisible", problem, where=reading.args.where("hidden-size"), hint=hint)
    groups = reading.count("num-query-groups", 1) if reading.has("group-query-attention") else heads
    if heads % groups:
        shown = reading.args.shown
        problem = f"{shown('num-attention-heads')} {heads} is no multiple of {shown('num-query-groups')} {groups}"
        raise InputError("not-divisible", problem, where=reading.args.where("num-query-groups"))
    bias = not reading.has("disable-bias-linear")
    return SelfAttention(
        heads,
        groups,
        reading.count("kv-channels", hidden // heads),
        qkv_bias=bias or reading.has("add-qkv-bias"),
        out_bias=bias,
        qk_norm=reading.has("qk-layernorm"),
        rope=kind == "rope",
    )


def _activation(reading: Reading) -> tuple[bool, Activation]:
    if reading.has("swiglu"):
        return True, "silu"
    return False, "relu2" if reading.has("squared-relu") else "gelu"


def _mlp(reading: Reading, hidden: int) -> Mlp:
    gated, activation = _activation(reading)
    # Megatron keeps the size of three matrices near that of two, in multiples of 64.
    guess = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    ffn = reading.count("ffn-hidden-size", guess)
    if not reading.has("ffn-hidden-size"):
        reading.say("assumed", f"{reading.args.shown('ffn-hidden-size')} is not given: Megatron's default, {guess:,}")
    return Mlp(ffn, gated, activation, not reading.has("disable-bias-linear"))


def _experts(reading: Reading, hidden: int) -> Experts | None:
    if not reading.has("num-experts"):
        return None
    gated, activation = _activation(reading)
    dense = _mlp(reading, hidden)
    bias = not reading.has("disable-bias-linear")
    count, topk = reading.count("num-experts"), reading.count("moe-router-topk", 2)
    if topk > count:
        where = reading.args.where("moe-router-topk")
        raise InputError("out-of-range", f"a token cannot go to {topk} of {count} experts", where=where)
    shared = reading.count("moe-shared-expert-intermediate-size", 0, least=0)
    groups = reading.count("moe-router-num-groups", 1)
    return Experts(
        count,
        topk,
        Mlp(reading.count("moe-ffn-hidden-size", dense.ffn), gated, activation, bias),
        Mlp(shared, gated, activation, bias) if shared else None,
        shared_gate=reading.has("moe-shared-expert-gate"),
        router_bias=reading.has("moe-router-enable-expert-bias"),
        groups=groups,
        topk_groups=reading.count("moe-router-group-topk", groups, most=groups),
    ).checked(reading.args.where("moe-router-num-groups"))


def _dense_layers(reading: Reading, count: int) -> frozenset[int]:
    """Layers without experts: `--moe-layer-freq` 2 leaves out the odd ones, `([0]*3+[1]*58)` says each."""
    text = reading.text("moe-layer-freq", "1").replace(" ", "")
    runs = _PATTERN.fullmatch(text) and [
        ([int(flag) for flag in flags.split(",") if flag], whole_number(times or 1))
        for flags, times in re.findall(r"\[([01,]+)\](?:\*([0-9]+))?", text)
    ]
    if runs and sum(len(flags) * times for flags, times in runs) == count:
        pattern = [flag for flags, times in runs for flag in flags * times]
        return frozenset(number for number, has_experts in enumerate(pattern) if not has_experts)
    try:
        every = whole_number(text, least=1)
    except NumberError:
        given = f"{reading.args.shown('moe-layer-freq')} {shortened(text)}"
        problem = f"{given} does not say which of {count} layers have experts"
        raise InputError(
            "bad-value", problem, where=reading.args.where("moe-layer-freq"), hint="e.g. 1 or ([0]*3+[1]*58)"
        ) from None
    return frozenset(number for number in range(count) if number % every)


def _vocab(reading: Reading) -> int:
    if reading.has("vocab-size"):
        # The null tokenizer adds one token of its own.
        return reading.count("vocab-size") + (reading.text("tokenizer-type", "") == "NullTokenizer")
    if reading.has("padded-vocab-size"):
        return reading.count("padded-vocab-size")
    # pretrain_gpt.py takes GPT-2's tokenizer where none is named.
    tokenizer, named = reading.text("tokenizer-type", "GPT2BPETokenizer"), reading.text("tokenizer-model", "")
    if tokenizer == "GPT2BPETokenizer":
        size, why = 50257, "GPT-2's tokenizer"
    elif tokenizer == "Llama2Tokenizer":
        size, why = 32000, "Llama 2's tokenizer"
    elif named and presets.is_known(named):
        size, why = presets.model(named).vocab, f"that of {presets.model(named).name}"
    else:
        raise InputError(
            "missing-field",
            f"{reading.args.shown('vocab-size')} is missing, and the tokenizer does not tell",
            where=reading.args.where("tokenizer-type"),
            hint=f"add {reading.args.shown('vocab-size')} to the script: the entries of the tokenizer",
        )
    reading.say("guessed", f"{reading.args.shown('vocab-size')} is not given: taken as {size:,}, {why}")
    return size


def model_options(model: Model) -> Options:
    """Returns the arguments that describe a model; `unexpressed_parts` says what they leave out."""
    first = model.layers[0]
    parts = [layer.feed_forward for layer in model.layers]
    experts = next((part for part in parts if isinstance(part, Experts)), None)
    dense = next((part for part in parts if isinstance(part, Mlp)), None)
    mlp = dense or (experts.expert if experts else None)
    assert mlp is not None
    options: Options = {"num-layers": len(model.layers), "hidden-size": model.hidden, "ffn-hidden-size": mlp.ffn}
    options |= _attention_options(first.attention)
    has_bias = mlp.bias and (isinstance(first.attention, LatentAttention) or first.attention.out_bias)
    options |= {
        "swiglu": mlp.gated,
        "squared-relu": not mlp.gated and mlp.activation == "relu2",
        "disable-bias-linear": not has_bias,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "untie-embeddings-and-output-weights": not model.tied,
        "position-embedding-type": "learned_absolute" if model.position_kind == "learned" else _position(model),
        "max-position-embeddings": model.positions or model.seq_len,
        "vocab-size": model.vocab or None,
        "hidden-dropout": "0.1" if model.dropout else "0.0",
        "attention-dropout": "0.1" if model.dropout else "0.0",
        "mtp-num-layers": model.mtp or None,
    }
    return options | (_expert_options(experts, parts) if experts else {})


def _position(model: Model) -> str:
    return model.position_kind if model.position_kind in _POSITIONS else "none"


def _attention_options(attention: SelfAttention | LatentAttention) -> Options:
    options: Options = {"num-attention-heads": attention.heads}
    if isinstance(attention, LatentAttention):
        return options | {
            "multi-latent-attention": True,
            "q-lora-rank": attention.q_lora_rank,
            "kv-lora-rank": attention.kv_lora_rank,
            "qk-head-dim": attention.nope_dim,
            "qk-pos-emb-head-dim": attention.rope_dim,
            "v-head-dim": attention.v_dim,
        }
    return options | {
        "group-query-attention": attention.kv_heads != attention.heads,
        "num-query-groups": attention.kv_heads if attention.kv_heads != attention.heads else None,
        "kv-channels": attention.head_dim,
        "add-qkv-bias": attention.qkv_bias and not attention.out_bias,
        "qk-layernorm": attention.qk_norm,
    }


def _expert_options(experts: Experts, parts: list[Mlp | Experts]) -> Options:
    runs = [(has_experts, len(list(run))) for has_experts, run in groupby(isinstance(part, Experts) for part in parts)]
    pattern = "+".join(f"[{int(has_experts)}]*{count}" for has_experts, count in runs)
    return {
        "num-experts": experts.count,
        "moe-router-topk": experts.topk,
        "moe-ffn-hidden-size": experts.expert.ffn,
        "moe-shared-expert-intermediate-size": experts.shared.ffn if experts.shared else None,
        "moe-shared-expert-gate": experts.shared_gate,
        "moe-router-enable-expert-bias": experts.router_bias,
        "moe-router-num-groups": experts.groups if experts.groups > 1 else None,
        "moe-router-group-topk": experts.topk_groups if experts.groups > 1 else None,
        "moe-layer-freq": f"({pattern})" if len(runs) > 1 else None,
        "moe-grouped-gemm": True,
    }


def unexpressed_parts(model: Model, again: Model) -> list[str]:
    """Returns what differs between a model and the one that options describe; nothing where they say all of it."""
    if len(model.layers) != len(again.layers):
        return ["layers"]
    plain = [entry.name for entry in fields(Model) if entry.name not in (*_ABOUT, "layers")]
    parts = [name for name in plain if getattr(model, name) != getattr(again, name)]
    for layer, other in dict.fromkeys(zip(model.layers, again.layers, strict=True)):
        for name in ("attention", "feed_forward"):
            part, read = getattr(layer, name), getattr(other, name)
            if type(part) is not type(read):
                parts.append(name)
            elif part != read:
                parts += _differences(part, read)
    return list(dict.fromkeys(parts))


def _differences(part: object, read: object) -> list[str]:
    """Returns the names of fields that differ; of experts' own layers, theirs."""
    names: list[str] = []
    for entry in fields(part):  # type: ignore[arg-type]
        ours, other = getattr(part, entry.name), getattr(read, entry.name)
        if ours != other:
            names += _differences(ours, other) if isinstance(ours, Mlp) and isinstance(other, Mlp) else [entry.name]
    return names
