"""Encodes Perfetto's packets: the protobuf wire format, the fields of each message that are used, events by the column.

Fields are written by number (https://protobuf.dev/programming-guides/encoding); the numbers are those of the proto
files in protos/perfetto/trace of Perfetto.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Longs

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2


class TracePacket(IntEnum):
    """Fields of a packet; a trace is a sequence of packets in its field 1."""

    TIMESTAMP = 8
    SEQUENCE_ID = 10
    TRACK_EVENT = 11
    INTERNED_DATA = 12
    SEQUENCE_FLAGS = 13
    TRACK_DESCRIPTOR = 60


class InternedData(IntEnum):
    """Tables of strings, each entry a number (field 1) and a string (field 2)."""

    CATEGORIES = 1
    NAMES = 2
    ANNOTATION_NAMES = 3
    ANNOTATION_STRINGS = 29


class TrackDescriptor(IntEnum):
    """Fields that describe a track."""

    UUID = 1
    NAME = 2
    PROCESS = 3
    THREAD = 4
    PARENT_UUID = 5
    COUNTER = 8
    CHILD_ORDERING = 11
    SIBLING_ORDER_RANK = 12
    PROCESS_ORDERING = 19
    THREAD_ORDERING = 20


class ProcessDescriptor(IntEnum):
    """Fields that make a track a process."""

    PID = 1
    NAME = 6


class ThreadDescriptor(IntEnum):
    """Fields that make a track a thread."""

    PID = 1
    TID = 2
    NAME = 5


class CounterDescriptor(IntEnum):
    """Fields that make a track a counter."""

    UNIT = 3
    Y_AXIS_SHARE_KEY = 7


class TrackEvent(IntEnum):
    """Fields of an event."""

    CATEGORY = 3
    ANNOTATION = 4
    TYPE = 9
    NAME = 10
    TRACK_UUID = 11
    COUNTER_VALUE = 30
    FLOW_ID = 47


class DebugAnnotation(IntEnum):
    """Fields of a fact that an event carries."""

    NAME = 1
    INT_VALUE = 4
    STRING_VALUE = 17


class EventType(IntEnum):
    """The effect of an event on its track."""

    SLICE_BEGIN = 1
    SLICE_END = 2
    INSTANT = 3
    COUNTER = 4


CHILDREN_EXPLICIT: Final = 3
PROCESSES_EXPLICIT: Final = 1
THREADS_EXPLICIT: Final = 1
UNIT_SIZE_BYTES: Final = 3
STATE_CLEARED: Final = 1
NEEDS_STATE: Final = 2


def varint(value: int) -> bytes:
    """A whole number of zero or more, seven bits a byte, the lowest first."""
    if value <= 0x7F:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@cache
def tag(field: int, wire_type: int) -> bytes:
    """Returns what precedes the value of a field."""
    return varint(field << 3 | wire_type)


def number(field: int, value: int) -> bytes:
    """A field that holds a whole number of zero or more, a boolean or a member of an enum."""
    return tag(field, VARINT) + varint(value)


def text(field: int, value: str) -> bytes:
    """A field that holds a string."""
    return message(field, value.encode())


def message(field: int, *parts: bytes) -> bytes:
    """A field that holds a message made of these fields."""
    body = b"".join(parts)
    return tag(field, LENGTH_DELIMITED) + varint(len(body)) + body


def varint_width(most: int) -> int:
    """How many bytes a varint needs for values of zero to `most`."""
    return max(1, -(-most.bit_length() // 7))


def padded_varints(values: NDArray[np.integer], width: int) -> NDArray[np.uint8]:
    """Each value as a varint of exactly `width` bytes, [values, width].

    Leading zeros are legal in a varint; Perfetto's own writer pads its length fields so (`WriteRedundantVarInt` in
    protozero's proto_utils.h). Columns of one width are what makes a million events quick to encode.
    """
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    groups = (values.astype(np.uint64)[:, np.newaxis] >> shifts) & np.uint64(0x7F)
    groups[:, :-1] |= np.uint64(0x80)
    return groups.astype(np.uint8)


def fixed64s(values: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Each value as eight bytes, the lowest first, [values, 8]."""
    return np.ascontiguousarray(values.astype("<u8")).view(np.uint8).reshape(-1, 8)


