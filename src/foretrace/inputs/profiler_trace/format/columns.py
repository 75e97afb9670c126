"""Events of Kineto's JSON, block by block, into columns."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs
from foretrace.basics.numbers import MAX_REAL, NumberError, real_number
from foretrace.inputs.profiler_trace.format.arguments import COLLECTIVE, CallTable, InputTable, whole
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory

_CATEGORY_NAMES: Final = {
    EventCategory.CPU_OP: "cpu_op operator",
    EventCategory.ANNOTATION: "user_annotation",
    EventCategory.RUNTIME: "cuda_runtime cuda_driver runtime driver hip_runtime hip_driver xpu_runtime xpu_driver "
    "mtia_runtime glow_runtime privateuse1_runtime privateuse1_driver",
    EventCategory.KERNEL: "kernel",
    EventCategory.MEMCPY: "gpu_memcpy memcpy",
    EventCategory.MEMSET: "gpu_memset memset",
    EventCategory.SYNC: "cuda_sync",
    EventCategory.DEVICE_ANNOTATION: "gpu_user_annotation",
    EventCategory.OVERHEAD: "overhead",
    EventCategory.PYTHON: "python_function",
}

_CATEGORIES: Final = {name: category for category, names in _CATEGORY_NAMES.items() for name in names.split()}
"""The category by Kineto's name of an event in lower case, from PyTorch 1.8 to today and on every device."""

_FLOWS: Final = frozenset({"ac2g", "async_cpu_to_gpu", "fwdbwd", "forward_backward", "async", "cpu_to_cuda"})
"""Names of arrows in a viewer. The arguments of events also state what they join."""

_SPANS: Final = frozenset({"trace", "spans"})
"""Names of the profiler's own window."""

_LEGACY: Final = {"CPU functions": EventCategory.CPU_OP, "CUDA functions": EventCategory.KERNEL}
"""The category of events without one, by process: as PyTorch wrote them before Kineto, and later on Windows."""

_HOST: Final = (
    EventCategory.CPU_OP,
    EventCategory.ANNOTATION,
    EventCategory.OVERHEAD,
    EventCategory.PYTHON,
    EventCategory.OTHER,
)
_DEVICE: Final = (*ON_DEVICE, EventCategory.SYNC, EventCategory.DEVICE_ANNOTATION)
_FURTHEST_US: Final = 9e15
"""Times further from 0 do not fit 64 bits as nanoseconds."""

_COLUMNS: Final = {
    "category": np.uint8,
    "name": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.float64,
    "thread": np.int32,
    "device": np.int64,
    "stream": np.int64,
    "correlation": np.int64,
    "external": np.int64,
    "sequence": np.int64,
    "bytes": np.int64,
    "inputs": np.int32,
    "call": np.int32,
    "waits_stream": np.int64,
    "waits_correlation": np.int64,
    "bytes_per_s": np.float64,
    "blocks_per_sm": np.float64,
}
_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "correlation": ("correlation",),
    "external": ("External id", "external id"),
    "sequence": ("Sequence number",),
    "bytes": ("bytes",),
    "size": ("size",),
    "device": ("device",),
    "stream": ("stream",),
    "waits_stream": ("wait_on_stream",),
    "waits_correlation": ("wait_on_cuda_event_record_corr_id",),
}
"""The names of the arguments that fill a column."""

_NUMBER_COLUMNS: Final[dict[EventCategory, tuple[str, ...]]] = {
    **dict.fromkeys(_HOST, ("external",)),
    EventCategory.CPU_OP: ("external", "sequence"),
    EventCategory.RUNTIME: ("correlation", "external", "size"),
    **dict.fromkeys(_DEVICE, ("correlation", "external", "device", "stream")),
    EventCategory.MEMCPY: ("correlation", "external", "device", "stream", "bytes"),
    EventCategory.MEMSET: ("correlation", "external", "device", "stream", "bytes"),
    EventCategory.SYNC: ("correlation", "external", "device", "stream", "waits_stream", "waits_correlation"),
}
"""Which of them events of a category have."""

_BANDWIDTH: Final = "memory bandwidth (GB/s)"
_BLOCKS: Final = "blocks per SM"

