"""Rotation of queries and keys: as eager operators, as a fused kernel, or as one that a compiler made."""

from __future__ import annotations

from foretrace.program.kernels import Kernel
from foretrace.workload.layers.piece import FORWARD, INPUT, Piece, run, stream
from foretrace.workload.layers.shape import Shape


def rope(shape: Shape, query_bytes: int, key_bytes: int) -> Piece:
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
