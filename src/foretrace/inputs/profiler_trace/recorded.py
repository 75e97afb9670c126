"""The recorded step of a job as a timeline: true starts and ends, with every gap as an op.

The median steady step counts, by the longest time that any rank took for it. Its time is the period: to the
start of the next step, on the host or on the device, whichever sets the pace (`rank/recorded_time.py`).

An op ends where it was recorded to end, with three exceptions, each of which keeps it from running at the same time as
what waits for it:

- A kernel that overlaps its successor on the stream (programmatic dependent launch) ends where the successor begins.
- A launch is over once the first of what it launched has begun, at the latest `Streams.launch_s` after its call.
- A kernel that ends up to `CLOCK_S` after what waited for it has begun ends there: clocks are no more exact.

Work that ran in another order than it was launched in keeps its times. A wait that most steps have, but not this one,
is left out. A collective begins when the last of its members has come:
its shortest time on any rank before it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.profiler_trace.job.ranks import MatchedCall
from foretrace.inputs.profiler_trace.program import JobProfile
from foretrace.inputs.profiler_trace.rank.device import Wait
from foretrace.inputs.profiler_trace.rank.host import Target
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep
from foretrace.inputs.profiler_trace.rank.recorded_time import from_idle
from foretrace.inputs.profiler_trace.rank.streams import CLOCK_S, MAX_LAUNCH_S, SOON_S
from foretrace.inputs.profiler_trace.write_step import BETWEEN_KERNELS, IDLE, LAUNCHING, StepWriter, Times
from foretrace.program.expand import expand
from foretrace.program.fold import fold
from foretrace.program.timeline import Timeline

_STREAM, _LAUNCH, _WAIT = range(3)
"""The last thing that work on a stream waited for: the work before it, its launch, or work on another stream."""

_NAMES: Final = {_STREAM: BETWEEN_KERNELS, _LAUNCH: LAUNCHING, _WAIT: BETWEEN_KERNELS}


def recorded_timeline(profile: JobProfile) -> Timeline:
    """Returns the times of the median recorded step."""
    name = median_step(profile.ranks)
    period_s = max(_period_s(rank, name) for rank in profile.ranks)
    if period_s <= 0:
        raise InputError(
            "nothing-to-do",
            f"{name} takes no time",
            where=profile.ranks[0].trace.path,
            hint="record whole steps, with device activities: profile(activities=[CPU, CUDA])",
        )
    steps = [
        _RecordedStep(rank, name, period_s, offset_s)
        for rank, offset_s in zip(profile.ranks, _offsets_s(profile, name, period_s), strict=True)
    ]
    note = Diagnostic("note", "one-of-several", f"as measured: {name}, the median step, {period_s * 1e3:.2f} ms")
    program, writers = profile.written(
        [(step.rank, step.times) for step in steps], [note, *profile.reading_notes()], held_by_queue=False
    )
    trace_of = {rank: at for at in writers for rank in profile.meetings.ranks[at]}
    graph = fold(expand(program))
    traces = [trace_of[rank] for rank in graph.classes.representative.tolist()]
    times = [steps[at].node_times(writers[at], profile.meetings.calls[at]) for at in traces]
    ready, start, end = np.concatenate(times, axis=1)
    origin_s = float(start.min())
    ready, start, end = ready - origin_s, start - origin_s, end - origin_s
    # Steps vary: what this step runs past its end may reach further than what the step before left to it.
    end_before = end - period_s
    np.minimum.at(end_before, graph.next_src, ready[graph.next_dst])
    return Timeline(graph, ready, start, end, end_before, period_s, steps_run=0, origin_s=origin_s)


def _offsets_s(profile: JobProfile, name: str, period_s: float) -> list[float]:
    """Returns what to subtract from the times of each trace.

    A step that begins more than a period before or after that of the first trace is on a clock that no collective has
    set. Both are then taken to begin together.
    """
    offsets = list(profile.meetings.offsets_s)
    begins = [float(rank.steps.start_s[rank.steady.steps[_row(rank, name)]]) for rank in profile.ranks]
    for trace, begin_s in enumerate(begins):
        apart_s = (begin_s - offsets[trace]) - (begins[0] - offsets[0])
        offsets[trace] += apart_s if abs(apart_s) > period_s else 0.0
    return offsets


def median_step(ranks: Sequence[RankStep]) -> str:
    """Returns the name of the step that takes the median time (of an even number, the shorter of the middle two).

    Where the device sets the pace, a step that began on an idle device is not typical: it counts only if it is alone.
    """
    names = [ranks[0].steps.names[at] for at in ranks[0].steady.steps]
    busy = [name for name in names if not any(_from_idle(rank, name) for rank in ranks)] or names
    times = [max(_period_s(rank, name) for rank in ranks) for name in busy]
    return str(busy[int(np.argsort(times, kind="stable")[(len(times) - 1) // 2])])


def _from_idle(rank: RankStep, name: str) -> bool:
    return rank.recorded.bound == "device" and from_idle(
        rank.streams, rank.steps, int(rank.steady.steps[_row(rank, name)])
    )


def _row(rank: RankStep, name: str) -> int:
    return [rank.steps.names[at] for at in rank.steady.steps].index(name)


def _period_s(rank: RankStep, name: str) -> float:
    """Returns the time of a step; without work on the busiest stream, the longer of its host's and its work's."""
    row = _row(rank, name)
    step = rank.steady.steps[row]
    period_s = float(rank.recorded.step_s[step])
    if period_s > 0:
        return period_s
    events, work = rank.trace.events, rank.steady.device[row]
    return max(float(rank.recorded.host_s[step]), float(np.ptp(events.end_s[work]) + events.duration_s[work].max()))


class _RecordedStep:
    """One step of one rank.

    `rank` is the rank with this step alone. `start_s` and `end_s` are of work on devices, `reach_s` and `left_s` of
    calls, by column; all on the host clock of the job's first trace.
    """

    def __init__(self, rank: RankStep, name: str, period_s: float, offset_s: float) -> None:
        row = _row(rank, name)
        self.period_s = period_s
        events = rank.trace.events
        work = rank.steady.device[row]
        self.start_s = events.start_s[work] - offset_s
        self.end_s = self.start_s + events.duration_s[work]
        self.reach_s = rank.host.reach_s[row] - offset_s
        self.left_s = np.maximum(rank.host.left_s[row] - offset_s, self.reach_s)
        self._begin_s = float(rank.steps.start_s[rank.steady.steps[row]]) - offset_s
        self._host_bound = rank.recorded.bound == "host"
        self._queued_gap_s = rank.streams.gap_before_s[work]
        waits = self._clip_to_successors(rank)
        self._clip_launches(rank)
        targets = self._clip_to_calls(rank)
        steady = replace(rank.steady, steps=rank.steady.steps[[row]], device=work[None], calls=rank.steady.calls[[row]])
        device = replace(rank.device, waits=waits)
        resumes = rank.host.resumes
        resumes = np.where((resumes >= 0) & (self.left_s[resumes] <= self.reach_s), resumes, -1)
        host = replace(rank.host, targets=targets, resumes=resumes)
        self.rank = replace(rank, steady=steady, device=device, host=host)
        self.begun_s = self._begun_s()
        self.waited_s = self._waited_s()
        self.explained_s, gaps = self._explained()
        self.times = Times(
            self.reach_s - self.begun_s,
            self.left_s - self.waited_s,
            self.end_s - self.start_s,
            np.zeros(len(work)),
            self.start_s - self.explained_s,
            gaps=gaps,
        )

    def node_times(self, writer: StepWriter, calls: Mapping[int, MatchedCall]) -> Floats:
        """Returns when the ops that a writer wrote were ready, started and ended, `[3, ops]`."""
        events = self.rank.steady.device[0].tolist()
        times = np.zeros((3, len(writer.written)))
        for node, (kind, column) in enumerate(writer.written):
            if kind == "call":
                times[:, node] = self.begun_s[column], self.begun_s[column], self.reach_s[column]
            elif kind == "wait":
                times[:, node] = self.waited_s[column], self.waited_s[column], self.left_s[column]
            elif kind == "gap":
                times[:, node] = self.explained_s[column], self.explained_s[column], self.start_s[column]
            else:
                start_s, end_s = self.start_s[column], self.end_s[column]
                call = calls.get(events[column])
                begins_s = start_s if call is None else max(start_s, end_s - call.duration_s)
                times[:, node] = start_s, begins_s, end_s
        return times

    def _clip_to_successors(self, rank: RankStep) -> tuple[Wait, ...]:
        """Ends kernels where what follows them begins, and returns the waits between streams that hold in this step."""
        for before, after, steps in _in_turn(rank.device.stream):
            if not steps and self.start_s[before] <= self.start_s[after]:
                self.end_s[before] = min(self.end_s[before], self.start_s[after])
        held = []
        for wait in rank.device.waits:
            begins_s = self.start_s[wait.after] + wait.steps * self.period_s
            if self.end_s[wait.before] <= begins_s + CLOCK_S and self.start_s[wait.before] <= begins_s:
                held.append(wait)
                if not wait.steps:
                    self.end_s[wait.before] = min(self.end_s[wait.before], begins_s)
        self.end_s = np.maximum(self.end_s, self.start_s)
        return tuple(held)

    def _clip_to_calls(self, rank: RankStep) -> tuple[tuple[Target, ...], ...]:
        """Returns what calls wait for, without what ended after they had returned."""
        held: list[tuple[Target, ...]] = []
        for call, targets in enumerate(rank.host.targets):
            kept = []
            for target in targets:
                returns_s = self.left_s[call] + target.steps * self.period_s
                if self.end_s[target.work] <= returns_s + CLOCK_S and self.start_s[target.work] <= returns_s:
                    kept.append(target)
                    if not target.steps:
                        self.end_s[target.work] = min(self.end_s[target.work], returns_s)
            held.append(tuple(kept))
        return tuple(held)

    def _clip_launches(self, rank: RankStep) -> None:
        """Ends launches where the first of what they launched begins."""
        for column, call in enumerate(rank.device.call.tolist()):
            if call < 0:
                continue
            waits = bool(rank.host.targets[call]) or rank.host.own_s[call] > 0
            if waits and rank.host.queue[call]:
                self.left_s[call] = min(self.left_s[call], self.start_s[column])
            else:
                self.reach_s[call] = min(self.reach_s[call], self.start_s[column])
                if not waits:
                    self.left_s[call] = self.reach_s[call]
        for number in np.unique(rank.host.sequence).tolist():
            calls = np.flatnonzero(rank.host.sequence == number)[::-1]
            for call, following in zip(calls.tolist(), [-1, *calls[:-1].tolist()], strict=True):
                if following >= 0:
                    self.left_s[call] = min(self.left_s[call], self.reach_s[following])
                self.reach_s[call] = min(self.reach_s[call], self.left_s[call])

    def _begun_s(self) -> Floats:
        """Returns when the host began to work towards each call: when it went on after the one before."""
        host = self.rank.host
        begun_s = np.empty(len(self.reach_s))
        for number in np.unique(host.sequence).tolist():
            calls = np.flatnonzero(host.sequence == number)
            begun_s[calls[1:]] = self.left_s[calls[:-1]]
            begun_s[calls[0]] = self.left_s[calls[-1]] - self.period_s if self._host_bound else self._begin_s
        for call in np.flatnonzero(host.resumes >= 0).tolist():
            begun_s[call] = max(begun_s[call], self.left_s[host.resumes[call]])
        return np.asarray(np.minimum(begun_s, self.reach_s))

    def _waited_s(self) -> Floats:
        """Returns when what each call waits for was done."""
        done_s = self.reach_s.copy()
        for call, targets in enumerate(self.rank.host.targets):
            ends_s = [self.end_s[target.work] - target.steps * self.period_s for target in targets]
            done_s[call] = max([done_s[call], *ends_s])
        return np.asarray(np.minimum(done_s, self.left_s))

    def _explained(self) -> tuple[Floats, tuple[str, ...]]:
        """Returns when each work could have begun, and what the gap from then to its start is called."""
        rank = self.rank
        latest: list[tuple[float, int]] = [(-np.inf, _STREAM)] * len(self.start_s)
        for before, after, steps in _in_turn(rank.device.stream):
            latest[after] = self.end_s[before] - steps * self.period_s, _STREAM
        for wait in rank.device.waits:
            latest[wait.after] = max(latest[wait.after], (self.end_s[wait.before] - wait.steps * self.period_s, _WAIT))
        for column, call in enumerate(rank.device.call.tolist()):
            if call >= 0:
                queued = rank.host.queue[call] and (bool(rank.host.targets[call]) or rank.host.own_s[call] > 0)
                issued_s = self.left_s[call] if queued else self.reach_s[call]
                latest[column] = max(latest[column], (float(issued_s), _LAUNCH))
        # What the step before left running past the start of this one was over by then, whatever this step leaves.
        explained_s = np.minimum(np.array([moment for moment, _ in latest]), self.start_s)
        explained_s = np.where(np.isfinite(explained_s), explained_s, self.start_s)
        return explained_s, tuple(self._gap_names(explained_s, [cause for _, cause in latest]))

    def _gap_names(self, explained_s: Floats, causes: Sequence[int]) -> Iterable[str]:
        longest = {_STREAM: np.inf, _LAUNCH: MAX_LAUNCH_S, _WAIT: SOON_S}
        for column, cause in enumerate(causes):
            back_to_back = cause != _STREAM or not np.isnan(self._queued_gap_s[column])
            short = self.start_s[column] - explained_s[column] <= longest[cause]
            yield _NAMES[cause] if back_to_back and short else IDLE


def _in_turn(stream: Longs) -> Iterable[tuple[int, int, int]]:
    """Yields pairs of work that follow each other on a stream: (before, after, steps between them: 0 or 1)."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for column, key in enumerate(stream.tolist()):
        if key in last:
            yield last[key], column, 0
        first.setdefault(key, column)
        last[key] = column
    for key, column in last.items():
        yield column, first[key], 1
