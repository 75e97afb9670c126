"""Linear layers: three products, and the collectives of tensor parallelism around them.

Column-parallel layers split their output over tp: their input is gathered where the sequence is split, and the gradient
of it is summed. Row-parallel ones split their input: their output is summed (Megatron-LM, arXiv:1909.08053; with
sequence parallelism arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from foretrace.program.kernels import Gemm, Kernel
from foretrace.step.spec import Compute, Item
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

Split = Literal["column", "row", "none"]

SCATTER_PARTS: Final = 4
"""`num_splits` of Transformer Engine's pipelined overlap."""


_SCALED: Final = {"mxfp8": 32, "nvfp4": 16}
"""Elements with a common scale of one byte, by precisions whose scales tensor cores want in an order of their own."""

_AGAIN: Final = " quantize again"
"""Ends the name of the kernels that quantize an input for the weight gradient."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer of this rank's [k, n], whose input is the kept tensor `source`.

    `rows` are its tokens where it is not split over tp; `gathers` is False where an earlier layer has gathered the same
    input, `quantizes` False where one has quantized it. An `outside_bias` is added, and its gradient summed, by the
    kernel that follows (Megatron's bias-gelu and bias-dropout-add).
    """

    name: str
    n: int
    k: int
    source: str
    split: Split = "none"
    bias: bool = False
    outside_bias: bool = False
    rows: int | None = None
    quantized: bool = True
    gathers: bool = True
    quantizes: bool = True
    shares_input: bool = False
    """Whether another module keeps the input in 16 bits anyway."""


def linear(shape: Shape, layer: Linear) -> Piece:
    """Returns what a linear layer does forward and backward."""
    name, n, k, split = layer.name, layer.n, layer.k, layer.split
    m = shape.tokens if layer.rows is None else layer.rows
    narrow = layer.quantized and shape.quantized
    if narrow and _scales_rows(shape):
        return _by_rows(shape, layer, m)
    local = shape.rows if split == "column" else m
    forward: list[Item] = []
    if narrow and layer.quantizes:
        forward.append(run(f"{name} quantize", FORWARD, *quantize(shape, local * k)))
    collective = split if shape.tp > 1 else "none"
    moved_size = shape.operand_size if narrow else shape.size
    if collective == "column" and shape.sequence_parallel and layer.gathers:
        forward.append(gather_tp(f"{name} gather", FORWARD, round(m * k * moved_size)))
    arranged = swizzle_scales(shape, m * k, n * k) if narrow else ()
    parts = {"column": shape.tp, "row": SCATTER_PARTS, "none": 1}[split]
    product = gemm(shape, m, n, k, "tn", narrow=narrow)
    forward.append(Compute(name, FORWARD, (*((1, kernel) for kernel in arranged), cut(shape, product, parts))))
    if collective == "row":
        summed = scatter_tp if shape.sequence_parallel else reduce_tp
        forward.append(summed(f"{name} reduce", FORWARD, m * n * shape.size))
    kept = (layer.source, local * k * shape.size)
    backward = _backward(shape, name, m, n, k, collective, bias=layer.bias, narrow=narrow, gathers=layer.gathers)
    if narrow and layer.shares_input and shape.stack.keeps_shared_inputs:
        backward = (run(f"{name}{_AGAIN}", INPUT, *quantize(shape, local * k)), *backward)
    elif narrow:
        kept = (f"{layer.source}.narrow", round(local * k * shape.operand_size))
    return Piece(
        name,
        tuple(forward),
        backward,
        saved=(kept,),
        wide=((layer.source, local * k * shape.size),) if narrow else (),
        product=True,
        output_bytes=(shape.rows if split == "row" else m) * n * shape.size,
        parameters=n * k + (n if layer.bias or layer.outside_bias else 0),
        narrow_parameters=n * k if narrow else 0,
    )


