"""Reads the work of host threads in a step: time up to each launch, waits for the device, and hand-overs.

Threads that never work at once (the main thread waits while autograd's runs the backward) are one sequence: each call
comes after the one before it, on whichever thread that was. A thread that works concurrently with them is a sequence of
its own, and its long pauses are waits for them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.calls import WAITING
from foretrace.inputs.profiler_trace.rank.steady_steps import SteadySteps, mean_time
from foretrace.inputs.profiler_trace.rank.steps import Steps
from foretrace.inputs.profiler_trace.rank.streams import Streams
from foretrace.inputs.profiler_trace.rank.waits import HostWaits

_AT_ONCE: Final = 0.05
"""Threads that both work during less than this part of the less busy one's time take turns."""

_QUEUE_FULL: Final = "Command Buffer Full"
"""CUPTI lists it as overhead, but it is a launch that waits, profiled or not."""

_PAUSE_S: Final = 100e-6
"""A thread of another sequence that does nothing for this long waits for the main one."""


@dataclass(frozen=True, slots=True)
class Target:
    """Work of a step (a column of the device's) that a call waits for, `steps` steps earlier: 0 or 1."""

    work: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class HostStep:
    """The calls of a step, by column as in `SteadySteps`; times in seconds, where they have rows, step by step."""

    work_s: Floats
    """Up to the launch, or to the start of the wait, from where the call before left off; the first call's also what
    came after the last. Its rows sum to the host's time of a step less its waits."""
    own_s: Floats
    """The time that a call takes after its wait is over; by mean times."""
    thread: Longs
    sequence: Longs
    """Calls of equal number follow each other."""
    targets: tuple[tuple[Target, ...], ...]
    queue: Mask
    """The wait comes before the launch: for room in the queue."""
    resumes: Longs
    """For a call of another sequence after a pause, the call of the main sequence that it waits for; else -1."""
    reach_s: Floats
    """When each call launched, or began to wait, row by row: the end of its `work_s`."""
    left_s: Floats
    """When the host went on after each call, row by row."""
    counts: Counts
    unexplained_s: float
    """Per step: time in waits for which nothing recorded accounts; part of `own_s`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The records on the host up to each call since the one before, rows as in `HostStep`."""

    ops: Longs
    calls: Longs
    annotations: Longs
    python: Longs
    overhead_s: Floats
    """Noted by the profiler itself as its own."""


def host_step(streams: Streams, steps: Steps, steady: SteadySteps, waits: HostWaits, gap_s: Floats) -> HostStep:
    """Returns the host's side of steady steps, given the gap after each column's work."""
    events, calls = streams.trace.events, steady.calls
    begin, end = events.start_s[calls], streams.end_s[calls]
    waited = _Waited(streams, steady, waits)
    thread = events.thread[calls[0]].astype(np.int64) if calls.size else np.empty(0, dtype=np.int64)
    sequence = _sequences(streams, thread)
    launches = np.isin(calls, streams.links.launch[steady.device])
    ready = np.where(launches, begin + streams.launch_s, begin)
    done_s = waited.done_s(end, gap_s)
    blocked = waited.waits & ~waited.queue
    reach = np.where(launches & blocked, np.minimum(ready, np.maximum(begin, done_s - streams.launch_s)), ready)
    reach = np.where(waited.waits & waited.queue, begin, reach)
    left = np.where(waited.waits, end, reach)
    asked = np.isin(streams.does[calls[:1]].ravel(), WAITING)
    lost = asked & ~waited.waits
    reach, left = np.where(lost, begin, reach), np.where(lost, end, left)
    # By mean times, as on the device: the mean of what is later is later than the later of the means.
    since = np.fmin(mean_time(end - begin), mean_time(end - np.where(waited.waits, done_s, -np.inf)))
    own = np.where(waited.waits | lost, since, 0.0)
    work, resumes = _work_s(streams, steps, steady, sequence, reach, left)
    return HostStep(
        work_s=work,
        own_s=np.maximum(own, 0.0),
        thread=thread,
        sequence=sequence,
        targets=waited.targets,
        queue=waited.queue,
        resumes=resumes,
        reach_s=reach,
        left_s=left,
        counts=_counts(streams, steps, steady, sequence),
        unexplained_s=float(np.where(lost, end - begin, 0.0).mean(axis=0).sum()) if calls.size else 0.0,
    )


