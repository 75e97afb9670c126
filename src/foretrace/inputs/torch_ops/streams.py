"""Finds what memory-bound ops read and write, every operand once, under the name by which their kernel is priced.

Names are those of `workload.layers` and of kernel profiles where they mean the same kernel, so that what a trace shows
of a kernel holds for predictions. A subtraction runs as an addition does, a division as a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod
from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.multi_tensor import LISTS, list_kernel, listed_tensors
from foretrace.inputs.torch_ops.tensors import Tensor, tensors, value, whole_numbers
from foretrace.program.kernels import Stream

EMBEDDING_LAUNCHES: Final = 22
"""Kernels of embedding_dense_backward: it sorts the tokens by index first (PyTorch's Embedding.cu)."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNARY: Final = {
    "neg": "neg",
    "silu": "silu",
    "gelu": "gelu",
}
_BINARY: Final = {
    "add": "add",
    "sub": "add",
    "rsub": "add",
    "mul": "mul",
    "div": "mul",
    "silu_backward": "silu_backward",
    "gelu_backward": "gelu_backward",
}
_STRIDED: Final = frozenset({"add", "mul", "neg", "silu", "silu_backward", "copy", "cat"})
"""What was measured over slices too, which PyTorch cannot vectorise."""

PLAIN: Final = _words(
    "pow sqrt rsqrt exp log log2 sigmoid tanh relu threshold clamp clamp_min clamp_max where masked_fill eq ne lt gt "
    "le ge bitwise_and bitwise_or bitwise_not logical_and logical_or logical_not isnan isinf isfinite abs sign sin cos "
    "reciprocal addcmul addcdiv lerp triu tril nan_to_num floor ceil round square maximum minimum sigmoid_backward "
    "tanh_backward threshold_backward masked_scale erf softplus hardtanh leaky_relu floor_divide remainder fmod logit "
    "fused_dropout polar logit_backward mse_loss mse_loss_backward"
)
"""Priced as one plain elementwise kernel."""

_TO_BOOL: Final = _words("eq ne lt gt le ge logical_and logical_or logical_not isnan isinf isfinite")
REDUCTIONS: Final = _words(
    "sum mean amax amin prod any all var std var_mean logsumexp max min argmax norm linalg_vector_norm"
)
_WRITES_ONLY: Final = _words("fill zero normal uniform bernoulli random")

_NORMS: Final = {"rms": "rmsnorm", "layer": "layernorm", "group": "groupnorm"}

_Rule = Callable[[str, Inputs, list[Tensor]], Stream | None]


def stream(op: str, in_place: bool, inputs: Inputs, assumed: str) -> Stream | None:
    """Returns what an op (its plain name) moves; None where it is not known, or its sizes were not recorded."""
    given = [tensor for tensor in tensors(inputs, assumed) if tensor is not None]
    if op.startswith("triton_"):
        return _triton(given)
    if op == "cat":
        return _cat(inputs, assumed)
    if op in LISTS or op.startswith("foreach"):
        return list_kernel(op, inputs, assumed)
    if not given:
        return None
    if op in RULES:
        return RULES[op](op, inputs, given)
    if op in _WRITES_ONLY:
        return Stream("zero" if op in ("fill", "zero") else "elementwise", 0, given[0].bytes)
    if op in REDUCTIONS:
        return _reduction(inputs, given[0])
    name = _BINARY.get(op) or _UNARY.get(op) or ("elementwise" if op in PLAIN else None)
    return None if name is None else _elementwise(op, name, in_place, given)


def _elementwise(op: str, name: str, in_place: bool, given: list[Tensor]) -> Stream:
    """One pass: reads each operand, writes one the size of all of them broadcast."""
    dims = _broadcast([tensor.dims for tensor in given])
    size = 1 if op in _TO_BOOL else max((tensor.size for tensor in given if tensor.dims), default=given[0].size)
    written = given[0].bytes if in_place else prod(dims) * size
    large = [tensor for tensor in given if tensor.count > 1]
    if len(large) == 1 and name in ("add", "mul"):
        # With a number: one operand in, one out.
        name = "scale" if in_place and name == "mul" else "elementwise"
    elif name == "mul" and any("complex" in tensor.type for tensor in given):
        name = "mul_complex"
    elif name == "mul" and min((tensor.count for tensor in large), default=0) < prod(dims):
        name = "mul_broadcast"
    elif name in _STRIDED and _is_scattered(large):
        name += "_strided"
    return Stream(name, sum(tensor.bytes for tensor in given), written)


def _is_scattered(operands: list[Tensor]) -> bool:
    """Whether PyTorch must work out an index for each element: operands that are not dense, or lie in other orders."""
    orders = {tuple(_order(operand)) for operand in operands}
    return len(orders) > 1 or not all(operand.is_dense for operand in operands)


def _order(tensor: Tensor) -> list[int]:
    """Returns a tensor's dimensions from the outermost in memory to the innermost, without those of size 1."""
    strides = tensor.strides if len(tensor.strides) == len(tensor.dims) else tuple(range(len(tensor.dims), 0, -1))
    return sorted((i for i, size in enumerate(tensor.dims) if size > 1), key=lambda i: (-strides[i], i))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    columns = list(zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1))
    return tuple(0 if 0 in column else max(column) for column in reversed(columns))


