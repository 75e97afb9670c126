"""Checks what a user states about a trace that does not hold it: `--set params=1.1e9`, `--set group.3=tp`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.profiler_trace.job.axes import user_axes
from foretrace.inputs.profiler_trace.job.communication import RecordedCommunication
from foretrace.inputs.profiler_trace.job.layout import ADDED, traced_mesh
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.inputs.torch_ops.user_sizes import OVERLAPS, UserSizes
from foretrace.program.columns import Collective, label

_COLLECTIVES: Final = tuple(
    f"{label(collective)}.bytes"
    for collective in Collective
    if collective not in (Collective.NONE, Collective.EXCHANGE)
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


def check_user_sizes(options: ProfilerTraceOptions, where: str) -> None:
    """Raises an error if an option is not known, or has no use without a mesh or a cluster."""
    UserSizes.checked(options.sizes, tuple(KNOWN), where)
    user_axes(options.sizes)
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


def unused_sizes(
    options: ProfilerTraceOptions, recorded: Iterable[RecordedCommunication], where: str
) -> list[Diagnostic]:
    """Returns a warning about options that have no use for these communications."""
    every, given = list(recorded), dict(options.sizes)
    groups = {call.group.name for call in every}
    unsized = {f"{label(call.collective)}.bytes" for call in every if call.bytes < 0}

    used = {"traced", *unsized, *(f"group.{name}" for name in groups)} if every else set()
    if ADDED in groups:
        used |= {"overlap", "params"} | ({"dtype"} if {"params", "model"} & set(given) else set())
        used |= set() if "params" in given else {"model"}
    vain = [name for name in given if name not in used]
    return [Diagnostic("warning", "field-ignored", f"not used here: --set {', '.join(vain)}", where)] if vain else []
