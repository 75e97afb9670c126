"""One clock for the traces of several ranks.

A trace counts from an origin of its own, and hosts' clocks differ. But a collective ends for all its members at nearly
the same time: the median of what one trace says more than another at the ends of their common collectives is the
difference between their clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_time


def clock_offsets(
    origins_ns: Sequence[int], meetings: Sequence[Mapping[int, float]]
) -> tuple[list[float], list[Diagnostic]]:
    """What to take off the times of each trace, in seconds, to bring it to the clock of the first. `origins_ns` is
    where each counts from, by its host's clock; `meetings` when each collective ended, by trace. A trace that meets no
    other keeps its own clock."""
    count = len(origins_ns)
    ahead: dict[tuple[int, int], list[float]] = {}
    for meeting in meetings:
        members = sorted(meeting)
        for member in members[1:]:
            ahead.setdefault((members[0], member), []).append(meeting[member] - meeting[members[0]])
    offset: dict[int, float] = {}
    islands = 0
    while len(offset) < count:
        known = [pair for pair in ahead if (pair[0] in offset) != (pair[1] in offset)]
        if not known:
            offset[min(set(range(count)) - set(offset))] = 0.0
            islands += 1
            continue
        # The pair that met most often says it best.
        low, high = max(known, key=lambda pair: len(ahead[pair]))
        by = median(ahead[low, high])
        if low in offset:
            offset[high] = offset[low] + by
        else:
            offset[low] = offset[high] - by
    notes = []
    if count > 1 and meetings:
        spread = [
            max(ends.values()) - min(ends.values()) for ends in (_shifted(meeting, offset) for meeting in meetings)
        ]
        apart = [offset[at] + (origin - origins_ns[0]) * 1e-9 for at, origin in enumerate(origins_ns)]
        text = (
            f"clocks of {count} traces are set by the ends of {len(meetings):,} communications: they are up to "
            f"{format_time(max(apart) - min(apart))} apart, the ends then {format_time(median(spread))}"
        )
        notes.append(Diagnostic("note", "clocks-aligned", text))
    if count > 1 and islands > 1:
        notes.append(
            Diagnostic("note", "clocks-apart", f"{islands} sets of traces never meet: their clocks are left apart")
        )
    return [offset[at] for at in range(count)], notes


def _shifted(meeting: Mapping[int, float], offset: Mapping[int, float]) -> dict[int, float]:
    return {at: end - offset[at] for at, end in meeting.items()}
