"""What a call takes by its size, once measurements are at hand.

A curve has knots, sizes at which its time is known. Between them it is straight; below the first a call takes what the
first takes; beyond the last, the network model says by how much more. So a curve never falls and never jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats

Seconds = Callable[[Floats], Floats]
"""Seconds by bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeCurve:
    """Seconds by size: knots in rising order, with the model and the bound that hold beyond them."""

    size_bytes: Floats
    time_s: Floats
    model: Seconds
    bound: Seconds

    def __call__(self, size_bytes: Floats) -> Floats:
        """Seconds that these sizes take."""
        inside = np.interp(size_bytes, self.size_bytes, self.time_s)
        beyond = size_bytes > self.size_bytes[-1]
        if beyond.any():
            inside[beyond] = self._beyond(size_bytes[beyond])
        return inside

    def _beyond(self, size_bytes: Floats) -> Floats:
        last, time = self.size_bytes[-1:], self.time_s[-1]
        modelled = time * (self.model(size_bytes) / self.model(last))
        # Where the last measurement is faster than the model, the model's growth may lead below the bound; where it
        # beats the bound itself, the bound is taken down with it, so that there is no jump.
        least = self.bound(last)
        held = self.bound(size_bytes) * min(1.0, float(time / least[0]) if least[0] > 0 else 1.0)
        return np.asarray(np.maximum(modelled, held))
