"""Finds what memory-bound ops read and write, every operand once, under the name by which their kernel is priced.

Names are those of `workload.layers` and of kernel profiles where they mean the same kernel, so that what a trace shows
of a kernel holds for predictions. A subtraction runs as an addition does, a division as a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from math import prod
from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.multi_tensor import LISTS, is_list, list_kernel, listed_tensors
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

ONE_PASS: Final = _words(
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward adaptive_avg_pool2d "
    "adaptive_avg_pool2d_backward adaptive_max_pool2d upsample_nearest1d upsample_nearest1d_backward "
    "upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward "
    "upsample_bicubic2d upsample_bicubic2d_backward logcumsumexp flip roll repeat glu glu_backward elu "
    "elu_backward hardtanh_backward leaky_relu_backward softplus_backward hardswish hardswish_backward mish "
    "mish_backward log_sigmoid_forward log_sigmoid_backward smooth_l1_loss smooth_l1_loss_backward huber_loss "
    "huber_loss_backward binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits kl_div "
    "slice_backward select_backward slice_scatter select_scatter diagonal_backward constant_pad_nd reflection_pad2d "
    "im2col col2im mv dot addmv unfold_backward masked_scatter bucketize searchsorted isin expm1 log1p exp2 tan atan "
    "atan2 asin acos sinh cosh trunc frac sgn logaddexp bitwise_xor bitwise_left_shift bitwise_right_shift "
    "logical_xor xlogy hypot copysign complex real imag view_as_real_copy angle conj_physical tril_indices "
    "aminmax count_nonzero std_mean weight_norm_interface weight_norm_interface_backward cdist addr outer index_fill "
    "index_copy permute_copy transpose_copy view_copy expand_copy t_copy"
)
"""Ops that read all inputs once and write their outputs once; the sizes of their outputs must be known."""

FACTORIES: Final = _words(
    "zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full scalar_tensor arange linspace eye "
    "randn randn_like rand rand_like randint randint_like randperm normal_functional"
)
"""Ops that only write what they return."""

ZEROED: Final = _words("nll_loss_backward nll_loss2d_backward select_backward slice_backward diagonal_backward")
"""Ops that write a part of a result that is zero elsewhere."""

_POOLS: Final = {
    "max_pool2d_with_indices": "max_pool",
    "max_pool2d_with_indices_backward": "max_pool_backward",
}

_TO_BOOL: Final = _words("eq ne lt gt le ge logical_and logical_or logical_not isnan isinf isfinite")
REDUCTIONS: Final = _words(
    "sum mean amax amin prod any all var std var_mean logsumexp max min argmax norm linalg_vector_norm"
)
WRITES_ONLY: Final = _words("fill zero normal uniform bernoulli random exponential log_normal")

_BATCH_NORMS: Final = (
    "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward native_batch_norm_legit "
    "batch_norm_with_update batch_norm_backward miopen_batch_norm miopen_batch_norm_backward"
)
_NORMS: Final = {"rms": "rmsnorm", "layer": "layernorm", "group": "groupnorm"}

PROFILED: Final = 2
"""Bytes of an element if its width does not change the time of a kernel, or is not known."""

_INDEX_TYPES: Final = ("long int", "long", "int")
_INDEX_BYTES: Final = 8
_MAX_SHORT_ROW: Final = 4096
"""Elements of a row that a block sorts by itself."""

_Rule = Callable[[str, Inputs, list[Tensor]], Stream | None]

_PARTLY_WRITTEN: Final = _words("index_put index_put_impl unsafe_index_put scatter scatter_add index_add index_copy")
"""Ops whose in-place variants write a part of what they return."""
_COPIES: Final = ("to_copy", "clone", "contiguous")
_WRITES_OTHERWISE: Final = ("sort", "argsort", "fsdp::all_gather_copy_in")
"""Ops that write more than they return, or a part of it."""


def is_stream(op: str) -> bool:
    """Whether what an op (its plain name) moves is known."""
    known = (RULES, _WITH_OUTPUTS, LISTS, _BINARY, _UNARY, PLAIN, ONE_PASS, FACTORIES, WRITES_ONLY, REDUCTIONS)
    return op in ("cat", "stack") or op.startswith(("foreach", "triton_")) or any(op in names for names in known)


def stream_to(op: str, in_place: bool, inputs: Inputs, outputs: Sequence[Tensor]) -> Stream:
    """Returns what an op (its plain name) of known outputs moves; unless there is a rule for it, it reads all inputs
    once and writes its outputs once."""
    written = sum(tensor.bytes for tensor in outputs)
    if op.startswith("triton_") and outputs:
        return Stream(op, read_bytes(inputs), written)
    known = _known_stream(op, in_place, inputs)
    if known is not None and op in _COPIES and outputs:
        source = next(tensor for tensor in tensors(inputs) if tensor is not None)
        return _copy("copy", inputs, [outputs[0], source])
    if known is not None and op in _PARTLY_WRITTEN:
        copied = 0 if in_place else written  # the others write into a copy of all of it
        return replace(known, read=known.read + copied, write=known.write + copied)
    if known is not None:
        kept = in_place or not outputs or op in LISTS or op.startswith("foreach") or op in _WRITES_OTHERWISE
        return known if kept else replace(known, write=written)
    name = "zero" if op in FACTORIES else _POOLS.get(op, "elementwise")
    width = outputs[0].size if outputs else PROFILED
    return Stream(name, 0 if op in FACTORIES else read_bytes(inputs), written, element=width)


def zeroed_first(op: str, inputs: Inputs, outputs: Sequence[Tensor]) -> tuple[Stream, ...]:
    """Returns the kernels of an op (its plain name) that writes a part of a result of zeros; () for other ops."""
    given = [tensor for tensor in tensors(inputs) if tensor is not None]
    if op not in ZEROED or not given or not outputs:
        return ()
    zeros = Stream("zero", 0, outputs[0].bytes, element=outputs[0].size)
    part = Tensor(given[0].dims, outputs[0].type)
    return (zeros, _nll(op, inputs, given) if "nll" in op else _copy("copy", inputs, [part, given[0]]))


def contiguous_first(op: str, inputs: Inputs) -> tuple[Stream, ...]:
    """Returns the copies by which an op (its plain name) makes its inputs contiguous first (SoftMax.cu)."""
    if "softmax" not in op:
        return ()
    given = [tensor for tensor in tensors(inputs) if tensor is not None and not tensor.is_contiguous]
    return tuple(_copy("copy", inputs, [Tensor(tensor.dims, tensor.type), tensor]) for tensor in given)


def _known_stream(op: str, in_place: bool, inputs: Inputs) -> Stream | None:
    given = [tensor for tensor in tensors(inputs) if tensor is not None]
    if op in _WITH_OUTPUTS:
        return _WITH_OUTPUTS[op](op, inputs, given) if given or is_list(inputs, 0) else None
    return stream(op, in_place, inputs, "") if op not in FACTORIES else None


def read_bytes(inputs: Inputs) -> int:
    """Returns the bytes of all inputs, each once."""
    lists = [
        tensor for at in range(len(inputs.dims)) if is_list(inputs, at) for tensor in listed_tensors(inputs, at, "")
    ]
    return sum(tensor.bytes for tensor in (*tensors(inputs), *lists) if tensor is not None)


def stream(op: str, in_place: bool, inputs: Inputs, assumed: str) -> Stream | None:
    """Returns what an op (its plain name) moves; None where it is not known, or its sizes were not recorded."""
    given = [tensor for tensor in tensors(inputs, assumed) if tensor is not None]
    if op.startswith("triton_"):
        return _triton(given)
    if op in ("cat", "stack"):
        return _cat(inputs, assumed)
    if op in LISTS or op.startswith("foreach"):
        return list_kernel(op, inputs, assumed)
    if not given:
        return None
    if op in RULES:
        return RULES[op](op, inputs, given)
    if op in WRITES_ONLY:
        written = "zero" if op in ("fill", "zero") else "elementwise"
        return Stream(written, 0, given[0].bytes, element=given[0].size)
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
        name = "mul_broadcast" if _broadcasts_over(large, dims) > 2 else "mul_rows"
    elif name in _STRIDED and _is_scattered(large):
        name += "_strided"
    widest = max((tensor.size for tensor in large), default=PROFILED)
    return Stream(name, sum(tensor.bytes for tensor in given), written, element=widest)


def _broadcasts_over(operands: list[Tensor], dims: tuple[int, ...]) -> int:
    """Returns how many dimensions remain when PyTorch joins those over which all operands are broadcast identically."""
    if not all(operand.is_contiguous for operand in operands):
        return len(dims)
    shapes = [(1,) * (len(dims) - len(operand.dims)) + operand.dims for operand in operands]
    walks = [tuple(shape[at] == 1 for shape in shapes) for at, size in enumerate(dims) if size > 1]
    return 1 + sum(1 for before, walk in pairwise(walks) if walk != before)


def _is_scattered(operands: list[Tensor]) -> bool:
    """Whether PyTorch must work out an index for each element: operands that are not dense, or lie in other orders."""
    orders = {tuple(_order(operand)) for operand in operands}
    return len(orders) > 1 or not all(operand.is_dense for operand in operands)


def _innermost(tensor: Tensor) -> int:
    """Returns the dimension whose elements lie next to each other."""
    return next(reversed(_order(tensor)), 0)


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
    moved = [tensor for tensor in (source, target) if tensor.count > 1]
    if name == "copy" and len({_innermost(tensor) for tensor in moved}) > 1:
        name = "transpose"
    elif name == "copy" and _is_scattered(moved):
        name = "copy_strided"
    return Stream(name, source.bytes, target.full_bytes, element=PROFILED if name == "cast" else source.size)


def _cat(inputs: Inputs, assumed: str) -> Stream | None:
    parts = listed_tensors(inputs, 0, assumed)
    if not parts:
        return None
    total = sum(part.full_bytes for part in parts)
    name = "cat"
    if any(_order(part) != sorted(_order(part)) for part in parts):
        name = "cat_permuted"
    elif not all(part.is_contiguous for part in parts):
        name = "cat_strided"
    return Stream(name, total, total, element=parts[0].size)


def _norm(op: str, _: Inputs, given: list[Tensor]) -> Stream:
    """Forward reads and writes once; backward reads input and gradient, in two kernels, the weight's being one."""
    name = next((kind for word, kind in _NORMS.items() if word in op), "batchnorm")
    x, width = given[0], next((tensor.count for tensor in given[1:] if len(tensor.dims) == 1), given[0].last)
    if op.endswith("_backward"):
        return Stream(f"{name}_backward", 2 * x.full_bytes, x.full_bytes, launches=2, rows=width, element=x.size)
    return Stream(name, x.bytes, x.full_bytes, rows=width, element=x.size)


