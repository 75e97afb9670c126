"""Writes timelines as a native Perfetto trace, for ui.perfetto.dev.

Every rank shown is a process, every lane that it uses is a thread of it, and every op is a slice. An op that waits for
its partners has a slice for the wait before it. Flows join the members of a rendezvous. Times are nanoseconds from the
start of the step; packets name no clock, so that readers take them for trace time and need no clock snapshot.

Names, categories and annotations of events are interned and encoded once per distinct op, not once per slice. Several
timelines in one trace share its tables and numbers; a rank's processes are listed one below the other.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, distinct
from foretrace.basics.errors import InputError
from foretrace.basics.outputs import replacing
from foretrace.basics.units import format_bytes
from foretrace.export import protobuf as pb
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.expand import Ops
from foretrace.program.graph import Graph
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline

Memory = Mapping[int, tuple[Floats, Mapping[str, NDArray[Any]]]]
"""Per rank: times in seconds, and by category the bytes held from each of them on."""

MAX_RANKS: Final = 64
"""Ranks shown unless they are named: more than that no one scrolls through."""

EVENTS_AT_ONCE: Final = 1 << 17
"""Events encoded together, so that a long trace needs little memory."""

_GZIP_BITS: Final = 31
"""The largest window of zlib, with the header and trailer of gzip."""

GZIP_LEVEL: Final = 3
"""Traces are so repetitive that higher levels cost time and gain little."""


@dataclass(frozen=True, slots=True)
class NamedTimeline:
    """One of several timelines of a trace; its name goes ahead of its tracks': `predicted · rank 0`."""

    name: str
    timeline: Timeline
    memory: Memory = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PerfettoSummary:
    """Counts what a trace holds: the ranks shown, ops and waits as slices, rendezvous as flows, and its size."""

    path: Path
    ranks: tuple[int, ...]
    world: int
    slices: int
    waits: int
    flows: int
    size_bytes: int

    def __str__(self) -> str:
        part = f"{len(self.ranks):,} of " if len(self.ranks) < self.world else ""
        shown = f"{part}{self.world:,} ranks"
        return f"{shown}, {self.slices:,} ops, {format_bytes(self.size_bytes)}; open it at ui.perfetto.dev"


def write_perfetto(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    ranks: Sequence[int] | None = None,
    memory: Memory | None = None,
) -> PerfettoSummary:
    """Writes the trace of a step, compressed if `path` ends in .gz.

    `ranks` are those to show: by default all, in a large job at most 64 that stand for the others. `memory` adds
    counters to those ranks shown that it covers.
    """
    return write_timelines([NamedTimeline("", timeline, memory or {})], path, ranks=ranks)


def write_timelines(
    timelines: Sequence[NamedTimeline], path: str | os.PathLike[str], *, ranks: Sequence[int] | None = None
) -> PerfettoSummary:
    """Writes several timelines into one trace, as `write_perfetto` does one. Those of equally many ranks show the same
    ranks."""
    worlds = [timeline.timeline.graph.program.world for timeline in timelines]
    numbering = _Numbering(len(timelines), max(worlds))
    traces: list[_Trace] = []
    for named, world in zip(timelines, worlds, strict=True):
        shown = traces[0].shown if traces and world == worlds[0] else _shown(named.timeline.graph, ranks)
        traces.append(_Trace(named, shown, numbering, len(traces)))
    target = Path(path)
    size = _write(target, _chunks(traces, numbering))
    everyone = sorted({rank for trace in traces for rank in trace.shown})
    slices, waits = sum(trace.slices for trace in traces), sum(trace.waits for trace in traces)
    return PerfettoSummary(target, tuple(everyone), max(worlds), slices, waits, numbering.flows, size)


def _shown(graph: Graph, ranks: Sequence[int] | None) -> list[int]:
    """The ranks to write, ascending."""
    world = graph.program.world
    if ranks is None:
        return _sample(graph)
    for rank in ranks:
        if not 0 <= rank < world:
            raise InputError("no-such-rank", f"there is no rank {rank}; the job has ranks 0 to {world - 1}")
    if not len(ranks):
        raise InputError(
            "nothing-to-do", "no ranks to show", hint=f"name some of 0 to {world - 1}, or none for a sample"
        )
    return sorted({int(rank) for rank in ranks})


