"""A logarithmic axis of a plot: where a value lies on it, and which values are marked."""

from __future__ import annotations

import math
from dataclasses import dataclass

COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8d5fd3", "#e08e0b", "#17a2a2", "#7a5230", "#666666")
STYLES = ("blue", "red", "green", "magenta", "yellow", "cyan", "bright_red", "bright_black")
"""Of a terminal, in the order of `COLOURS`."""

FONT = 'font-family="Helvetica, Arial, sans-serif"'


@dataclass(frozen=True, slots=True)
class LogAxis:
    """From `low` to `high`, in whatever unit; `of` is 0 at one end and 1 at the other."""

    low: float
    high: float

    def of(self, value: float) -> float:
        """Where a value lies, within the axis."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return min(max(share, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Powers of ten; between them 2 and 5 where few would fit."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1,) if last - first > 4 else (1, 2, 5)
        values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        return [value for value in values if self.low <= value <= self.high]

    def binary_ticks(self, most: int = 10) -> list[float]:
        """Powers of two, so far apart that there are no more than so many."""
        first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
        step = max(1, -(-(last - first + 1) // most))
        return [2.0**power for power in range(first, last + 1, step)]
