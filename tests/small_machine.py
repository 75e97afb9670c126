"""A machine with a known truth: a host, streams and what they wait for, run step after step and recorded as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from foretrace.inputs.profiler_trace.format.records import EventCategory, Events, RankProfile, Thread, TracedDevice

LAUNCH_S, GAP_S, CALL_S, SYNC_S = 8e-6, 1.5e-6, 4e-6, 5e-6
"""From a launch to its start on an idle stream; between kernels; a launch's call; what is left of a wait's call."""


@dataclass(frozen=True)
class Do:
    """Something a step does: host work, then a call. A launch puts a kernel of `busy_s` on a stream, after those of
    other streams that `after` names by position; `sync` waits for a stream's work instead."""

    host_s: float
    busy_s: float = 0.0
    stream: int = 7
    thread: int = 0
    after: tuple[int, ...] = ()
    sync: bool = False
    name: str = "gemm"


@dataclass
class Row:
    """An event as it is recorded."""

    category: EventCategory
    name: str
    start_s: float
    duration_s: float
    thread: int = -1
    stream: int = -1
    correlation: int = -1
    waits_stream: int = -1
    waits_correlation: int = -1
    sequence: int = -1
    external: int = -1


@dataclass
class Machine:
    """Runs steps; `rows` are what a profiler saw, `starts_s` when each step began on the host."""

    step: Sequence[Do]
    cuda_sync: bool = True
    annotate: bool = True
    rows: list[Row] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    now_s: float = 0.0
    free_s: dict[int, float] = field(default_factory=dict)
    correlation: int = 0

    def run(self, steps: int) -> Machine:
        """More steps after those that have run."""
        for _ in range(steps):
            begin, ends, marks = self.now_s, [], []
            self.starts_s.append(begin)
            for do in self.step:
                end, mark = self._do(do, ends, marks)
                ends.append(end)
                marks.append(mark)
            if self.annotate:
                name = f"ProfilerStep#{len(self.starts_s) - 1}"
                self.rows.append(Row(EventCategory.ANNOTATION, name, begin, self.now_s - begin, 0))
        return self

    def _do(self, do: Do, ends: list[float], marks: list[tuple[int, int]]) -> tuple[float, tuple[int, int]]:
        self.correlation += 10
        self.rows.append(Row(EventCategory.CPU_OP, f"aten::{do.name}", self.now_s, do.host_s + CALL_S, do.thread))
        self.now_s += do.host_s
        call, number = self.now_s, self.correlation
        if do.sync:
            done = max(self.free_s.get(do.stream, 0.0), call)
            self.now_s = done + SYNC_S
            self.rows.append(
                Row(EventCategory.RUNTIME, "cudaStreamSynchronize", call, self.now_s - call, do.thread, -1, number)
            )
            if self.cuda_sync:
                self.rows.append(Row(EventCategory.SYNC, "Stream Sync", call, self.now_s - call, -1, do.stream, number))
            return done, (do.stream, number)
        ready = call + LAUNCH_S
        for at in do.after:
            ready = max(ready, ends[at] + GAP_S)
            self._wait(do, marks[at], call)
        start = max(ready, self.free_s.get(do.stream, -1.0) + GAP_S)
        end = start + do.busy_s
        self.free_s[do.stream] = end
        self.now_s = call + CALL_S
        self.rows.append(Row(EventCategory.RUNTIME, "cudaLaunchKernel", call, CALL_S, do.thread, -1, number))
        self.rows.append(Row(EventCategory.KERNEL, do.name, start, do.busy_s, -1, do.stream, number))
        self.rows.append(Row(EventCategory.RUNTIME, "cudaEventRecord", self.now_s, 1e-7, do.thread, -1, number + 1))
        self.now_s += 1e-7
        return end, (do.stream, number + 1)

    def _wait(self, do: Do, mark: tuple[int, int], call: float) -> None:
        """A stream waits for a mark in another; the call lies just before the launch."""
        number = self.correlation + 2 + mark[1] % 7
        self.rows.append(Row(EventCategory.RUNTIME, "cudaStreamWaitEvent", call - 1e-9, 1e-10, do.thread, -1, number))
        if self.cuda_sync:
            row = Row(
                EventCategory.SYNC, "Stream Wait Event", call - 1e-9, 0.0, -1, do.stream, number, mark[0], mark[1]
            )
            self.rows.append(row)

    def period_s(self) -> float:
        """How long a step takes in the end."""
        copy = Machine(self.step).run(40)
        before = {-1: copy.now_s, **copy.free_s}
        copy.run(20)
        after = {-1: copy.now_s, **copy.free_s}
        return max(after[one] - before[one] for one in before) / 20


def recorded(machine: Machine, from_step: int = 0, *, sync_at_end: bool = True) -> RankProfile:
    """What a profiler that began with a step has: all the host did since, and what the device still had to do."""
    begin = machine.starts_s[from_step]
    rows = [row for row in machine.rows if row.start_s + (row.duration_s if row.thread < 0 else 0.0) >= begin]
    if sync_at_end:
        end = max(row.start_s + row.duration_s for row in rows)
        took = max(end - machine.now_s, 1e-6)
        rows.append(Row(EventCategory.RUNTIME, "cudaDeviceSynchronize", machine.now_s + 1e-6, took, 0, -1, 10**6))
    return trace_of(rows)


def trace_of(rows: Iterable[Row]) -> RankProfile:
    """Rows as a trace."""
    rows = sorted(rows, key=lambda row: (row.start_s, -row.duration_s))
    strings = {name: number for number, name in enumerate(dict.fromkeys(row.name for row in rows))}
    threads = sorted({row.thread for row in rows if row.thread >= 0})
    whole, origin = np.int64, min((row.start_s for row in rows), default=0.0)
    none = np.full(len(rows), -1)
    on_stream = [row.stream >= 0 for row in rows]
    events = Events(
        category=np.array([row.category for row in rows], dtype=np.uint8),
        name=np.array([strings[row.name] for row in rows], dtype=np.int32),
        start_s=np.array([row.start_s - origin for row in rows], dtype=np.float64),
        duration_s=np.array([row.duration_s for row in rows], dtype=np.float64),
        thread=np.array([row.thread for row in rows], dtype=np.int32),
        device=np.where(on_stream, 0, -1).astype(np.int32),
        stream=np.array([row.stream for row in rows], dtype=np.int32),
        correlation=np.array([row.correlation for row in rows], dtype=whole),
        external=np.array([row.external for row in rows], dtype=whole),
        sequence=np.array([row.sequence for row in rows], dtype=whole),
        bytes=none.astype(whole),
        inputs=none.astype(np.int32),
        call=none.astype(np.int32),
        waits_stream=np.array([row.waits_stream for row in rows], dtype=np.int32),
        waits_correlation=np.array([row.waits_correlation for row in rows], dtype=whole),
    )
    return RankProfile(
        "made.json", "kineto", None, None, (TracedDevice(0, "NVIDIA H200"),), {}, {}, tuple(strings),
        tuple(Thread(1, number) for number in threads), (), (), events,
    )  # fmt: skip