def _sample(graph: Graph) -> list[int]:
    """All ranks of a small job; of a large one a rank of each role and class, then whole pipelines while they fit."""
    program, classes = graph.program, graph.classes
    if program.world <= MAX_RANKS:
        return list(range(program.world))
    first_of_role = np.unique(program.role_of, return_index=True)[1]
    # An unfolded job has a class per rank, of which the first 64 would be no sample of anything.
    stand_ins = classes.representative.tolist() if len(classes) < program.world else []
    chosen = set(list(dict.fromkeys([*first_of_role.tolist(), *stand_ins]))[:MAX_RANKS])
    for pipeline in program.mesh.groups("pp")[:MAX_RANKS].tolist():
        if len(chosen.union(pipeline)) <= MAX_RANKS:
            chosen.update(pipeline)
    return sorted(chosen)


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Encoded parts of events.

    `table` holds the parts; 0 is the empty one. `op`, `wait` and `microbatch` are each op's numbers in it: its title
    and facts, those of its wait, its microbatch.
    """

    table: NDArray[np.object_]
    op: Longs
    wait: Longs
    microbatch: Longs


def _bodies(ops: Ops, chosen: Longs, words: pb.Words) -> _Bodies:
    """Encodes names and annotations of the chosen ops."""
    names = ("kind", "name", "phase", "layer", "chunk", "bytes", "collective", "communicator", "source")
    facts = {name: ops.ints(name)[chosen] for name in names}
    if not facts["chunk"].any():
        facts["chunk"] -= 1
    kind, first = _distinct(list(facts.values()))
    rows = zip(*(column[first].tolist() for column in facts.values()), strict=True)
    described = [_describe(ops.program, dict(zip(names, row, strict=True)), words) for row in rows]
    parts = [b"", *(body for body, _ in described), *(wait for _, wait in described)]
    microbatch = ops.microbatch[chosen].astype(np.int64)
    known, place = np.unique(microbatch, return_inverse=True)
    numbered = np.where(microbatch >= 0, len(parts) + place.ravel(), 0)
    parts += [words.fact("microbatch", max(number, 0)) for number in known.tolist()]

    def of_op(numbers: Longs) -> Longs:
        spread = np.zeros(len(ops), dtype=np.int64)
        spread[chosen] = numbers
        return spread

    table = np.array(parts, dtype=np.object_)
    return _Bodies(table, of_op(1 + kind), of_op(1 + len(first) + kind), of_op(numbered))


def _describe(program: Program, op: dict[str, int], words: pb.Words) -> tuple[bytes, bytes]:
    """(title and facts of an op, those of its wait)."""
    name = program.strings[op["name"]]
    facts, meeting = b"", b""
    if op["phase"] != Phase.NONE:
        facts += words.fact("phase", label(Phase(op["phase"])))
    facts += b"".join(words.fact(key, op[key]) for key in ("layer", "chunk") if op[key] >= 0)
    if op["bytes"] > 0:
        facts += words.fact("bytes", op["bytes"])
    if op["communicator"] >= 0:
        communicator = program.communicators[op["communicator"]]
        meeting = words.fact("collective", label(Collective(op["collective"])))
        meeting += words.fact("communicator", communicator.name) + words.fact("axis", communicator.axis)
    facts += meeting + words.fact("duration source", program.sources[op["source"]].name)
    wait = words.title(f"wait: {name}", "wait") + meeting if meeting else b""
    return words.title(name, label(Kind(op["kind"]))) + facts, wait


def _distinct(columns: Sequence[Longs]) -> tuple[Longs, Longs]:
    """(number of each row, equal for equal rows; the first row of each number)."""
    key, most = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns if len(key) else ():
        low, span = int(column.min()), int(column.max()) - int(column.min()) + 1
        if span > len(column):
            values, column = np.unique(column, return_inverse=True)
            low, span = 0, len(values)
        if most * span >= 1 << 62:
            values, key = np.unique(key, return_inverse=True)
            most = len(values)
        key = key * span + (column - low)
        most *= span
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return number.astype(np.int64), first.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Flows:
    """Per communicator and rank shown, the flow of the first op it issues there, 0 if none; and how many there are."""

    first: Longs
    count: int


def _flows(ops: Ops, shown: Sequence[int], before: int) -> _Flows:
    """Numbers the flows from `before` + 1: one for each call of a group of which two or more members are shown."""
    program, roles = ops.program, ops.program.role_of[list(shown)]
    issued = np.zeros((len(program.communicators), len(program.roles)), dtype=np.int64)
    meets = ops.order >= 0
    np.add.at(issued, (ops.ints("communicator")[meets], ops.role[meets]), 1)
    first = np.zeros((len(program.communicators), len(shown)), dtype=np.int64)
    total = before
    for number, communicator in enumerate(program.communicators):
        group = communicator.group_of(program.mesh, program.world)[list(shown)]
        mine = np.flatnonzero((group >= 0) & (issued[number, roles] > 0))
        _, head, which, members = np.unique(group[mine], return_index=True, return_inverse=True, return_counts=True)
        lengths = np.where(members > 1, issued[number, roles[mine[head]]], 0)
        ends = total + np.cumsum(lengths)
        first[number, mine] = np.where(members > 1, ends - lengths + 1, 0)[which]
        total = int(ends[-1]) if len(ends) else total
    return _Flows(first, total - before)


@dataclass(frozen=True, slots=True)
class _Events:
    """Events in the order of their tracks and times; `parts` are numbers of bodies, `flow` is 0 for none."""

    time_ns: Longs
    type: Longs
    lane: Longs
    parts: tuple[Longs, Longs]
    flow: Longs


class _Numbering:
    """Strings, and numbers of tracks, flows and processes, which the timelines of a trace share."""

    def __init__(self, timelines: int, world: int) -> None:
        self.timelines = timelines
        # Process 0 is the idle process to Perfetto, and of threads the one numbered as its process comes first, then
        # the others by number: so rank 3 of 8 is process 13, and its lanes are the threads 13, 23, 33, ...
        self.base = 10 ** len(str(timelines * world))
        self.words = pb.Words()
        self.uuids = count(1)
        self.flows = 0

    def place(self, rank: int, number: int) -> int:
        """Where a rank of one of the timelines stands among all processes."""
        return rank * self.timelines + number


def _chunks(traces: Sequence[_Trace], numbering: _Numbering) -> Iterator[bytes]:
    """The trace, piece by piece."""
    yield pb.packet(numbering.words.encoded(), sequence_flags=pb.STATE_CLEARED)
    yield pb.root_track()
    for trace in traces:
        yield trace.step_track()
    for trace in traces:
        yield from trace.chunks()


class _Trace:
    """A timeline's part of a trace to be: what its packets share, and how many slices it came to."""

    def __init__(self, named: NamedTimeline, shown: Sequence[int], numbering: _Numbering, number: int) -> None:
        timeline = named.timeline
        self.timeline, self.shown, self.memory = timeline, shown, named.memory
        self.prefix = f"{named.name} · " if named.name else ""
        self.numbering, self.number = numbering, number
        self.ops, self.program = timeline.graph.ops, timeline.graph.program
        self.lanes = _lane_order(self.program)
        self.lane = np.argsort(self.lanes)[self.ops.ints("lane")]
        self.communicator = self.ops.ints("communicator")
        self.enabled = self.ops.column("enabled").astype(bool)
        self.words = numbering.words
        self.step = self._step_title()
        roles = distinct(self.program.role_of[list(shown)])
        self.issued = {int(role): self._issued(int(role)) for role in roles}
        self.bodies = _bodies(self.ops, np.concatenate(list(self.issued.values())), self.words)
        self.flows = _flows(self.ops, shown, numbering.flows)
        numbering.flows += self.flows.count
        self.uuids = numbering.uuids
        self.slices = self.waits = 0

    def chunks(self) -> Iterator[bytes]:
        """The ranks, piece by piece."""
        for index, rank in enumerate(self.shown):
            process = next(self.uuids)
            events = self._op_events(index, rank)
            tracks, described = self._rank_tracks(rank, process, distinct(events.lane))
            yield described
            yield from self._encoded(events, tracks)
            if rank in self.memory:
                yield from self._counters(rank, process)

    def _issued(self, role: int) -> Longs:
        """The ops of a role that happen, by lane and in order of issue."""
        mine = np.arange(self.ops.start[role], self.ops.start[role + 1], dtype=np.int64)
        mine = mine[self.enabled[mine]]
        by_lane: Longs = mine[np.argsort(self.lane[mine], kind="stable")]
        return by_lane

    def _step_title(self) -> bytes:
        shown = f"{len(self.shown):,} of {self.program.world:,}"
        job = self.words.fact("job", self.program.title) if self.program.title else b""
        return self.words.title("step", "step") + job + self.words.fact("ranks shown", shown)

    def step_track(self) -> bytes:
        """The track that shows how long the step takes."""
        uuid = next(self.uuids)
        time_ns = distinct(_nanoseconds(np.array([0.0, self.timeline.step_time_s])))
        types = [pb.EventType.SLICE_BEGIN, pb.EventType.SLICE_END] if len(time_ns) > 1 else [pb.EventType.INSTANT]
        bodies = [self.step, b""][: len(types)]
        events = pb.events(time_ns, np.array(types), np.full(len(types), uuid), [bodies])
        return pb.track(uuid, pb.text(pb.TrackDescriptor.NAME, f"{self.prefix}step")) + events

    def _rank_tracks(self, rank: int, process: int, lanes: Longs) -> tuple[Longs, bytes]:
        """(track of each lane, descriptors of the rank's process and of the lanes it uses)."""
        base, at = self.numbering.base, self.numbering.place(rank, self.number)
        pid = base + at
        described = [pb.process_track(process, pid, self.prefix + _rank_name(self.program, rank), at)]
        tracks = np.zeros(len(self.lanes), dtype=np.int64)
        for place in lanes.tolist():
            uuid, lane = next(self.uuids), self.program.lanes[int(self.lanes[place])]
            tracks[place] = uuid
            described.append(pb.thread_track(uuid, process, pid, place * base + pid, lane.name, place))
        return tracks, b"".join(described)

    def _op_events(self, index: int, rank: int) -> _Events:
        """Returns the events of a rank, at most four for each op: its wait begins and ends, it begins and ends."""
        graph = self.timeline.graph
        role, owner = int(self.program.role_of[rank]), int(graph.classes.of_rank[rank])
        ops = self.issued[role]
        lane, order = self.lane[ops], self.ops.order[ops]
        ready, start, end = self._times(ops - int(self.ops.start[role]) + int(graph.start[owner]), lane, order)
        waits, instant, none = start > ready, start == end, np.zeros(len(ops), dtype=np.int64)
        first = self.flows.first[self.communicator[ops], index] if self.flows.count else none
        flow = np.where((order >= 0) & (first > 0), first + order, 0)
        begins = np.where(instant, pb.EventType.INSTANT, pb.EventType.SLICE_BEGIN)
        begin, done = np.full(len(ops), pb.EventType.SLICE_BEGIN), np.full(len(ops), pb.EventType.SLICE_END)
        takes_place = np.stack([waits, waits, np.ones(len(ops), dtype=bool), ~instant], axis=1)
        self.slices += len(ops)
        self.waits += int(waits.sum())

        def flat(*events: Longs) -> Longs:
            in_order: Longs = np.stack(events, axis=1)[takes_place]
            return in_order

        return _Events(
            flat(ready, start, start, end),
            flat(begin, done, begins, done),
            flat(lane, lane, lane, lane),
            (
                flat(self.bodies.wait[ops], none, self.bodies.op[ops], none),
                flat(none, none, self.bodies.microbatch[ops], none),
            ),
            flat(none, none, flow, none),
        )

    def _times(self, nodes: Longs, lane: Longs, order: NDArray[np.integer]) -> tuple[Longs, Longs, Longs]:
        """(ready, start, end) of nodes in nanoseconds; only ops with partners are ready before they start.

        Along a lane no time is less than the one before: what the last bit of a sum may have put out of order
        would otherwise make slices overlap.
        """
        start = _nanoseconds(self.timeline.start_s[nodes])
        end = _nanoseconds(self.timeline.end_s[nodes])
        ready = np.where(order >= 0, _nanoseconds(self.timeline.ready_s[nodes]), start)
        moved = lane * (int(end.max(initial=0)) + 1)
        times = np.stack([np.minimum(ready, start), start, end], axis=1) + moved[:, np.newaxis]
        times = np.maximum.accumulate(times.ravel()).reshape(-1, 3) - moved[:, np.newaxis]
        return times[:, 0], times[:, 1], times[:, 2]

    def _encoded(self, events: _Events, tracks: Longs) -> Iterator[bytes]:
        tag = pb.tag(pb.TrackEvent.FLOW_ID, pb.FIXED64)
        for low in range(0, len(events.flow), EVENTS_AT_ONCE):
            part = slice(low, low + EVENTS_AT_ONCE)
            flow = events.flow[part]
            joined = np.flatnonzero(flow)
            flows = np.full(len(flow), b"", dtype=np.object_)
            flows[joined] = pb.rows(pb.columns(len(joined), tag, pb.fixed64s(flow[joined])))
            bodies = [self.bodies.table[numbers[part]].tolist() for numbers in events.parts]
            yield pb.events(
                events.time_ns[part], events.type[part], tracks[events.lane[part]], [flows.tolist(), *bodies]
            )

    def _counters(self, rank: int, process: int) -> Iterator[bytes]:
        """Memory of a rank, in all and by category."""
        times_s, held = self.memory[rank]
        by_name = {"total": np.sum(list(held.values()), axis=0), **held} if held else {}
        # A process does not order its tracks, a track of its own does.
        parent = next(self.uuids)
        yield pb.group_track(parent, process, "memory")
        for place, (name, values) in enumerate(by_name.items()):
            uuid = next(self.uuids)
            yield pb.bytes_counter_track(uuid, parent, f"memory {name}", "memory", place)
            yield _counter(uuid, _nanoseconds(times_s), np.asarray(values).astype(np.int64))


