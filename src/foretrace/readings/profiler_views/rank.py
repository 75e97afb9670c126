"""One rank of a trace as the analyses see it: which of its events count, and its work on a device in columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, Mask
from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from foretrace.inputs.torch_ops.kinds import WorkKind, kind_of_kernel
from foretrace.readings.profiler_views.counted_steps import CountedSteps, find_counted_steps

_PROFILER_STEP: Final = "ProfilerStep"


class WorkType(IntEnum):
    """The kinds of work of a device, in three parts as HTA has them."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    """Copies and memsets."""


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A rank's work on its devices, in order of start."""

    event: Longs
    """Which of the trace's events each is."""
    start_s: Floats
    end_s: Floats
    type: NDArray[np.uint8]
    """A WorkType."""
    name: Ints
    """Numbers of the trace's strings."""
    stream: Ints
    """Numbers of the rank's `streams`."""
    launch: Longs
    """The runtime call that launched it; -1 where none is recorded."""

    def __len__(self) -> int:
        return len(self.event)

    @property
    def duration_s(self) -> Floats:
        """How long each ran."""
        return self.end_s - self.start_s

    def some(self, which: Mask) -> DeviceWork:
        """Returns only some of the work."""
        return DeviceWork(*(getattr(self, name)[which] for name in self.__slots__))

    def and_also(self, other: DeviceWork) -> DeviceWork:
        """Returns all work of both."""
        both = DeviceWork(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in self.__slots__))
        order = np.argsort(both.start_s, kind="stable")
        return DeviceWork(*(getattr(both, name)[order] for name in self.__slots__))

    def of(self, *types: WorkType) -> tuple[Floats, Floats]:
        """Returns the intervals of some types."""
        mine = np.isin(self.type, types)
        return self.start_s[mine], self.end_s[mine]


