"""Sets of intervals of time: unions, and how long which of several sets is busy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.basics.arrays import Floats


def united(start_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """Returns the union of intervals as disjoint ones in order; those that touch become one."""
    if not len(start_s):
        return start_s, end_s
    if (start_s[1:] < start_s[:-1]).any():
        order = np.argsort(start_s, kind="stable")
        start_s, end_s = start_s[order], end_s[order]
    reached = np.maximum.accumulate(end_s)
    opens = np.flatnonzero(np.append(True, start_s[1:] > reached[:-1]))
    return start_s[opens], reached[np.append(opens[1:] - 1, len(start_s) - 1)]


def length_s(start_s: Floats, end_s: Floats) -> float:
    """Returns the time that intervals cover, what several of them cover counted once."""
    starts, ends = united(start_s, end_s)
    return float((ends - starts).sum())


def occupancy_s(sets: Sequence[tuple[Floats, Floats]], low_s: float, high_s: float) -> Floats:
    """Returns how long each combination of sets was busy between two moments.

    A combination is the sum of `1 << n` over the numbers n of its sets; [0] is the time in which none was.
    """
    times, changes = [np.array([low_s, high_s])], [np.zeros(2, dtype=np.int64)]
    for number, (start_s, end_s) in enumerate(sets):
        starts, ends = united(start_s, end_s)
        times += [np.clip(starts, low_s, high_s), np.clip(ends, low_s, high_s)]
        bit = 1 << number
        changes += [np.full(len(starts), bit), np.full(len(ends), -bit)]
    time, change = np.concatenate(times), np.concatenate(changes)
    order = np.argsort(time, kind="stable")
    state = np.cumsum(change[order])[:-1]
    # Between events of one moment a sum may be of sets that never met; no time passes there.
    gaps = np.diff(time[order])
    lasting = gaps > 0
    return np.bincount(state[lasting], weights=gaps[lasting], minlength=1 << len(sets)).astype(np.float64)
