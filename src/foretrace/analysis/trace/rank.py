"""One rank of a trace as the analyses see it: which of its events count, and its work on a device in columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import InputError
from foretrace.formats.profiler_trace.records import ON_DEVICE, Category, Floats, Ints, Longs, ProfilerTrace
from foretrace.lower.profiler_trace.links import Links
from foretrace.lower.profiler_trace.steps import Steps, find_steps
from foretrace.lower.torch.kinds import WorkKind, kind_of_kernel

_PROFILER_STEP: Final = "ProfilerStep"


class WorkType(IntEnum):
    """What a device was busy with, in three parts as HTA has them."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    """Copies and memsets."""


@dataclass(frozen=True, slots=True)
class Work:
    """A rank's work on its devices, in order of start."""

    event: Longs
    """Which of the trace's events each is."""
    start_s: Floats
    end_s: Floats
    type: NDArray[np.uint8]
    """A WorkType."""
    name: Ints
    """Of the trace's strings."""
    stream: Ints
    """Of the rank's `streams`."""
    launch: Longs
    """The runtime call that launched it; -1 where none is recorded."""

    def __len__(self) -> int:
        return len(self.event)

    @property
    def duration_s(self) -> Floats:
        """How long each ran."""
        return self.end_s - self.start_s

    def of(self, *types: WorkType) -> tuple[Floats, Floats]:
        """The intervals of some types."""
        mine = np.isin(self.type, types)
        return self.start_s[mine], self.end_s[mine]


class Rank:
    """A rank's trace, less what the profiler cut: of several ProfilerSteps the last is left out, since the trace may
    end before its work does. Everything is computed when it is first asked for."""

    def __init__(self, trace: ProfilerTrace, number: int, *, last_step: bool = False) -> None:
        self.trace = trace
        self.number = number
        self.last_step = last_step
        self.links = Links(trace)
        if not len(self.work):
            raise InputError(
                "no work of a device was recorded",
                where=trace.path,
                hint="profile with ProfilerActivity.CUDA, or nsys with --trace cuda",
            )

    @cached_property
    def cut_s(self) -> float:
        """From when on host events do not count; infinite where all do."""
        if self.last_step:
            return float("inf")
        marks = np.array([name.startswith(_PROFILER_STEP) for name in self.trace.strings], dtype=bool)
        events = self.trace.events
        steps = events.of(Category.ANNOTATION)
        steps = steps[marks[events.name[steps]]] if len(marks) else steps
        if len(np.unique(events.name[steps])) < 2:
            return float("inf")
        return float(events.start_s[steps].max())

    @cached_property
    def steps(self) -> Steps:
        """The training steps."""
        return find_steps(self.trace, self.links)

    @cached_property
    def streams(self) -> tuple[tuple[int, int], ...]:
        """Device and stream of every queue that had work."""
        return self._work[1]

    @property
    def work(self) -> Work:
        """What ran on devices."""
        return self._work[0]

    @cached_property
    def _work(self) -> tuple[Work, tuple[tuple[int, int], ...]]:
        events = self.trace.events
        at = events.of(*ON_DEVICE)
        launch = self.links.launch[at]
        if np.isfinite(self.cut_s):
            kept = (launch >= 0) & (events.start_s[launch] < self.cut_s)
            at, launch = at[kept], launch[kept]
        pairs = events.device[at].astype(np.int64) << 32 | (events.stream[at].astype(np.int64) & 0xFFFFFFFF)
        queues, stream = np.unique(pairs, return_inverse=True)
        named = tuple((int(one >> 32), int(np.int32(np.uint32(one & 0xFFFFFFFF)))) for one in queues.tolist())
        start_s = events.start_s[at]
        work = Work(
            event=at,
            start_s=start_s,
            end_s=start_s + events.duration_s[at],
            type=self._types(at),
            name=events.name[at],
            stream=stream.astype(np.int32),
            launch=launch,
        )
        return work, named

    def _types(self, at: Longs) -> NDArray[np.uint8]:
        events = self.trace.events
        types = np.full(len(at), WorkType.COMPUTE, dtype=np.uint8)
        types[events.category[at] != Category.KERNEL] = WorkType.MEMORY
        told = (types == WorkType.COMPUTE) & (self.kinds[events.name[at]] == _COMMUNICATION)
        types[told] = WorkType.COMMUNICATION
        return types

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """For each of the trace's strings that names work, its WorkKind by its place in that list."""
        events = self.trace.events
        kinds = np.full(len(self.trace.strings), _KINDS.index(WorkKind.OTHER), dtype=np.uint8)
        for number in np.unique(events.name[events.of(*ON_DEVICE)]).tolist():
            kinds[number] = _KINDS.index(kind_of_kernel(self.trace.strings[number]))
        return kinds

    @property
    def span_s(self) -> tuple[float, float]:
        """From the start of the first work on a device to the end of the last."""
        return float(self.work.start_s[0]), float(self.work.end_s.max())


def in_whole_us(trace: ProfilerTrace) -> ProfilerTrace:
    """A trace with every event cut to the whole microseconds that lie within it; a shorter one takes none."""
    start_us = np.rint(trace.events.start_s * 1e9 + trace.origin_ns % 1000) / 1000
    first_us = np.ceil(start_us)
    last_us = np.floor(np.rint(start_us * 1000 + trace.events.duration_s * 1e9) / 1000)
    duration_s = np.maximum(last_us - first_us, 0.0) * 1e-6
    order = np.lexsort((-duration_s, first_us))
    events = replace(trace.events, start_s=first_us * 1e-6, duration_s=duration_s).taken(order)
    return replace(trace, events=events)


_KINDS: Final = tuple(WorkKind)
_COMMUNICATION: Final = _KINDS.index(WorkKind.COMMUNICATION)
