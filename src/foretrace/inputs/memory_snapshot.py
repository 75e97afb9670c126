"""Reads memory snapshots of PyTorch: the allocator's state, and the history of its allocations.

`torch.cuda.memory._dump_snapshot(file)` pickles the dictionary that `torch/csrc/cuda/Module.cpp` makes:

* `segments`: memory that the allocator reserves, each with `device`, `total_size` and `allocated_size`;
* `device_traces`: for each device a list of events, oldest first: `action`, `size`, `time_us`. The list has at most
  `max_entries` events (`torch.cuda.memory._record_memory_history`), so its beginning may be missing.

The same dictionary as JSON is read too. The state before the first event is unknown, but the state at the end is known:
peaks are found by going through the events from the last to the first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.collector import collector_paused
from foretrace.basics.errors import Diagnostic, InputError, shortened
from foretrace.basics.files import read_whole
from foretrace.basics.progress import doing
from foretrace.basics.records import read_json
from foretrace.basics.units import format_bytes

MAX_DEVICES: Final = 1024
MAX_SIZE: Final = 1 << 50
"""The largest size of a segment or an event; no machine has a PiB."""

MAX_ENTRIES: Final = 1 << 24
"""Segments, events, lists and dictionaries at most: a pickle of 512 MiB with as many events has less than ten million
of them."""

BLOCK_BYTES: Final = 512
"""The allocator rounds sizes up to multiples of this (`kMinBlockSize` in `c10/cuda/CUDACachingAllocator.h`); events
have the size that was asked for."""

_ALLOCATED: Final = {"alloc": 1, "free_requested": -1}
_RESERVED: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""The signs of events in what is allocated and what is reserved. Memory counts as free as soon as its release is
requested, as in `torch.cuda.memory_allocated`."""

_HINT: Final = (
    "a snapshot is what torch.cuda.memory._dump_snapshot writes, after torch.cuda.memory._record_memory_history()"
)

_TOO_LARGE: Final = "record fewer events: torch.cuda.memory._record_memory_history(max_entries=1000000, context=None)"


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The memory of one device as PyTorch's allocator recorded it, in bytes.

    The peaks are those of the recorded history. `events` is how many it has, `span_s` how long it lasts and `peak_s`
    when after its beginning the allocated peak is (None without times). `first_allocated_bytes` and
    `first_reserved_bytes` are held before the first event.
    """

    device: int
    devices: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    events: int
    out_of_memory_events: int
    first_allocated_bytes: int
    first_reserved_bytes: int
    span_s: float | None
    peak_s: float | None
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the history begins before the first allocation."""
        return self.events > 0 and self.first_reserved_bytes == 0


def read_memory_snapshot(path: str | Path) -> MemorySnapshot:
    """Reads a snapshot; of several devices, the one that reserves most.

    Raises:
        InputError: The file cannot be read or is not a snapshot. Nothing that it names is ever imported or called.
    """
    where = str(path)
    with doing(f"reading {where}"), collector_paused():
        document = _loaded(path, where)
        if isinstance(document, list):  # `torch.cuda.memory_snapshot()` is the segments alone
            document = {"segments": document}
        if not isinstance(document, dict) or not isinstance(document.get("segments"), list):
            raise InputError("wrong-format", "this is not a memory snapshot: no segments", where=where, hint=_HINT)
        return _fullest(document, where)


def _fullest(document: dict[str, Any], where: str) -> MemorySnapshot:
    """Returns the device that reserves most at any time."""
    traces = document.get("device_traces") or []
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise InputError("bad-value", "device_traces is not a list of lists", where=where, hint=_HINT)
    allocated, reserved = dict[int, int](), dict[int, int]()
    if len(document["segments"]) + sum(map(len, traces)) > MAX_ENTRIES:
        raise InputError("input-too-large", f"more than {MAX_ENTRIES:,} events", where=where, hint=_TOO_LARGE)
    for number, segment in enumerate(document["segments"]):
        place = f"{where}: segments[{number}]"
        device = _number(segment, "device", place, 0, MAX_DEVICES)
        allocated[device] = allocated.get(device, 0) + _number(segment, "allocated_size", place)
        reserved[device] = reserved.get(device, 0) + _number(segment, "total_size", place)
    devices = sorted({*reserved, *(number for number, trace in enumerate(traces) if trace)})
    if not devices:
        raise InputError("empty-file", "the snapshot holds no memory of any device", where=where, hint=_HINT)
    if max(devices) >= MAX_DEVICES or max((*reserved.values(), *allocated.values(), 0)) > MAX_SIZE:
        raise InputError("out-of-range", "more devices or memory than a machine has", where=where, hint=_HINT)
    made = [
        _device(
            traces[device] if device < len(traces) else [],
            (device, len(devices)),
            (allocated.get(device, 0), reserved.get(device, 0)),
            f"{where}: device_traces[{device}]",
        )
        for device in devices
    ]
    return max(made, key=lambda snapshot: snapshot.peak_reserved_bytes)


