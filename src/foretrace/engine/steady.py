"""Repeats a step until the job has settled; the step time is then its steady period.

Carried ends determine the next step, and shifting them by a constant shifts the next step by the same constant. So the
job has settled when all carried ends have grown by one number since some earlier step. Independent parts of a job may
settle at different rates; the slowest is the job's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretrace.basics.arrays import Floats, Mask
from foretrace.basics.errors import Diagnostic

MAX_STEPS = 64
MAX_CYCLE = 6
TOLERANCE = 1e-12
"""The relative rounding error of the simulated time that sums accumulate."""


class Settled:
    """Watches the carried ends of successive steps: [carried] or [carried, scenarios]. Each scenario settles by itself,
    as it would alone; `period` holds what has settled so far, NaN elsewhere. Parts may drift apart (`may_drift`) where
    they do not share resources: there, growing by constants of their own, they go on to do so."""

    def __init__(self, may_drift: bool = True) -> None:
        self.may_drift = may_drift
        self.history: list[Floats] = []
        self.period: Floats = np.empty(0)
        self.cycle = 1
        self.drifts = False

    def watch(self, carried: Floats) -> bool:
        """Takes in the ends that a step leaves; whether all scenarios have settled."""
        columns = carried.reshape(len(carried), carried.shape[1] if carried.ndim == 2 else 1)
        if not self.history:
            self.period = np.full(columns.shape[1], np.nan if len(carried) else 0.0)
        if not len(carried):
            return True
        self.history.append(columns)
        for cycle in range(1, min(MAX_CYCLE, len(self.history) - 1) + 1):
            growth = columns - self.history[-1 - cycle]
            even = growth.max(axis=0) - growth.min(axis=0) <= self._slack()
            self._settle(even, growth.max(axis=0) / cycle, cycle, False)
        if self.may_drift and len(self.history) > 3 and np.isnan(self.period).any():
            self._settle(self._constant(), (columns - self.history[-2]).max(axis=0), 1, True)
        return not np.isnan(self.period).any()

    def give_up(self) -> None:
        """Takes the mean growth over the later half of the steps for what has not settled."""
        half = len(self.history) // 2
        growth = (self.history[-1] - self.history[-1 - half]).max(axis=0)
        self.period = np.where(np.isnan(self.period), growth / half, self.period)

    def _settle(self, which: Mask, period: Floats, cycle: int, drifts: bool) -> None:
        fresh = which & np.isnan(self.period)
        if fresh.any():
            self.period = np.where(fresh, period, self.period)
            self.cycle, self.drifts = max(cycle, self.cycle), drifts or self.drifts

    def _slack(self) -> Floats:
        return np.asarray(TOLERANCE * np.abs(self.history[-1]).max(axis=0))

    def _constant(self) -> Mask:
        """Returns where every carried end has grown by its own constant over the last three steps."""
        x, y, z, now = self.history[-4:]
        slack = self._slack()
        same = (np.abs((now - z) - (z - y)) <= slack) & (np.abs((z - y) - (y - x)) <= slack)
        return np.asarray(same.all(axis=0))

    def notes(self, settled: bool) -> tuple[Diagnostic, ...]:
        """Returns what a reader should know of how the steps settled."""
        if not settled:
            text = f"steps had not settled after {len(self.history)}; the mean of the later half is given"
            return (Diagnostic("warning", "steps-not-settled", text),)
        if self.drifts:
            text = "nothing holds some parts of the job to the pace of the others; the slowest sets the step time"
            return (Diagnostic("note", "steps-drift", text),)
        if self.cycle > 1:
            text = (
                f"steps settle into a cycle of {self.cycle}: the step time is its mean, and the breakdown and the "
                "critical path are those of one of them"
            )
            return (Diagnostic("note", "steps-cycle", text),)
        return ()


def until_settled(step: Callable[[Floats], Floats], carried: Floats) -> tuple[Floats, int, tuple[Diagnostic, ...]]:
    """Runs steps until they repeat: (period of each scenario, steps run, what to say of it)."""
    settled = Settled()
    for count in range(1, MAX_STEPS + 1):
        carried = step(carried)
        if settled.watch(carried):
            return settled.period.reshape(carried.shape[1:]), count, settled.notes(True)
    settled.give_up()
    return settled.period.reshape(carried.shape[1:]), MAX_STEPS, settled.notes(False)