def _counter(uuid: int, time_ns: Longs, values: Longs) -> bytes:
    """The values of a counter where they change."""
    changes = np.flatnonzero(np.diff(values, prepend=-1))
    time_ns, values = time_ns[changes], values[changes]
    width = pb.varint_width(int(values.max(initial=0)))
    tag = pb.tag(pb.TrackEvent.COUNTER_VALUE, pb.VARINT)
    encoded = pb.rows(pb.columns(len(values), tag, pb.padded_varints(values, width)))
    types = np.full(len(values), pb.EventType.COUNTER)
    return pb.events(time_ns, types, np.full(len(values), uuid), [encoded])


def _nanoseconds(seconds: Floats) -> Longs:
    return np.rint(np.maximum(seconds, 0.0) * 1e9).astype(np.int64)


def _lane_order(program: Program) -> Longs:
    """The lanes from top to bottom: those that compute, those that communicate, the host's."""
    kinds = [("compute", "communication", "host").index(lane.kind) for lane in program.lanes]
    order: Longs = np.argsort(np.array(kinds, dtype=np.int64), kind="stable")
    return order


def _rank_name(program: Program, rank: int) -> str:
    """`rank 3 · stage 1 (decoder)`; without pipeline stages `rank 3 (decoder)`."""
    role = program.roles[int(program.role_of[rank])]
    stage = f"stage {program.mesh.coordinate('pp')[rank]}"
    name = f"rank {rank} · {stage}" if program.mesh.pp > 1 else f"rank {rank}"
    return name if role in ("", stage) and program.mesh.pp > 1 else f"{name} ({role})"


def _write(path: Path, chunks: Iterable[bytes]) -> int:
    """Writes a file in one go and returns its size in bytes; compressed if its name ends in .gz."""
    size_bytes = 0
    with replacing(path, "trace") as file:
        for chunk in _packed(chunks) if path.suffix == ".gz" else chunks:
            file.write(chunk)
            size_bytes += len(chunk)
    return size_bytes


def _packed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields what gzip makes of the chunks, without a name and a time: the same trace gives the same bytes."""
    packer = zlib.compressobj(GZIP_LEVEL, wbits=_GZIP_BITS)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()
