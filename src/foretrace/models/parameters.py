"""Counts the parameters of a model: in all, for one token, and on one rank.

Ranks split them as Megatron does. Tensor parallelism splits the matrices of attention and feed-forward and the biases
of columns; norms, routers, biases of rows and the down projections of latent attention are whole on every rank
(Megatron-LM, core/transformer: attention.py, multi_latent_attention.py, mlp.py, moe/router.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model, SelfAttention


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """The parameters of one layer on one rank, by part."""

    attention: int
    feed_forward: int
    """A dense feed-forward part, or shared experts with their gate."""
    router: int
    experts: int
    """Routed experts: reduced over another group than the rest."""
    norms: int

    @property
    def dense(self) -> int:
        """All but the routed experts."""
        return self.attention + self.feed_forward + self.router + self.norms

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.experts


def norm_parameters(model: Model) -> int:
    """One norm over the hidden size."""
    return model.hidden * (2 if model.norm == "layernorm" and model.norm_bias else 1)


@lru_cache(maxsize=4096)
def layer_parameters(
    layer: Layer, hidden: int, norm: int, *, tp: int = 1, ep: int = 1, etp: int = 1
) -> LayerParameters:
    """One layer on one rank; `norm` is the size of each of its two norms (`norm_parameters`)."""
    feed_forward = layer.feed_forward
    router = experts = 0
    if isinstance(feed_forward, Experts):
        router = feed_forward.count * (hidden + feed_forward.router_bias)
        experts = _share(feed_forward.count, ep) * mlp_parameters(feed_forward.expert, hidden, tp=etp)
        dense = mlp_parameters(feed_forward.shared, hidden, tp=tp) if feed_forward.shared else 0
        dense += hidden * feed_forward.shared_gate
    else:
        dense = mlp_parameters(feed_forward, hidden, tp=tp)
    return LayerParameters(attention_parameters(layer.attention, hidden, tp=tp), dense, router, experts, 2 * norm)


def attention_parameters(attention: SelfAttention | LatentAttention, hidden: int, *, tp: int = 1) -> int:
    """Attention on one rank, without the norm before it."""
    heads = _share(attention.heads, tp)
    if isinstance(attention, LatentAttention):
        query_dim = attention.nope_dim + attention.rope_dim
        rank = attention.q_lora_rank
        query = hidden * heads * query_dim if rank is None else rank * (hidden + 1 + heads * query_dim)
        down = hidden * (attention.kv_lora_rank + attention.rope_dim) + attention.kv_lora_rank
        up = attention.kv_lora_rank * heads * (attention.nope_dim + attention.v_dim)
        return query + down + up + heads * attention.v_dim * hidden
    # Where there are fewer key/value heads than ranks, each rank keeps a copy of one.
    kv_heads = _share(attention.kv_heads, tp)
    columns = (heads * (1 + attention.output_gate) + 2 * kv_heads) * attention.head_dim
    count = hidden * (columns + heads * attention.head_dim)
    count += columns * attention.qkv_bias + hidden * attention.out_bias
    return count + 2 * attention.head_dim * attention.qk_norm + heads * attention.sinks


def mlp_parameters(mlp: Mlp, hidden: int, *, tp: int = 1) -> int:
    """A feed-forward part on one rank."""
    width = _share(mlp.ffn, tp)
    columns = width * (2 if mlp.gated else 1)
    return hidden * (columns + width) + mlp.bias * (columns + hidden)


def head_parameters(model: Model, *, tp: int = 1, vocab: int | None = None) -> int:
    """The final norm and the head on one rank; a tied head's matrix is the embedding's and not counted."""
    if not model.vocab:
        return 0
    rows = _share(model.vocab if vocab is None else vocab, tp)
    return norm_parameters(model) + rows * ((0 if model.tied else model.hidden) + model.head_bias)


def mtp_parameters(model: Model, *, tp: int = 1, ep: int = 1, etp: int = 1) -> LayerParameters:
    """One multi-token-prediction module: its layer is the model's last; its projection counts as feed-forward,
    split by columns. Embedding and head are the model's."""
    norm = norm_parameters(model)
    layer = layer_parameters(model.layers[-1], model.hidden, norm, tp=tp, ep=ep, etp=etp)
    projection = 2 * model.hidden * _share(model.hidden, tp)
    return LayerParameters(
        layer.attention, layer.feed_forward + projection, layer.router, layer.experts, layer.norms + 3 * norm
    )


def parameter_parts(model: Model) -> dict[str, int]:
    """All parameters by part, empty parts left out; `mtp` stands apart from what makers count."""
    norm = norm_parameters(model)
    layers = [layer_parameters(layer, model.hidden, norm) for layer in model.layers]
    head = head_parameters(model)
    final_norm = norm if head else 0
    parts = {
        "embedding": model.vocab * model.hidden,
        "positions": model.positions * model.hidden,
        "attention": sum(layer.attention for layer in layers),
        "feed forward": sum(layer.feed_forward for layer in layers),
        "router": sum(layer.router for layer in layers),
        "experts": sum(layer.experts for layer in layers),
        "norms": sum(layer.norms for layer in layers) + final_norm,
        "head": head - final_norm,
        "mtp": model.mtp * mtp_parameters(model).total if model.mtp else 0,
    }
    return {name: count for name, count in parts.items() if count}


def parameters(model: Model) -> int:
    """All parameters, without the multi-token-prediction modules, as makers count them."""
    return sum(count for name, count in parameter_parts(model).items() if name != "mtp")


def active_parameters(model: Model) -> int:
    """The parameters one token meets: of the routed experts only `topk`."""
    idle = 0
    for layer in model.layers:
        experts = layer.feed_forward
        if isinstance(experts, Experts):
            idle += (experts.count - experts.topk) * mlp_parameters(experts.expert, model.hidden)
    return parameters(model) - idle


def _share(count: int, ranks: int) -> int:
    """Returns the share of the fullest rank."""
    return -(-count // ranks)
