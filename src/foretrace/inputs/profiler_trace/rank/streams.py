"""The streams of a trace: the work queued on each, the time of launches and gaps, and waits between streams.

Where the driver recorded waits with both streams (cuda_sync), they are used as they are. Otherwise a wait is known only
by its call, with the stream that waits (cuda_sync of PyTorch 2.11 with CUDA 13) or without, and is inferred from when
work began.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.calls import Does, does
from foretrace.inputs.profiler_trace.rank.links import EventLinks

MAX_GAP_S: Final = 10e-6
"""Between kernels queued back to back; a longer pause has a reason of its own. Measured gaps are 0.8 to 5 µs."""

DEFAULT_GAP_S: Final = 1.2e-6
"""Where no two kernels of a trace follow each other back to back (A100 and H200 traces: medians 1.2 to 1.6 µs)."""

MAX_LAUNCH_S: Final = 30e-6
DEFAULT_LAUNCH_S: Final = 8e-6
"""From a launch to the start on an idle stream, where a trace does not show it (A100, H200 traces: medians 6 to 13)."""

SOON_S: Final = 8e-6
"""After the end of what it waited for, work on another stream has begun by then: an event and a gap."""

CLOCK_S: Final = 1e-6
"""Older traces round to whole microseconds."""


class Streams:
    """Work on devices, stream by stream in the order of launches; what has none was launched before the trace began."""

    def __init__(self, trace: RankProfile, links: EventLinks) -> None:
        self.trace, self.links = trace, links
        events = trace.events
        device = events.of(*ON_DEVICE)
        self.end_s = events.end_s
        self.does = does(trace)
        """The effect of each event as a runtime call."""
        self.issued_s = np.nan_to_num(links.issued_s, nan=-np.inf)
        key = events.device[device].astype(np.int64) * (1 << 32) + events.stream[device]
        self.key = np.full(len(events), -1, dtype=np.int64)
        """The stream of each event on a device, one number for device and stream."""
        self.key[device] = key
        self.queued = device[np.lexsort((events.start_s[device], self.issued_s[device], key))]
        """Stream by stream, each in the order of launches (of one launch: of starts)."""

    @cached_property
    def previous(self) -> Longs:
        """For each event the one before it on its stream, -1 for the first."""
        previous = np.full(len(self.key), -1, dtype=np.int64)
        same = np.flatnonzero(np.diff(self.key[self.queued]) == 0)
        previous[self.queued[same + 1]] = self.queued[same]
        return previous

    @cached_property
    def _by_stream(self) -> dict[int, tuple[Longs, Floats]]:
        starts = np.flatnonzero(np.diff(self.key[self.queued], prepend=-2))
        parts = np.split(self.queued, starts[1:])
        return {int(self.key[part[0]]): (part, self.issued_s[part]) for part in parts if len(part)}

    @property
    def keys(self) -> tuple[int, ...]:
        """All streams."""
        return tuple(self._by_stream)

    def last_before(self, key: int, at_s: Floats) -> Longs:
        """Returns the last work launched on a stream before each of these times, -1 for none."""
        part, issued = self._by_stream.get(key, (np.empty(0, dtype=np.int64), np.empty(0)))
        return np.append(part, -1)[np.searchsorted(issued, at_s) - 1]

    def first_after(self, key: int, at_s: Floats) -> Longs:
        """Returns the first work launched on a stream from each of these times on, -1 for none."""
        part, issued = self._by_stream.get(key, (np.empty(0, dtype=np.int64), np.empty(0)))
        return np.append(part, -1)[np.searchsorted(issued, at_s)]

    @cached_property
    def launch_s(self) -> float:
        """From the start of a launch's call to the start of the work on a stream that has nothing to do."""
        events, at = self.trace.events, self.queued
        free = (self.free_s[at] < self.issued_s[at]) & (self.links.launch[at] >= 0)
        delays = (events.start_s[at] - self.issued_s[at])[free]
        delays = delays[delays < MAX_LAUNCH_S]
        return float(np.median(delays)) if len(delays) >= 8 else DEFAULT_LAUNCH_S

    @cached_property
    def ready_s(self) -> Floats:
        """When each event's launch had reached the device; NaN where there is none."""
        events = self.trace.events
        ready = np.full(len(events), np.nan)
        at = self.queued[self.links.launch[self.queued] >= 0]
        ready[at] = np.minimum(self.issued_s[at] + self.launch_s, events.start_s[at])
        return ready

    @cached_property
    def free_s(self) -> Floats:
        """When the work before each event on its stream had ended; -inf for the first."""
        before = self.previous
        return np.where(before >= 0, self.end_s[before], -np.inf)

    @cached_property
    def gap_before_s(self) -> Floats:
        """From the end of the work before it to the start of each event, where the two were queued back to back; NaN
        elsewhere. Kernels that overlap their predecessor (programmatic launch) have a negative one."""
        events = self.trace.events
        gap = events.start_s - self.free_s
        with np.errstate(invalid="ignore"):
            queued = (self.issued_s + self.launch_s < self.free_s) | (self.links.launch < 0) | (gap < 0)
            return np.where(queued & (gap < MAX_GAP_S), gap, np.nan)

    @cached_property
    def gap_s(self) -> float:
        """The usual gap between two kernels queued back to back."""
        gaps = self.gap_before_s[~np.isnan(self.gap_before_s)]
        return float(np.median(gaps)) if len(gaps) else DEFAULT_GAP_S


