"""Chooses the steps of a trace that count, those of which a replay is made, and finds when they ran on the device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, RankProfile
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.recorded_time import recorded_times
from foretrace.inputs.profiler_trace.rank.steady_steps import steady_steps
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from foretrace.inputs.profiler_trace.rank.streams import Streams
from foretrace.inputs.profiler_trace.rank.trim import trimmed


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """The steps that count: `foretrace simulate` takes the same, and as long."""

    steps: Steps
    """All of the trace."""
    numbers: Longs
    """Those that count."""
    each_s: Floats
    """How long each of all took, measured where it is bound."""
    low_s: Floats
    high_s: Floats
    """From when to when each that counts lasted as the device saw it, in order; as long as `each_s` says."""
    notes: tuple[Diagnostic, ...]

    @property
    def step_s(self) -> float:
        """The recorded step: the mean of those that count."""
        return float((self.high_s - self.low_s).mean())


def find_counted_steps(trace: RankProfile, links: EventLinks, among: Collection[str] | None = None) -> CountedSteps:
    """Returns the steps of a trace that count, or those `among` them by name.

    A trace in which no step is whole counts from its first work to its last.
    """
    streams = Streams(trace, links)
    steps = trimmed(streams, find_steps(trace, links))
    recorded = recorded_times(streams, steps)
    try:
        steady = steady_steps(streams, steps, recorded, None)
    except InputError as error:
        if error.code != "nothing-to-do":
            raise
        device = trace.events.of(*ON_DEVICE)
        low_s, high_s = trace.events.start_s[device].min(), trace.events.end_s[device].max()
        return CountedSteps(steps, np.arange(0), recorded.step_s, np.array([low_s]), np.array([high_s]), ())
    numbers = np.sort(steady.steps)
    if among is not None:
        numbers = numbers[[steps.names[number] in among for number in numbers]]
    # A step may have no work on the busiest stream.
    first_s = np.where(np.isfinite(recorded.first_s), recorded.first_s, steps.start_s)
    low_s = first_s[numbers] if recorded.bound == "device" else _begins_s(trace, steps, numbers)
    # The sum of a start and a length may come out behind the next start by a rounding.
    high_s = np.minimum(low_s + recorded.step_s[numbers], np.append(low_s[1:], np.inf))
    return CountedSteps(steps, numbers, recorded.step_s, low_s, high_s, steady.notes)


def _begins_s(trace: RankProfile, steps: Steps, numbers: Longs) -> Floats:
    """Returns when steps that the host bounds began on the device.

    All are moved by the same time from their start on the host, which keeps their lengths: at most until the first work
    of any step, and not so far that the last ends after all work.
    """
    events = trace.events
    device = events.of(*ON_DEVICE)
    device = device[np.isin(steps.of_event[device], numbers)]
    first_s = np.full(len(steps), np.inf)
    np.minimum.at(first_s, steps.of_event[device], events.start_s[device])
    least_s = float((first_s[numbers] - steps.start_s[numbers]).min())
    left_s = float(events.end_s[device].max() - steps.end_s[numbers[-1]])
    return steps.start_s[numbers] + max(min(least_s, left_s), 0.0)