class Rank:
    """A rank's trace, and what of it counts: the recorded steps of which a replay is made too, while they lasted; with
    `hta_steps` what Holistic Trace Analysis counts, all work but that of the last of several ProfilerSteps. Everything
    is computed when it is first asked for."""

    def __init__(
        self, trace: RankProfile, number: int, *, hta_steps: bool = False, among: Collection[str] | None = None
    ) -> None:
        self.trace = trace
        self.number = number
        self.hta_steps = hta_steps
        self._among = among
        self.links = EventLinks(trace)
        if not len(trace.events.of(*ON_DEVICE)) or not len(self.ran):
            raise InputError(
                "nothing-to-do",
                "no work of a device was recorded",
                where=trace.path,
                hint="profile with ProfilerActivity.CUDA, or nsys with --trace cuda",
            )

    @cached_property
    def counted_steps(self) -> CountedSteps:
        """The recorded steps that a replay is made of."""
        return find_counted_steps(self.trace, self.links, self._among)

    @cached_property
    def steps(self) -> Steps:
        """All training steps."""
        return find_steps(self.trace, self.links) if self.hta_steps else self.counted_steps.steps

    @cached_property
    def counted(self) -> Longs:
        """The steps that count, by their number."""
        if not self.hta_steps:
            return self.counted_steps.numbers
        known = np.unique(self.steps.of_event[self.work.event])
        return known[known >= 0].astype(np.int64)

    @cached_property
    def windows(self) -> tuple[Floats, Floats]:
        """From when to when what counts lasted, in order: the steps, or from the first work to the end of the last."""
        if self.hta_steps:
            return self.ran.start_s[:1], self.ran.end_s.max(keepdims=True)
        return self.counted_steps.low_s, self.counted_steps.high_s

    @property
    def span_s(self) -> float:
        """How long that is."""
        low_s, high_s = self.windows
        return float((high_s - low_s).sum())

    def within_s(self, start_s: Floats, end_s: Floats) -> Floats:
        """Returns how much of each interval lies in the windows."""
        low_s, high_s = self.windows
        edges_s = np.column_stack([low_s, high_s]).ravel()
        passed_s = np.append(0.0, np.cumsum(high_s - low_s))
        at_edges_s = np.column_stack([passed_s[:-1], passed_s[1:]]).ravel()
        inside_s: Floats = np.interp(end_s, edges_s, at_edges_s) - np.interp(start_s, edges_s, at_edges_s)
        return inside_s

    def counts(self, at: Longs) -> Mask:
        """Returns which of these events count.

        An event of the host counts if its step does, an event of a device if it began in a window.
        """
        events = self.trace.events
        if self.hta_steps:
            return np.asarray(events.start_s[at] < self._cut_s)
        if not len(self.counted):
            return np.ones(len(at), dtype=bool)
        low_s, high_s = self.windows
        window = np.searchsorted(low_s, events.start_s[at], side="right") - 1
        inside = (window >= 0) & (events.start_s[at] < high_s[window])
        return np.where(events.thread[at] >= 0, np.isin(self.steps.of_event[at], self.counted), inside)

    @cached_property
    def _cut_s(self) -> float:
        """From when on HTA counts no more host events; infinite where it counts all."""
        marks = np.array([name.startswith(_PROFILER_STEP) for name in self.trace.strings], dtype=bool)
        events = self.trace.events
        steps = events.of(EventCategory.ANNOTATION)
        steps = steps[marks[events.name[steps]]] if len(marks) else steps
        if len(np.unique(events.name[steps])) < 2:
            return float("inf")
        return float(events.start_s[steps].max())

    @cached_property
    def streams(self) -> tuple[tuple[int, int], ...]:
        """Device and stream of every queue that had work."""
        return self._ran[1]

    @property
    def ran(self) -> DeviceWork:
        """All that ran on devices, in the windows or not; by HTA's rule, what counts."""
        return self._ran[0]

    @cached_property
    def work(self) -> DeviceWork:
        """The work that counts: what was launched in the steps that do."""
        if self.hta_steps or not len(self.counted):
            return self.ran
        return self.ran.some(np.isin(self.steps.of_event[self.ran.event], self.counted))

    @cached_property
    def seen(self) -> DeviceWork:
        """The work that ran, as the windows show it.

        The first recorded step does not show what the step before it had left running: what the last step leaves stands
        for that.
        """
        if self.hta_steps or not len(self.counted) or self.counted[0] > 0:
            return self.ran
        low_s, high_s = self.windows
        left = self.work.some(self.work.end_s > high_s[-1])
        back_s = high_s[-1] - low_s[0]
        start_s, launch = np.maximum(left.start_s, high_s[-1]) - back_s, np.full(len(left), -1, dtype=np.int64)
        return self.ran.and_also(replace(left, start_s=start_s, end_s=left.end_s - back_s, launch=launch))

    @cached_property
    def _ran(self) -> tuple[DeviceWork, tuple[tuple[int, int], ...]]:
        events = self.trace.events
        at = events.of(*ON_DEVICE)
        launch = self.links.launch[at]
        if self.hta_steps and np.isfinite(self._cut_s):
            kept = (launch >= 0) & (events.start_s[launch] < self._cut_s)
            at, launch = at[kept], launch[kept]
        pairs = events.device[at].astype(np.int64) << 32 | (events.stream[at].astype(np.int64) & 0xFFFFFFFF)
        queues, stream = np.unique(pairs, return_inverse=True)
        named = tuple((int(queue >> 32), int(np.int32(np.uint32(queue & 0xFFFFFFFF)))) for queue in queues.tolist())
        start_s = events.start_s[at]
        work = DeviceWork(
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
        types[events.category[at] != EventCategory.KERNEL] = WorkType.MEMORY
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


def in_whole_us(trace: RankProfile) -> RankProfile:
    """Returns a trace with every event cut to the whole microseconds that lie within it; a shorter event takes none."""
    start_us = np.rint(trace.events.start_s * 1e9 + trace.origin_ns % 1000) / 1000
    first_us = np.ceil(start_us)
    last_us = np.floor(np.rint(start_us * 1000 + trace.events.duration_s * 1e9) / 1000)
    duration_s = np.maximum(last_us - first_us, 0.0) * 1e-6
    order = np.lexsort((-duration_s, first_us))
    events = replace(trace.events, start_s=first_us * 1e-6, duration_s=duration_s).rows(order)
    return replace(trace, events=events)


_KINDS: Final = tuple(WorkKind)
_COMMUNICATION: Final = _KINDS.index(WorkKind.COMMUNICATION)
