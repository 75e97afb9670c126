"""Reads the work of streams in a step: its own time, the gap after it, its waits, and idle time of unknown cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.inputs.profiler_trace.rank.steady_steps import SteadySteps, mean_time
from foretrace.inputs.profiler_trace.rank.streams import CLOCK_S, MAX_GAP_S, CrossWaits, Streams

EARLY_S = 50e-6
"""A launch so long before its start was not what held work up."""


@dataclass(frozen=True, slots=True, order=True)
class Wait:
    """Work `after` of a step (a column) begins when `before` has ended, `steps` steps earlier: 0 or 1."""

    before: int
    after: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The work of a step on devices, by column as in `SteadySteps`; times are means over the steps, in seconds."""

    busy_s: Floats
    gap_s: Floats
    """After it, before the next on its stream can begin; negative where the next begins before it ends."""
    idle_s: Floats
    """Before it, for a reason that was not recorded, or because steps vary."""
    idle_early: Mask
    """That idle time cannot be the launch's: it came long before."""
    call: Longs
    """The column of the call that launched it; -1 where none was recorded."""
    stream: Longs
    """By `Streams.key`."""
    waits: tuple[Wait, ...]
    exact_waits: int
    """How many of the waits the driver recorded; the others are inferred."""


def device_step(streams: Streams, steady: SteadySteps, cross: CrossWaits) -> DeviceStep:
    """Returns the device's side of steady steps."""
    events = streams.trace.events
    device = steady.device
    place = steady.place
    exact = voted(steady, place, zip(cross.before[: cross.exact], cross.after[: cross.exact], strict=True))
    inferred = voted(steady, place, zip(cross.before[cross.exact :], cross.after[cross.exact :], strict=True))
    waits = (*exact, *(wait for wait in inferred if wait not in set(exact)))
    gap_s = _gaps_s(streams, device)
    late = _late_s(streams, steady, waits, gap_s)
    early = (events.start_s[device] - streams.issued_s[device]).min(axis=0) > EARLY_S
    launch = streams.links.launch[device[0]]
    call = np.where(launch >= 0, np.searchsorted(steady.calls[0], launch), -1)
    return DeviceStep(
        busy_s=events.duration_s[device].mean(axis=0),
        gap_s=gap_s,
        idle_s=np.where(late > np.where(early, CLOCK_S, MAX_GAP_S), late, 0.0),
        idle_early=early,
        call=call,
        stream=streams.key[device[0]],
        waits=waits,
        exact_waits=len(exact),
    )


def voted(steady: SteadySteps, place: dict[int, tuple[int, int]], pairs: Iterable[tuple[int, int]]) -> tuple[Wait, ...]:
    """Returns waits between columns: waits between events in more than half of the steps where they could be."""
    rows = len(steady.steps)
    follows = int((np.diff(steady.steps) == 1).sum())
    counts: Counter[Wait] = Counter()
    for before, after in pairs:
        source, target = place.get(int(before)), place.get(int(after))
        if source is None or target is None:
            continue
        apart = int(steady.steps[target[0]] - steady.steps[source[0]])
        if apart in (0, 1) and (apart == 1 or source[1] < target[1]):
            counts[Wait(source[1], target[1], apart)] += 1
    return tuple(sorted(wait for wait, count in counts.items() if count > (follows if wait.steps else rows) / 2))


def _gaps_s(streams: Streams, device: Longs) -> Floats:
    """Returns the mean gap of each column to the next work on its stream, over the steps in which that was queued by
    then."""
    following = np.full(len(streams.key), -1, dtype=np.int64)
    known = np.flatnonzero(streams.previous >= 0)
    following[streams.previous[known]] = known
    after = following[device]
    gaps = np.where(after >= 0, streams.gap_before_s[after], np.nan)
    counted = (~np.isnan(gaps)).sum(axis=0)
    total = np.nansum(gaps, axis=0)
    return np.where(counted > 0, total / np.maximum(counted, 1), streams.gap_s)


def _late_s(streams: Streams, steady: SteadySteps, waits: tuple[Wait, ...], gap_s: Floats) -> Floats:
    """Returns how much later the work of each column began than its waits explain.

    It is the least, over all that the work waits for, of the mean time from the end of the wait to the start of the
    work. The mean of what is latest is later than the latest of the means: where steps vary, the difference counts as
    idle, so that ops with mean times give the mean step.
    """
    device = steady.device
    start = streams.trace.events.start_s[device]
    before = streams.previous[device]
    column_gap = np.full(len(streams.key), streams.gap_s)
    column_gap[device] = gap_s
    free = np.where(before >= 0, streams.end_s[before] + column_gap[before], np.nan)
    late = np.fmin(mean_time(start - streams.ready_s[device]), mean_time(start - free))
    end = streams.end_s[device]
    for wait in waits:
        rows = np.arange(wait.steps, len(device))
        rows = rows[steady.steps[rows] - steady.steps[rows - wait.steps] == wait.steps]
        since = start[rows, wait.after] - end[rows - wait.steps, wait.before] - gap_s[wait.before]
        late[wait.after] = np.fmin(late[wait.after], since.mean())
    return np.where(np.isnan(late), 0.0, np.maximum(late, 0.0))