_HEAD: Final = itemgetter("name", "pid", "tid", "ts", "dur")
_NOTHING: Final[dict[str, Any]] = {}
_PLAIN_NUMBERS: Final = re.compile(r"[0-9.\n+-]*")
_MAX_NUMBER: Final = 40
"""Characters of a time as text: 64 bits have 20 digits."""

_PLACES: Final = {int, str}
"""The types of processes and threads; the profiler's own events have texts."""

NO_NAME: Final = "(no name)"
"""The name of an event that has none, or one that is not text."""

_ODD: Final = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Raised by events whose fields are of other types than Kineto's."""


class Numbers(dict[Any, int]):
    """Numbers for things, in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class Columns:
    """Gathers events; `column` gives what was gathered, in the order of the file but for kinds within a block."""

    def __init__(self) -> None:
        self.names = Numbers()
        self.threads = Numbers()
        """Numbers of process and thread as written."""
        self.inputs = InputTable()
        self.calls = CallTable()
        self.thread_names: dict[tuple[str, str], str] = {}
        self.unknown: Counter[str] = Counter()
        """Events of categories that are not known."""
        self.untimed = 0
        """Events without a time or duration."""
        self.odd = 0
        """Events that cannot be read for another reason."""
        self.first_odd = ""
        """The name of the first of them."""
        self.mistyped = 0
        """Events with a name, process, thread or arguments of the wrong type, which are left out."""
        self.unread: Counter[str] = Counter()
        """Events that are no spans, by what they are."""
        self.stacks = False
        """Whether an op carries the stack it was called from."""
        self.count = 0
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}

    def add(self, events: list[Any]) -> None:
        """Takes a block of events."""
        by_category: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
        try:
            for event in events:
                by_category[event.get("cat")].append(event)
            if not all(isinstance(written, str | None) for written in by_category):
                by_category = self._odd(events)
        except (AttributeError, TypeError):
            by_category = self._odd(events)
        self._plain(by_category.pop(None, []))
        # In order of categories, so that an op comes before what it calls where both begin at once.
        categorised = [(self._category(written, some), some) for written, some in by_category.items()]
        for category, some in sorted(
            ((kind, some) for kind, some in categorised if kind is not None), key=itemgetter(0)
        ):
            self._spans(category, some)

    def column(self, name: str) -> NDArray[Any]:
        """Returns one column of all events so far."""
        return np.concatenate(self._parts.pop(name)) if self.count else np.empty(0, _COLUMNS[name])

    def _odd(self, events: list[Any]) -> defaultdict[Any, list[dict[str, Any]]]:
        """Groups the events of a block that also holds something that is not an event."""
        by_category: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            if isinstance(event, dict):
                category = event.get("cat")
                if isinstance(category, str | None):
                    by_category[category].append(event)
                else:
                    self._skip(event)
            elif event:  # an empty object or text ends some lists of events
                self.unread["no event"] += 1
        return by_category

    def _category(self, written: str, events: list[dict[str, Any]]) -> EventCategory | None:
        """Returns the category of events by its written name; None for what is not a span, which is handled here."""
        known = _CATEGORIES.get(written.lower())
        if known is not None:
            return known
        if written.lower() in _FLOWS or written.lower() in _SPANS:
            return None
        spans = sum(event.get("ph") == "X" for event in events)
        if written == "cpu_instant_event":
            self.unread["memory"] += sum(event.get("name") == "[memory]" for event in events)
            return None
        if spans < len(events):
            self.unread[f'"{written}"'] += len(events) - spans
        if not spans:
            return None
        self.unknown[written] += spans
        return EventCategory.OTHER

    def _plain(self, events: list[dict[str, Any]]) -> None:
        """Takes events without a category: names of threads, and events of PyTorch before Kineto."""
        legacy: defaultdict[EventCategory, list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            phase = event.get("ph")
            if phase == "M":
                if event.get("name") == "thread_name":
                    arguments = event.get("args")
                    name = arguments.get("name") if isinstance(arguments, dict) else None
                    key = _word(event.get("pid")), _word(event.get("tid"))
                    self.thread_names[key] = _word(name or "").strip()
            elif phase == "X":
                known = _LEGACY.get(_word(event.get("pid")), EventCategory.OTHER)
                if known is EventCategory.OTHER:
                    self.unknown["none"] += 1
                legacy[known].append(event)
            elif phase not in ("i", "I", "s", "f", "t"):
                self.unread[f'phase "{_word(phase)}"'] += 1
        for category, some in sorted(legacy.items()):
            self._spans(category, some)

    def _spans(self, category: EventCategory, events: list[dict[str, Any]]) -> None:
        try:
            self._columns(category, events)
        except _ODD:
            good = self._timed(events)
            try:
                if good:
                    self._columns(category, good)
            except _ODD:
                for event in good:
                    self._single(category, event)

    def _single(self, category: EventCategory, event: dict[str, Any]) -> None:
        """Takes one event of a block in which an event cannot be read."""
        try:
            self._columns(category, [event])
        except _ODD:
            self._skip(event)

    def _skip(self, event: dict[str, Any]) -> None:
        self.odd += 1
        self.first_odd = self.first_odd or _word(event.get("name"))

    def _columns(self, category: EventCategory, events: list[dict[str, Any]]) -> None:
        names, processes, threads, starts, durations = zip(*map(_HEAD, events), strict=True)
        if set(map(type, names)) != {str} or not {*map(type, processes), *map(type, threads)} <= _PLACES:
            raise TypeError("a name is not text, or a process or thread is neither text nor a number")
        arguments = [event.get("args") or _NOTHING for event in events]
        filled: dict[str, NDArray[Any]] = {
            "category": np.full(len(events), category, np.uint8),
            "name": np.array([self.names[name] for name in names], np.int32),
            "start_ns": nanoseconds(starts),
            "duration_ns": _rounded_ns(durations),
        }
        for column in _NUMBER_COLUMNS[category]:
            filled[column] = _numbers_of(arguments, _ARGUMENTS[column])
        if category in _DEVICE:
            _drawn(filled["device"], arguments, "device", processes)
            _drawn(filled["stream"], arguments, "stream", threads)
        else:
            pairs = zip(processes, threads, strict=True)
            filled["thread"] = np.array([self.threads[pair] for pair in pairs], np.int32)
        if category is EventCategory.RUNTIME:
            filled["bytes"] = filled.pop("size")  # ROCm says a copy's bytes where it is called
        if category in (EventCategory.MEMCPY, EventCategory.MEMSET):
            rate = _floats([argument.get(_BANDWIDTH, -1) for argument in arguments])
            filled["bytes_per_s"] = np.where((rate >= 0) & (rate < MAX_REAL), rate * 1e9, -1.0)
        if category is EventCategory.KERNEL:
            blocks = _floats([argument.get(_BLOCKS, -1) for argument in arguments])
            filled["blocks_per_sm"] = np.where(np.isfinite(blocks), blocks, -1.0)
        if category in (EventCategory.CPU_OP, EventCategory.ANNOTATION):
            self.stacks = self.stacks or bool(arguments[-1].get("Call stack"))
            number = self.inputs.number
            filled["inputs"] = np.array([number(argument) for argument in arguments], np.int32)
        if category in (EventCategory.CPU_OP, EventCategory.KERNEL):
            filled["call"] = self._calls(arguments)
        for column, kind in _COLUMNS.items():
            values = filled.get(column)
            self._parts[column].append(np.full(len(events), -1, kind) if values is None else values)
        self.count += len(events)

    def _timed(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the events that have a time, with every other field that is read."""
        good = []
        for event in events:
            if event.get("ph", "X") != "X":
                self.unread[f'phase "{_word(event.get("ph"))}"'] += 1
            elif _is_time(event.get("ts")) and _is_time(event.get("dur")):
                name, arguments = event.get("name", NO_NAME), event.get("args") or _NOTHING
                process, thread = event.get("pid", -1), event.get("tid", -1)
                typed = isinstance(name, str) and isinstance(arguments, dict)
                self.mistyped += not (typed and _is_place(process) and _is_place(thread))
                good.append(
                    {
                        "name": name if isinstance(name, str) else NO_NAME,
                        "pid": process if type(process) in _PLACES else whole(process),
                        "tid": thread if type(thread) in _PLACES else whole(thread),
                        "ts": event["ts"],
                        "dur": event["dur"],
                        "args": arguments if isinstance(arguments, dict) else _NOTHING,
                    }
                )
            else:
                self.untimed += 1
        return good

    def _calls(self, arguments: list[dict[str, Any]]) -> Ints:
        numbers = np.full(len(arguments), -1, np.int32)
        for at in [at for at, argument in enumerate(arguments) if COLLECTIVE in argument]:
            numbers[at] = self.calls.number(arguments[at])
        return numbers


