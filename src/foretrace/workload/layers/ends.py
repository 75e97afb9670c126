"""The ends of the model: embedding at the front; final norm, logits and loss at the back."""

from __future__ import annotations

from dataclasses import replace

from foretrace.program.columns import Collective
from foretrace.program.kernels import DTYPE_BYTES, Kernel
from foretrace.step.spec import Call, Item
from foretrace.workload.layers.linear import Linear, linear
from foretrace.workload.layers.piece import FORWARD, INPUT, WEIGHT, Piece, gather_tp, reduce_tp, run, scatter_tp, stream
from foretrace.workload.layers.pointwise import norm
from foretrace.workload.layers.shape import Shape


def embedding(shape: Shape) -> list[Piece]:
    """Looks tokens up; the table is split over tp by rows, so that parts are summed."""
    if shape.vocab == 0:
        return []
    tensor = shape.tokens * shape.hidden * shape.size
    table = -(-shape.vocab // shape.tp) * shape.hidden
    forward: list[Item] = [run("embedding", FORWARD, stream("embedding", tensor, tensor))]
    backward: list[Item] = []
    if shape.tp > 1:
        summed = scatter_tp if shape.sequence_parallel else reduce_tp
        forward.append(summed("embedding reduce", FORWARD, tensor))
        if shape.sequence_parallel:
            backward.append(gather_tp("embedding gather gradient", INPUT, tensor))
    # PyTorch sorts the tokens by index first: some twenty small kernels (embedding_dense_backward).
    gradient: list[Kernel] = [stream("embedding_backward", tensor, table * shape.size, launches=22)]
    if shape.stack.fused_gradient_accumulation:
        summed_size = int(DTYPE_BYTES[shape.stack.gradient_dtype])
        gradient.append(stream("add", table * (shape.size + summed_size), table * summed_size))
    backward.append(run("embedding weight gradient", WEIGHT, *gradient))
    saved = ("token numbers", shape.tokens * 8)
    pieces = [Piece("embedding", tuple(forward), tuple(backward), (saved,), parameters=table)]
    if shape.positions:
        pieces.append(_positions(shape))
    if shape.dropout:
        pieces.append(_dropout(shape))
    return pieces


def _positions(shape: Shape) -> Piece:
    """Adds rows of a learned table; its gradient is a sum over sequences."""
    tensor = shape.tokens * shape.hidden * shape.size
    rows = shape.seq_len // shape.cp * shape.hidden * shape.size
    return Piece(
        "positions",
        (run("positions", FORWARD, stream("embedding", rows, rows), stream("add", tensor + rows, tensor)),),
        (run("positions weight gradient", WEIGHT, stream("reduce", tensor, rows, rows=shape.mbs)),),
        parameters=shape.positions * shape.hidden,
    )


def _dropout(shape: Shape) -> Piece:
    elements = shape.rows * shape.hidden
    tensor = elements * shape.size
    return Piece(
        "embedding dropout",
        (run("embedding dropout", FORWARD, stream("dropout", tensor, tensor + elements)),),
        (run("embedding dropout backward", INPUT, stream("dropout_backward", tensor + elements, tensor)),),
        saved=(("embedding dropout mask", elements),),
    )


def head(shape: Shape, *, own_table: bool) -> list[Piece]:
    """Final norm, logits and loss; `own_table` means that this rank holds a matrix for it next to the embedding's."""
    if shape.vocab == 0:
        return [_plain_loss(shape)]
    part = -(-shape.vocab // shape.tp)
    logits = linear(
        shape,
        Linear(
            "logits", n=part, k=shape.hidden, source="head in", split="column", bias=shape.head_bias, quantized=False
        ),
    )
    if not own_table:
        logits = replace(logits, parameters=part if shape.head_bias else 0)
    return [norm(shape, "final norm", "x", residual=True), logits, _loss(shape, part)]


def _loss(shape: Shape, part: int) -> Piece:
    """Cross-entropy over this rank's part of the vocabulary. Across tp: the largest logit, the label's, the sum."""
    elements = shape.tokens * part
    style = shape.stack.loss
    kernels = {"fused": _fused, "compiled": _compiled, "eager": _eager, "vocab_parallel": _vocab_parallel}[style]
    forward, backward, kept, before, after = kernels(shape, elements, part)
    across: tuple[Item, ...] = ()
    if shape.tp > 1:
        across = tuple(
            Call(f"loss {what}", FORWARD, Collective.ALL_REDUCE, "tp", shape.tokens * 4)
            for what in ("largest", "label", "sum")
        )
    return Piece(
        "loss",
        (run("loss", FORWARD, *forward, temporary_bytes=before), *across),
        (run("loss backward", INPUT, *backward, temporary_bytes=after), *_metrics(shape, elements, part)),
        saved=(("loss", kept),),
    )


def _metrics(shape: Shape, elements: int, part: int) -> tuple[Item, ...]:
    """Metrics of the training batch. They run after the whole backward, when memory is free again; here they stand with
    the loss, whose logits they read."""
    tensor, wide = elements * shape.size, elements * 4
    once = (
        stream("cast", tensor, wide),
        stream("log_softmax", wide, wide, rows=part),
        stream("nll", shape.tokens * 8, 4),
    )
    return (run("metrics", INPUT, *(once * shape.stack.metrics)),) if shape.stack.metrics else ()


_Parts = tuple[tuple[Kernel, ...], tuple[Kernel, ...], int, int, int]
"""Kernels forward and backward; bytes kept; bytes needed for a while, forward and backward."""


def _fused(shape: Shape, elements: int, part: int) -> _Parts:
    """One pass finds maximum and sum; a second, still forward, puts the gradient in the logits' place, to be scaled.

    Transformer Engine's Triton kernels (transformer_engine/pytorch/triton/cross_entropy.py).
    """
    tensor = elements * shape.size
    forward = (
        stream("cross_entropy", tensor, shape.tokens * 12, rows=part),
        stream("cross_entropy_backward", tensor, tensor, rows=part),
    )
    return forward, (stream("scale", tensor, tensor),), tensor, 0, 0


def _compiled(shape: Shape, elements: int, part: int) -> _Parts:
    """Straight from the logits, which are kept; no fp32 copy."""
    tensor = elements * shape.size
    forward = (stream("cross_entropy", tensor, shape.tokens * 8, launches=2, rows=part),)
    backward = (stream("cross_entropy_backward", tensor, tensor, rows=part),)
    return forward, backward, tensor, 0, tensor


def _eager(shape: Shape, elements: int, part: int) -> _Parts:
    """A copy in fp32, its log-softmax (kept), the label's entry; backward fills, scatters and goes back to 16 bits."""
    tensor, wide = elements * shape.size, elements * 4
    few = shape.tokens * 8
    forward = (
        stream("cast", tensor, wide),
        stream("log_softmax", wide, wide, rows=part),
        stream("nll", few, 4),
    )
    backward = (
        stream("zero", 0, wide),
        stream("nll", few, few),
        stream("log_softmax_backward", 2 * wide, wide, rows=part),
        stream("cast", wide, tensor),
    )
    return forward, backward, wide, tensor + wide, 2 * wide


def _vocab_parallel(shape: Shape, elements: int, part: int) -> _Parts:
    """Megatron's own: a copy in fp32, then maximum, difference, exponential, sum and quotient, each a pass over it."""
    tensor, wide = elements * shape.size, elements * 4
    few = shape.tokens * 4
    forward = (
        stream("cast", tensor, wide),
        stream("reduce", wide, few, rows=part),
        stream("add", wide, wide),
        stream("elementwise", wide, wide),
        stream("reduce", wide, few, rows=part),
        stream("mul", wide, wide),
        stream("nll", few, few, launches=6),
    )
    backward = (stream("nll", few, few, launches=4), stream("mul", wide, wide), stream("cast", wide, tensor))
    return forward, backward, wide, tensor, tensor


def _plain_loss(shape: Shape) -> Piece:
    """A model without vocabulary (a slice for measuring) ends in the mean square of its output in fp32.

    A guess: such slices need some scalar to start the backward from. Its five fp32 copies explain the peak memory
    of one measured slice (12.40 GiB), which is therefore no check of it.
    """
    elements = shape.rows * shape.hidden
    tensor, wide = elements * shape.size, elements * 4
    forward = (stream("cast", tensor, wide), stream("mul", wide, wide), stream("reduce", wide, 4, launches=2))
    backward = (
        stream("mul", 0, wide),
        stream("mul", wide, wide),
        stream("mul", 2 * wide, wide),
        stream("cast", wide, tensor),
    )
    return Piece(
        "loss",
        (run("loss", FORWARD, *forward, temporary_bytes=wide),),
        (run("loss backward", INPUT, *backward, temporary_bytes=4 * wide),),
        saved=(("x", tensor), ("loss", wide)),
    )