@dataclass(frozen=True, slots=True)
class CrossWaits:
    """Work that waits for work on another stream: `after` begins when `before` has ended."""

    before: Longs
    after: Longs
    exact: int
    """How many of them, the first, were recorded as waits; the rest is inferred."""

    @property
    def inferred(self) -> int:
        """How many follow from calls and times."""
        return len(self.before) - self.exact


def cross_waits(streams: Streams) -> CrossWaits:
    """Returns the waits of streams for each other in a trace."""
    if len(streams.keys) < 2:
        none = np.empty(0, dtype=np.int64)
        return CrossWaits(none, none, 0)
    recorded, waits_known = _recorded(streams)
    known = set(recorded)
    called = [] if waits_known else [pair for pair in _by_calls(streams) if pair not in known]
    known.update(called)
    seen = [pair for pair in _by_times(streams, known) if pair not in known]
    pairs = np.array([*recorded, *called, *seen], dtype=np.int64).reshape(-1, 2)
    return CrossWaits(pairs[:, 0], pairs[:, 1], len(recorded))


def _recorded(streams: Streams) -> tuple[list[tuple[int, int]], bool]:
    """Returns waits of streams as the driver recorded them, and whether it recorded any."""
    trace, links = streams.trace, streams.links
    events = trace.events
    waits = events.of(EventCategory.SYNC)
    waits = waits[(events.waits_stream[waits] >= 0) & (events.stream[waits] >= 0)]
    waits = waits[events.waits_stream[waits] != events.stream[waits]]
    pairs: list[tuple[int, int]] = []
    calls = events.of(EventCategory.RUNTIME)
    at_mark = dict(zip(events.correlation[calls].tolist(), events.start_s[calls].tolist(), strict=True))
    for wait in waits.tolist():
        issued = float(events.start_s[links.launch[wait]]) if links.launch[wait] >= 0 else float(events.start_s[wait])
        marked = at_mark.get(int(events.waits_correlation[wait]), issued)
        base = int(events.device[wait]) * (1 << 32)
        before = int(streams.last_before(base + int(events.waits_stream[wait]), np.array([marked]))[0])
        after = int(streams.first_after(base + int(events.stream[wait]), np.array([issued]))[0])
        if before >= 0 and after >= 0:
            pairs.append((before, after))
    return list(dict.fromkeys(pairs)), bool(len(waits))


