"""Composes the layers of a model from what most of them share and which of them differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, SelfAttention

MAX_LAYERS: Final = 2_000
"""Fifteen times the 126 layers of Llama 3.1 405B, and twice the 1,000 of DeepNet."""


def compose_layers(
    count: int,
    attention: SelfAttention | LatentAttention,
    mlp: Mlp | None,
    experts: Experts | None = None,
    *,
    dense: Collection[int] = (),
    unlimited: Collection[int] = (),
    without_rope: Collection[int] = (),
) -> tuple[Layer, ...]:
    """`count` layers, numbered from 0; equal ones are one object.

    With experts, `dense` are the layers that have the `mlp` instead. Where attention has a window, `unlimited` layers
    see everything; `without_rope` ones do not rotate queries and keys.
    """
    if count > MAX_LAYERS:
        raise InputError("out-of-range", f"{count:,} layers cannot be meant", hint=f"at most {MAX_LAYERS:,}")
    kinds: dict[tuple[bool, bool, bool], Layer] = {}
    layers = []
    for number in range(count):
        key = (experts is None or number in dense, number in unlimited, number in without_rope)
        if key not in kinds:
            seen = attention
            if isinstance(seen, SelfAttention):
                window = None if key[1] else seen.window
                seen = replace(seen, window=window, rope=seen.rope and not key[2])
            part = mlp if key[0] else experts
            if part is None:
                raise ValueError(f"layer {number} has no feed-forward part")
            kinds[key] = Layer(seen, part)
        layers.append(kinds[key])
    # Different keys may lead to equal layers; equal layers are the same object.
    same: dict[Layer, Layer] = {}
    return tuple(same.setdefault(layer, layer) for layer in layers)
