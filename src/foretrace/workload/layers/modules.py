"""Parts of a layer that software recomputes or offloads by name, as data: their pieces, and the tensors between them.

The names are those of Megatron-core (megatron/core/transformer/transformer_config.py, `recompute_modules` and
`offload_modules`). Where each is wrapped: transformer_layer.py (norms, mlp), attention.py and
multi_latent_attention.py (core attention, up-projections), moe/moe_layer.py, moe/experts.py and moe/shared_experts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.workload.layers.piece import Piece
from foretrace.workload.plan import OffloadModule, RecomputeModule
from foretrace.workload.stack import Stack


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A part of a layer whose forward runs again before its backward.

    Attributes:
        module: The module that it belongs to.
        anchor: The piece without which a layer does not have the part.
        pieces: The pieces that run again, as far as a layer has them.
        inputs: The tensors that it starts from, which stay.
        outputs: The tensors that it hands on and that are dropped too (Megatron's `CheckpointWithoutOutput`). Where
            there are none, the output stays for what follows.
        until: The last piece that needs `outputs`: the part runs again before the backward of that piece.
        norm: The norm on which the part depends.
        fused_norm: Whether the part is for layers that have that norm inside the linear layer behind it.
    """

    module: RecomputeModule
    anchor: str
    pieces: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    until: str = ""
    norm: str = ""
    fused_norm: bool = False


_ATTENTION_NORM: Final = "attention norm"
_MLP_NORM: Final = "mlp norm"
_MLP: Final = tuple(f"mlp {name}" for name in ("gate", "up", "activation", "down"))
_SHARED: Final = tuple(f"shared experts {name}" for name in ("gate", "up", "activation", "down", "output gate"))
_ROUTED: Final = (
    *("shared experts sum", "router", "preprocess", "dispatch", "experts up", "experts activation", "experts down"),
    *("experts bias", "combine"),
)
_UP_PROJECTIONS: Final = ("q norm", "q up", "q", "kv norm", "kv up", "rope")
_NORMED: Final = ("mlp in", "mlp in.narrow")

CHECKPOINTS: Final = (
    Checkpoint("core_attn", "attention", ("attention",), inputs=("qkv", "q", "k", "v")),
    Checkpoint(
        "layernorm",
        _ATTENTION_NORM,
        (_ATTENTION_NORM,),
        inputs=("x",),
        outputs=("attention in", "attention in.narrow"),
        until="attention out",
        norm=_ATTENTION_NORM,
    ),
    Checkpoint(
        "mla_up_proj",
        "kv up",
        _UP_PROJECTIONS,
        inputs=("q latent", "kv latent", "attention in"),
        outputs=("q", "k", "v"),
        until="attention",
    ),
    *(
        Checkpoint(
            "layernorm",
            last,
            (_MLP_NORM,),
            inputs=("x after attention",),
            outputs=_NORMED,
            until=last,
            norm=_MLP_NORM,
        )
        for last in ("mlp down", "combine")
    ),
    Checkpoint("mlp", "mlp up", _MLP, inputs=("mlp in",), norm=_MLP_NORM),
    Checkpoint("mlp", "mlp up", (_MLP_NORM, *_MLP), inputs=("x after attention",), norm=_MLP_NORM, fused_norm=True),
    Checkpoint("moe", "router", (*_SHARED, *_ROUTED), inputs=("mlp in",)),
    Checkpoint("shared_experts", "shared experts up", _SHARED, inputs=("mlp in",)),
    Checkpoint(
        "moe_act",
        "experts activation",
        ("experts activation",),
        inputs=("experts up out",),
        outputs=("experts product",),
        until="experts down",
    ),
)
"""All parts; a part that a layer does not have is skipped."""