def _by_calls(streams: Streams) -> list[tuple[int, int]]:
    """Infers waits of which not both streams were recorded.

    If the stream that waits was not recorded, it is that of the thread's next launch. Its next work waits for the work
    that ended last of all that other streams had been given by then, unless that ended after it had begun.
    """
    trace, links = streams.trace, streams.links
    events = trace.events
    holds = _held_streams(streams)
    calls = np.flatnonzero(streams.does == Does.HOLDS_STREAM)
    launched = streams.queued[links.launch[streams.queued] >= 0]
    launched = launched[np.argsort(streams.issued_s[launched], kind="stable")]
    thread = events.thread[links.launch[launched]]
    pairs: list[tuple[int, int]] = []
    waited: dict[tuple[int, int], int] = {}
    for caller in np.unique(events.thread[calls]).tolist():
        mine = launched[thread == caller]
        own_calls = calls[events.thread[calls] == caller]
        following = np.searchsorted(streams.issued_s[mine], events.start_s[own_calls])
        given = {key: streams.last_before(key, events.start_s[own_calls]) for key in streams.keys}
        for position, (call, at) in enumerate(zip(own_calls.tolist(), following.tolist(), strict=True)):
            if call in holds:
                after = int(streams.first_after(holds[call], events.start_s[[call]])[0])
            else:
                after = int(mine[at]) if at < len(mine) else -1
            if after < 0:
                continue
            key = int(streams.key[after])
            best = _waited_for(streams, {k: int(g[position]) for k, g in given.items() if k != key}, after, waited)
            if best >= 0:
                waited[int(streams.key[best]), key] = best
                pairs.append((best, after))
    return list(dict.fromkeys(pairs))


def _held_streams(streams: Streams) -> dict[int, int]:
    """Returns, by call, the stream it makes wait, where that was recorded."""
    events = streams.trace.events
    waits = events.of(EventCategory.SYNC)
    call = streams.links.launch[waits]
    known = (events.stream[waits] >= 0) & (call >= 0)
    known[known] = streams.does[call[known]] == Does.HOLDS_STREAM
    key = np.maximum(events.device[waits], 0).astype(np.int64) * (1 << 32) + events.stream[waits]
    return dict(zip(call[known].tolist(), key[known].tolist(), strict=True))


def _waited_for(streams: Streams, given: dict[int, int], after: int, waited: dict[tuple[int, int], int]) -> int:
    """Returns which of the last works of other streams `after` waits for; -1 for none."""
    events = streams.trace.events
    key = int(streams.key[after])
    began = float(events.start_s[after])
    ends = {
        work: float(streams.end_s[work])
        for other, work in given.items()
        if work >= 0 and waited.get((other, key)) != work and streams.end_s[work] <= began + CLOCK_S
    }
    return max(ends, key=lambda work: ends[work], default=-1)


def _by_times(streams: Streams, known: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Infers waits from work that began later than its launch, its stream and its known waits explain.

    It waits for work on another stream that had just ended and was launched before: by a wait that was not recorded, or
    because the GPU had no room.
    """
    events = streams.trace.events
    late = streams.queued[unexplained_s(streams, known)[streams.queued] > MAX_GAP_S]
    work = streams.queued[np.argsort(streams.end_s[streams.queued], kind="stable")]
    ends = streams.end_s[work]
    last = np.searchsorted(ends, events.start_s[late] + CLOCK_S, side="right")
    first = np.searchsorted(ends, events.start_s[late] - SOON_S)
    pairs: list[tuple[int, int]] = []
    for after, low, high in zip(late.tolist(), first.tolist(), last.tolist(), strict=True):
        near = work[low:high]
        near = near[(streams.key[near] != streams.key[after]) & (streams.issued_s[near] <= streams.issued_s[after])]
        near = near[events.start_s[near] < events.start_s[after]]
        if len(near):
            pairs.append((int(near[-1]), after))
    return pairs


def unexplained_s(streams: Streams, waits: set[tuple[int, int]]) -> Floats:
    """Returns how much later each event on a device began than its launch, its stream and these waits explain."""
    events = streams.trace.events
    explained = np.maximum(np.nan_to_num(streams.ready_s, nan=-np.inf), streams.free_s)
    if waits:
        pairs = np.array(sorted(waits), dtype=np.int64)
        np.maximum.at(explained, pairs[:, 1], streams.end_s[pairs[:, 0]])
    late = np.full(len(events), 0.0)
    at = streams.queued
    late[at] = np.maximum(events.start_s[at] - explained[at], 0.0)
    return late