def _device(trace: list[Any], device: tuple[int, int], state: tuple[int, int], where: str) -> MemorySnapshot:
    """Returns the memory of one device.

    Args:
        trace: Its events.
        device: Its number, and how many there are.
        state: Bytes that are allocated and reserved after the last event.
        where: The place of the events, for errors.
    """
    changes = np.zeros((len(trace), 2), dtype=np.int64)
    times = np.zeros(len(trace), dtype=np.int64)
    failures = 0
    for number, event in enumerate(trace):
        action = event.get("action") if isinstance(event, dict) else None
        if not isinstance(action, str):
            raise InputError("bad-value", "this is not an event of an allocator", where=f"{where}[{number}]")
        if action in _ALLOCATED:
            size = _number(event, "size", f"{where}[{number}]")
            changes[number, 0] = _ALLOCATED[action] * -(-size // BLOCK_BYTES) * BLOCK_BYTES
        elif action in _RESERVED:
            changes[number, 1] = _RESERVED[action] * _number(event, "size", f"{where}[{number}]")
        failures += action == "oom"
        times[number] = _number(event, "time_us", f"{where}[{number}]", 0, 1 << 62)
    if float(np.abs(changes.astype(float)).sum()) > 2.0**62:
        raise InputError("out-of-range", "events allocate more than can be meant", where=where, hint=_HINT)
    # The state before each event, and after the last.
    held: Longs = np.array(state, dtype=np.int64) - np.vstack(
        [changes[::-1].cumsum(axis=0)[::-1], np.zeros((1, 2), dtype=np.int64)]
    )
    notes = []
    missing = np.maximum(-held.min(axis=0), 0)
    if missing.any():
        text = (
            f"the history frees {format_bytes(int(missing.max()))} more than the state at its end accounts for; peaks "
            "may be too low by as much"
        )
        notes.append(Diagnostic("warning", "odd-input", text, where))
    peak = int(np.argmax(held[:, 0]))
    is_timed = bool(len(times)) and bool(times.all())
    return MemorySnapshot(
        device=device[0],
        devices=device[1],
        allocated_bytes=state[0],
        reserved_bytes=state[1],
        peak_allocated_bytes=int(held[:, 0].max()),
        peak_reserved_bytes=int(held[:, 1].max()),
        events=len(trace),
        out_of_memory_events=failures,
        first_allocated_bytes=max(int(held[0, 0]), 0),
        first_reserved_bytes=max(int(held[0, 1]), 0),
        span_s=float(times.max() - times[0]) / 1e6 if is_timed else None,
        peak_s=float(times[:peak].max(initial=times[0]) - times[0]) / 1e6 if is_timed else None,
        diagnostics=tuple(notes),
    )


def _number(entry: Any, key: str, where: str, default: int | None = None, limit: int = MAX_SIZE) -> int:
    """Returns a whole number of an entry, from 0 to `limit`."""
    value = entry.get(key, default) if isinstance(entry, dict) else None
    if value is None:
        raise InputError("missing-field", f"{key} is missing", where=where, hint=_HINT)
    if isinstance(value, bool) or not isinstance(value, int):
        shown = type(value).__name__ if isinstance(value, dict | list) else shortened(repr(value))
        raise InputError("bad-value", f"{key} is {shown}, not a whole number", where=where, hint=_HINT)
    if not 0 <= value <= limit:
        raise InputError("out-of-range", f"{key} is not from 0 to {limit:,}", where=where, hint=_HINT)
    return value


def _loaded(path: str | Path, where: str) -> Any:
    """Returns what a pickle or a JSON file holds."""
    data = read_whole(path, "memory snapshot", _TOO_LARGE)
    if not data:
        raise InputError("empty-file", "the memory snapshot is empty", where=where, hint=_HINT)
    if data[0] == _PROTO:
        return _PlainPickle(data, where).load()
    if data[:64].lstrip()[:1] not in (b"{", b"["):
        problem = "this is neither a pickle (of protocol 2 or later) nor JSON"
        raise InputError("wrong-format", problem, where=where, hint=_HINT)
    # Every list and dictionary takes memory, of which a file of commas and brackets asks for many times its own size.
    if data.count(b"{") + data.count(b"[") > MAX_ENTRIES or data.count(b",") > 8 * MAX_ENTRIES:
        problem = f"more than {MAX_ENTRIES:,} lists and dictionaries"
        raise InputError("input-too-large", problem, where=where, hint=_TOO_LARGE)
    return read_json(data, where, _HINT, _plain_dictionary)


_PROTO: Final = 0x80
_KEPT: Final = ("action", "size", "time_us")
"""The keys of an event that are kept; its stack of calls takes most of a file."""


class _PlainPickle:
    """A pickle of numbers, texts, lists, tuples and dictionaries.

    Python's own readers import and call what a pickle names, and a short pickle can make them take any amount of memory
    and time. This reader knows only the opcodes of plain values (`Lib/pickletools.py` of Python describes them), whose
    time and memory are proportional to the file. Nothing is read from tuples, which become None.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Returns the value.

        Raises:
            InputError: The pickle is cut off or damaged, or holds anything else.
        """
        try:
            self._run()
            (value,) = self._stack
        except (EOFError, struct.error):
            problem = "the memory snapshot ends before its content does"
            raise InputError("truncated-file", problem, where=self._where) from None
        except (IndexError, KeyError, ValueError, TypeError):
            problem = "the pickle of the memory snapshot is damaged"
            raise InputError("damaged-file", problem, where=self._where, hint=_HINT) from None
        return value

    def _run(self) -> None:
        data, stack, memo, marks = self._data, self._stack, self._memo, self._marks
        size, at, room = len(data), 0, MAX_ENTRIES
        while at < size:
            code = data[at]
            at += 1
            # In order of how often real snapshots have them.
            if code == 0x68 and at < size:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x8A and at < size:  # LONG1
                end = at + 1 + data[at]
                stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
                at = end
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[_UINT4(data, at)[0]])
                at += 4
            elif code == 0x4B and at < size:  # BININT1
                stack.append(data[at])
                at += 1
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif code == 0x7D or code == 0x5D:  # EMPTY_DICT, EMPTY_LIST
                stack.append({} if code == 0x7D else [])
                room -= 1
                if room < 0:
                    problem = f"more than {MAX_ENTRIES:,} lists and dictionaries"
                    raise InputError("input-too-large", problem, where=self._where, hint=_TOO_LARGE)
            elif code == 0x28:  # MARK
                marks.append(len(stack))
            elif code == 0x75:  # SETITEMS
                mark = marks.pop()
                items = stack[mark:]
                del stack[mark:]
                _fill(stack[-1], items)
            elif code == _STOP:
                return
            elif code in _OPCODES:
                at = _OPCODES[code](self, at)
            elif at >= size:
                raise EOFError
            else:
                problem = (
                    f"the pickle has opcode {bytes([code])!r} at byte {at - 1:,}, and a memory snapshot holds nothing "
                    "but numbers, texts, lists and dictionaries; it was not read further"
                )
                raise InputError("wrong-format", problem, where=self._where, hint=_HINT)
        raise EOFError

    def _above_mark(self) -> list[Any]:
        """Takes the values above the last mark."""
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _bytes(self, at: int, size: int) -> bytes:
        """Returns the bytes from a place on."""
        if at + size > len(self._data):
            raise EOFError
        return self._data[at : at + size]

    def _skip(self, at: int, size: int) -> int:
        self._bytes(at, size)
        return at + size

    def _push(self, value: Any, at: int) -> int:
        self._stack.append(value)
        return at

    def _text(self, at: int, header: int) -> int:
        """Reads a text whose length is a number of `header` bytes."""
        size = int.from_bytes(self._bytes(at, header), "little")
        self._stack.append(self._bytes(at + header, size).decode("utf-8", "replace"))
        return at + header + size

    def _long(self, at: int) -> int:
        """Reads a whole number whose length is a number of 4 bytes."""
        size = int.from_bytes(self._bytes(at, 4), "little")
        self._stack.append(int.from_bytes(self._bytes(at + 4, size), "little", signed=True))
        return at + 4 + size

    def _tuple(self, at: int, size: int) -> int:
        """Replaces the last `size` values by None."""
        if not 0 <= size <= len(self._stack):
            raise IndexError
        del self._stack[len(self._stack) - size :]
        return self._push(None, at)

    def _append(self, at: int, values: list[Any]) -> int:
        """Appends values to the list below them."""
        below = self._stack[-1]
        if type(below) is not list:
            raise TypeError
        below += values
        return at

    def _put(self, number: int, at: int) -> int:
        self._memo[number] = self._stack[-1]
        return at

    def _set_item(self, at: int) -> int:
        value, key = self._stack.pop(), self._stack.pop()
        _fill(self._stack[-1], [key, value])
        return at


