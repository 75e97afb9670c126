"""The mesh a trace was recorded on: which axis each of its process groups is, and how long the axes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.job.axes import axes_of, user_axes
from foretrace.inputs.profiler_trace.job.communication import ProcessGroup, RecordedCommunication
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions

_DENSE = ("tp", "cp", "pp")

ADDED = "gradients"
"""The group of all-reduces that were not recorded (see `gradients`)."""


@dataclass(frozen=True, slots=True)
class RecordedMesh:
    """The recorded mesh; `of_group` says along which axes the ranks of each group and collective differ."""

    mesh: Mesh
    of_group: Mapping[tuple[ProcessGroup, int], tuple[str, ...]]
    notes: tuple[Diagnostic, ...] = field(default=())

    def axes(self, what: RecordedCommunication) -> tuple[str, ...]:
        """Returns the axes of a communication's group."""
        return self.of_group[what.group, what.collective]


def find_layout(
    traces: Sequence[RankProfile], communications: Iterable[RecordedCommunication], options: ProfilerTraceOptions
) -> RecordedMesh:
    """Returns the layout of a recorded job, from its groups and options such as `group.3=tp` and `traced=tp=2`."""
    named, where = user_axes(options.sizes), traces[0].path
    kinds = dict.fromkeys((what.group, what.collective) for what in communications)
    world = max((trace.world or 1 for trace in traces), default=1)
    world = max(world, *(group.size for group, _ in kinds), 1)
    of_group: dict[tuple[ProcessGroup, int], tuple[str, ...]] = {}
    for group, collective in kinds:
        axes = axes_of(group, collective, world, named)
        if axes is None:
            shown = f"group {group.name} ({group.description or 'not described'}, {group.size} of {world} ranks)"
            raise InputError(
                "unknown-mesh",
                f"which axis {shown} is cannot be told",
                where=where,
                hint=f"say it: --set group.{group.name}=tp (known: tp cp dp pp ep edp shard replicate)",
            )
        of_group[group, collective] = axes
    traced = traced_mesh(options)
    recorded = max((trace.world or 0 for trace in traces), default=0)
    if traced is not None and recorded and traced.world != recorded:
        raise InputError(
            "conflicting-values",
            f"traced={traced} has {traced.world:,} ranks, the trace says that there were {recorded:,}",
            where=where,
            hint="say on what mesh it was recorded: --set traced=tp=2,dp=4",
        )
    mesh = traced or _mesh(_sizes(of_group, world), world, where)
    return RecordedMesh(mesh, of_group, tuple(_group_notes(of_group)))


def traced_mesh(options: ProfilerTraceOptions) -> Mesh | None:
    """Returns the recorded mesh as the user states it."""
    text = dict(options.sizes).get("traced")
    if isinstance(options.traced, Mesh):
        return options.traced
    text = options.traced or text
    return None if text is None else Mesh.parse(text, where="--set traced")


def _sizes(of_group: Mapping[tuple[ProcessGroup, int], tuple[str, ...]], world: int) -> dict[str, int]:
    """Returns the length of each axis that a group runs along.

    Only one of several axes that run together may be unknown; otherwise the first counts as all of them.
    """
    sizes: dict[str, int] = {}
    together: list[tuple[tuple[str, ...], int]] = []
    for (group, _), axes in of_group.items():
        size = group.size if group.size > 0 else len(group.ranks) or world
        if axes[0] in ("embd", "pp"):
            continue  # a transfer's group does not say how many stages there are
        if len(axes) == 1:
            sizes[axes[0]] = max(sizes.get(axes[0], 1), size)
        else:
            together.append((axes, size))
    for axes, size in together:
        unknown = [axis for axis in axes if axis not in sizes]
        if unknown:
            rest = size // prod(sizes[axis] for axis in axes if axis in sizes)
            sizes |= {unknown[0]: rest, **dict.fromkeys(unknown[1:], 1)}
    return sizes


def _mesh(sizes: Mapping[str, int], world: int, where: str) -> Mesh:
    dense = {axis: sizes.get(axis, 1) for axis in _DENSE}
    left, over = divmod(world, prod(dense.values()))
    shard, replicate = sizes.get("shard"), sizes.get("replicate", 1)
    dp = sizes.get("dp") or (None if shard is None else shard * replicate) or left
    if "pp" not in sizes and dp and left % dp == 0 and left != dp:
        dense["pp"] = left // dp  # what no group of this rank runs along
    if over or prod(dense.values()) * dp != world:
        shown = ",".join(f"{axis}={size}" for axis, size in {**dense, "dp": dp}.items() if size > 1)
        raise InputError(
            "bad-mesh",
            f"the groups of this trace make {shown or 'one rank'}, its world has {world} ranks",
            where=where,
            hint="say on what mesh it was recorded: --set traced=tp=2,dp=4",
        )
    tp, cp, pp = (dense[axis] for axis in _DENSE)
    return Mesh(tp=tp, cp=cp, pp=pp, dp=dp, ep=sizes.get("ep", 1), shard=None if replicate == 1 else shard)


def _group_notes(of_group: Mapping[tuple[ProcessGroup, int], tuple[str, ...]]) -> Iterable[Diagnostic]:
    shown: dict[str, str] = {}
    for (group, _), axes in of_group.items():
        if group.name == ADDED:
            continue
        name = group.name or "not named"
        what = f"{group.description}, {group.size} ranks" if group.description else f"{group.size} ranks"
        shown[f"{name} ({what}) as {'-'.join(axes)}"] = ""
    if shown:
        yield Diagnostic(
            "note", "guessed", f"process groups taken: {'; '.join(shown)} (--set group.NAME=AXIS says otherwise)"
        )
