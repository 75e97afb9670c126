"""How long the recorded steps took, measured where a step is bound.

On the host a step lasts from its start to the start of the next. On a device it lasts from the first of its work to
the first of the next step's, the last step from the end of the work of the one before to the end of its own, all on
the busiest stream; a single step from its first work to its last, or, where the device waited for the host in between,
as long as its work. A host that runs ahead finishes its steps early and tells nothing of how long they take: where the
device's steps are longer and it was busy, or never caught up with the host, its time counts, else the host's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs
from foretrace.inputs.profiler_trace.rank.steps import Steps
from foretrace.inputs.profiler_trace.rank.streams import Streams

_LONGER: Final = 1.05
"""A single step's device goes on a little after its host in any case."""

_BUSY: Final = 0.9
"""A device that works so much of its time has longer steps than its host where they are longer at all."""


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
    first_s: Floats
    """When it began its first work of each; infinite where it had none."""


def recorded_times(streams: Streams, steps: Steps) -> Recorded:
    """Returns how long each step of a trace took; steps without work on a device take 0 there."""
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
    following = np.append(first[1:], np.inf)
    with np.errstate(invalid="ignore"):
        device = np.where(np.isfinite(following), following, last) - first
    device = np.where(np.isfinite(device), device, 0.0)
    host = steps.end_s - steps.start_s
    kept = _Kept(streams, mine, step)
    bound = _bound(kept, np.flatnonzero(steps.whole), host, device, busy)
    if bound == "device" and len(steps) > 1 and np.isfinite(last[-2:]).all():
        device[-1] = last[-1] - last[-2]
    elif bound == "device" and len(steps) == 1 and kept.launches:
        device[0] = kept.needed_s(0) if kept.caught_up(0, since=0.5) else device[0] + streams.gap_s
    return Recorded(bound, device if bound == "device" else host, host, device, busy, first)


class _Kept:
    """How busy the launches of each step kept a stream, given its work and the step of each."""

    def __init__(self, streams: Streams, work: Longs, step: Ints) -> None:
        launched = streams.links.launch[work] >= 0
        self._launched_in = step[launched]
        self._idle = streams.free_s[work[launched]] < streams.issued_s[work[launched]]
        self._step = step
        self._taken_s = streams.trace.events.duration_s[work] + streams.gap_s

    @property
    def launches(self) -> int:
        """The share of the work whose launch is known."""
        return len(self._launched_in)

    def caught_up(self, step: int, since: float = 0.0) -> bool:
        """Returns whether at some launch of a step, past a part of them, the device had done all that it had been
        given."""
        idle = self._idle[self._launched_in == step]
        return not len(idle) or bool(idle[int(since * len(idle)) :].any())

    def needed_s(self, step: int) -> float:
        """Returns the time of a step's work and of the gaps between."""
        return float(self._taken_s[self._step == step].sum())


def _bound(kept: _Kept, whole: Longs, host_s: Floats, device_s: Floats, busy_s: Floats) -> Literal["device", "host"]:
    """Returns which of host and device bounds the steps.

    A device that catches up with its host in most steps has steps no longer than the host's, however far behind it ends
    them. The first step does not count, since it often begins on an idle device. Medians are compared, since the host
    of one step may wait where the others' do not.
    """
    if not len(whole):
        return "host"
    ratio = float(np.median(device_s[whole])) / max(float(np.median(host_s[whole])), 1e-12)
    if len(whole) == 1:
        at = int(whole[0])
        ahead = ratio > _LONGER and not kept.caught_up(at, since=0.5)
        return "device" if ahead or kept.needed_s(at) > host_s[at] else "host"
    busy = float(busy_s[whole].sum()) / max(float(device_s[whole].sum()), 1e-12)
    caught = np.mean([kept.caught_up(at) for at in whole[1:].tolist()])
    return "device" if ratio > 1.0 and (caught < 0.5 or busy > _BUSY) else "host"


def busiest(streams: Streams, steps: Steps) -> int:
    """Returns the stream on which most of the steps' time on a device is spent; -1 without any."""
    at = streams.queued[steps.of_event[streams.queued] >= 0]
    if not len(at):
        return -1
    keys, which = np.unique(streams.key[at], return_inverse=True)
    return int(keys[np.argmax(np.bincount(which, weights=streams.trace.events.duration_s[at]))])


def from_idle(streams: Streams, steps: Steps, step: int) -> bool:
    """Returns whether the busiest stream had nothing to do before its first work in a step."""
    key = busiest(streams, steps)
    mine = streams.queued[(streams.key[streams.queued] == key) & (steps.of_event[streams.queued] == step)]
    return bool(len(mine)) and bool(streams.free_s[mine[0]] < streams.issued_s[mine[0]])


def warm_up(recorded: Recorded, usable: Longs) -> bool:
    """Returns whether the first of these steps is not steady: more than a fifth off the median of the others.

    The first of two steps must be more than a fifth longer: a shorter one is as good as the other.
    """
    if len(usable) < 2:
        return False
    usual = float(np.median(recorded.step_s[usable[1:]]))
    longer = float(recorded.step_s[usable[0]]) - usual
    return (longer if len(usable) == 2 else abs(longer)) > 0.2 * usual
