"""The chain of waits that made a step as long as it was, read off the recorded times.

From the end of the step's last work the path is walked back: work that started when the one before it on its stream had
ended waited for that; work that started when it had been launched waited for the host; work that started long after
both waited for what ended last on another stream. A host that had called a wait until work ended waited for that work.
Every instant of the step lies in one stretch of the path, so its parts sum to the step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.readings.profiler_views.idle import CONSECUTIVE_DELAY_S
from foretrace.readings.profiler_views.rank import Rank, WorkType

_WAITS: Final = re.compile(r"^(cuda|hip|cu)((Device|Stream|Event|Ctx)Synchronize|Memcpy)")
_HOST, _LAUNCH, _GAP = "host", "launch", "gap"
PARTS: Final = ("compute", "communication", "memory", _HOST, _LAUNCH, _GAP)


@dataclass(frozen=True, slots=True)
class PathKernel:
    """A kernel's time on the path."""

    name: str
    count: int
    total_s: float


@dataclass(frozen=True, slots=True)
class TracePath:
    """The critical path of one step of one rank."""

    rank: int
    step: str
    length_s: float
    """From the step's start on the host to the end of its last work on a device."""
    parts_s: dict[str, float]
    """compute, communication, memory: work on the path; host: the host ran, and all waited for it; launch: from a call
    to the start of what it launched; gap: between kernels of a stream, or after a wait for another stream."""
    kernels: tuple[PathKernel, ...]
    start_s: Floats
    end_s: Floats
    part: tuple[str, ...]
    event: Longs
    """Stretches of the path in order; the event is the work, or what was launched, or -1 on the host."""


def critical_path(rank: Rank, step: int | None = None) -> TracePath:
    """The path of a step, by default of the median one of those that count."""
    steps = rank.steps
    number = _median_step(rank) if step is None else step
    work = rank.ran
    mine = np.flatnonzero(steps.of_event[work.event] == number)
    if not len(mine):
        return TracePath(rank.number, steps.names[number], 0.0, {}, (), np.zeros(0), np.zeros(0), (), np.zeros(0, int))
    begin_s = min(float(steps.start_s[number]), float(work.start_s[mine[0]]))
    last = int(mine[np.argmax(work.end_s[mine])])
    stretches = _walk(_Graph.of(rank), last, begin_s)
    stretches.reverse()
    parts = dict.fromkeys(PARTS, 0.0)
    for start_s, end_s, part, _ in stretches:
        parts[part] += end_s - start_s
    return TracePath(
        rank=rank.number,
        step=steps.names[number],
        length_s=float(work.end_s[last]) - begin_s,
        parts_s={part: seconds for part, seconds in parts.items() if seconds > 0},
        kernels=_kernels(rank, stretches),
        start_s=np.array([stretch[0] for stretch in stretches]),
        end_s=np.array([stretch[1] for stretch in stretches]),
        part=tuple(stretch[2] for stretch in stretches),
        event=np.array(
            [stretch[3] if stretch[3] < 0 else work.event[stretch[3]] for stretch in stretches], dtype=np.int64
        ),
    )


