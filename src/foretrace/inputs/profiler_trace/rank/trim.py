"""Steps without the waits that only some of them begin or end with.

The profiler, and scripts that measure with it, wait for the device before the first recorded step and after the last.
Such a wait is no part of a step: it would make two steps of a few look different, and longer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.inputs.profiler_trace.rank.calls import WAITING
from foretrace.inputs.profiler_trace.rank.steps import WHOLE_TRACE, Steps
from foretrace.inputs.profiler_trace.rank.streams import Streams

_BEYOND: Final = 0.05
"""If more than this share of a single step lies beyond its outer waits, they are not its beginning or end."""


def trimmed(streams: Streams, steps: Steps) -> Steps:
    """Returns the steps from the end of such waits, or up to their start.

    A trace that counts as one step keeps all of it.
    """
    if steps.how == WHOLE_TRACE:
        return steps
    events = streams.trace.events
    calls = waiting_or_launching(streams)
    own = [calls[steps.of_event[calls] == at] for at in range(len(steps))]
    start, end, of_event = steps.start_s.copy(), steps.end_s.copy(), steps.of_event.copy()
    for ends_with in (False, True):
        waits = [_leading(streams, of_step[::-1] if ends_with else of_step) for of_step in own]
        usual = _usual(streams, waits)
        for at, leading in enumerate(waits):
            extra = leading[: max(len(leading) - usual, 0)]
            if not len(extra):
                continue
            begin_s, end_s = float(events.start_s[extra].min()), float(streams.end_s[extra].max())
            beyond_s = end[at] - end_s if ends_with else begin_s - start[at]
            if len(own) == 1 and beyond_s > _BEYOND * (end[at] - start[at]):
                continue  # the step does more than that before or after
            if begin_s <= start[at] if ends_with else end_s >= end[at]:
                continue  # nothing of the step would be left
            of_event[extra] = -1
            if ends_with:
                end[at] = begin_s
            else:
                start[at] = end_s
    return replace(steps, start_s=start, end_s=end, of_event=of_event)


def _usual(streams: Streams, waits: list[Longs]) -> int:
    """Returns how many of these waits, the inner ones, are part of the loop: as many as half of the steps have.

    In a single step they are those from the first on that an op makes, as `.item()` does: others are more likely the
    script's.
    """
    if len(waits) > 1:
        return sorted(map(len, waits))[(len(waits) - 1) // 2]
    made = np.flatnonzero(streams.links.op[waits[0]] >= 0)
    return len(waits[0]) - int(made[0]) if len(made) else 0


def waiting_or_launching(streams: Streams) -> Longs:
    """Returns calls that launched work or waited for some, on threads that launch, in the order in which they began."""
    events = streams.trace.events
    launched = streams.links.launch[streams.queued]
    launched = np.unique(launched[launched >= 0])
    waits = np.flatnonzero(np.isin(streams.does, WAITING))
    waits = waits[np.isin(events.thread[waits], np.unique(events.thread[launched]))]
    return np.union1d(launched, waits).astype(np.int64)


def _leading(streams: Streams, calls: Longs) -> Longs:
    """Returns the waits before any other of these calls; none where all are waits."""
    other = np.flatnonzero(~np.isin(streams.does[calls], WAITING))
    return calls[: other[0]] if len(other) else calls[:0]
