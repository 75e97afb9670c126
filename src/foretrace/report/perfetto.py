"""A timeline as a native Perfetto trace, for ui.perfetto.dev.

Every rank shown is a process, every lane it uses a thread of it, and every op a slice; what an op waits for its
partners is a slice of its own before it. Flows join the members of a rendezvous. Times are nanoseconds from the start
of the step; packets name no clock, so that readers take them for trace time and need no clock snapshot.

What events say (names, categories, annotations) is interned and encoded once per distinct op, not once per slice.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import InputError
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.expand import Ops
from foretrace.program.graph import Graph
from foretrace.program.program import Floats, Longs, Program
from foretrace.program.timeline import Timeline
from foretrace.report import protobuf as pb

Memory = Mapping[int, tuple[Floats, Mapping[str, NDArray[Any]]]]
"""Per rank: times in seconds, and by category the bytes held from each of them on."""

MOST_RANKS: Final = 64
"""Ranks shown unless they are named: more than that no one scrolls through."""

EVENTS_AT_ONCE: Final = 1 << 17
"""Events encoded together, so that a long trace needs little memory."""


class Packet(IntEnum):
    """Fields of TracePacket and InternedData, by their numbers in Perfetto's protos/perfetto/trace."""

    PACKET = 1
    TIMESTAMP = 8
    SEQUENCE_ID = 10
    TRACK_EVENT = 11
    INTERNED_DATA = 12
    SEQUENCE_FLAGS = 13
    TRACK_DESCRIPTOR = 60
    CATEGORIES = 1
    NAMES = 2
    KEYS = 3
    VALUES = 29


class Event(IntEnum):
    """Fields of TrackEvent and DebugAnnotation."""

    CATEGORY = 3
    ANNOTATION = 4
    TYPE = 9
    NAME = 10
    TRACK = 11
    COUNTER_VALUE = 30
    FLOW = 47
    KEY = 1
    INT_VALUE = 4
    STRING_VALUE = 17


class EventType(IntEnum):
    """TrackEvent.Type."""

    BEGIN = 1
    END = 2
    INSTANT = 3
    COUNTER = 4


class Track(IntEnum):
    """Fields of TrackDescriptor and of the ProcessDescriptor, ThreadDescriptor and CounterDescriptor in it."""

    UUID = 1
    NAME = 2
    PROCESS = 3
    THREAD = 4
    PARENT = 5
    COUNTER = 8
    CHILD_ORDERING = 11
    PLACE = 12
    PROCESS_ORDERING = 19
    THREAD_ORDERING = 20
    PID = 1
    TID = 2
    PROCESS_NAME = 6
    THREAD_NAME = 5
    COUNTER_UNIT = 3
    COUNTER_SHARED_AXIS = 7


EXPLICIT_CHILDREN: Final = 3
EXPLICIT: Final = 1
SIZE_BYTES: Final = 3
SEQUENCE: Final = pb.number(Packet.SEQUENCE_ID, 1)
STATE_CLEARED: Final = SEQUENCE + pb.number(Packet.SEQUENCE_FLAGS, 1)
NEEDS_STATE: Final = SEQUENCE + pb.number(Packet.SEQUENCE_FLAGS, 2)


@dataclass(frozen=True, slots=True)
class PerfettoSummary:
    """What a trace holds: the ranks shown, their ops and waits as slices, the rendezvous drawn as flows, its size."""

    path: Path
    ranks: tuple[int, ...]
    world: int
    slices: int
    waits: int
    flows: int
    size_bytes: int


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
    shown = _shown(timeline.graph, ranks)
    trace = _Trace(timeline, shown, memory or {})
    target = Path(path)
    size = _write(target, trace.chunks())
    world = timeline.graph.program.world
    return PerfettoSummary(target, tuple(shown), world, trace.slices, trace.waits, trace.flows.count, size)