def _softmax(op: str, inputs: Inputs, given: list[Tensor]) -> Stream:
    name = op.removeprefix("safe_").removesuffix("_data")
    passes = 2 if name.endswith("_backward") else 1
    x = given[0]
    number = next(iter(whole_numbers(value(inputs, passes))), -1) % max(len(x.dims), 1)
    inner = prod(x.dims[number + 1 :])
    if inner > 1:
        return Stream(f"spatial_{name}", passes * x.bytes, x.full_bytes, rows=x.dims[number], element=x.size)
    return Stream(name, passes * x.bytes, x.full_bytes, rows=x.last, element=x.size)


def _scan(_: str, inputs: Inputs, given: list[Tensor]) -> Stream:
    """Sums along a dimension: along the last one by blocks, along others by a thread for each place."""
    x = given[0]
    number = next(iter(whole_numbers(value(inputs, 1))), -1) % max(len(x.dims), 1)
    if prod(x.dims[number + 1 :]) > 1:
        return Stream("spatial_scan", x.bytes, x.full_bytes, rows=x.dims[number], element=x.size)
    return Stream("elementwise", x.bytes, x.full_bytes, element=x.size)


def _dropout(op: str, _: Inputs, given: list[Tensor]) -> Stream:
    """A mask of one byte an element goes with it."""
    x = given[0]
    if op.endswith("_backward"):
        return Stream("dropout_backward", x.bytes + x.count, x.full_bytes, element=x.size)
    return Stream("dropout", x.bytes, x.full_bytes + x.count, element=x.size)


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
    return Stream(
        "embedding_backward", gradient.bytes, table, EMBEDDING_LAUNCHES, rows=hidden, fixed=table, element=gradient.size
    )


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
    """Adds rows, or single elements, to others by index: reads and writes their targets."""
    added = next((tensor for tensor in given[:0:-1] if tensor.type not in _INDEX_TYPES), given[0])
    numbers = sum(tensor.bytes for tensor in given[1:] if tensor.type in _INDEX_TYPES)
    return Stream("add_rows", 2 * added.bytes + numbers, added.full_bytes, rows=added.last, element=added.size)