def _drawn(values: NDArray[Any], arguments: list[dict[str, Any]], key: str, drawn: Sequence[Any]) -> None:
    """Fills in a device or stream that no argument states: it is where the event is drawn."""
    for at in np.flatnonzero(values == -1).tolist():
        if key not in arguments[at]:
            values[at] = whole(drawn[at])


def _is_place(value: object) -> bool:
    """Returns whether a value can be a process or thread; some tools write whole numbers as 7.0."""
    return type(value) in _PLACES or (isinstance(value, float) and value.is_integer())


def _is_time(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _numbers_of(arguments: Iterable[dict[str, Any]], keys: tuple[str, ...], default: int = -1) -> Longs:
    """Returns one argument of each event as whole numbers."""
    first = keys[0]
    values = [argument.get(first, default) for argument in arguments]
    for other in keys[1:]:
        if default in values:
            values = [
                argument.get(other, default) if value == default else value
                for argument, value in zip(arguments, values, strict=True)
            ]
    try:
        return np.frombuffer(array("q", values), np.int64)
    except (TypeError, OverflowError):
        return np.array([value if value == default else whole(value) for value in values], np.int64)


def _floats(values: Sequence[Any]) -> Floats:
    try:
        return np.frombuffer(array("d", values), np.float64)
    except (TypeError, OverflowError):
        try:
            if _are_plain(values):
                return np.array(list(map(float, values)))
        except ValueError:
            pass  # "1.2.3" and the like
        return np.array([_float(value) for value in values])


def _are_plain(values: Sequence[Any]) -> bool:
    """Returns whether all values are texts of digits, as times are kept where a float would round them."""
    try:
        return _PLAIN_NUMBERS.fullmatch("\n".join(values)) is not None
    except TypeError:
        return False


def _float(value: Any) -> float:
    try:
        return real_number(value, least=-MAX_REAL)
    except NumberError:
        return float("nan")


def _word(value: object) -> str:
    """Returns the text of a field; nothing for what is neither text nor a number."""
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float | None) else ""


