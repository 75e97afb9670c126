"""Runs event loops part by part, so that signals are handled and a limit on time holds while compiled code runs.

A loop does a bounded amount of work, then returns the events that wait, and is called again with them. The heap itself
is a list of tuples, which compiled code cannot hand over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.limits import Deadline

MAX_TIME_S = 1e15
"""The time at which a run ends whatever waits: rates so small that they are 0 when rounded lead to such times."""

MAX_RUN_S: Final = 1_800.0
"""Real seconds that a run may take; the largest in use take minutes."""

_PART: Final = 1 << 18
"""Work after which a loop returns: tens of milliseconds of compiled code."""


def run_in_parts(loop: Callable[[Floats, int], Floats], what: str) -> bool:
    """Calls a loop until no event waits; returns whether it came to that, and not to a time beyond all times.

    Args:
        loop: Takes the events that wait and the work in all at which to return; returns the events that wait then.
        what: The work, as errors name it.
    """
    deadline = Deadline(MAX_RUN_S, what)
    waiting, work = np.empty((0, 5)), _PART
    while True:
        waiting = loop(waiting, work)
        if not len(waiting):
            return True
        if not waiting[0, 0] <= MAX_TIME_S:
            return False
        deadline.check()
        work += max(_PART, 8 * len(waiting))


def held_events(heap: Any) -> Floats:
    """Returns the events of a heap in its order, one a row; integers are exact, since they are below 2^53."""
    events = np.empty((len(heap), 5))
    for i in range(len(heap)):
        time, order, kind, number, version = heap[i]
        events[i, 0] = time
        events[i, 1] = order
        events[i, 2] = kind
        events[i, 3] = number
        events[i, 4] = version
    return events


def take_events(heap: Any, events: Floats) -> None:
    """Adds events that `held_events` returned to an empty heap; they are in the order of a heap already."""
    for i in range(len(events)):
        numbers = int(events[i, 1]), int(events[i, 2]), int(events[i, 3]), int(events[i, 4])
        heap.append((float(events[i, 0]), numbers[0], numbers[1], numbers[2], numbers[3]))
