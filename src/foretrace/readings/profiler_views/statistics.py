"""How numbers spread: of one set, and of many groups at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a set of numbers, in their unit; all 0 if there are none. The deviation is a sample's (n - 1)."""

    count: int
    mean: float
    deviation: float
    least: float
    quarter: float
    median: float
    three_quarters: float
    most: float

    @classmethod
    def of(cls, values: NDArray[np.generic]) -> Spread:
        """Returns the spread of some numbers."""
        if not len(values):
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        numbers = values.astype(np.float64)
        least, quarter, median, three, most = np.quantile(numbers, (0.0, 0.25, 0.5, 0.75, 1.0)).tolist()
        deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
        return cls(len(numbers), float(numbers.mean()), deviation, least, quarter, median, three, most)


@dataclass(frozen=True, slots=True)
class Tally:
    """Durations by group, the group with the most time first."""

    group: Longs
    count: Longs
    total_s: Floats
    mean_s: Floats
    deviation_s: Floats
    least_s: Floats
    most_s: Floats


def tally(group: NDArray[np.integer], seconds: Floats) -> Tally:
    """Adds durations up by group."""
    order = np.argsort(group, kind="stable")
    groups, values = group[order].astype(np.int64), seconds[order]
    first = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])) if len(groups) else np.zeros(0, dtype=np.int64)
    if not len(first):
        none, zeros = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Tally(none, none, zeros, zeros, zeros, zeros, zeros)
    count = np.diff(np.append(first, len(groups)))
    total = np.add.reduceat(values, first)
    mean = total / count
    squares = np.add.reduceat((values - np.repeat(mean, count)) ** 2, first)
    deviation = np.sqrt(squares / np.maximum(count - 1, 1))
    by_time = np.argsort(-total, kind="stable")
    columns = (total, mean, deviation, np.minimum.reduceat(values, first), np.maximum.reduceat(values, first))
    return Tally(groups[first][by_time], count[by_time], *(column[by_time] for column in columns))
