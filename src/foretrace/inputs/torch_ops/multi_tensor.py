"""Finds what ops over lists of tensors move: updates of optimizers, and PyTorch's `_foreach_` ops.

Such an op launches kernels in a loop; each kernel takes a limited number of tensors and of blocks (MultiTensorApply.cuh
of PyTorch 2.x).
"""

from __future__ import annotations

from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.tensors import ELEMENT_BYTES, Tensor, tensor_list
from foretrace.program.kernels import Stream

LISTS: Final = {
    "fused_adam": ("adam", 4, 3),
    "fused_adamw": ("adam", 4, 3),
    "fused_sgd": ("sgd", 3, 2),
    "fused_adagrad": ("sgd", 3, 2),
    "amp_foreach_non_finite_check_and_unscale": ("scale", 1, 1),
    "foreach_norm": ("grad_norm", 1, 0),
    "foreach_mul": ("scale", 1, 1),
    "foreach_add": ("add", 2, 1),
    "foreach_copy": ("copy", 1, 1),
    "foreach_zero": ("zero", 0, 1),
}
"""Ops over lists of tensors: how often each of the first list's tensors is read and written, counting its companions
of the same size (gradient, two states). Where the other lists were recorded, their own bytes count."""

_OPTIMIZERS: Final = ("fused_adam", "fused_adamw", "fused_sgd", "fused_adagrad")
_WRITTEN: Final = {"fused_sgd": (0, 2), "fused_adagrad": (0, 2)}
"""Lists that an optimizer's op writes; Adam's are parameters and states, all but the gradients at 1."""
_STEPS: Final = 5
"""The list of step counts of `_fused_adam_`, after that of the largest second moments (AMSGrad)."""

_CHUNK_ELEMENTS: Final = 65_536
_MAX_BLOCKS: Final = 320
_MAX_TENSORS: Final = (110, 64, 48, 36, 30)
"""Elements of a block, blocks of a kernel, and tensors of a kernel that takes one to five lists."""


def list_kernel(op: str, inputs: Inputs, assumed: str) -> Stream | None:
    """Returns what an op (its plain name) over lists moves; None where its sizes were not recorded."""
    first = listed_tensors(inputs, 0, assumed)
    if not first:
        return None
    elements = sum(tensor.count for tensor in first)
    kernel = list_stream(op, elements, first[0].size)
    if kernel is None:
        return None
    if not is_list(inputs, 0):
        return kernel
    read, write, depth = _bytes_of_lists(op, inputs, assumed)
    launches = _launches(first, depth)
    if op == "foreach_norm":
        launches *= 2  # partial sums of every block, then their sums (ForeachReduceOp.cu)
    return Stream(kernel.name, read, write, launches, fixed=read + write, looped=launches > 1)


def list_stream(op: str, elements: int, size: int) -> Stream | None:
    """Returns what an op over a list of tensors (its plain name) moves; None for an op that is not known to be one.

    The list has `elements` of `size` bytes in all.
    """
    name, reads, writes = LISTS.get(op, ("elementwise", 1, 1) if op.startswith("foreach") else ("", 0, 0))
    if not name:
        return None
    if name in ("adam", "grad_norm") and size == 2:
        name += "_bf16"
    moved = elements * size
    return Stream(name, reads * moved, writes * moved, fixed=(reads + writes) * moved)


def listed_tensors(inputs: Inputs, at: int, assumed: str) -> list[Tensor]:
    """Returns the tensors of an input that is a list, with the type that was recorded for its elements."""
    return tensor_list(inputs, at, _list_type(inputs, at, assumed))


def is_list(inputs: Inputs, at: int) -> bool:
    """Whether an input is stated to be a list of tensors of a known type."""
    text = inputs.types[at] if at < len(inputs.types) else ""
    return text.startswith("GenericList") and _list_type(inputs, at, "") in ELEMENT_BYTES


def _list_type(inputs: Inputs, at: int, assumed: str) -> str:
    """Returns the type of the tensors in a list. Kineto records "TensorList" without it, execution traces with it."""
    own = inputs.types[at] if at < len(inputs.types) else ""
    words = own.replace("GenericList", "").strip("[]()").split(",")
    named = words[0].removeprefix("Tensor(").rstrip(")")
    return named if named and named not in ("TensorList", "") else assumed


def _bytes_of_lists(op: str, inputs: Inputs, assumed: str) -> tuple[int, int, int]:
    """Returns the bytes read and written, and the number of lists, of an op whose lists were all recorded."""
    lists = [listed_tensors(inputs, at, assumed) if is_list(inputs, at) else [] for at in range(len(inputs.dims))]
    sizes = [sum(tensor.bytes for tensor in tensors) for tensors in lists]
    if op in _OPTIMIZERS:
        sizes = sizes[:_STEPS]
        written = _WRITTEN.get(op, (0, *range(2, len(sizes))))
        return sum(sizes), sum(sizes[at] for at in written if at < len(sizes)), sum(map(bool, sizes))
    depth = sum(map(bool, sizes))
    if op == "foreach_copy":
        return sum(sizes[1:]), sizes[0], depth
    reads, writes = (0, 1) if op == "foreach_zero" else (1, 0 if op == "foreach_norm" else 1)
    return reads * sum(sizes), writes * sizes[0], depth


def _launches(tensors: list[Tensor], depth: int) -> int:
    """Returns the kernels of a list: each is full when it has its number of tensors or of blocks."""
    blocks = sum(-(-tensor.count // _CHUNK_ELEMENTS) for tensor in tensors)
    per_kernel = _MAX_TENSORS[min(max(depth, 1), len(_MAX_TENSORS)) - 1]
    return max(-(-blocks // _MAX_BLOCKS), -(-len(tensors) // per_kernel), 1)
