"""Builds a recorded job for another mesh: computation as profiled, communication priced again.

With the length of an axis, gradients that are all-reduced keep their size. Sharded parameters and gradients keep the
size of the whole, and the shards shrink. Tokens that go to experts keep the bytes of each rank, with as many experts on
each as before. Another tp, cp or pp changes every computation, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.limits import check_gpus
from foretrace.basics.mesh import Mesh
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.job.communication import RecordedCommunication, communications
from foretrace.inputs.profiler_trace.job.layout import RecordedMesh, find_layout
from foretrace.inputs.profiler_trace.job.ranks import MatchedCall, Meetings, meet
from foretrace.inputs.profiler_trace.job.user_groups import unused_sizes
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.torch_ops.user_sizes import UserSizes
from foretrace.program.columns import SHARDED, UNPRICED, Collective, label
from foretrace.program.program import Communicator

_FIXED: Final = ("tp", "cp", "pp")
_WHY_FIXED: Final = {
    "tp": "another tp changes the shape of every product",
    "cp": "another cp changes every attention",
    "pp": "another pp changes which layers a rank has",
}


def communicate(
    traces: Sequence[RankProfile], links: Sequence[EventLinks], device: Sequence[Longs], options: ProfilerTraceOptions
) -> Meetings:
    """Returns the communications of the device events of each trace (see `ranks.meet`).

    They are as recorded, or priced again on the mesh that is asked for, or, with a cluster, on the recorded mesh.
    """
    world = max((trace.world or 1 for trace in traces), default=1)
    if options.mesh is None and options.gpus is None:
        if not options.priced or len(traces) >= world:
            meetings = meet(traces, links, device, priced=options.priced)
            return replace(meetings, notes=(*meetings.notes, *unused_sizes(options, (), traces[0].path)))
        try:
            return _resized(traces, links, device, options)
        except InputError as error:
            meetings = meet(traces, links, device)
            text = f"communication is as recorded, not priced on the cluster: {error.message}"
            return replace(meetings, notes=(Diagnostic("warning", "as-recorded", text, error.where), *meetings.notes))
    return _resized(traces, links, device, options)


def target_mesh(traced: Mesh, options: ProfilerTraceOptions, where: str) -> Mesh:
    """Returns the mesh that is asked for; axes that are not named are as traced."""
    asked = options.mesh
    if isinstance(asked, str):
        asked = Mesh.parse(asked, where="--mesh", base=traced)
    target = traced if asked is None else asked
    if options.gpus is not None and options.gpus != target.world:
        rest = target.world // target.dp
        if asked is not None or options.gpus % rest:
            raise InputError(
                "conflicting-options",
                f"--gpus {options.gpus} asked, the mesh {target} has {target.world}",
                where=where,
                hint=f"give a multiple of {rest}, or the mesh alone",
            )
        target = replace(target, dp=options.gpus // rest)
    check_gpus(target.world, where)
    for axis in _FIXED:
        if target.size(axis) != traced.size(axis):
            raise InputError(
                "cannot-change",
                f"{axis}={target.size(axis)} asked, recorded with {axis}={traced.size(axis)}: {_WHY_FIXED[axis]}",
                where=where,
                hint="dp and ep can be changed; record the job with the others, or: foretrace predict MODEL",
            )
    return target


def _resized(
    traces: Sequence[RankProfile], links: Sequence[EventLinks], device: Sequence[Longs], options: ProfilerTraceOptions
) -> Meetings:
    recorded = [
        {event: all_[event] for event in those.tolist() if event in all_}
        for trace, joins, those in zip(traces, links, device, strict=True)
        for all_ in [communications(trace, joins)]
    ]
    where = traces[0].path
    layout = find_layout(traces, (what for calls in recorded for what in calls.values()), options)
    target = target_mesh(layout.mesh, options, where)
    if layout.mesh.pp > 1:
        raise InputError(
            "cannot-change",
            f"a pipeline of {layout.mesh.pp} stages, of which {len(traces)} ranks were traced",
            where=where,
            hint="traces of pipelines are replayed as recorded, without --mesh",
        )
    _check_experts(layout, target, recorded, where)
    resizer = _Resizer(layout, target, options, where)
    calls = [
        {event: resizer.resized(what, float(trace.events.duration_s[event])) for event, what in mine.items()}
        for trace, mine in zip(traces, recorded, strict=True)
    ]
    vain = unused_sizes(options, (what for calls in recorded for what in calls.values()), where)
    notes = [*layout.notes, *_notes(traces, layout, target), *resizer.notes(), *vain]
    ranks = _standing_for(traces, layout.mesh, target)
    return Meetings(target, ranks, tuple(calls), (0.0,) * len(traces), tuple(notes))


def _check_experts(
    layout: RecordedMesh, target: Mesh, recorded: Sequence[Mapping[int, RecordedCommunication]], where: str
) -> None:
    """Raises an error where experts are to be divided that the trace shows no dispatch of."""
    if target.ep == layout.mesh.ep:
        return
    if not any("ep" in layout.axes(what) for calls in recorded for what in calls.values()):
        raise InputError(
            "cannot-change",
            f"ep={target.ep} asked, but the trace has no communication between expert ranks",
            where=where,
            hint="record the job with expert parallelism, or: foretrace predict MODEL",
        )


@dataclass(slots=True)
class _Resizer:
    """Makes the calls of the target mesh from those recorded."""

    layout: RecordedMesh
    target: Mesh
    options: ProfilerTraceOptions
    where: str
    unsized: int = 0

    def resized(self, what: RecordedCommunication, recorded_s: float) -> MatchedCall:
        """Returns a recorded communication on the target mesh."""
        axes = self.layout.axes(what)
        size, before = (self._length(mesh, axes) for mesh in (self.target, self.layout.mesh))
        communicator = self._communicator(axes)
        collective = Collective.BARRIER if what.collective is Collective.TRANSFER else what.collective
        total = what.bytes if what.bytes >= 0 else self._stated_bytes(what)
        if size == 1:
            return MatchedCall(collective, communicator, max(total or 0, 0), 0.0, what.name, what.dtype)
        if total is None:
            self.unsized += 1
            return MatchedCall(collective, communicator, 0, recorded_s, what.name, what.dtype)
        if what.collective in SHARDED and "ep" in axes:
            total = total * size // before  # each rank's tokens stay, the whole grows
        # One rank's uneven splits, repeated on all, would send everything to the same few: they are taken as even.
        return MatchedCall(collective, communicator, total, UNPRICED, what.name, what.dtype)

    def _stated_bytes(self, what: RecordedCommunication) -> int | None:
        name = f"{label(what.collective)}.bytes"
        stated = UserSizes(dict(self.options.sizes)).bytes(name)
        if stated is not None:
            return stated
        if self.target != self.layout.mesh:
            raise InputError(
                "not-recorded",
                f"the size of {what.name} is not in the trace",
                where=self.where,
                hint=f"record with record_shapes=True, or say it: --set {name}=16MiB",
            )
        return None

    def _length(self, mesh: Mesh, axes: Sequence[str]) -> int:
        return int(np.prod([min(mesh.pp, 2) if axis == "embd" else mesh.size(axis) for axis in axes]))

    def _communicator(self, axes: tuple[str, ...]) -> Communicator:
        return Communicator("-".join(axes), axes[0], axes=tuple("pp" if axis == "embd" else axis for axis in axes))

    def notes(self) -> list[Diagnostic]:
        """Returns a warning about communications that could not be priced again."""
        if not self.unsized:
            return []
        text = f"{self.unsized:,} communications whose size is not in the trace take as long as recorded"
        return [Diagnostic("warning", "not-recorded", text, self.where)]


def _standing_for(traces: Sequence[RankProfile], traced: Mesh, target: Mesh) -> tuple[tuple[int, ...], ...]:
    """Returns which ranks of the target mesh each trace stands for.

    A trace stands for the ranks at its place on the axes that stay, and on the others at its place modulo the recorded
    length. Ranks without a trace of their own take that of another rank.
    """
    if len(traces) == 1:
        return (tuple(range(target.world)),)
    at = {trace.rank if trace.rank is not None else number: number for number, trace in enumerate(traces)}
    inner = target.coordinate("tp") + target.tp * target.coordinate("cp").astype(np.int64)
    recorded_inner = traced.coordinate("tp") + traced.tp * traced.coordinate("cp").astype(np.int64)
    place = {
        (int(key), int(dp)): rank
        for rank, (key, dp) in enumerate(zip(recorded_inner, traced.coordinate("dp"), strict=True))
    }
    ranks: list[list[int]] = [[] for _ in traces]
    fallback = {int(recorded_inner[rank]): number for rank, number in at.items() if rank < traced.world}
    for rank, (key, dp) in enumerate(zip(inner.tolist(), target.coordinate("dp").tolist(), strict=True)):
        own = place[key, dp % traced.dp]
        ranks[at.get(own, fallback.get(key, 0))].append(rank)
    return tuple(map(tuple, ranks))


def _notes(traces: Sequence[RankProfile], layout: RecordedMesh, target: Mesh) -> list[Diagnostic]:
    traced, where = layout.mesh, traces[0].path
    known = [str(trace.rank) for trace in traces if trace.rank is not None]
    who = f"rank {', '.join(known[:4])}{', …' if len(known) > 4 else ''}" if known else "the traced one"
    base = "one GPU" if traced.world == 1 else str(traced)
    text = f"recorded on {base}, built for {target}" if target != traced else f"on {target}, as recorded"
    computing = (
        f"all {target.world:,} ranks compute as {who} did" if target.world > len(traces) else "ranks compute as traced"
    )
    notes = [Diagnostic("note", "repriced", f"{text}: {computing}, their communication is priced anew", where)]
    if target.ep != traced.ep:
        times = target.ep / traced.ep
        text = f"each expert rank keeps its experts and its tokens: ep={target.ep} has {times:g} times the experts"
        notes.append(Diagnostic("warning", "assumed", text, where))
    sharded = any(what in SHARDED and {"dp", "shard"} & set(axes) for (_, what), axes in layout.of_group.items())
    if sharded and target.dp != traced.dp:
        text = f"parameters are sharded over {target.dp} ranks, not {traced.dp}; the optimizer's time is as profiled"
        notes.append(Diagnostic("note", "as-recorded", text, where))
    return notes
