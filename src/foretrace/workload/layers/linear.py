"""Linear layers: three products, and the collectives of tensor parallelism around them.

Column-parallel layers split their output over tp: their input is gathered where the sequence is split, and the gradient
of it is summed. Row-parallel ones split their input: their output is summed (Megatron-LM, arXiv:1909.08053; with
sequence parallelism arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from typing import Literal

from foretrace.program.kernels import Gemm, Kernel
from foretrace.workload.layers.piece import (
    FORWARD,
    INPUT,
    WEIGHT,
    Piece,
    gather_tp,
    reduce_tp,
    run,
    scatter_tp,
    stream,
)
from foretrace.workload.layers.shape import Shape
from foretrace.workload.work import Item

Split = Literal["column", "row", "none"]


def linear(
    shape: Shape,
    name: str,
    *,
    n: int,
    k: int,
    source: str,
    split: Split = "none",
    bias: bool = False,
    outside_bias: bool = False,
    rows: int | None = None,
    quantized: bool = True,
    gathers: bool = True,
    quantizes: bool = True,
) -> Piece:
    """A linear layer of this rank's [k, n], whose input is the kept tensor `source`.

    `rows` are its tokens where it is not split over tp; `gathers` is False where an earlier layer has gathered the same
    input, `quantizes` False where one has quantized it. An `outside_bias` is added, and its gradient summed, by the
    kernel that follows (Megatron's bias-gelu and bias-dropout-add).
    """
    m = shape.tokens if rows is None else rows
    narrow = quantized and shape.quantized
    local = shape.rows if split == "column" else m
    forward: list[Item] = []
    if narrow and quantizes:
        forward.append(run(f"{name} quantize", FORWARD, *quantize(shape, local * k)))
    collective = split if shape.tp > 1 else "none"
    moved_size = shape.operand_size if narrow else shape.size
    if collective == "column" and shape.sequence_parallel and gathers:
        forward.append(gather_tp(f"{name} gather", FORWARD, round(m * k * moved_size)))
    forward.append(run(name, FORWARD, gemm(shape, m, n, k, "tn", narrow=narrow)))
    if collective == "row":
        summed = scatter_tp if shape.sequence_parallel else reduce_tp
        forward.append(summed(f"{name} reduce", FORWARD, m * n * shape.size))
    kept = (f"{source}.narrow", round(local * k * shape.operand_size)) if narrow else (source, local * k * shape.size)
    return Piece(
        name,
        tuple(forward),
        _backward(shape, name, m, n, k, collective, bias=bias, narrow=narrow, gathers=gathers),
        saved=(kept,),
        product=True,
        output_bytes=(shape.rows if split == "row" else m) * n * shape.size,
        parameters=n * k + (n if bias or outside_bias else 0),
    )


def _backward(
    shape: Shape, name: str, m: int, n: int, k: int, split: Split, *, bias: bool, narrow: bool, gathers: bool
) -> tuple[Item, ...]:
    stack = shape.stack
    moved_size = shape.operand_size if narrow else shape.size
    hidden = stack.hides_tp_backward
    before: list[Item] = []
    if narrow:
        elements = (shape.rows if split == "row" else m) * n
        before.append(run(f"{name} quantize", INPUT, *quantize(shape, elements)))
    if split == "row" and shape.sequence_parallel:
        before.append(gather_tp(f"{name} gather gradient", INPUT, round(m * n * moved_size)))
    to_input = run(f"{name} input gradient", INPUT, gemm(shape, m, k, n, "nn", narrow=narrow))
    to_weight = run(f"{name} weight gradient", WEIGHT, *weight_gradient(shape, m, n, k, bias=bias, narrow=narrow))
    if split != "column" or not gathers:
        return (*before, to_weight, to_input) if stack.weight_first else (*before, to_input, to_weight)
    if shape.sequence_parallel:
        again = gather_tp(f"{name} gather again", INPUT, round(m * k * moved_size), hidden=hidden)
        summed = scatter_tp(f"{name} reduce gradient", INPUT, m * k * shape.size, hidden=hidden)
        before.append(again)
    else:
        summed = reduce_tp(f"{name} reduce gradient", INPUT, m * k * shape.size, hidden=hidden)
    if stack.weight_first:
        return (*before, to_weight, to_input, summed)
    return (*before, to_input, summed, to_weight)


def gemm(shape: Shape, m: int, n: int, k: int, layout: str, *, narrow: bool) -> Gemm:
    """A product of activations. Narrow ones take the one layout that 8-bit tensor cores do; quantizing transposes."""
    dtype = shape.precision if narrow else shape.dtype
    return Gemm(m, n, k, dtype, "tn" if narrow else layout, out=shape.out)


def weight_gradient(shape: Shape, m: int, n: int, k: int, *, bias: bool, narrow: bool) -> tuple[Kernel, ...]:
    """The product that gives a weight's gradient from m tokens, and the sum that gives a bias's."""
    stack = shape.stack
    dtype = shape.precision if narrow else shape.dtype
    out = stack.gradient_dtype if stack.fused_gradient_accumulation else shape.out
    product = Gemm(n, k, m, dtype, "tn" if narrow else "nt", out=out, accumulate=stack.fused_gradient_accumulation)
    if not bias or stack.fused_bias_gradient:
        return (product,)
    return (product, stream("reduce", m * n * shape.size, n * shape.size, rows=m))


def quantize(shape: Shape, elements: int) -> tuple[Kernel, ...]:
    """From activations to operands, as they are and transposed, for the products of both ways.

    One scale per tensor is found by a pass of its own first (Transformer Engine's current scaling); scales of blocks
    are found on the way, and take 1/32 of the elements. Weights are quantized once a step, not here.
    """
    read = elements * shape.size
    if shape.precision == "fp8":
        return stream("reduce", read, 4), stream("quantize", read, 2 * elements)
    return (stream("quantize_mx", read, 2 * elements * shape.operand_size * (1 + 1 / 32)),)
