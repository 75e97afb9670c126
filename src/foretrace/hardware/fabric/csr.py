"""Indexes rows of different lengths that are stored one after the other in arrays."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats, Longs, ranges


def starts_of(counts: Longs) -> Longs:
    """Returns where each row starts, and where the last one ends."""
    start = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=start[1:])
    return start


def items_of(start: Longs, rows: Longs) -> tuple[Longs, Longs]:
    """The items of these rows, row by row: their positions, and how many each row has."""
    counts = start[rows + 1] - start[rows]
    return ranges(start[rows], counts), counts


def summed(place: Longs, values: Floats, size: int) -> Floats:
    """Returns the sum of the values at each of `size` places."""
    return np.asarray(np.bincount(place, values, minlength=size), dtype=np.float64)
