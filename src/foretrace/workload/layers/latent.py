"""Multi-head latent attention (DeepSeek V2, arXiv:2405.04434): projections through low ranks around plain attention.

As Megatron-core runs it (megatron/core/transformer/multi_latent_attention.py): the projections down are not split over
tp and work on the rank's own part of the sequence; those up are column-parallel and gather their narrow input.
"""

from __future__ import annotations

from foretrace.models.model import LatentAttention
from foretrace.program.kernels import Kernel
from foretrace.workload.layers.core import Heads, core
from foretrace.workload.layers.linear import Linear, linear
from foretrace.workload.layers.piece import FORWARD, INPUT, Piece, run, stream
from foretrace.workload.layers.pointwise import joined_gradients, norm, residual
from foretrace.workload.layers.shape import Shape


def latent_attention(shape: Shape, layer: LatentAttention) -> list[Piece]:
    """Norm, projections down and up, rotation, attention, projection back and the residual addition."""
    heads = max(layer.heads // shape.tp, 1)
    local = Heads(heads, heads, layer.nope_dim + layer.rope_dim, layer.v_dim)
    pieces = [joined_gradients(shape, "attention branch"), norm(shape, "attention norm", "x")]
    pieces += _queries(shape, layer, local)
    pieces += _keys_and_values(shape, layer, local)
    pieces.append(_rotate(shape, layer, local))
    inputs = (
        ("q", local.query_bytes(shape)),
        ("k", local.key_bytes(shape)),
        ("v", local.value_bytes(shape)),
    )
    pieces.append(core(shape, local, inputs))
    pieces.append(
        linear(
            shape,
            Linear("attention out", n=shape.hidden, k=heads * layer.v_dim, source="o", split="row", shares_input=True),
        )
    )
    pieces.append(residual(shape, "attention residual"))
    return pieces


def _queries(shape: Shape, layer: LatentAttention, local: Heads) -> list[Piece]:
    width = local.heads * local.head_dim
    rank = layer.q_lora_rank
    if rank is None:
        return [linear(shape, Linear("q", n=width, k=shape.hidden, source="attention in", split="column"))]
    return [
        linear(shape, Linear("q down", n=rank, k=shape.hidden, source="attention in", rows=shape.rows)),
        norm(shape, "q norm", "q latent", width=rank, residual=False),
        linear(shape, Linear("q up", n=width, k=rank, source="q latent normed", split="column")),
    ]


def _keys_and_values(shape: Shape, layer: LatentAttention, local: Heads) -> list[Piece]:
    rank = layer.kv_lora_rank
    return [
        linear(
            shape,
            Linear(
                "kv down",
                n=rank + layer.rope_dim,
                k=shape.hidden,
                source="attention in",
                rows=shape.rows,
                quantizes=layer.q_lora_rank is None,
            ),
        ),
        norm(shape, "kv norm", "kv latent", width=rank, residual=False),
        linear(
            shape,
            Linear(
                "kv up",
                n=local.heads * (layer.nope_dim + layer.v_dim),
                k=rank,
                source="kv latent normed",
                split="column",
            ),
        ),
    ]


def _rotate(shape: Shape, layer: LatentAttention, local: Heads) -> Piece:
    """Rotates the queries' part in place and the keys' shared part, and writes keys and values whole for attention.

    Megatron-core's fused kernels do each in one pass; eager code adds a pass over the queries.
    """
    size = shape.tokens * shape.size
    rotated = size * local.heads * layer.rope_dim
    query, key, value = local.query_bytes(shape), local.key_bytes(shape), local.value_bytes(shape)
    source = size * (local.heads * (layer.nope_dim + layer.v_dim) + layer.rope_dim)
    if shape.stack.rope == "eager":
        forward: tuple[Kernel, ...] = (
            *(stream("cast", rotated, 2 * rotated), stream("mul", 2 * rotated, 2 * rotated)),
            *(stream("cast", 2 * rotated, rotated), stream("cat", query, query), stream("cat", key, key)),
        )
        backward: tuple[Kernel, ...] = (
            *(stream("copy_strided", query + key, query + key), stream("cast", rotated, 2 * rotated)),
            *(stream("mul", 2 * rotated, 2 * rotated), stream("cast", 2 * rotated, rotated)),
            stream("cat", key + value, source),
        )
    else:
        forward = (stream("rope", rotated, rotated), stream("rope", source, key + value))
        backward = (stream("rope_backward", rotated, rotated), stream("rope_backward", key + value, source))
    return Piece("rope", (run("rope", FORWARD, *forward),), (run("rope backward", INPUT, *backward),))
