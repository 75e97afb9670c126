"""A transformer as its configuration describes it: what is in a layer, how many there are, and what surrounds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from foretrace.basics.arguments import check_fields, checked_methods
from foretrace.basics.errors import InputError


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Grouped-query attention; one key/value head per query head is plain multi-head attention."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalised per head (Qwen 3)."""
    window: int | None = None
    """How many of the last tokens a query sees; None: all. Llama 4 calls such windows chunks."""
    sinks: bool = False
    """Whether each head has a learned sink (GPT-OSS): one parameter per head."""
    output_gate: bool = False
    rope: bool = True
    """Whether queries and keys are rotated in this layer (Llama 4 leaves every fourth out)."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2, V3): queries and keys/values pass through low ranks."""

    heads: int
    q_lora_rank: int | None
    """None: queries are projected directly (V2-Lite)."""
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


Activation = Literal["gelu", "relu", "relu2", "silu"]
Norm = Literal["rmsnorm", "layernorm"]
PositionKind = Literal["rope", "learned", "alibi", "none"]


@dataclass(frozen=True, slots=True)
class Mlp:
    """A feed-forward layer; gated ones have a third matrix (SwiGLU, GeGLU)."""

    ffn: int
    gated: bool
    activation: Activation
    bias: bool = False
    clamp: bool = False
    """Whether gate and up are limited before they are multiplied (GPT-OSS)."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: each an `Mlp`, `topk` of them per token; shared ones see every token."""

    count: int
    topk: int
    expert: Mlp
    shared: Mlp | None = None
    """All shared experts together as one, `ffn` being their sum."""
    shared_gate: bool = False
    router_bias: bool = False
    """A bias per expert, learned or kept as a parameter (GPT-OSS, DeepSeek V3's correction)."""
    groups: int = 1
    """Experts are divided into so many groups in order, and a token goes to experts of `topk_groups` of them only."""
    topk_groups: int = 1

    def checked(self, where: str) -> Experts:
        """Itself, if its tokens find as many experts as they go to; otherwise an error that names where it was read."""
        if self.count % self.groups or self.count // self.groups * self.topk_groups < self.topk:
            choice = f"{self.topk} of {self.count} experts in {self.topk_groups} of {self.groups} groups"
            hint = "groups divide the experts, and the chosen ones hold topk"
            raise InputError("out-of-range", f"a token cannot go to {choice}", where=where, hint=hint)
        return self


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention, then a feed-forward part, each behind a norm."""

    attention: SelfAttention | LatentAttention
    feed_forward: Mlp | Experts


_BOUNDS: Final = {
    "hidden": (0, 10**9),
    "vocab": (0, 10**9),
    "positions": (0, 10**9),
    "mtp": (0, 10_000),
    "seq_len": (0, 10**9),
}
"""The least and the most that sizes of a model can be; 0 where they are not known yet."""


@checked_methods
@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer.

    `layers` has one entry per layer; equal ones are the same object, so that work is described once. `positions` counts
    the rows of a learned position table (0: none). `mtp` is how many multi-token-prediction modules follow (DeepSeek
    V3): each a projection of twice the hidden size, three norms and one more layer, sharing embedding and head.
    """

    name: str
    hidden: int
    layers: tuple[Layer, ...]
    vocab: int
    norm: Norm
    tied: bool
    """Whether the head shares the embedding's matrix."""
    norm_bias: bool = True
    """Whether layer norms have a bias; RMS norms never do."""
    positions: int = 0
    position_kind: PositionKind = "rope"
    head_bias: bool = False
    mtp: int = 0
    dropout: bool = False
    """Whether the model trains with dropout (GPT-2, GPT-3 in Megatron)."""
    seq_len: int = 4096
    """The sequence length it was trained with, taken where a plan does not say one."""
    title: str = ""
    published_parameters: int | None = None
    """What its makers or its checkpoint say, in elements, without the MTP modules."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is assumed, and whatever is left out."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                problem = f"{name} {value:,} cannot be meant"
                raise InputError("out-of-range", problem, where="Model", hint=f"expected {least:,} to {most:,}")

    @property
    def has_experts(self) -> bool:
        """Whether any layer has experts."""
        return any(isinstance(layer.feed_forward, Experts) for layer in self.layers)