def _scales_rows(shape: Shape) -> bool:
    """Returns whether operands have one scale for each row, as torchao's recipe `rowwise` has it."""
    return shape.precision == "fp8" and shape.stack.fp8_scales == "rows"


def _by_rows(shape: Shape, layer: Linear, m: int) -> Piece:
    """Returns a linear layer whose operands have one scale for each row of the product that they are in.

    torchao (float8_linear.py, `matmul_with_hp_or_float8_args`) keeps the input in 16 bits and quantizes it, the weight
    and the gradient once for each product: along the row that this product sums over. Collectives of tp gather 16-bit
    values (torchtitan, parallelize.py), so that every rank quantizes all of them. Products of the backward add up in
    full precision, by cuBLAS's product without scales, whose result a kernel scales (float8_python_api.py). That kernel
    follows the input gradient here; the one behind the weight gradient, of n * k elements, is left out.
    """
    plain = linear(shape, replace(layer, quantized=False))
    name, n, k = layer.name, layer.n, layer.k
    forward_casts = [_quantize_rows(shape, n * k, k)]
    if layer.quantizes:
        forward_casts.insert(0, _quantize_rows(shape, m * k, k))
    backward_casts = [_quantize_rows(shape, m * n, n), _quantize_columns(shape, n * k), _quantize_columns(shape, m * n)]
    backward_casts += [_quantize_columns(shape, m * k)] if layer.quantizes else []
    scaled = stream("mul", m * k * shape.size, m * k * shape.size)
    forward: list[Item] = []
    for item in plain.forward:
        if isinstance(item, Compute):
            forward.append(run(f"{name} quantize", FORWARD, *forward_casts))
        forward.append(_narrowed(shape, item))
    backward: list[Item] = []
    gathered = [isinstance(item, Compute) for item in plain.backward].index(True)
    for at, item in enumerate(plain.backward):
        if at == gathered:
            backward.append(run(f"{name} quantize", INPUT, *backward_casts))
        backward.append(_narrowed(shape, item))
        if item.name == f"{name} input gradient":
            backward.append(run(f"{name} scale", INPUT, scaled))
    return replace(plain, forward=tuple(forward), backward=tuple(backward), narrow_parameters=n * k)


def _narrowed(shape: Shape, item: Item) -> Item:
    """Returns an item with its products in 8 bits."""
    if not isinstance(item, Compute):
        return item
    kernels = [
        (count, replace(kernel, dtype=shape.precision) if isinstance(kernel, Gemm) else kernel)
        for count, kernel in item.kernels
    ]
    return replace(item, kernels=tuple(kernels))


def quantizes_again(piece: Piece) -> bool:
    """Returns whether a linear layer quantizes its input again in the backward."""
    return any(item.name.endswith(_AGAIN) for item in piece.backward)


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
    product = cut(shape, gemm(shape, m, k, n, "nn", narrow=narrow), shape.tp if split == "row" else 1)
    to_input_scales = swizzle_scales(shape, m * n, n * k) if narrow else ()
    to_input = Compute(f"{name} input gradient", INPUT, (*((1, kernel) for kernel in to_input_scales), product))
    to_weight_scales = swizzle_scales(shape, m * (n + k), 0, operands=2) if narrow else ()
    summed_up = weight_gradient(shape, m, n, k, bias=bias, narrow=narrow)
    to_weight = run(f"{name} weight gradient", WEIGHT, *to_weight_scales, *summed_up)
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
    """A product of activations. 8-bit tensor cores take one layout only, for which quantizing transposes; the layout
    then says what is computed: sums of gradients' products are kept in full precision."""
    return Gemm(m, n, k, shape.precision if narrow else shape.dtype, layout, out=shape.out)


