"""Describes models in words: parameters as people say them, what a layer consists of, and the work for a token."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.basics.units import format_count, format_percent
from foretrace.models.flops import TRAINING, forward_flops
from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model
from foretrace.models.ranges import format_ranges

_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def format_parameters(count: int) -> str:
    """Returns a number of parameters as people say it: 70.6 B."""
    for scale, unit in _SCALES:
        if count >= scale:
            return f"{count / scale:.{2 if count < 10 * scale else 1}f} {unit}"
    return format_count(count)


def describe_layers(model: Model) -> list[str]:
    """Returns a line for each kind of layer; where there are several kinds, each names its layers by number."""
    kinds: dict[Layer, list[int]] = {}
    for number, layer in enumerate(model.layers):
        kinds.setdefault(layer, []).append(number)
    return [
        ("" if len(kinds) == 1 else f"{len(numbers)} ({format_ranges(numbers)}): ")
        + f"{_attention(layer)} · {_feed_forward(layer.feed_forward)}"
        for layer, numbers in kinds.items()
    ]


def describe_vocabulary(model: Model) -> str:
    """Returns the size of the vocabulary, and whether the head has a matrix of its own."""
    return f"{format_count(model.vocab)}, head {'tied to the embedding' if model.tied else 'of its own'}"


def describe_work(model: Model, seq_len: int, documents: Sequence[int] | None = None) -> str:
    """Returns the FLOPs of training for one token of a sequence of `seq_len` tokens, and the shares of their parts."""
    flops = forward_flops(model, seq_len, documents=documents)
    shares = (("linear", flops.linear), ("attention", flops.attention), ("head", flops.head))
    parts = " · ".join(f"{name} {format_percent(part / flops.total)}" for name, part in shares if part)
    each = TRAINING * flops.total / seq_len
    return f"{each / 1e9:,.1f} GFLOP a token, causal attention counted half ({parts})"


def _attention(layer: Layer) -> str:
    attention = layer.attention
    if isinstance(attention, LatentAttention):
        ranks = f"ranks {attention.q_lora_rank or 'none'} and {attention.kv_lora_rank}"
        return f"latent attention, {attention.heads} heads of {attention.nope_dim}+{attention.rope_dim}, {ranks}"
    groups = "" if attention.kv_heads == attention.heads else f", {attention.kv_heads} for keys and values"
    window = "" if attention.window is None else f", window {attention.window:,}"
    return f"{attention.heads} heads of {attention.head_dim}{groups}{window}"


def _feed_forward(part: Mlp | Experts) -> str:
    if isinstance(part, Mlp):
        return _mlp(part)
    shared = "" if part.shared is None else f" and a shared one of {part.shared.ffn:,}"
    return f"{part.topk} of {part.count} experts, {_mlp(part.expert)}{shared}"


def _mlp(mlp: Mlp) -> str:
    return f"feed-forward {mlp.ffn:,} {'gated ' if mlp.gated else ''}{mlp.activation}"
