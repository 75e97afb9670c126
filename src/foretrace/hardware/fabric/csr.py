"""Rows of different lengths, one after the other in arrays: where each starts, and how to take many at once."""

from __future__ import annotations

import numpy as np

from foretrace.hardware.fabric.fabric import Floats, Longs


def starts_of(counts: Longs) -> Longs:
    """Where each row starts, and where the last one ends."""
    start = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=start[1:])
    return start


def taken(start: Longs, rows: Longs) -> tuple[Longs, Longs]:
    """The items of these rows, row by row: their positions, and how many each row has."""
    counts = start[rows + 1] - start[rows]
    return spans(start[rows], counts), counts


def spans(first: Longs, counts: Longs) -> Longs:
    """first[0], first[0] + 1, … for counts[0] items, then the same for the next."""
    total = int(counts.sum())
    if total == 0:
        return np.zeros(0, dtype=np.int64)
    ends = np.cumsum(counts)
    return np.arange(total, dtype=np.int64) + np.repeat(first - ends + counts, counts)


def sums(place: Longs, values: Floats, size: int) -> Floats:
    """The sum of the values at each of so many places."""
    return np.asarray(np.bincount(place, values, minlength=size), dtype=np.float64)