def _shown(graph: Graph, ranks: Sequence[int] | None) -> list[int]:
    """The ranks to write, ascending."""
    world = graph.program.world
    if ranks is None:
        return _sample(graph)
    for rank in ranks:
        if not 0 <= rank < world:
            raise InputError(f"there is no rank {rank}; the job has ranks 0 to {world - 1}")
    if not len(ranks):
        raise InputError("no ranks to show", hint=f"name some of 0 to {world - 1}, or none for a sample")
    return sorted({int(rank) for rank in ranks})


def _sample(graph: Graph) -> list[int]:
    """All ranks of a small job; of a large one a rank of each role and class, then whole pipelines while they fit."""
    program, classes = graph.program, graph.classes
    if program.world <= MOST_RANKS:
        return list(range(program.world))
    first_of_role = np.unique(program.role_of, return_index=True)[1]
    # An unfolded job has a class per rank, of which the first 64 would be no sample of anything.
    stand_ins = classes.representative if len(classes) <= MOST_RANKS else np.empty(0, dtype=np.int32)
    chosen = dict.fromkeys([*first_of_role.tolist(), *stand_ins.tolist()][:MOST_RANKS])
    for pipeline in program.mesh.groups("pp")[:MOST_RANKS].tolist():
        if len(chosen.keys() | set(pipeline)) <= MOST_RANKS:
            chosen |= dict.fromkeys(pipeline)
    return sorted(chosen)


class _Interned:
    """One table of strings that events refer to by number, from 1."""

    def __init__(self, field: int) -> None:
        self.field = field
        self.numbers: dict[str, int] = {}

    def __getitem__(self, value: str) -> int:
        return self.numbers.setdefault(value, len(self.numbers) + 1)

    def encoded(self) -> bytes:
        entries = self.numbers.items()
        return b"".join(pb.message(self.field, pb.number(1, iid), pb.text(2, s)) for s, iid in entries)