class _Waited:
    """The work that the calls of a step wait for, agreed on by most of the steps."""

    def __init__(self, streams: Streams, steady: SteadySteps, waits: HostWaits) -> None:
        self.streams, self.steady = streams, steady
        of_call: dict[int, list[int]] = {}
        queued: set[int] = set()
        for call, target, queue in zip(waits.call.tolist(), waits.target.tolist(), waits.queue.tolist(), strict=True):
            of_call.setdefault(call, []).append(target)
            if queue:
                queued.add(call)
        self._of_call = of_call
        self.queue = np.isin(steady.calls, list(queued)).mean(axis=0) >= 0.5 if steady.calls.size else np.empty(0, bool)
        place = steady.place
        self.targets = tuple(self._agreed(column, place) for column in range(steady.calls.shape[1]))
        self.waits = np.array([bool(targets) for targets in self.targets], dtype=bool)

    def _agreed(self, column: int, place: dict[int, tuple[int, int]]) -> tuple[Target, ...]:
        rows = len(self.steady.steps)
        counts: Counter[Target] = Counter()
        for row in range(rows):
            for target in self._of_call.get(int(self.steady.calls[row, column]), ()):
                agreed = self._column(row, target, place)
                if agreed is not None:
                    counts[agreed] += 1
        return tuple(target for target, count in counts.items() if count >= rows / 2)

    def _column(self, row: int, target: int, place: dict[int, tuple[int, int]]) -> Target | None:
        """Returns the column that a call of this row's step waits for, and how many steps earlier; None if unknown."""
        steady, streams = self.steady, self.streams
        if target in place:
            source, column = place[target]
            apart = int(steady.steps[row] - steady.steps[source])
            return Target(column, apart) if apart in (0, 1) else None
        # Launched before this step in one that is not taken: steps repeat, and the last of its stream stands for it.
        same = np.flatnonzero(streams.key[steady.device[row]] == streams.key[target])
        return Target(int(same[-1]), 1) if len(same) and len(steady.steps) > 1 else None

    def done_s(self, end: Floats, gap_s: Floats) -> Floats:
        """Returns when the work that each call waits for was done, with the gap after it, at the latest when it
        returned."""
        ended = self.streams.end_s + self.streams.gap_s
        ended[self.steady.device] = self.streams.end_s[self.steady.device] + gap_s
        done = np.full(self.steady.calls.shape, -np.inf)
        for column in np.flatnonzero(self.waits).tolist():
            for row in range(len(done)):
                ends = [float(ended[event]) for event in self._of_call.get(int(self.steady.calls[row, column]), ())]
                done[row, column] = max(ends, default=-np.inf)
        return np.asarray(np.minimum(done, end))


def _work_s(
    streams: Streams, steps: Steps, steady: SteadySteps, sequence: Longs, reach: Floats, left: Floats
) -> tuple[Floats, Longs]:
    """Returns the host time up to each call, and the main sequence's call that calls of other sequences wait for."""
    work = np.zeros(steady.calls.shape)
    resumes = np.full(steady.calls.shape[1], -1, dtype=np.int64)
    start, end = steps.start_s[steady.steps], steps.end_s[steady.steps]
    for number in np.unique(sequence).tolist():
        at = np.flatnonzero(sequence == number)
        since = np.column_stack([start, left[:, at[:-1]]])
        work[:, at] = reach[:, at] - since
        work[:, at[0]] += end - left[:, at[-1]]
        if number:
            pauses = _pauses_s(streams, steps, steady, at)
            work[:, at] = np.maximum(work[:, at] - pauses, 0.0)
            main = np.flatnonzero(sequence == 0)
            for column in at[pauses.mean(axis=0) > 0].tolist():
                before = main[left[0, main] <= reach[0, column]]
                resumes[column] = int(before[-1]) if len(before) else -1
    return np.maximum(work, 0.0), resumes


