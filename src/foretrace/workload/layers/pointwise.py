"""Norms, residual additions and activations: kernels that memory bounds."""

from __future__ import annotations

from foretrace.models.model import Mlp
from foretrace.program.kernels import Kernel
from foretrace.step.spec import Compute
from foretrace.workload.layers.piece import FORWARD, INPUT, Piece, run, stream
from foretrace.workload.layers.shape import Shape


def norm(
    shape: Shape, name: str, source: str, *, width: int | None = None, rows: int | None = None, residual: bool = True
) -> Piece:
    """A norm over the last dimension, which keeps its input `source` and what it divided by.

    Compiled, it takes the residual addition before it along: reads both, writes the sum and its norm; its backward
    takes the addition of gradients along. `residual` is False for norms off the residual stream.
    """
    width = width or shape.hidden
    rows = rows or shape.rows
    tensor = rows * width * shape.size
    fused = shape.stack.norm == "compiled" and residual
    statistics = rows * (4 if shape.norm == "rmsnorm" else 8)
    own = "_fused" if shape.stack.norm == "engine" else ""
    forward = stream(f"{shape.norm}{own}", tensor * (1 + fused), tensor * (1 + fused), rows=width)
    backward = stream(f"{shape.norm}_backward{own}", tensor * (2 + fused), tensor, launches=2, rows=width)
    bias = shape.norm == "layernorm" and shape.norm_bias
    there, back = ((forward,), (backward,)) if shape.stack.norm != "eager" else _eager_norm(tensor, width)
    return Piece(
        name,
        (run(name, FORWARD, *there),),
        (run(f"{name} backward", INPUT, *back),),
        saved=((source, tensor), (f"{name} statistics", statistics)),
        parameters=width * (1 + bias),
    )


