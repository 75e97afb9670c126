"""Decides from the schema of an op how the tracer runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

import torch


class OpKind(Enum):
    """How an op is run."""

    SKIPPED = auto()
    """It reads metadata of tensors: it launches nothing and takes the host no time."""
    VIEW = auto()
    """It returns a view of its arguments, or changes their metadata, and launches nothing."""
    EMPTY = auto()
    """It allocates and launches nothing."""
    WRITES = auto()
    """It only writes to its arguments."""
    MAKES = auto()
    """It returns tensors with memory of their own."""
    COPIES = auto()
    """It may copy between host and device."""
    READS = auto()
    """Its result, or the shape of it, depends on values."""


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How to run an op.

    Attributes:
        name: The name of the op: "aten::mm".
        kind: How it is run.
        written: The positions and names of the arguments that it writes to.
        names_device: Whether it has an argument for the device of its result.
    """

    name: str
    kind: OpKind
    written: tuple[int | str, ...] = ()
    names_device: bool = False

    def targets(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the arguments that the op writes to."""
        return [kwargs.get(at) if isinstance(at, str) else args[at] for at in self.written]


_EMPTY: Final = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "empty_permuted",
        "empty_quantized",
        "resize_",
        "set_",
    ]
)
_SKIPPED: Final = frozenset(
    [
        "is_same_size",
        "sym_size",
        "sym_numel",
        "sym_stride",
        "sym_storage_offset",
        "is_contiguous",
        "size",
        "stride",
        "dim",
        "record_stream",
        "is_strides_like_format",
        "_has_compatible_shallow_copy_type",
        "_version",
        "is_pinned",
        "lift",
        "lift_fresh",
    ]
)
_COPIES: Final = frozenset(["copy_", "_to_copy", "_pin_memory"])
_READS: Final = frozenset(
    [
        "_local_scalar_dense",
        "nonzero",
        "nonzero_static",
        "masked_select",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "_unique2",
        "_unique",
        "bincount",
        "equal",
        "is_nonzero",
        "repeat_interleave",
        "_assert_async",
        "index",
        "index_put_",
        "index_put",
        "_index_put_impl_",
    ]
)

_PLANS: dict[Any, OpPlan] = {}


def plan_of(func: Any) -> OpPlan:
    """Returns the plan of an op."""
    plan = _PLANS.get(func)
    if plan is None:
        plan = _PLANS[func] = _make_plan(func)
    return plan


def _make_plan(func: Any) -> OpPlan:
    schema = func._schema
    name: str = schema.name
    space, _, word = name.partition("::")
    if space in ("prim", "profiler") or word in _SKIPPED:
        return OpPlan(name, OpKind.SKIPPED)
    written = tuple(
        argument.name if argument.kwarg_only else at
        for at, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    names_device = any(argument.name == "device" for argument in schema.arguments)
    if word in _COPIES:
        return OpPlan(name, OpKind.COPIES, written)
    if word in _EMPTY:
        return OpPlan(name, OpKind.EMPTY, written, names_device)
    if word in _READS:
        return OpPlan(name, OpKind.READS, written)
    if torch.Tag.inplace_view in func.tags:
        return OpPlan(name, OpKind.VIEW, written)
    if written and all(value.alias_info is not None for value in schema.returns):
        return OpPlan(name, OpKind.WRITES, written)
    if not written and func.is_view:
        return OpPlan(name, OpKind.VIEW)
    return OpPlan(name, OpKind.MAKES, written, names_device)


def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})) -> list[torch.Tensor]:
    """Returns the tensors among arguments, those in lists included."""
    tensors: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [item for item in value if isinstance(item, torch.Tensor)]
    return tensors


def replaced(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Returns an argument in which `change` has replaced every tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(change(item) if isinstance(item, torch.Tensor) else item for item in value)
    return value