def _pauses_s(streams: Streams, steps: Steps, steady: SteadySteps, at: Longs) -> Floats:
    """Returns how long a thread did nothing that was recorded before each of its calls, short pauses excepted.

    The pause after the last call counts before the first.
    """
    events = streams.trace.events
    thread = int(events.thread[steady.calls[0, at[0]]])
    mine = np.flatnonzero(
        (events.thread == thread) & np.isin(events.category, (EventCategory.CPU_OP, EventCategory.RUNTIME))
    )
    reached = np.maximum.accumulate(streams.end_s[mine])
    pause = np.maximum(events.start_s[mine] - np.append(events.start_s[mine][:1], reached[:-1]), 0.0)
    total = np.append(0.0, np.cumsum(np.where(pause > _PAUSE_S, pause, 0.0)))
    upto = total[np.searchsorted(mine, steady.calls[:, at]) + 1]
    # A pause counts where it ends, so that one between two steps counts once.
    start, end = (
        total[np.searchsorted(events.start_s[mine], edge_s[steady.steps])] for edge_s in (steps.start_s, steps.end_s)
    )
    pauses_s = np.diff(upto, axis=1, prepend=start[:, None])
    pauses_s[:, 0] += end - upto[:, -1]
    return pauses_s


def _sequences(streams: Streams, thread: Longs) -> Longs:
    """Returns 0 for calls of threads that take turns with the busiest caller, else a number for each thread."""
    if not len(thread):
        return thread
    threads, counts = np.unique(thread, return_counts=True)
    main = int(threads[np.argmax(counts)])
    busy = {int(thread): _busy(streams, int(thread)) for thread in threads}
    number = {main: 0}
    for other in threads.tolist():
        if other == main:
            continue
        less = min(_length_s(busy[other]), _length_s(busy[main]))
        number[other] = 0 if _both_s(busy[other], busy[main]) <= _AT_ONCE * less else max(number.values()) + 1
    return np.array([number[int(other)] for other in thread], dtype=np.int64)


def _busy(streams: Streams, thread: int) -> Floats:
    """Returns the stretches in which a thread was in an op or a call: rows of start and end."""
    events = streams.trace.events
    mine = (events.thread == thread) & np.isin(events.category, (EventCategory.CPU_OP, EventCategory.RUNTIME))
    begin, reached = events.start_s[mine], np.maximum.accumulate(streams.end_s[mine])
    first = np.append(True, begin[1:] > reached[:-1])
    last = np.append(np.flatnonzero(first)[1:] - 1, len(begin) - 1)
    return np.column_stack([begin[first], reached[last]])


def _length_s(busy: Floats) -> float:
    return float((busy[:, 1] - busy[:, 0]).sum())


def _both_s(first: Floats, second: Floats) -> float:
    """Returns how long two threads were both busy."""
    times = np.concatenate([first.ravel(), second.ravel()])
    change = np.concatenate([np.tile([1, -1], len(first)), np.tile([1, -1], len(second))])
    order = np.lexsort((change, times))
    depth = np.cumsum(change[order])
    return float(np.diff(times[order])[depth[:-1] >= 2].sum())


def _counts(streams: Streams, steps: Steps, steady: SteadySteps, sequence: Longs) -> Counts:
    """Counts the records since the call before, by category, on the threads of each sequence."""
    events = streams.trace.events
    threads = {n: np.unique(events.thread[steady.calls[0, sequence == n]]) for n in np.unique(sequence).tolist()}
    full = streams.trace.named(lambda name: name.startswith(_QUEUE_FULL))

    def counted(category: EventCategory, weights: bool = False) -> Floats:
        counts = np.zeros(steady.calls.shape)
        for number, those in threads.items():
            at = np.flatnonzero(sequence == number)
            mine = (events.category == category) & ~full
            mine &= np.isin(events.thread, those) | (category == EventCategory.OVERHEAD)
            begin = events.start_s[mine]
            total = np.append(0.0, np.cumsum(events.duration_s[mine] if weights else np.ones(len(begin))))
            bounds = np.column_stack([steps.start_s[steady.steps], events.start_s[steady.calls[:, at]]])
            upto = total[np.searchsorted(begin, bounds, side="right")]
            counts[:, at] = np.diff(upto, axis=1)
            rest = total[np.searchsorted(begin, steps.end_s[steady.steps])] - upto[:, -1]
            counts[:, at[0]] += rest
        return counts

    ops, calls, marks, python = (
        np.rint(counted(category)).astype(np.int64)
        for category in (EventCategory.CPU_OP, EventCategory.RUNTIME, EventCategory.ANNOTATION, EventCategory.PYTHON)
    )
    return Counts(ops, calls, marks, python, counted(EventCategory.OVERHEAD, weights=True))