def _fill(entry: Any, items: list[Any]) -> None:
    """Adds alternating keys and values to a dictionary."""
    if type(entry) is not dict:
        raise TypeError
    entry.update(_plain_dictionary(zip(items[::2], items[1::2], strict=True)))


def _plain_dictionary(items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Returns a dictionary without what nothing is read from: calls of a stack, and most keys of events."""
    named = dict(items)
    if "action" in named:
        return {key: named[key] for key in _KEPT if key in named}
    return {} if "filename" in named else named


_STOP: Final = 0x2E
_UINT4: Final = struct.Struct("<I").unpack_from
_UINT2: Final = struct.Struct("<H").unpack_from
_INT4: Final = struct.Struct("<i").unpack_from
_FLOAT8: Final = struct.Struct(">d").unpack_from
_OPCODES: Final[dict[int, Callable[[_PlainPickle, int], int]]] = {
    0x80: lambda pickle, at: pickle._skip(at, 1),  # PROTO
    0x95: lambda pickle, at: pickle._skip(at, 8),  # FRAME: its bytes follow, as if there was none
    0x4E: lambda pickle, at: pickle._push(None, at),  # NONE
    0x88: lambda pickle, at: pickle._push(True, at),  # NEWTRUE
    0x89: lambda pickle, at: pickle._push(False, at),  # NEWFALSE
    0x4D: lambda pickle, at: pickle._push(_UINT2(pickle._data, at)[0], at + 2),  # BININT2
    0x4A: lambda pickle, at: pickle._push(_INT4(pickle._data, at)[0], at + 4),  # BININT
    0x8B: lambda pickle, at: pickle._long(at),  # LONG4
    0x47: lambda pickle, at: pickle._push(_FLOAT8(pickle._data, at)[0], at + 8),  # BINFLOAT
    0x8C: lambda pickle, at: pickle._text(at, 1),  # SHORT_BINUNICODE
    0x58: lambda pickle, at: pickle._text(at, 4),  # BINUNICODE
    0x8D: lambda pickle, at: pickle._text(at, 8),  # BINUNICODE8
    0x29: lambda pickle, at: pickle._push(None, at),  # EMPTY_TUPLE
    0x85: lambda pickle, at: pickle._tuple(at, 1),  # TUPLE1
    0x86: lambda pickle, at: pickle._tuple(at, 2),  # TUPLE2
    0x87: lambda pickle, at: pickle._tuple(at, 3),  # TUPLE3
    0x74: lambda pickle, at: pickle._tuple(at, len(pickle._stack) - pickle._marks.pop()),  # TUPLE
    0x61: lambda pickle, at: pickle._append(at, [pickle._stack.pop()]),  # APPEND
    0x65: lambda pickle, at: pickle._append(at, pickle._above_mark()),  # APPENDS
    0x73: lambda pickle, at: pickle._set_item(at),  # SETITEM
    0x71: lambda pickle, at: pickle._put(pickle._bytes(at, 1)[0], at + 1),  # BINPUT
    0x72: lambda pickle, at: pickle._put(_UINT4(pickle._data, at)[0], at + 4),  # LONG_BINPUT
}
"""Reads the operands of an opcode from a place on, and returns the place after them."""
