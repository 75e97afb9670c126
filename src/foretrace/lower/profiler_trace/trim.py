"""Steps without the waits that only some of them begin or end with.

The profiler, and scripts that measure with it, wait for the device before the first recorded step and after the last.
Such a wait is no part of a step: it would make two steps of a few look different, and longer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.formats.profiler_trace.records import Longs
from foretrace.lower.profiler_trace.calls import WAITING
from foretrace.lower.profiler_trace.steps import Steps
from foretrace.lower.profiler_trace.streams import Streams


def trimmed(streams: Streams, steps: Steps) -> Steps:
    """The steps, where there are several, from the end of such waits or up to their start."""
    if len(steps) < 2:
        return steps
    events = streams.trace.events
    calls = waiting_or_launching(streams)
    own = [calls[steps.of_event[calls] == at] for at in range(len(steps))]
    heads = [_leading(streams, one) for one in own]
    tails = [_leading(streams, one[::-1]) for one in own]
    start, end, of_event = steps.start_s.copy(), steps.end_s.copy(), steps.of_event.copy()
    for waits, ends_with in ((heads, False), (tails, True)):
        some = [at for at, found in enumerate(waits) if len(found)]
        if len(some) > len(steps) / 2:
            continue  # most do: it is part of the loop
        for at in some:
            of_event[waits[at]] = -1
            if ends_with:
                end[at] = events.start_s[waits[at]].min()
            else:
                start[at] = streams.end_s[waits[at]].max()
    return replace(steps, start_s=start, end_s=end, of_event=of_event)


def waiting_or_launching(streams: Streams) -> Longs:
    """Calls that launched work or waited for some, on threads that launch, in the order in which they began."""
    events = streams.trace.events
    launched = streams.links.launch[streams.queued]
    launched = np.unique(launched[launched >= 0])
    waits = np.flatnonzero(np.isin(streams.does, WAITING))
    waits = waits[np.isin(events.thread[waits], np.unique(events.thread[launched]))]
    return np.union1d(launched, waits).astype(np.int64)


def _leading(streams: Streams, calls: Longs) -> Longs:
    """The waits before any other of these calls; none where all are waits."""
    other = np.flatnonzero(~np.isin(streams.does[calls], WAITING))
    return calls[: other[0]] if len(other) else calls[:0]