def _nll(_: str, __: Inputs, given: list[Tensor]) -> Stream:
    """One entry of each row, by its label."""
    labels = next((tensor for tensor in given if tensor.type in ("long int", "long")), given[0])
    return Stream("nll", labels.count * 8, labels.count * 4)


def _reduction(inputs: Inputs, x: Tensor) -> Stream:
    """Sums, means and the like; over all dimensions where those it reduces were not recorded."""
    gone = [number % len(x.dims) for number in whole_numbers(value(inputs, 1)) if x.dims]
    length = prod(x.dims[i] for i in gone) if gone else x.count
    return Stream("reduce", x.bytes, x.full_bytes // max(length, 1), rows=length, element=x.size)


def _triton(given: list[Tensor]) -> Stream | None:
    """Inductor hands its kernels inputs and then outputs; the last is taken to be the one that is written."""
    if not given:
        return None
    return Stream("triton_fused", sum(tensor.bytes for tensor in given[:-1]), given[-1].bytes)


def _rows_put(_: str, inputs: Inputs, given: list[Tensor]) -> Stream:
    """index_put: writes values at indices. To accumulate, it sorts them by index first, as embeddings do."""
    numbers = sum(tensor.bytes for tensor in listed_tensors(inputs, 1, "long int"))
    values = given[1] if len(given) > 1 else given[0]
    if value(inputs, 3) in ("True", "true", "1"):
        return Stream("unpermute", 2 * values.bytes + numbers, values.full_bytes, EMBEDDING_LAUNCHES, rows=values.last)
    return Stream("unpermute", values.bytes + numbers, values.full_bytes, rows=values.last)


def _scattered(_: str, __: Inputs, given: list[Tensor]) -> Stream:
    """scatter: an element of its source, or a number, for each index."""
    index = next((tensor for tensor in given[1:] if tensor.type in _INDEX_TYPES), given[0])
    moved = index.count * given[0].size
    return Stream("unpermute", index.bytes + (moved if len(given) > 2 else 0), moved, rows=given[0].last)


def _indexed(_: str, inputs: Inputs, given: list[Tensor]) -> Stream | None:
    """x[i, j]: an element, or all of what lies behind the indexed dimensions, for each index."""
    indices = listed_tensors(inputs, 1, "long int")
    if not indices:
        return None
    source = given[0]
    picked = prod(_broadcast([index.dims for index in indices])) * prod(source.dims[len(indices) :])
    moved = picked * source.size
    return Stream("permute", moved + sum(index.bytes for index in indices), moved, rows=source.last)


def _sorted(_: str, __: Inputs, given: list[Tensor]) -> Stream:
    """Short rows are sorted in shared memory; longer ones by radix, eight bits a pass (PyTorch's Sort.cu)."""
    keys = given[0]
    pairs = keys.count * (keys.size + _INDEX_BYTES)
    if keys.last <= _MAX_SHORT_ROW:
        return Stream("sort", keys.bytes, pairs, rows=keys.last)
    # Each pass reads and writes keys and indices.
    return Stream("sort", keys.size * pairs, keys.size * pairs, launches=keys.size + 2, rows=keys.last)


def _largest(_: str, __: Inputs, given: list[Tensor]) -> Stream:
    """topk: a pass that finds the k-th largest, one that gathers, and a sort of the few (PyTorch's TensorTopK.cu)."""
    return Stream("topk", 2 * given[0].bytes, 0, launches=3, rows=given[0].last)


def _counted(_: str, __: Inputs, given: list[Tensor]) -> Stream:
    """bincount, histc: the smallest and the largest value, then the counts."""
    return Stream("histogram", 3 * given[0].bytes, 0, launches=4)


def _shards(op: str, inputs: Inputs, given: list[Tensor]) -> Stream | None:
    """Copies between parameters and the buffers of FSDP's collectives."""
    parts = listed_tensors(inputs, 0, "c10::BFloat16")
    total = sum(part.bytes for part in parts) or (given[0].bytes if given else 0)
    return Stream("copy" if "copy_in" in op else "cat", total, total) if total else None


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
    "nll_loss2d_forward": _nll,
    "nll_loss2d_backward": _nll,
    "cumsum": _scan,
    "cumprod": _scan,
}
"""What ops move, by their inputs alone."""

_WITH_OUTPUTS: Final[dict[str, _Rule]] = {
    "to_copy": _copy,
    "safe_softmax": _softmax,
    **dict.fromkeys(_words(_BATCH_NORMS), _norm),
    "native_group_norm": _norm,
    "native_group_norm_backward": _norm,
    "index": _indexed,
    "index_put": _rows_put,
    "index_put_impl": _rows_put,
    "unsafe_index_put": _rows_put,
    "scatter": _scattered,
    "sort": _sorted,
    "argsort": _sorted,
    "topk": _largest,
    "bincount": _counted,
    "histc": _counted,
    "chunk_cat": _shards,
    "split_with_sizes_copy": _shards,
    "fsdp::chunk_cat": _shards,
    "fsdp::split_with_sizes_copy": _shards,
    "fsdp::all_gather_copy_in": _shards,
}
"""Rules for ops whose inputs do not tell how much they write; they apply only where the outputs are known."""
