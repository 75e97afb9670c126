"""What a user may say of a trace that does not hold it: `--set params=1.1e9`, `--set group.3=tp`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.profiler_trace.job.axes import said_axes
from foretrace.inputs.profiler_trace.job.communication import RecordedCommunication
from foretrace.inputs.profiler_trace.job.layout import ADDED, traced_mesh
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.inputs.torch_ops.user_sizes import OVERLAPS
from foretrace.inputs.torch_ops.user_sizes import UserSizes as Said
from foretrace.program.columns import Collective, label

_COLLECTIVES: Final = tuple(
    f"{label(one)}.bytes" for one in Collective if one not in (Collective.NONE, Collective.EXCHANGE)
)

KNOWN: Final = {
    "group.NAME": "the axis of a process group",
    "traced": "the mesh of the recording",
    "params": "parameters whose gradients are reduced",
    "model": "a model whose parameters these are",
    "dtype": "of these gradients: bf16, fp16, fp32 or fp8",
    "overlap": "gradients reduced under the backward (on) or after it (none)",
    **dict.fromkeys(_COLLECTIVES, "of a call whose size was not recorded"),
}


def check_said(options: ProfilerTraceOptions, where: str) -> None:
    """Raises an error where something is said that is not known, or that has no use without a mesh or a cluster."""
    Said.checked(options.sizes, tuple(KNOWN), where)
    said_axes(options.sizes)
    traced_mesh(options)
    overlap = dict(options.sizes).get("overlap", "on")
    if overlap not in OVERLAPS:
        raise InputError(
            "unknown-name", f"--set overlap={overlap} is not known", where=where, hint=f"known: {', '.join(OVERLAPS)}"
        )
    if options.sizes and options.mesh is None and options.gpus is None and not options.priced:
        raise InputError(
            "option-not-for-command",
            f"--set {options.sizes[0][0]}: communication is as recorded, and nothing else can be set",
            where=where,
            hint="add --cluster NAME, and --mesh dp=64 for another number of ranks",
        )


def said_in_vain(options: ProfilerTraceOptions, found: Iterable[RecordedCommunication], where: str) -> list[Diagnostic]:
    """A warning of what is said and has no use for these communications."""
    every, said = list(found), dict(options.sizes)
    groups = {one.group.name for one in every}
    unsized = {f"{label(one.collective)}.bytes" for one in every if one.bytes < 0}

    used = {"traced", *unsized, *(f"group.{name}" for name in groups)} if every else set()
    if ADDED in groups:
        used |= {"overlap", "params"} | ({"dtype"} if {"params", "model"} & set(said) else set())
        used |= set() if "params" in said else {"model"}
    vain = [name for name in said if name not in used]
    return [Diagnostic("warning", "field-ignored", f"not used here: --set {', '.join(vain)}", where)] if vain else []
