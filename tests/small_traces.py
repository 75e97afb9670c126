"""Small profiler traces, written by hand in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.inputs.profiler_trace.format.records import (
    CollectiveArguments,
    EventCategory,
    Events,
    RankProfile,
    Thread,
    TracedDevice,
)


@dataclass(frozen=True)
class Row:
    """One event; work on a device has a stream and no thread."""

    category: EventCategory
    name: str
    start_us: float
    duration_us: float
    thread: int = -1
    stream: int = -1
    correlation: int = -1
    bytes: int = -1
    call: int = -1


def kernel(name: str, start_us: float, end_us: float, *, stream: int = 7, correlation: int = -1, call: int = -1) -> Row:
    """A kernel on a stream."""
    return Row(EventCategory.KERNEL, name, start_us, end_us - start_us, -1, stream, correlation, -1, call)


def copy(name: str, start_us: float, end_us: float, *, stream: int = 7, correlation: int = -1, bytes: int = -1) -> Row:
    """A copy or memset on a stream."""
    category = EventCategory.MEMSET if name.startswith("Memset") else EventCategory.MEMCPY
    return Row(category, name, start_us, end_us - start_us, -1, stream, correlation, bytes)


def launch(correlation: int, start_us: float, end_us: float, name: str = "cudaLaunchKernel", *, thread: int = 0) -> Row:
    """A runtime call."""
    return Row(EventCategory.RUNTIME, name, start_us, end_us - start_us, thread, -1, correlation)


def op(name: str, start_us: float, end_us: float, *, thread: int = 0) -> Row:
    """An op of the host."""
    return Row(EventCategory.CPU_OP, name, start_us, end_us - start_us, thread)


def mark(name: str, start_us: float, end_us: float, *, thread: int = 0) -> Row:
    """A range that a user marked."""
    return Row(EventCategory.ANNOTATION, name, start_us, end_us - start_us, thread)


def small_trace(
    *rows: Row, rank: int | None = None, world: int | None = None, calls: Sequence[CollectiveArguments] = ()
) -> RankProfile:
    """The trace of some events, in any order."""
    ordered = sorted(rows, key=lambda row: (row.start_us, -row.duration_us))
    strings = tuple(dict.fromkeys(row.name for row in ordered))

    def ints(values: list[int], kind: type = np.int64) -> np.ndarray:
        return np.array(values, dtype=kind)

    count = len(ordered)
    none = np.full(count, -1, dtype=np.int64)
    events = Events(
        category=ints([row.category for row in ordered], np.uint8),
        name=ints([strings.index(row.name) for row in ordered], np.int32),
        start_s=np.array([row.start_us for row in ordered]) * 1e-6,
        duration_s=np.array([row.duration_us for row in ordered]) * 1e-6,
        thread=ints([row.thread for row in ordered], np.int32),
        device=ints([0 if row.stream >= 0 else -1 for row in ordered], np.int32),
        stream=ints([row.stream for row in ordered], np.int32),
        correlation=ints([row.correlation for row in ordered]),
        external=none,
        sequence=none,
        bytes=ints([row.bytes for row in ordered]),
        inputs=none.astype(np.int32),
        call=ints([row.call for row in ordered], np.int32),
        waits_stream=none.astype(np.int32),
        waits_correlation=none,
    )
    threads = tuple(Thread(1, number) for number in range(max([row.thread for row in ordered], default=0) + 1))
    device = (TracedDevice(0, "NVIDIA H200"),)
    return RankProfile("small.json", "kineto", rank, world, device, {}, {}, strings, threads, (), tuple(calls), events)
