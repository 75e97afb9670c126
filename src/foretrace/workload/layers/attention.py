"""Grouped-query attention between its norm and the residual stream."""

from __future__ import annotations

from dataclasses import replace

from foretrace.models.model import SelfAttention
from foretrace.program.kernels import Kernel
from foretrace.workload.layers.core import Heads, core
from foretrace.workload.layers.linear import Linear, linear
from foretrace.workload.layers.piece import FORWARD, INPUT, Piece, run, stream
from foretrace.workload.layers.pointwise import joined_gradients, norm, residual
from foretrace.workload.layers.shape import Shape


def attention(shape: Shape, layer: SelfAttention) -> list[Piece]:
    """Norm, projections, rotation, attention, projection back and the residual addition."""
    local = Heads(
        max(layer.heads // shape.tp, 1),
        max(layer.kv_heads // shape.tp, 1),
        layer.head_dim,
        layer.head_dim,
        layer.window,
    )
    width = local.heads * layer.head_dim
    rotates = shape.rotates and layer.rope
    pieces = [joined_gradients(shape, "attention branch"), norm(shape, "attention norm", "x")]
    pieces += _projections(shape, layer, local)
    pieces.append(_split(shape, local))
    if layer.qk_norm:
        pieces += _head_norms(shape, local)
    if rotates:
        pieces.append(_rope(shape, local.query_bytes(shape), local.key_bytes(shape)))
    if _repeats(shape, local):
        pieces.append(_repeat(shape, local))
    if layer.sinks:
        pieces.append(Piece("attention sinks", parameters=local.heads))
    attend = core(shape, _attended(shape, local), _inputs(shape, local, fresh=rotates or layer.qk_norm))
    pieces += _packed(shape, local, attend) if shape.stack.packs_sequences else [attend]
    if layer.output_gate:
        pieces.append(_gate(shape, local))
    outside = layer.out_bias and shape.stack.pointwise == "fused"
    pieces.append(
        linear(
            shape,
            Linear(
                "attention out",
                n=shape.hidden,
                k=width,
                source="gated o" if layer.output_gate else "o",
                split="row",
                shares_input=not layer.output_gate,
                bias=layer.out_bias and not outside,
                outside_bias=outside,
            ),
        )
    )
    pieces.append(residual(shape, "attention residual", bias=layer.out_bias))
    return pieces


def _projections(shape: Shape, layer: SelfAttention, local: Heads) -> list[Piece]:
    query, key = local.heads * layer.head_dim, local.kv_heads * layer.head_dim
    gate = query if layer.output_gate else 0
    if not shape.stack.separate_projections:
        joint = query + 2 * key + gate
        return [
            linear(
                shape,
                Linear("qkv", n=joint, k=shape.hidden, source="attention in", split="column", bias=layer.qkv_bias),
            )
        ]
    widths = {"q": query + gate, "k": key, "v": key}
    return [
        linear(
            shape,
            Linear(
                name,
                n=n,
                k=shape.hidden,
                source="attention in",
                split="column",
                bias=layer.qkv_bias,
                gathers=name == "q",
                quantizes=name == "q",
            ),
        )
        for name, n in widths.items()
    ]


def _split(shape: Shape, local: Heads) -> Piece:
    """Queries, keys and values out of the joint projection; backward, their gradients into one tensor.

    Where they are projections of their own, autograd adds up the gradients of their common input instead.
    """
    stack, values = shape.stack, local.value_bytes(shape)
    copied = stack.copies_value and not stack.separate_projections
    forward = (run("split", FORWARD, stream("copy_strided", values, values)),) if copied else ()
    if stack.pointwise == "compiled":
        return Piece("split", forward)
    if stack.separate_projections:
        tensor = shape.tokens * shape.hidden * shape.size
        return Piece("split", forward, (run("split backward", INPUT, *[stream("add", 2 * tensor, tensor)] * 2),))
    joint = local.query_bytes(shape) + local.key_bytes(shape) + values
    return Piece("split", forward, (run("split backward", INPUT, stream("cat", joint, joint)),))


def _head_norms(shape: Shape, local: Heads) -> list[Piece]:
    """A norm of every query and key head (Qwen 3)."""
    return [
        norm(
            shape,
            f"{name} norm",
            f"{name} projected",
            width=local.head_dim,
            rows=shape.tokens * heads,
            residual=False,
        )
        for name, heads in (("query", local.heads), ("key", local.kv_heads))
    ]


def _repeats(shape: Shape, local: Heads) -> bool:
    return shape.stack.repeats_kv and local.kv_heads < local.heads


def _attended(shape: Shape, local: Heads) -> Heads:
    """The heads the kernel sees."""
    return replace(local, kv_heads=local.heads) if _repeats(shape, local) else local


def _repeat(shape: Shape, local: Heads) -> Piece:
    """Keys and values copied to every query head; backward sums them."""
    few, many = local.key_bytes(shape), local.query_bytes(shape)
    copies: tuple[Kernel, ...] = tuple(stream("copy_strided", few, many) for _ in range(2))
    sums: tuple[Kernel, ...] = tuple(stream("reduce", many, few, rows=local.heads // local.kv_heads) for _ in range(2))
    return Piece("repeat", (run("repeat", FORWARD, *copies),), (run("repeat backward", INPUT, *sums),))


def _inputs(shape: Shape, local: Heads, *, fresh: bool) -> tuple[tuple[str, int], ...]:
    """Returns the queries, keys and values that attention keeps; `fresh` means that queries and keys are new tensors.

    In eager code values are a view of the joint projection, which they keep alive as a whole.
    """
    query, key, value = local.query_bytes(shape), local.key_bytes(shape), local.value_bytes(shape)
    stack = shape.stack
    if _repeats(shape, local):
        return ("q", query), ("k", query), ("v", query)
    if stack.separate_projections or stack.copies_value or stack.pointwise == "compiled":
        return ("q", query), ("k", key), ("v", value)
    joint = (("qkv", query + key + value),)
    return (*joint, ("q", query), ("k", key)) if fresh else joint


def _packed(shape: Shape, local: Heads, attend: Piece) -> list[Piece]:
    """Puts attention between copies of its inputs out of padded sequences and of its output back into them.

    flash-attn's bert_padding gathers rows and, for the gradient, scatters them into zeros; the output goes the other
    way, by an assignment to indexed rows. It is there twice, as attention keeps it and as the projection does.
    """
    attended = _attended(shape, local)
    inputs = attended.query_bytes(shape), attended.key_bytes(shape), attended.value_bytes(shape)
    output = attended.output_bytes(shape)
    scattered = [(stream("zero", 0, size), stream("scatter_rows", size, size)) for size in inputs]
    return [
        Piece(
            "pack",
            (run("pack", FORWARD, *[stream("copy", size, size) for size in inputs]),),
            (run("pack backward", INPUT, *[kernel for pair in scattered for kernel in pair]),),
        ),
        replace(attend, inner=(*attend.inner, ("o packed", output))),
        Piece(
            "unpack",
            (run("unpack", FORWARD, stream("zero", 0, output), stream("put_rows", output, output)),),
            (run("unpack backward", INPUT, stream("copy", output, output)),),
        ),
    ]


def _gate(shape: Shape, local: Heads) -> Piece:
    """The output times the sigmoid of a gate that was projected with the queries."""
    size = local.output_bytes(shape)
    return Piece(
        "output gate",
        (run("output gate", FORWARD, stream("mul", 2 * size, size)),),
        (run("output gate backward", INPUT, stream("mul", 3 * size, 2 * size)),),
        saved=(("o", size), ("gate", size)),
    )


def _rope(shape: Shape, query_bytes: int, key_bytes: int) -> Piece:
    """Rotates this rank's queries and keys. Nothing is kept: sines and cosines are constants."""
    style = shape.stack.rope
    if style == "compiled":
        moved = query_bytes + key_bytes
        forward: tuple[Kernel, ...] = (stream("rope", moved, moved),)
        backward: tuple[Kernel, ...] = (stream("rope_backward", moved, moved),)
    elif style == "fused":
        forward = tuple(stream("rope", size, size) for size in (query_bytes, key_bytes))
        backward = tuple(stream("rope_backward", size, size) for size in (key_bytes, query_bytes))
    else:
        rotate = _complex if shape.stack.rope_style == "complex" else _halves
        forward = (*rotate(query_bytes), *rotate(key_bytes))
        backward = (*rotate(key_bytes), *rotate(query_bytes))
    return Piece("rope", (run("rope", FORWARD, *forward),), (run("rope backward", INPUT, *backward),))


def _halves(size: int) -> tuple[Kernel, ...]:
    """x·cos + rotate_half(x)·sin in the dtype of x; backward runs the same operators in another order.

    Operands are slices or transposed views, so PyTorch's kernels that are not vectorised run, and its general one for
    the concatenation; cosine and sine are broadcast over heads.
    """
    return (
        stream("mul_broadcast", size, size),
        stream("neg_strided", size // 2, size // 2),
        stream("cat_strided", size, size),
        stream("mul_broadcast", size, size),
        stream("add_strided", 2 * size, size),
    )


def _complex(size: int) -> tuple[Kernel, ...]:
    """To fp32, times complex numbers, and back."""
    return stream("cast", size, 2 * size), stream("mul_complex", 2 * size, 2 * size), stream("cast", 2 * size, size)