OFFLOADS: Final[dict[OffloadModule, tuple[str, ...]]] = {
    "attn_norm": (_ATTENTION_NORM,),
    "qkv_linear": ("qkv", "q", "k", "v", "query norm", "key norm", "q down", "kv down", *_UP_PROJECTIONS),
    "core_attn": ("attention",),
    "attn_proj": ("attention out",),
    "mlp_norm": (_MLP_NORM,),
    "expert_fc1": ("experts up",),
    "moe_act": ("experts activation",),
}
"""The pieces of each module that keeps its tensors on the host (Megatron's saved-tensor hooks around them)."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A part of one layer that runs again.

    Attributes:
        pieces: The numbers of its pieces, in order.
        first: The first of them: behind it, in the backward, its tensors are free again.
        last: The piece before whose backward it runs.
        kept: The tensors that it starts from, in bytes.
        dropped: The tensors that it makes again.
        keeps_output: Whether its output stays, so that a checkpoint may stop before it is made again.
        quantized: The numbers of pieces behind it that quantise its dropped outputs again.
    """

    pieces: tuple[int, ...]
    first: int
    last: int
    kept: dict[str, int]
    dropped: frozenset[str]
    keeps_output: bool
    quantized: tuple[int, ...]


def recomputed_parts(pieces: Sequence[Piece], stack: Stack, modules: Iterable[RecomputeModule]) -> list[Recomputed]:
    """Returns the parts of a layer that run again, as its backward meets them."""
    names = {piece.name: number for number, piece in enumerate(pieces)}
    parts = [
        _recomputed(pieces, names, part)
        for part in CHECKPOINTS
        if part.module in modules
        and part.anchor in names
        and (not part.norm or _fuses_norm(names, stack, part.norm) == part.fused_norm)
    ]
    return sorted(parts, key=lambda part: (-part.last, part.first))


def offloaded_bytes(
    pieces: Sequence[Piece], stack: Stack, modules: Iterable[OffloadModule], kept: dict[str, int]
) -> int:
    """Returns the bytes of kept tensors that go to the host.

    A tensor leaves the GPU where every piece that keeps it is offloaded: attention's output stays for the projection
    behind it unless that is offloaded too. Statistics of norms and softmax stay: Megatron-core offloads tensors of 2^20
    elements and more (`min_offloaded_tensor_size`).
    """
    names = {piece.name: number for number, piece in enumerate(pieces)}
    listed = {name for module in modules for name in OFFLOADS[module]}
    if _fuses_norm(names, stack, _ATTENTION_NORM):
        listed = listed - {_ATTENTION_NORM} | ({_ATTENTION_NORM} if "qkv_linear" in modules else set())
    if _fuses_norm(names, stack, _MLP_NORM):
        listed = listed - {_MLP_NORM}
    stay = {name for piece in pieces if piece.name not in listed for name, _ in _kept_by(piece)}
    return sum(size for name, size in kept.items() if name not in stay and not name.endswith("statistics"))


def _fuses_norm(names: dict[str, int], stack: Stack, norm: str) -> bool:
    """Returns whether a norm is inside the linear layer behind it (Transformer Engine's `LayerNormLinear`).

    In Megatron-core it is a module of its own before latent attention and experts
    (megatron/core/models/gpt/gpt_layer_specs.py).
    """
    return stack.fuses_norms and ("kv down" if norm == _ATTENTION_NORM else "router") not in names


def _recomputed(pieces: Sequence[Piece], names: dict[str, int], part: Checkpoint) -> Recomputed:
    numbers = sorted(names[name] for name in part.pieces if name in names)
    own = {name: size for number in numbers for name, size in (*pieces[number].wide, *_kept_by(pieces[number]))}
    others = [(number, _kept_by(piece)) for number, piece in enumerate(pieces) if number not in numbers]
    elsewhere = {name for _, tensors in others for name, _ in tensors}
    quantized = tuple(number for number, tensors in others if any(name in part.outputs for name, _ in tensors))
    return Recomputed(
        pieces=tuple(numbers),
        first=numbers[0],
        last=names[part.until] if part.until else numbers[-1],
        kept={name: size for name, size in own.items() if name in part.inputs},
        dropped=frozenset({*own} - elsewhere - {*part.inputs}) | frozenset(part.outputs),
        keeps_output=not part.outputs,
        quantized=quantized,
    )


def _kept_by(piece: Piece) -> tuple[tuple[str, int], ...]:
    return (*piece.saved, *piece.inner)
