"""Counts the model FLOPs: multiplications and additions of matrix products, by closed formulas.

Nothing that is computed twice counts twice, and causal attention counts only the half that is not masked. Norms,
activations and the optimizer are left out, as is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model, SelfAttention

TRAINING: float = 3.0
"""Forward, and the gradients of both operands: three products for each one of the forward."""


@dataclass(frozen=True, slots=True)
class Flops:
    """The forward of one sequence, in FLOP."""

    linear: float
    """Products with weights within layers, routers among them."""
    attention: float
    """Scores and weighted values."""
    head: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.linear + self.attention + self.head


def model_flops(model: Model, seq_len: int, causal: bool = True, documents: Sequence[int] | None = None) -> float:
    """One sequence of a training step, in FLOP; attention stays within `documents`, given by their tokens."""
    return TRAINING * forward_flops(model, seq_len, causal, documents).total


def forward_flops(model: Model, seq_len: int, causal: bool = True, documents: Sequence[int] | None = None) -> Flops:
    """The forward of one sequence by part; multi-token-prediction modules count in the parts they consist of."""
    lengths = (seq_len,) if documents is None else tuple(documents)
    linear = attention = 0.0
    for layer, count in _kinds(model).items():
        linear += count * 2.0 * seq_len * layer_weights(layer, model.hidden)
        attention += count * _attention_flops(layer.attention, lengths, causal)
    linear += model.mtp * 2.0 * seq_len * 2 * model.hidden**2
    head = (1 + model.mtp) * 2.0 * seq_len * model.vocab * model.hidden
    return Flops(linear, attention, head)


def attention_pairs(length: int, window: int | None, causal: bool = True) -> float:
    """How many (query, key) pairs one head attends to in a sequence; causal ones count half of the square, and a window
    cuts off what lies further back."""
    if not causal:
        return float(length) ** 2
    seen = length if window is None else min(window, length)
    return float(seen) * length - seen**2 / 2


def layer_weights(layer: Layer, hidden: int) -> int:
    """The weights of a layer that one token is multiplied with."""
    attention, feed_forward = layer.attention, layer.feed_forward
    if isinstance(attention, LatentAttention):
        count = _latent_weights(attention, hidden)
    else:
        columns = attention.heads * (2 + attention.output_gate) + 2 * attention.kv_heads
        count = hidden * attention.head_dim * columns
    if isinstance(feed_forward, Experts):
        count += hidden * (feed_forward.count + feed_forward.shared_gate)
        count += feed_forward.topk * _mlp_weights(feed_forward.expert, hidden)
        return count + (_mlp_weights(feed_forward.shared, hidden) if feed_forward.shared else 0)
    return count + _mlp_weights(feed_forward, hidden)


def _kinds(model: Model) -> dict[Layer, int]:
    kinds: dict[Layer, int] = {}
    for layer in (*model.layers, *model.layers[-1:] * model.mtp):
        kinds[layer] = kinds.get(layer, 0) + 1
    return kinds


def _attention_flops(attention: SelfAttention | LatentAttention, lengths: Sequence[int], causal: bool) -> float:
    if isinstance(attention, LatentAttention):
        window, dims = None, attention.nope_dim + attention.rope_dim + attention.v_dim
    else:
        window, dims = attention.window, 2 * attention.head_dim
    return 2.0 * attention.heads * dims * sum(attention_pairs(length, window, causal) for length in lengths)


def _latent_weights(attention: LatentAttention, hidden: int) -> int:
    queries = attention.heads * (attention.nope_dim + attention.rope_dim)
    rank = attention.q_lora_rank
    count = hidden * queries if rank is None else rank * (hidden + queries)
    count += hidden * (attention.kv_lora_rank + attention.rope_dim)
    count += attention.kv_lora_rank * attention.heads * (attention.nope_dim + attention.v_dim)
    return count + attention.heads * attention.v_dim * hidden


def _mlp_weights(mlp: Mlp, hidden: int) -> int:
    return hidden * mlp.ffn * (3 if mlp.gated else 2)