class _Words:
    """All that events say, in terms of interned strings."""

    def __init__(self) -> None:
        self.categories, self.names = _Interned(Packet.CATEGORIES), _Interned(Packet.NAMES)
        self.keys, self.values = _Interned(Packet.KEYS), _Interned(Packet.VALUES)

    def title(self, name: str, category: str) -> bytes:
        return pb.number(Event.CATEGORY, self.categories[category]) + pb.number(Event.NAME, self.names[name])

    def note(self, key: str, value: str | int) -> bytes:
        name = pb.number(Event.KEY, self.keys[key])
        if isinstance(value, str):
            return pb.message(Event.ANNOTATION, name, pb.number(Event.STRING_VALUE, self.values[value]))
        return pb.message(Event.ANNOTATION, name, pb.number(Event.INT_VALUE, value))

    def encoded(self) -> bytes:
        tables = (self.categories, self.names, self.keys, self.values)
        return pb.message(Packet.INTERNED_DATA, *(table.encoded() for table in tables))


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Encoded parts of events, of which number 0 is empty, and per op the numbers of its title and facts, of those of
    its wait, and of its microbatch."""

    table: NDArray[np.object_]
    length: Longs
    op: Longs
    wait: Longs
    microbatch: Longs


def _bodies(ops: Ops, chosen: Longs, words: _Words) -> _Bodies:
    """What the events of the chosen ops say."""
    names = ("kind", "name", "phase", "layer", "chunk", "bytes", "collective", "communicator", "source")
    facts = {name: ops.ints(name)[chosen] for name in names}
    kind, first = _distinct(list(facts.values()))
    rows = zip(*(column[first].tolist() for column in facts.values()), strict=True)
    described = [_describe(ops.program, dict(zip(names, row, strict=True)), words) for row in rows]
    microbatch = ops.microbatch[chosen].astype(np.int64)
    batches = range(int(microbatch.max(initial=-1)) + 1)
    parts = [b"", *(body for body, _ in described), *(wait for _, wait in described)]
    first_batch = len(parts)
    parts += [words.note("microbatch", number) for number in batches]
    table = np.empty(len(parts), dtype=np.object_)
    table[:] = parts

    def of_op(numbers: Longs) -> Longs:
        spread = np.zeros(len(ops), dtype=np.int64)
        spread[chosen] = numbers
        return spread

    return _Bodies(
        table,
        np.array([len(part) for part in parts], dtype=np.int64),
        of_op(1 + kind),
        of_op(1 + len(first) + kind),
        of_op(np.where(microbatch >= 0, first_batch + microbatch, 0)),
    )


def _describe(program: Program, op: dict[str, int], words: _Words) -> tuple[bytes, bytes]:
    """(title and annotations of an op, those of its wait)."""
    name = program.strings[op["name"]]
    notes, meeting = [], b""
    if op["phase"] != Phase.NONE:
        notes.append(words.note("phase", label(Phase(op["phase"]))))
    notes += [words.note(key, op[key]) for key in ("layer", "chunk") if op[key] >= 0]
    if op["bytes"] > 0:
        notes.append(words.note("bytes", op["bytes"]))
    if op["communicator"] >= 0:
        communicator = program.communicators[op["communicator"]]
        meeting = words.note("collective", label(Collective(op["collective"])))
        meeting += words.note("communicator", communicator.name) + words.note("axis", communicator.axis)
    notes += [meeting, words.note("duration from", program.sources[op["source"]].name)]
    title = words.title(name, label(Kind(op["kind"])))
    wait = words.title(f"wait: {name}", "wait") + meeting if meeting else b""
    return title + b"".join(notes), wait


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


def _flows(ops: Ops, shown: Sequence[int]) -> _Flows:
    """Flows for every group of a communicator of which two members or more are shown."""
    program, roles = ops.program, ops.program.role_of[list(shown)]
    issued = np.zeros((len(program.communicators), len(program.roles)), dtype=np.int64)
    meets = ops.order >= 0
    np.add.at(issued, (ops.ints("communicator")[meets], ops.role[meets]), 1)
    first = np.zeros((len(program.communicators), len(shown)), dtype=np.int64)
    total = 0
    for number, communicator in enumerate(program.communicators):
        group = communicator.group_of(program.mesh, program.world)[list(shown)]
        mine = np.flatnonzero((group >= 0) & (issued[number, roles] > 0))
        _, head, which, members = np.unique(group[mine], return_index=True, return_inverse=True, return_counts=True)
        lengths = np.where(members > 1, issued[number, roles[mine[head]]], 0)
        ends = total + np.cumsum(lengths)
        first[number, mine] = np.where(members > 1, ends - lengths + 1, 0)[which]
        total = int(ends[-1]) if len(ends) else total
    return _Flows(first, total)


@dataclass(frozen=True, slots=True)
class _Events:
    """Events in the order of their tracks and times; `parts` are numbers of bodies, `flow` is 0 for none."""

    time_ns: Longs
    type: Longs
    lane: Longs
    parts: tuple[Longs, Longs]
    flow: Longs


class _Trace:
    """A trace to be: what its packets share, and how many slices it came to."""

    def __init__(self, timeline: Timeline, shown: Sequence[int], memory: Memory) -> None:
        self.timeline, self.shown, self.memory = timeline, shown, memory
        self.ops, self.program = timeline.graph.ops, timeline.graph.program
        self.lanes = _lane_order(self.program)
        self.lane = np.argsort(self.lanes)[self.ops.ints("lane")]
        self.communicator = self.ops.ints("communicator")
        self.enabled = self.ops.column("enabled").astype(bool)
        self.words = _Words()
        self.step = self._step_title()
        roles = np.unique(self.program.role_of[list(shown)])
        self.issued = {int(role): self._issued(int(role)) for role in roles}
        self.bodies = _bodies(self.ops, np.concatenate(list(self.issued.values())), self.words)
        self.flows = _flows(self.ops, shown)
        self.uuids = count(1)
        self.slices = self.waits = 0

    def chunks(self) -> Iterator[bytes]:
        """The trace, piece by piece."""
        yield _packet(STATE_CLEARED, self.words.encoded())
        # Perfetto shows processes and threads in the order of our numbers only if its root track, which is
        # number 0, asks for it (google/perfetto#6219); elder versions go by activity and by thread number.
        yield _track(0, pb.number(Track.PROCESS_ORDERING, EXPLICIT), pb.number(Track.THREAD_ORDERING, EXPLICIT))
        yield self._step()
        for index, rank in enumerate(self.shown):
            process = next(self.uuids)
            events = self._op_events(index, rank)
            tracks, descriptors = self._rank_tracks(rank, process, np.unique(events.lane))
            yield descriptors
            yield from self._encoded(events, tracks)
            if rank in self.memory:
                yield from self._counters(rank, process)

    def _issued(self, role: int) -> Longs:
        """The ops of a role that happen, by lane and in order of issue."""
        mine = np.arange(self.ops.start[role], self.ops.start[role + 1], dtype=np.int64)
        mine = mine[self.enabled[mine]]
        return mine[np.argsort(self.lane[mine], kind="stable")]

    def _step_title(self) -> bytes:
        ranks = f"{len(self.shown):,} of {self.program.world:,}"
        job = self.words.note("job", self.program.title) if self.program.title else b""
        return self.words.title("step", "step") + job + self.words.note("ranks shown", ranks)

    def _step(self) -> bytes:
        """The track that shows how long the step takes."""
        track = next(self.uuids)
        ends = _nanoseconds(np.array([0.0, self.timeline.step_time_s]))
        types = [EventType.BEGIN, EventType.END] if ends[1] else [EventType.INSTANT]
        events = _packets(
            ends[: len(types)],
            np.array(types, dtype=np.int64),
            np.full(len(types), track),
            [[self.step, b""][: len(types)]],
        )
        return _track(track, pb.text(Track.NAME, "step")) + events

    def _rank_tracks(self, rank: int, process: int, lanes: Longs) -> tuple[Longs, bytes]:
        """(track of each lane, descriptors of the rank's process and of the lanes it uses)."""
        # A process number of 0 means the idle process to Perfetto, and the thread numbered as its process comes
        # first, then the others by number: so rank 3 of 8 is process 13, its lanes are threads 13, 23, 33 and so on.
        base = 10 ** len(str(self.program.world))
        pid = base + rank
        process_number = pb.number(Track.PID, pid)
        name = pb.text(Track.PROCESS_NAME, _rank_name(self.program, rank))
        described = [_track(process, pb.message(Track.PROCESS, process_number, name), pb.number(Track.PLACE, rank))]
        tracks = np.zeros(len(self.lanes), dtype=np.int64)
        for lane in lanes.tolist():
            tracks[lane] = next(self.uuids)
            tid = pb.number(Track.TID, lane * base + pid)
            title = pb.text(Track.THREAD_NAME, self.program.lanes[int(self.lanes[lane])].name)
            thread = pb.message(Track.THREAD, process_number, tid, title)
            place = pb.number(Track.PLACE, lane)
            described.append(_track(int(tracks[lane]), pb.number(Track.PARENT, process), thread, place))
        return tracks, b"".join(described)

    def _op_events(self, index: int, rank: int) -> _Events:
        """What a rank does; four events an op at most: its wait begins and ends, it begins and ends."""
        graph = self.timeline.graph
        role, owner = int(self.program.role_of[rank]), int(graph.classes.of_rank[rank])
        ops = self.issued[role]
        lane, order = self.lane[ops], self.ops.order[ops]
        ready, start, end = self._times(ops - int(self.ops.start[role]) + int(graph.start[owner]), lane, order)
        waits, instant, none = start > ready, start == end, np.zeros(len(ops), dtype=np.int64)
        first = self.flows.first[self.communicator[ops], index] if self.flows.count else none
        flow = np.where((order >= 0) & (first > 0), first + order, 0)
        begins = np.where(instant, EventType.INSTANT, EventType.BEGIN)
        begin, done = np.full(len(ops), EventType.BEGIN), np.full(len(ops), EventType.END)
        takes_place = np.stack([waits, waits, np.ones(len(ops), dtype=bool), ~instant], axis=1)
        self.slices += len(ops)
        self.waits += int(waits.sum())

        def flat(*events: Longs) -> Longs:
            return np.stack(events, axis=1)[takes_place]

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
        tag = pb.tag(Event.FLOW, pb.FIXED64)
        for low in range(0, len(events.flow), EVENTS_AT_ONCE):
            part = slice(low, low + EVENTS_AT_ONCE)
            joined = np.flatnonzero(events.flow[part])
            flows = np.full(len(events.flow[part]), b"", dtype=np.object_)
            ids = pb.fixed64s(events.flow[part][joined])
            flows[joined] = pb.rows(pb.columns(len(joined), tag, ids))
            said = [self.bodies.table[numbers[part]].tolist() for numbers in events.parts]
            yield _packets(events.time_ns[part], events.type[part], tracks[events.lane[part]], [flows.tolist(), *said])

    def _counters(self, rank: int, process: int) -> Iterator[bytes]:
        """Memory of a rank, in all and by category, under a track of their own: a process does not order its tracks."""
        times_s, held = self.memory[rank]
        by_name = {"total": np.sum(list(held.values()), axis=0), **held} if held else {}
        parent = next(self.uuids)
        ordering = pb.number(Track.CHILD_ORDERING, EXPLICIT_CHILDREN)
        yield _track(parent, pb.number(Track.PARENT, process), pb.text(Track.NAME, "memory"), ordering)
        axis = pb.number(Track.COUNTER_UNIT, SIZE_BYTES) + pb.text(Track.COUNTER_SHARED_AXIS, "memory")
        for place, (name, values) in enumerate(by_name.items()):
            track = next(self.uuids)
            yield _track(
                track,
                pb.number(Track.PARENT, parent),
                pb.text(Track.NAME, f"memory {name}"),
                pb.message(Track.COUNTER, axis),
                pb.number(Track.PLACE, place),
            )
            yield _counter(track, _nanoseconds(times_s), np.asarray(values).astype(np.int64))


def _counter(track: int, time_ns: Longs, values: Longs) -> bytes:
    """The values of a counter where they change."""
    changes = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else []
    time_ns, values = time_ns[changes], values[changes]
    width = pb.varint_width(int(values.max(initial=0)))
    encoded = pb.columns(len(values), pb.tag(Event.COUNTER_VALUE, pb.VARINT), pb.padded_varints(values, width))
    return _packets(time_ns, np.full(len(values), EventType.COUNTER), np.full(len(values), track), [pb.rows(encoded)])


def _packets(time_ns: Longs, types: Longs, tracks: Longs, parts: Sequence[list[bytes]]) -> bytes:
    """One packet an event, which holds its part of each list of parts."""
    if not len(time_ns):
        return b""
    event = pb.columns(
        len(time_ns),
        pb.tag(Event.TYPE, pb.VARINT),
        types.astype(np.uint8)[:, np.newaxis],
        pb.tag(Event.TRACK, pb.VARINT),
        pb.padded_varints(tracks, pb.varint_width(int(tracks.max()))),
    )
    lengths = sum((np.fromiter(map(len, part), np.int64, len(part)) for part in parts), start=np.int64(event.shape[1]))
    heads = _delimited(
        pb.tag(Packet.PACKET, pb.LENGTH_DELIMITED),
        pb.columns(
            len(time_ns),
            pb.tag(Packet.TIMESTAMP, pb.VARINT),
            pb.padded_varints(time_ns, pb.varint_width(int(time_ns.max()))),
            NEEDS_STATE,
        ),
    )
    return b""