def _rounded_ns(durations: Sequence[Any]) -> Floats:
    """Rounds microseconds to whole nanoseconds; a time too long for a number is infinite, and left out later."""
    with np.errstate(over="ignore"):
        return np.rint(_floats(durations) * 1e3)


def nanoseconds(times_us: Sequence[Any]) -> Longs:
    """Converts times in microseconds, as numbers or their text, to whole nanoseconds.

    A time that is not a number becomes the least number of 64 bits.
    """
    if any(isinstance(time, str) for time in times_us[-1:]):
        plain = _are_plain(times_us)
        return np.array([_exact(time, plain) for time in times_us], np.int64)
    us = _floats(times_us)
    good = np.abs(us) < _FURTHEST_US
    whole_us = np.floor(np.where(good, us, 0.0))
    # Whole microseconds and the rest apart: their sum in nanoseconds would not fit a float.
    ns = whole_us.astype(np.int64) * 1000 + np.rint((np.where(good, us, 0.0) - whole_us) * 1e3).astype(np.int64)
    return np.where(good, ns, NO_TIME)


NO_TIME: Final = np.iinfo(np.int64).min


def _exact(time_us: Any, plain: bool) -> int:
    """Returns a time in nanoseconds, every digit of it; `plain` says that it is text of digits."""
    try:
        if not plain:
            real_number(time_us, least=-_FURTHEST_US, most=_FURTHEST_US)
        time = Decimal(time_us if len(str(time_us)) <= _MAX_NUMBER else float(time_us))
        return int((time * 1000).to_integral_value()) if abs(time) < _FURTHEST_US else NO_TIME
    except (ArithmeticError, NumberError, TypeError, ValueError):
        return NO_TIME