def columns(count: int, *parts: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of bytes, [count, width], from constants that all rows share and from blocks of columns."""
    widths = [len(part) if isinstance(part, bytes) else part.shape[1] for part in parts]
    table = np.empty((count, sum(widths)), dtype=np.uint8)
    at = 0
    for part, width in zip(parts, widths, strict=True):
        table[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return table


def rows(table: NDArray[np.uint8]) -> list[bytes]:
    """Each row of a table of bytes on its own."""
    whole: list[bytes] = np.ascontiguousarray(table).view(f"V{table.shape[1]}").ravel().tolist()
    return whole


def packet(content: bytes, *, sequence_flags: int = 0) -> bytes:
    """A packet of the trace's one sequence."""
    flags = number(TracePacket.SEQUENCE_FLAGS, sequence_flags) if sequence_flags else b""
    return message(1, number(TracePacket.SEQUENCE_ID, 1), flags, content)


def track(uuid: int, *fields: bytes) -> bytes:
    """The packet that describes a track; 0 is the root of all."""
    return packet(message(TracePacket.TRACK_DESCRIPTOR, number(TrackDescriptor.UUID, uuid), *fields))


def process_track(uuid: int, pid: int, name: str, place: int) -> bytes:
    """A process, the one at `place` among all."""
    process = message(TrackDescriptor.PROCESS, number(ProcessDescriptor.PID, pid), text(ProcessDescriptor.NAME, name))
    return track(uuid, process, number(TrackDescriptor.SIBLING_ORDER_RANK, place))


def thread_track(uuid: int, parent: int, pid: int, tid: int, name: str, place: int) -> bytes:
    """A thread, the one at `place` among those of its process."""
    thread = message(
        TrackDescriptor.THREAD,
        number(ThreadDescriptor.PID, pid),
        number(ThreadDescriptor.TID, tid),
        text(ThreadDescriptor.NAME, name),
    )
    above = number(TrackDescriptor.PARENT_UUID, parent)
    return track(uuid, above, thread, number(TrackDescriptor.SIBLING_ORDER_RANK, place))


def group_track(uuid: int, parent: int, name: str) -> bytes:
    """A track without events whose children are shown in the order of their places."""
    return track(
        uuid,
        number(TrackDescriptor.PARENT_UUID, parent),
        text(TrackDescriptor.NAME, name),
        number(TrackDescriptor.CHILD_ORDERING, CHILDREN_EXPLICIT),
    )


def bytes_counter_track(uuid: int, parent: int, name: str, axis: str, place: int) -> bytes:
    """A counter of bytes; those of one `axis` below one parent are drawn to one scale."""
    counter = message(
        TrackDescriptor.COUNTER,
        number(CounterDescriptor.UNIT, UNIT_SIZE_BYTES),
        text(CounterDescriptor.Y_AXIS_SHARE_KEY, axis),
    )
    return track(
        uuid,
        number(TrackDescriptor.PARENT_UUID, parent),
        text(TrackDescriptor.NAME, name),
        counter,
        number(TrackDescriptor.SIBLING_ORDER_RANK, place),
    )


def root_track() -> bytes:
    """The root of all tracks, which must ask for it if processes and threads are to be shown in the order of their
    places (google/perfetto#6219); older versions go by activity, and by thread number."""
    return track(
        0,
        number(TrackDescriptor.PROCESS_ORDERING, PROCESSES_EXPLICIT),
        number(TrackDescriptor.THREAD_ORDERING, THREADS_EXPLICIT),
    )


class Interned:
    """One table of strings that events refer to by number, from 1."""

    def __init__(self, field: int) -> None:
        self.field = field
        self.numbers: dict[str, int] = {}

    def __getitem__(self, value: str) -> int:
        return self.numbers.setdefault(value, len(self.numbers) + 1)

    def encoded(self) -> bytes:
        """The entries of the table."""
        return b"".join(message(self.field, number(1, iid), text(2, s)) for s, iid in self.numbers.items())


class Words:
    """All that events say, in terms of interned strings."""

    def __init__(self) -> None:
        self.categories = Interned(InternedData.CATEGORIES)
        self.names = Interned(InternedData.NAMES)
        self.facts = Interned(InternedData.ANNOTATION_NAMES)
        self.values = Interned(InternedData.ANNOTATION_STRINGS)
        self._encoded_facts: dict[tuple[str, str | int], bytes] = {}

    def title(self, name: str, category: str) -> bytes:
        """The fields that say what an event is called."""
        return number(TrackEvent.CATEGORY, self.categories[category]) + number(TrackEvent.NAME, self.names[name])

    def fact(self, name: str, value: str | int) -> bytes:
        """The field that annotates an event with a string or a whole number of zero or more."""
        if (name, value) not in self._encoded_facts:
            if isinstance(value, str):
                encoded = number(DebugAnnotation.STRING_VALUE, self.values[value])
            else:
                encoded = number(DebugAnnotation.INT_VALUE, value)
            known = number(DebugAnnotation.NAME, self.facts[name])
            self._encoded_facts[name, value] = message(TrackEvent.ANNOTATION, known, encoded)
        return self._encoded_facts[name, value]

    def encoded(self) -> bytes:
        """The field of a packet that holds the tables; it goes ahead of all events."""
        tables = (self.categories, self.names, self.facts, self.values)
        return message(TracePacket.INTERNED_DATA, *(table.encoded() for table in tables))


def events(
    time_ns: Longs,
    types: Longs,
    tracks: Longs,
    parts: Sequence[Sequence[bytes]],
) -> bytes:
    """A packet for each event: its time, type and track, and the further fields that each of `parts` has for it."""
    total = len(time_ns)
    if not total:
        return b""
    times = padded_varints(time_ns, varint_width(int(time_ns.max())))
    event = columns(
        total,
        tag(TrackEvent.TYPE, VARINT),
        types.astype(np.uint8)[:, np.newaxis],
        tag(TrackEvent.TRACK_UUID, VARINT),
        padded_varints(tracks, varint_width(int(tracks.max()))),
    )
    length = np.full(total, event.shape[1], dtype=np.int64)
    for part in parts:
        length += np.fromiter(map(len, part), np.int64, total)
    inside = columns(
        total,
        tag(TracePacket.TIMESTAMP, VARINT),
        times,
        number(TracePacket.SEQUENCE_ID, 1),
        number(TracePacket.SEQUENCE_FLAGS, NEEDS_STATE),
        tag(TracePacket.TRACK_EVENT, LENGTH_DELIMITED),
        padded_varints(length, varint_width(int(length.max()))),
        event,
    )
    length += inside.shape[1] - event.shape[1]
    head = columns(
        total,
        tag(1, LENGTH_DELIMITED),
        padded_varints(length, varint_width(int(length.max()))),
        inside,
    )
    woven = [b""] * (total * (1 + len(parts)))
    for place, pieces in enumerate((rows(head), *parts)):
        woven[place :: 1 + len(parts)] = pieces
    return b"".join(woven)