def cut(shape: Shape, product: Gemm, parts: int) -> tuple[int, Gemm]:
    """Cuts a product that runs next to a tp collective along its tokens: each part works on what has arrived.

    There are as many parts as ranks where tokens are gathered around a ring, and four where results are scattered
    (transformer_engine/pytorch/module/base.py, initialize_ub: ring_exchange and pipeline). Smaller products fill the
    GPU less well, which is the cost of the overlap.
    """
    if not shape.tp_overlap or parts == 1:
        return 1, product
    return parts, replace(product, m=-(-product.m // parts))


def weight_gradient(shape: Shape, m: int, n: int, k: int, *, bias: bool, narrow: bool) -> tuple[Kernel, ...]:
    """The product that gives a weight's gradient from m tokens, and the sum that gives a bias's."""
    stack = shape.stack
    dtype = shape.precision if narrow else shape.dtype
    out = stack.gradient_dtype if stack.fused_gradient_accumulation else shape.out
    product = Gemm(n, k, m, dtype, "nt", out=out, accumulate=stack.fused_gradient_accumulation)
    if not bias or stack.fused_bias_gradient:
        return (product,)
    return (product, stream("reduce", m * n * shape.size, n * shape.size, rows=m))


def quantize(shape: Shape, elements: int, launches: int = 1) -> tuple[Kernel, ...]:
    """From activations to operands, as they are and transposed, for the products of both ways.

    One scale per tensor is found by a pass of its own first (Transformer Engine's current scaling, and nvfp4, whose
    scales of blocks are relative to it: `nvte_hadamard_transform_amax`); scales of blocks are found on the way. Weights
    are quantized once a step, not here. Each expert's rows are quantized by `launches` of their own, in one loop in C++
    (Transformer Engine's `split_quantize`), those of nvfp4 by one for all experts.
    """
    read = elements * shape.size
    fused = shape.stack.pointwise == "fused"
    loop = 1 if shape.precision == "nvfp4" else launches
    largest = stream("quantize_amax_fused" if fused else "quantize", read, 4, launches=loop, looped=True)
    if shape.precision == "fp8":
        cast = "quantize_cast_both_fused" if fused else "quantize"
        return (largest, stream(cast, read, 2 * elements, launches=loop, looped=True))
    name = "quantize_block_both_fused" if fused and shape.precision == "fp8_block" else shape.own("quantize_mx")
    # fp8_block has four bytes for 128 elements, as many as mxfp8.
    written = 2 * elements * (shape.operand_size + 1 / _SCALED.get(shape.precision, 32))
    blocks = stream(name, read, written, launches=loop, looped=True)
    return (largest, blocks) if shape.precision == "nvfp4" else (blocks,)


def _quantize_rows(shape: Shape, elements: int, row_elements: int) -> Kernel:
    """Returns the kernel that finds the scale of each row of `row_elements` elements and writes them in 8 bits."""
    return stream("quantize_rows", elements * shape.size, elements, rows=row_elements)


def _quantize_columns(shape: Shape, elements: int) -> Kernel:
    """Returns the two kernels that find the scale of each column, and write the columns as rows in 8 bits."""
    return stream("quantize_columns", 2 * elements * shape.size, elements, launches=2)


def swizzle_scales(shape: Shape, activations: int, weights: int, operands: int = 1) -> tuple[Kernel, ...]:
    """Returns the kernels that put scales of block-scaled operands in the order of tensor cores before a product.

    One kernel serves an operand of all experts of a grouped product (Transformer Engine,
    `multi_tensor_swizzle_scaling_factors`, up to 64 experts).

    Args:
        shape: The microbatch, and the stack, which says whose scales are not in that order yet.
        activations: Elements of activations and gradients.
        weights: Elements of weights; 0 for a weight gradient, which has none.
        operands: How many operands are activations or gradients.
    """
    if shape.precision not in _SCALED:
        return ()
    all_operands = shape.stack.swizzles_scales == "operands"
    scales = (weights + activations * all_operands) // _SCALED[shape.precision]
    launches = operands * all_operands + (weights > 0)
    return (stream(shape.own("quantize_mx"), scales, scales, launches=launches),) if launches else ()