def _copy(op: str, _: Inputs, given: list[Tensor]) -> Stream:
    """copy_(to, from), or of a single tensor: a cast where types differ."""
    source = given[1] if op == "copy" and len(given) > 1 else given[0]
    target = given[0]
    name = "copy" if source.size == target.size else "cast"
    if name == "copy" and _is_scattered([tensor for tensor in (source, target) if tensor.count > 1]):
        name = "copy_strided"
    return Stream(name, source.bytes, target.full_bytes)


def _cat(inputs: Inputs, assumed: str) -> Stream | None:
    parts = listed_tensors(inputs, 0, assumed)
    if not parts:
        return None
    total = sum(part.full_bytes for part in parts)
    scattered = not all(part.is_contiguous for part in parts)
    return Stream("cat_strided" if scattered else "cat", total, total)


def _norm(op: str, _: Inputs, given: list[Tensor]) -> Stream:
    """Forward reads and writes once; backward reads input and gradient, in two kernels, the weight's being one."""
    name = next((kind for word, kind in _NORMS.items() if word in op), "batchnorm")
    x, width = given[0], next((tensor.count for tensor in given[1:] if len(tensor.dims) == 1), given[0].last)
    if op.endswith("_backward"):
        return Stream(f"{name}_backward", 2 * x.full_bytes, x.full_bytes, launches=2, rows=width)
    return Stream(name, x.bytes, x.full_bytes, rows=width)


def _softmax(op: str, _: Inputs, given: list[Tensor]) -> Stream:
    name = op.removesuffix("_data")
    passes = 2 if name.endswith("_backward") else 1
    return Stream(name, passes * given[0].bytes, given[0].full_bytes, rows=given[0].last)


def _dropout(op: str, _: Inputs, given: list[Tensor]) -> Stream:
    """A mask of one byte an element goes with it."""
    x = given[0]
    if op.endswith("_backward"):
        return Stream("dropout_backward", x.bytes + x.count, x.full_bytes)
    return Stream("dropout", x.bytes, x.full_bytes + x.count)


def _embedding(_: str, __: Inputs, given: list[Tensor]) -> Stream | None:
    """A row of the table for every token."""
    if len(given) < 2 or len(given[0].dims) != 2:
        return None
    moved = given[1].count * given[0].dims[1] * given[0].size
    return Stream("embedding", moved, moved, rows=given[0].dims[1])


def _embedding_backward(_: str, inputs: Inputs, given: list[Tensor]) -> Stream:
    gradient = given[0]
    hidden, entries = gradient.last, whole_numbers(value(inputs, 2))
    table = max(entries[0], 0) * hidden * gradient.size if len(entries) == 1 else 0
    return Stream("embedding_backward", gradient.bytes, table, EMBEDDING_LAUNCHES, rows=hidden, fixed=table)


def _rows_taken(op: str, _: Inputs, given: list[Tensor]) -> Stream | None:
    """Rows picked by index: of a table (an embedding), or of tokens for their experts, which are at least as many."""
    if len(given) < 2:
        return None
    source, index = given[0], given[1]
    width = prod(source.dims[1:]) if op != "gather" or 0 in index.strides else 1
    picked = index.count // width if op == "gather" and width > 1 else index.count
    moved = picked * width * source.size
    name = "permute" if source.dims and picked >= source.dims[0] else "embedding"
    return Stream(name, moved, moved, rows=width)


def _rows_added(_: str, __: Inputs, given: list[Tensor]) -> Stream | None:
    """Rows added to others by index."""
    large = max(given, key=lambda tensor: tensor.bytes)
    return Stream("unpermute", large.bytes, given[0].bytes, rows=given[0].last)


def _nll(_: str, __: Inputs, given: list[Tensor]) -> Stream:
    """One entry of each row, by its label."""
    labels = next((tensor for tensor in given if tensor.type in ("long int", "long")), given[0])
    return Stream("nll", labels.count * 8, labels.count * 4)


def _reduction(inputs: Inputs, x: Tensor) -> Stream:
    """Sums, means and the like; over all dimensions where those it reduces were not recorded."""
    gone = [number % len(x.dims) for number in whole_numbers(value(inputs, 1)) if x.dims]
    length = prod(x.dims[i] for i in gone) if gone else x.count
    return Stream("reduce", x.bytes, x.full_bytes // max(length, 1), rows=length)


def _triton(given: list[Tensor]) -> Stream | None:
    """Inductor hands its kernels inputs and then outputs; the last is taken to be the one that is written."""
    if not given:
        return None
    return Stream("triton_fused", sum(tensor.bytes for tensor in given[:-1]), given[-1].bytes)


RULES: Final[dict[str, _Rule]] = {
    "copy": _copy,
    "clone": _copy,
    "contiguous": _copy,
    "native_layer_norm": _norm,
    "native_layer_norm_backward": _norm,
    "fused_rms_norm": _norm,
    "fused_rms_norm_backward": _norm,
    "native_batch_norm": _norm,
    "cudnn_batch_norm": _norm,
    "softmax": _softmax,
    "softmax_backward_data": _softmax,
    "log_softmax": _softmax,
    "log_softmax_backward_data": _softmax,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index_select": _rows_taken,
    "gather": _rows_taken,
    "index_add": _rows_added,
    "scatter_add": _rows_added,
    "nll_loss_forward": _nll,
    "nll_loss_backward": _nll,
}
