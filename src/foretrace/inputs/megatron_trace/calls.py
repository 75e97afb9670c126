"""What a trace's communication is: the collective, the axis of the mesh it runs over, and how many bytes.

The traces' words are not the mesh's: their `ep` is the *embedding* group (first and last stage), their `exp` is expert
parallel (reference: Megatron's process groups as the tracer names them).
"""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.megatron_trace.format import SubOp, TraceOp, dtype_bytes
from foretrace.program.columns import Collective, Phase
from foretrace.step.spec import Call

AXES: Final = {
    "tp": "tp",
    "cp": "cp",
    "dp": "dp",
    "pp": "pp",
    "exp": "ep",
    "exp_dp": "edp",
    "ep_dp": "edp",
    "ep": "embd",
    "pep": "embd",
}
"""The mesh's word for each of the traces'. `pep`, T5's position embedding, is taken as the embedding group."""

COLLECTIVES: Final = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "all_to_all": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
}


MAX_TENSOR_BYTES: Final = 10**15


def tensor_bytes(shape: tuple[int, ...] | None, dtype: str | None, where: str | None) -> int:
    """The size of a tensor."""
    if shape is None or dtype is None:
        raise InputError("missing-field", "a communication without the shape and dtype of its tensor", where=where)
    size = prod(shape) * dtype_bytes(dtype)
    if size > MAX_TENSOR_BYTES:
        raise InputError("out-of-range", f"a tensor of {size:,} bytes is more than any job sends", where=where)
    return size


def axis_of(group: str | None, where: str | None) -> str:
    """The mesh's word for a group."""
    if group not in AXES:
        raise InputError("unknown-name", f'group "{group}" is not known', where=where, hint=f"known: {', '.join(AXES)}")
    return AXES[group]


class SubKind(NamedTuple):
    """What a sub-operation is, whatever it took."""

    source: str
    name: str | None
    group: str | None
    comm: str | None
    shape: tuple[int, ...] | None
    dtype: str | None
    overlaps: bool

    @classmethod
    def of(cls, sub: SubOp) -> SubKind:
        """What a sub-operation is, its group and collective taken from its source where it does not name them."""
        group = sub.group or group_of(sub)
        return cls(sub.source, sub.name, group, sub.comm or comm_of(sub), sub.shape, sub.dtype, sub.overlaps)


_GROUPS_BY_SOURCE: Final = {"expert": "exp", "all_to_all": "exp"}
"""The group of sub-operations that name none, by a word in the function that made them; tp elsewhere."""


def group_of(sub: SubKind | SubOp) -> str:
    """The group of a sub-operation; where it names none, that of the function it comes from."""
    if sub.group is not None:
        return sub.group
    return next((group for word, group in _GROUPS_BY_SOURCE.items() if word in sub.source), "tp")


def comm_of(sub: SubKind | SubOp) -> str | None:
    """The collective of a sub-operation; where it names none, that of the function it comes from."""
    if sub.comm is not None:
        return sub.comm
    source = sub.source
    for word, comm in (("all_to_all", "all_to_all"), ("gather", "allgather"), ("broadcast", "broadcast")):
        if word in source:
            return comm
    return "reduce_scatter" if "scatter" in source else "allreduce" if "reduce" in source or "_bwd" in source else None


def sub_call(sub: SubKind | SubOp, mesh: Mesh | None, where: str | None = None, *, hidden: bool = False) -> Call | None:
    """The call of a sub-operation; None where its group has a single rank (a mesh of None is not known).

    `hidden` is for backwards traced ex situ, where collectives that Megatron runs beside the weight gradient are
    written as if they did not overlap.
    """
    axis, comm = axis_of(group_of(sub), where), comm_of(sub)
    if comm not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        raise InputError(
            "unknown-collective",
            f'communication "{comm or sub.source}" is not known',
            where=where,
            hint=f"known: {known}",
        )
    what, size = COLLECTIVES[comm], 1 if mesh is None else group_size(mesh, axis)
    if size == 1 and mesh is not None:
        return None
    local = tensor_bytes(sub.shape, sub.dtype, where)
    # A gather's size is that of what all ranks have together.
    whole = local * size if what == Collective.ALL_GATHER else local
    # Megatron-core's LinearWithGradAccumulationAndAsyncCommunication: the input gradient is reduced (or scattered, with
    # sequence parallelism) while the weight gradient is computed.
    beside = sub.overlaps or (hidden and axis == "tp" and what in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER))
    name = f"{sub.name or axis} {comm}"
    return Call(name, Phase.NONE, what, axis, whole, "next" if beside else None, dtype=sub.dtype)


GRADIENT_OPS: Final = ("dp_allreduce", "exp_dp_allreduce", "ep_dp_allreduce", "ep_allreduce", "pep_allreduce")
"""Ops that reduce gradients at the end of a step."""


def gradient_call(op: TraceOp, where: str, element_bytes: int | None = None) -> Call:
    """The call of a gradient reduction; `element_bytes` where the trace's dtype is known to be wrong."""
    axis = {"dp_allreduce": "dp", "ep_allreduce": "embd", "pep_allreduce": "embd"}.get(op.op, "edp")
    size = tensor_bytes(op.shape, op.dtype, where)
    if element_bytes is not None:
        size = prod(op.shape or ()) * element_bytes
    dtype = op.dtype if element_bytes is None else None
    return Call(op.op, Phase.NONE, Collective.ALL_REDUCE, axis, size, dtype=dtype)


def group_size(mesh: Mesh, axis: str) -> int:
    """How many ranks a group has."""
    return min(mesh.pp, 2) if axis == "embd" else mesh.size(axis)