def _eager_norm(size: int, width: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """An RMS norm as operators, in fp32: (x.float() * rsqrt(mean(x.float()²) + eps)).to(dtype) * weight, and back."""
    wide = 2 * size
    forward = (
        stream("cast", size, wide),
        stream("elementwise", wide, wide),
        stream("reduce", wide, wide // width, rows=width),
        stream("mul", wide, wide),
        stream("cast", wide, size),
        stream("mul", size, size),
    )
    backward = (
        stream("mul", size, size),
        stream("mul", 2 * size, size),
        stream("reduce", size, size // width, rows=size // width),
        stream("cast", size, wide),
        stream("mul", wide, wide),
        stream("mul", 2 * wide, wide),
        stream("reduce", wide, wide // width, rows=width),
        stream("mul", wide, wide, launches=2),
        stream("add", 2 * wide, wide),
        stream("cast", wide, size),
    )
    return forward, backward


def residual(shape: Shape, name: str, *, bias: bool = False) -> Piece:
    """Adds a branch to the residual stream, with its bias and dropout where the model has them."""
    stack = shape.stack
    tensor = shape.rows * shape.hidden * shape.size
    mask = shape.rows * shape.hidden if shape.dropout else 0
    saved = ((f"{name} mask", mask),) if mask else ()
    if stack.pointwise == "compiled" and not mask:
        return Piece(name)
    if stack.pointwise == "fused" and (bias or mask):
        forward: tuple[Kernel, ...] = (stream("bias_dropout_add", 2 * tensor, tensor + mask),)
        through = [stream("bias_dropout_add_backward", tensor + mask, tensor)] if mask else []
        if bias:
            through.append(stream("reduce", tensor, shape.hidden * shape.size, rows=shape.rows))
    elif mask:
        forward = (stream("dropout", tensor, tensor + mask), stream("add", 2 * tensor, tensor))
        through = [stream("dropout_backward", tensor + mask, tensor)]
    else:
        forward, through = (stream("add", 2 * tensor, tensor),), []
    backward = (run(f"{name} backward", INPUT, *through),) if through else ()
    return Piece(name, (run(name, FORWARD, *forward),), backward, saved=saved)


def joined_gradients(shape: Shape, name: str) -> Piece:
    """Where a branch leaves the residual stream: nothing forward; backward, autograd adds the gradients of the two."""
    if shape.stack.norm == "compiled":
        return Piece(name)
    tensor = shape.rows * shape.hidden * shape.size
    return Piece(name, backward=(run(f"{name} backward", INPUT, stream("add", 2 * tensor, tensor)),))


def activation(
    shape: Shape, mlp: Mlp, name: str, *, rows: int, width: int, source: str, weighted: bool = False
) -> Piece:
    """Activation, gated or not, of `rows` tokens, which keeps its input `source`.

    `weighted` multiplies by the router's probabilities on the way (Megatron's fused `weighted_bias_swiglu`). SwiGLU may
    keep its input in 8 bits: cast as a kernel of its own, and back before the backward (fused_bias_swiglu.py).
    """
    size = rows * width * shape.size
    scale = rows * 4 if weighted else 0
    style = shape.stack.pointwise
    biased = "bias_" if mlp.bias and mlp.activation == "gelu" and style == "fused" else ""
    if mlp.gated:
        forward, backward, kept = _gated(shape, mlp, size, scale, source, name, width)
    else:
        word = "relu2" if mlp.activation == "relu" else mlp.activation
        forward = (stream(f"{biased}{word}", size + scale, size),)
        backward = (stream(f"{biased}{word}_backward", 2 * size + scale, size + scale),)
        kept = ((source, size),)
    wide: tuple[tuple[str, int], ...] = ()
    if shape.narrow_activation and mlp.gated and mlp.activation == "silu":
        elements = 2 * rows * width
        forward = (*forward, stream("cast", 2 * size, elements))
        backward = (stream("cast", elements, 2 * size), *backward)
        kept, wide = ((f"{source}.narrow", elements),), ((source, 2 * size),)
    if biased:  # the bias's gradient is the sum of the activation's
        backward = (*backward, stream("reduce", size, width * shape.size, rows=rows))
    clamps, clamps_backward = _clamps(shape, mlp, name, size)
    return Piece(
        name,
        (*clamps, run(name, FORWARD, *forward)),
        (run(f"{name} backward", INPUT, *backward, temporary_bytes=sum(whole for _, whole in wide)), *clamps_backward),
        saved=kept,
        wide=wide,
        output_bytes=size,
    )


def _clamps(shape: Shape, mlp: Mlp, name: str, size: int) -> tuple[tuple[Compute, ...], tuple[Compute, ...]]:
    """Returns the clamps of gate and up, `size` bytes each: operators over strided halves, which a copy joins again.

    megatron/core/transformer/moe/experts.py and fusions/fused_bias_geglu.py with `activation_func_clamp_value`: chunk,
    clamp, clamp, cat. Backward: two clamps' gradients and the gradient of the split, a concatenation.
    """
    if not (mlp.clamp and mlp.gated and shape.stack.separate_expert_operators):
        return (), ()
    forward = run(f"{name} clamp", FORWARD, stream("clamp_gates", 4 * size, 4 * size, launches=3))
    back = run(f"{name} clamp backward", INPUT, stream("clamp_gates_backward", 5 * size, 5 * size, launches=3))
    return (forward,), (back,)


def _gated(
    shape: Shape, mlp: Mlp, size: int, scale: int, source: str, name: str, width: int
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], tuple[tuple[str, int], ...]]:
    """Kernels and kept tensors of act(gate)·up; `size` is the bytes of either half."""
    if shape.stack.pointwise != "eager":
        there, back = _gate_names(shape, mlp, width, weighted=scale > 0)
        forward: tuple[Kernel, ...] = (stream(there, 2 * size + scale, size),)
        backward: tuple[Kernel, ...] = (stream(back, 3 * size + scale, 2 * size + scale),)
        return forward, backward, ((source, 2 * size),)
    word = "gelu" if mlp.activation == "gelu" else "silu"
    strided = "" if shape.stack.separate_projections else "_strided"
    act = f"{word}{strided}" if word == "silu" else word
    act_backward = f"{word}_backward{strided}" if word == "silu" else f"{word}_backward"
    forward = (stream(act, size, size), stream(f"mul{strided}", 2 * size, size))
    backward = (
        stream("mul", 2 * size, size),
        stream(f"mul{strided}", 2 * size, size),
        stream(act_backward, 2 * size, size),
    )
    if not shape.stack.separate_projections:
        backward = (*backward, stream("cat", 2 * size, 2 * size))
    kept = ((source, 2 * size), (f"{name} gate", size))
    if not scale:
        return forward, backward, kept
    # The router's weights are a product of their own, whose backward needs what was weighted.
    forward = (*forward, stream("mul_broadcast", size + scale, size))
    weights = (
        stream("mul", 2 * size, size),
        stream("reduce", size, scale),
        stream("mul_broadcast", size + scale, size),
    )
    return forward, (*weights, *backward), (*kept, (f"{name} unweighted", size))


def _gate_names(shape: Shape, mlp: Mlp, width: int, *, weighted: bool) -> tuple[str, str]:
    """Returns the names of the kernels that gate and weight, forward and backward.

    Megatron-core compiles them (`jit_fuser`). The number of an expert's rows is another each time, and code for any
    number is slower: backward above all where it divides by a width that is no power of two.
    """
    if not (weighted and shape.stack.pointwise == "fused"):
        return shape.own("swiglu"), shape.own("swiglu_backward")
    if mlp.clamp:
        return "weighted_quick_geglu_fused", "weighted_quick_geglu_backward_fused"
    uneven = "_uneven" if width & (width - 1) else ""
    return "weighted_swiglu_fused", f"weighted_swiglu_backward{uneven}_fused"
