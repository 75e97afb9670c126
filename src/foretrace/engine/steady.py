"""Step after step until the job has settled: the time of a step is its steady period.

Carried ends determine the next step, and a step adds the same to the next ones if it adds the same to what is carried
in. So the job has settled when all carried ends have grown by one number since some earlier step. Parts of a job
that never meet may settle at rates of their own; the slowest is the job's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import Diagnostic

Floats = NDArray[np.float64]

MOST_STEPS = 64
LONGEST_CYCLE = 6
TOLERANCE = 1e-12
"""Of the time simulated: what adding up rounds away."""


class Settled:
    """Watches the carried ends of successive steps, of one scenario or of many."""

    def __init__(self) -> None:
        self.history: list[Floats] = []
        self.cycle = 1
        self.drifts = False

    def period(self, carried: Floats) -> Floats | None:
        """The period of each scenario once all have settled; None while any has not."""
        self.history.append(carried)
        steps = len(self.history)
        if carried.shape[0] == 0:
            return np.zeros(carried.shape[1:])
        for cycle in range(1, min(LONGEST_CYCLE, steps - 1) + 1):
            growth = carried - self.history[-1 - cycle]
            slack = TOLERANCE * np.abs(carried).max(axis=0)
            if (growth.max(axis=0) - growth.min(axis=0) <= slack).all():
                self.cycle = cycle
                return np.asarray(growth.max(axis=0) / cycle)
        if steps > 3 and self._constant():
            self.drifts = True
            return np.asarray((carried - self.history[-2]).max(axis=0))
        return None

    def average(self) -> Floats:
        """The mean growth over the later half of the steps, where the job has not settled."""
        half = len(self.history) // 2
        growth = (self.history[-1] - self.history[-1 - half]).max(axis=0)
        return np.asarray(growth / half)

    def _constant(self) -> bool:
        """Whether every carried end has grown by its own constant over the last three steps."""
        x, y, z, now = self.history[-4:]
        slack = TOLERANCE * np.abs(now).max(axis=0)
        return bool((np.abs((now - z) - (z - y)) <= slack).all() and (np.abs((z - y) - (y - x)) <= slack).all())

    def notes(self, settled: bool) -> tuple[Diagnostic, ...]:
        """What a reader should know of how the steps settled."""
        text = ""
        if self.drifts:
            text = "nothing holds some parts of the job to the pace of the others; the slowest sets the step time"
        elif self.cycle > 1:
            text = (
                f"steps settle into a cycle of {self.cycle}: the step time is its mean, and the breakdown and the "
                "critical path are those of one of them"
            )
        if not settled:
            text = f"steps had not settled after {len(self.history)}; the mean of the later half is given"
        return (Diagnostic("note" if settled else "warning", text),) if text else ()


def until_settled(step: Callable[[Floats], Floats], carried: Floats) -> tuple[Floats, int, tuple[Diagnostic, ...]]:
    """Runs steps until they repeat: (period, steps run, what to say of it)."""
    watch = Settled()
    for count in range(1, MOST_STEPS + 1):
        carried = step(carried)
        period = watch.period(carried)
        if period is not None:
            return period, count, watch.notes(True)
    return watch.average(), MOST_STEPS, watch.notes(False)
