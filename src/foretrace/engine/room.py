"""Room for what the event loops read and write: arrays for compiled loops, lists for plain ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Room:
    """Makes columns of floats and of whole numbers as a loop, compiled or not, is quickest with."""

    compiled: bool

    def hold(self, values: Any) -> Any:
        """A copy of these values."""
        array = np.array(values)
        array = array if array.dtype == np.float64 else array.astype(np.int64)
        return array if self.compiled else array.tolist()

    def floats(self, count: int, value: float = 0.0) -> Any:
        """So many floats, all of this value."""
        return self.hold(np.full(count, value))

    def counts(self, count: int, value: int = 0) -> Any:
        """So many whole numbers, all of this value."""
        return self.hold(np.full(count, value, dtype=np.int64))