def _median_step(rank: Rank) -> int:
    among = rank.counted
    if not len(among):
        return 0
    return int(among[np.argsort(rank.taken.each_s[among], kind="stable")[(len(among) - 1) // 2]])


@dataclass(frozen=True, slots=True)
class _Graph:
    """For each piece of work what it waited for; of the host, which of its waits ended with work."""

    start_s: list[float]
    end_s: list[float]
    part: list[str]
    before: list[int]
    """The work it waited for, -1 where that was the host."""
    called_s: list[float]
    """When it was launched; -inf where that is not known."""
    waited_s: Floats
    """When waits of the host ended, in order."""
    waited_for: list[int]

    @classmethod
    def of(cls, rank: Rank) -> _Graph:
        work, events = rank.ran, rank.trace.events
        called_s = np.where(work.launch >= 0, events.start_s[work.launch], -np.inf)
        previous = _previous(work.stream)
        ended_s = np.where(previous >= 0, work.end_s[previous], -np.inf)
        by_end = np.argsort(work.end_s, kind="stable")
        at = np.searchsorted(work.end_s[by_end], work.start_s, side="right") - 1
        latest = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
        ready_s = np.maximum(ended_s, called_s)
        # Work that takes no time ends when it starts: nothing waits for itself, or for what comes after it.
        earlier = (latest >= 0) & (latest < np.arange(len(work)))
        other = earlier & (work.end_s[latest] > ready_s) & (work.start_s - ready_s > CONSECUTIVE_DELAY_S)
        before = np.where(other, latest, np.where(ended_s >= called_s, previous, -1))
        waited_s, waited_for = _host_waits(rank)
        names = [WorkType(one).name.lower() for one in WorkType]
        return cls(
            work.start_s.tolist(),
            work.end_s.tolist(),
            [names[one] for one in work.type.tolist()],
            before.tolist(),
            called_s.tolist(),
            waited_s,
            waited_for.tolist(),
        )


def _previous(stream: Ints) -> Longs:
    """For each piece of work the one before it on its stream, -1 for the first."""
    order = np.argsort(stream, kind="stable")
    previous = np.full(len(stream), -1, dtype=np.int64)
    same = stream[order][1:] == stream[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _host_waits(rank: Rank) -> tuple[Floats, Longs]:
    """When calls that wait for a device returned, and which work they waited for: the last that ended within."""
    work, events = rank.ran, rank.trace.events
    named = np.array([bool(_WAITS.match(name)) for name in rank.trace.strings], dtype=bool)
    calls = events.of(EventCategory.RUNTIME)
    calls = calls[named[events.name[calls]]] if len(named) else calls
    by_end = np.argsort(work.end_s, kind="stable")
    at = np.searchsorted(work.end_s[by_end], events.end_s[calls], side="right") - 1
    found = by_end[np.maximum(at, 0)]
    waited = (at >= 0) & (work.end_s[found] > events.start_s[calls])
    order = np.argsort(events.end_s[calls[waited]], kind="stable")
    return events.end_s[calls[waited]][order], found[waited][order]


def _walk(graph: _Graph, last: int, begin_s: float) -> list[tuple[float, float, str, int]]:
    """Stretches of the path, the latest first: start, end, part and the work (-1 on the host)."""
    stretches: list[tuple[float, float, str, int]] = []

    def add(start_s: float, end_s: float, part: str, at: int) -> None:
        if end_s > max(start_s, begin_s):
            stretches.append((max(start_s, begin_s), end_s, part, at))

    at, now_s = last, graph.end_s[last]
    while now_s > begin_s:
        start_s = min(graph.start_s[at], now_s)
        add(start_s, now_s, graph.part[at], at)
        before = graph.before[at]
        if before >= 0:
            ended_s = min(graph.end_s[before], start_s)
            add(ended_s, start_s, _GAP, at)
            at, now_s = before, ended_s
            continue
        called_s = min(graph.called_s[at], start_s)
        if called_s == -np.inf:
            add(begin_s, start_s, _GAP, at)
            break
        add(called_s, start_s, _LAUNCH, at)
        wait = int(np.searchsorted(graph.waited_s, called_s, side="right")) - 1
        while wait >= 0 and graph.end_s[graph.waited_for[wait]] >= called_s:
            wait -= 1
        if wait < 0:
            add(begin_s, called_s, _HOST, -1)
            break
        at = graph.waited_for[wait]
        now_s = graph.end_s[at]
        add(now_s, called_s, _HOST, -1)
    return stretches


def _kernels(rank: Rank, stretches: list[tuple[float, float, str, int]]) -> tuple[PathKernel, ...]:
    """Work on the path by name, the most time first."""
    totals: dict[str, list[float]] = {}
    for start_s, end_s, part, at in stretches:
        if at >= 0 and part not in (_LAUNCH, _GAP):
            totals.setdefault(rank.trace.strings[rank.ran.name[at]], []).append(end_s - start_s)
    found = [PathKernel(name, len(times), sum(times)) for name, times in totals.items()]
    return tuple(sorted(found, key=lambda one: (-one.total_s, one.name)))
