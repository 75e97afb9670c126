"""How long the recorded steps took, measured where a step is bound.

On the host a step lasts from its start to the start of the next. On a device it lasts from the first of its work to
the first of the next step's, the last step from the end of the work of the one before to the end of its own, all on
the busiest stream. A host that runs ahead
finishes its steps early and tells nothing of how long they take: where the device was busy and its steps are
longer, its time counts, else the host's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretrace.formats.profiler_trace.records import Floats, Longs
from foretrace.lower.profiler_trace.steps import Steps
from foretrace.lower.profiler_trace.streams import Streams


@dataclass(frozen=True, slots=True)
class Recorded:
    """Times of the recorded steps, one for each."""

    bound: Literal["device", "host"]
    step_s: Floats
    """As the definition above has it."""
    host_s: Floats
    device_s: Floats
    busy_s: Floats
    """How long the busiest stream worked."""


def recorded_times(streams: Streams, steps: Steps) -> Recorded:
    """How long each step of a trace took; of steps without work on a device, 0 there."""
    events = streams.trace.events
    key = busiest(streams, steps)
    mine = streams.queued[streams.key[streams.queued] == key]
    mine = mine[steps.of_event[mine] >= 0]
    step = steps.of_event[mine]
    first = np.full(len(steps), np.inf)
    last = np.full(len(steps), -np.inf)
    np.minimum.at(first, step, events.start_s[mine])
    np.maximum.at(last, step, streams.end_s[mine])
    busy = np.bincount(step, weights=events.duration_s[mine], minlength=len(steps)).astype(np.float64)
    device = _periods(first, last)
    host = steps.end_s - steps.start_s
    bound = _bound(host[steps.whole], device[steps.whole], busy[steps.whole])
    return Recorded(bound, device if bound == "device" else host, host, device, busy)


def _periods(first: Floats, last: Floats) -> Floats:
    """From start to start; where no step follows, from end to end; of a single step, all of it; 0 of one without work."""
    following, before = np.append(first[1:], np.inf), np.append(-np.inf, last[:-1])
    with np.errstate(invalid="ignore"):
        found = np.where(np.isfinite(following), following - first, last - np.fmax(before, -np.inf))
        found = np.where(np.isfinite(found), found, last - first)
    return np.where(np.isfinite(found), found, 0.0)


def _bound(host_s: Floats, device_s: Floats, busy_s: Floats) -> Literal["device", "host"]:
    """Medians, since one step's host may wait where the others' do not. A device that mostly idles lags behind its host
    a little more or less, which makes its steps no longer."""
    if not len(host_s):
        return "host"
    ratio = float(np.median(device_s)) / max(float(np.median(host_s)), 1e-12)
    busy = float(busy_s.sum()) / max(float(device_s.sum()), 1e-12)
    return "device" if ratio > 1.05 or (ratio > 1.0 and busy > 0.9) else "host"


def busiest(streams: Streams, steps: Steps) -> int:
    """The stream on which most of the steps' time on a device is spent; -1 without any."""
    at = streams.queued[steps.of_event[streams.queued] >= 0]
    if not len(at):
        return -1
    keys, which = np.unique(streams.key[at], return_inverse=True)
    return int(keys[np.argmax(np.bincount(which, weights=streams.trace.events.duration_s[at]))])


def from_idle(streams: Streams, steps: Steps, step: int) -> bool:
    """Whether the busiest stream had nothing to do before its first work in a step."""
    key = busiest(streams, steps)
    mine = streams.queued[(streams.key[streams.queued] == key) & (steps.of_event[streams.queued] == step)]
    return bool(len(mine)) and bool(streams.free_s[mine[0]] < streams.issued_s[mine[0]])


def warm_up(recorded: Recorded, usable: Longs) -> bool:
    """Whether the first of these steps is no steady one: more than a fifth off the median of the others."""
    if len(usable) < 2:
        return False
    usual = float(np.median(recorded.step_s[usable[1:]]))
    return abs(float(recorded.step_s[usable[0]]) - usual) > 0.2 * usual
