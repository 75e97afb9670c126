"""Simulates plans in the order of their estimates until bounds rule out all others.

The fixed executor is monotone: longer ops never shorten a step. Overlap cost only lengthens ops. So a chain of actions
without that cost is a lower bound of the full simulation, and a plan whose bound exceeds the best simulated step cannot
be faster. The proof is about predictions; how far these are off is another question (`robust.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Protocol

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.simulator import SimulatedPlan
from foretrace.workload.plan import Plan

DIGITS: Final = 9
"""Significant digits in which steps are compared: sums of the same times in another order differ in the tenth (bounds
exceeded 2,401 simulations by 1.4e-9 at most)."""

SLACK: Final = 2e-9
"""The share by which a bound must exceed the best step to rule a plan out: above the largest rounding difference."""

BATCHES: Final = (1, 1, 2, 2, 4, 4, 8)
"""Plans that are simulated at once: few while the best step is not known. The numbers do not depend on the workers, so
that neither does the result."""


class Simulates(Protocol):
    """Simulates plans in full, in the order given."""

    def run(self, plans: Sequence[Plan]) -> list[SimulatedPlan]:
        """Returns the result of each plan."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a proof may stop early.

    Attributes:
        gap: The share of the best step by which other plans may be faster.
        time_s: Seconds after which no further simulation begins, once a plan that fits was simulated.
        simulations: Simulations after which no further one begins.
    """

    gap: float = 0.0
    time_s: float | None = None
    simulations: int | None = None


@dataclass(slots=True)
class Proof:
    """The state of a proof, which ends as its result.

    Attributes:
        values: The lower bound of each row, raised by runs at the level of actions.
        simulated: The results by row.
        refuted: Rows that do not fit after all.
        action_runs: Runs at the level of actions.
        stopped_by: The limit that ended it early, if any.
    """

    values: Floats
    simulated: dict[int, SimulatedPlan]
    refuted: set[int]
    action_runs: int = 0
    stopped_by: Literal["gap", "time", "simulations", "interrupt"] | None = None


class Prover:
    """Finds the best row of a table.

    Args:
        table: Plans that fit, or may fit.
        bounds_s: A lower bound of each.
        estimates_s: What a simulation of each is expected to say.
        simulator: Simulates plans in full.
        weights: The factor of each simulated step; bounds and estimates contain it.
        action_s: Runs a plan at the level of actions, which gives a better bound; None: there is no such level.
        competes: The rows among which the best is looked for; None: all.
    """

    def __init__(
        self,
        table: PlanTable,
        bounds_s: Floats,
        estimates_s: Floats,
        simulator: Simulates,
        weights: Floats | None = None,
        action_s: Callable[[Plan], float] | None = None,
        competes: Mask | None = None,
    ) -> None:
        self.competes = np.ones(len(table), dtype=bool) if competes is None else competes
        self.table, self.estimates_s, self.simulator, self.action_s = table, estimates_s, simulator, action_s
        self.weights = np.ones(len(table)) if weights is None else weights
        self.proof = Proof(bounds_s.copy(), {}, set())
        self._asked = np.zeros(len(table), dtype=bool)

    def prove(self, limits: Limits, watch: Callable[[Prover], None] = lambda _: None) -> Proof:
        """Simulates until no other plan can be faster by more than the gap, or a limit is reached.

        Args:
            limits: When to stop early.
            watch: Called after every batch.
        """
        proof, began = self.proof, time.monotonic()
        order = np.lexsort((np.arange(len(self.table)), self.estimates_s))
        try:
            for size in _sizes():
                if self._is_over(limits, began):
                    break
                batch = self._next(order, size, limits, began)
                if not batch:
                    self._is_over(limits, began)
                    break
                self.simulate(batch)
                watch(self)
        except KeyboardInterrupt:
            proof.stopped_by = "interrupt"
        if proof.stopped_by is None and limits.gap and self.undecided(0.0):
            proof.stopped_by = "gap"
        return proof

    def simulate(self, rows: Sequence[int]) -> None:
        """Simulates rows that have not been simulated yet."""
        new = [row for row in rows if row not in self.proof.simulated]
        results = self.simulator.run([self.table.plan(row) for row in new]) if new else []
        for row, result in zip(new, results, strict=True):
            self.proof.simulated[row] = result
            if not result.fits:
                self.proof.refuted.add(row)

    def expected_s(self) -> Floats:
        """Returns the step of each row: as simulated, else as estimated; infinity for rows that do not fit."""
        steps = self.estimates_s / self.weights
        for row, result in self.proof.simulated.items():
            steps[row] = result.step_time_s if result.fits else np.inf
        return np.maximum(steps, self.proof.values / self.weights)

    def weighted_s(self) -> Floats:
        """Returns `expected_s` times the weights, by which rows are compared."""
        return np.asarray(self.expected_s() * self.weights)

    def best(self) -> int | None:
        """Returns the best simulated row that fits."""
        rows = [row for row in self.proof.simulated if row not in self.proof.refuted and self.competes[row]]
        return min(rows, key=self.rank, default=None)

    def rank(self, row: int) -> tuple[Any, ...]:
        """Returns the key by which simulated rows are ordered: time, then memory, then the fields of the plan."""
        result = self.proof.simulated[row]
        value = rounded(result.step_time_s * float(self.weights[row]))
        return value, result.needed_memory_bytes, plan_key(self.table.plan(row))

    def best_s(self) -> float:
        """Returns the weighted step of the best row; infinity where there is none yet."""
        best = self.best()
        return float("inf") if best is None else float(self.rank(best)[0])

    def undecided(self, gap: float = 0.0) -> list[int]:
        """Returns rows that were not simulated and may be faster than the best by more than a gap."""
        open_rows = np.flatnonzero(self.competes & (self.proof.values <= self.best_s() * (1 - gap) * (1 + SLACK)))
        return [row for row in open_rows.tolist() if row not in self.proof.simulated]

    def lower_bound_s(self) -> float:
        """Returns a step below which no row is predicted."""
        rows = self.undecided()
        return min([self.best_s(), *(float(self.proof.values[row]) for row in rows)])

    def _is_over(self, limits: Limits, began: float) -> bool:
        """Returns whether a limit ends the proof before all is decided."""
        proof, is_late = self.proof, self._is_late(limits, began)
        is_full = limits.simulations is not None and len(proof.simulated) >= max(limits.simulations, 1)
        if not (is_late or is_full) or not self.undecided(limits.gap):
            return False
        proof.stopped_by = "time" if is_late else "simulations"
        return True

    def _is_late(self, limits: Limits, began: float) -> bool:
        """Returns whether the time is over and a plan that fits is known."""
        is_over = limits.time_s is not None and time.monotonic() - began >= limits.time_s
        return is_over and self.best() is not None

    def _next(self, order: Longs, size: int, limits: Limits, began: float) -> list[int]:
        """Returns the next rows to simulate: those of the smallest estimate that are not ruled out.

        There are fewer where the time is over: thousands of runs at the level of actions may rule out rows before.
        """
        limit = self.best_s() * (1 - limits.gap) * (1 + SLACK)
        batch: list[int] = []
        for row in order[self.competes[order] & (self.proof.values[order] <= limit)].tolist():
            if self._is_late(limits, began):
                break
            if row in self.proof.simulated or not self._may_win(row, limit):
                continue
            batch.append(row)
            if len(batch) == size:
                break
        return batch

    def _may_win(self, row: int, limit: float) -> bool:
        """Returns whether a row is still not ruled out after a run at the level of actions."""
        if self.action_s is None or not np.isfinite(limit) or self._asked[row]:
            return bool(self.proof.values[row] <= limit)
        self._asked[row] = True
        self.proof.action_runs += 1
        bound_s = self.action_s(self.table.plan(row)) * float(self.weights[row])
        self.proof.values[row] = max(float(self.proof.values[row]), bound_s)
        return bool(self.proof.values[row] <= limit)


def _sizes() -> Iterator[int]:
    """Yields the sizes of batches."""
    yield from BATCHES
    while True:
        yield BATCHES[-1]


def rounded(seconds: float) -> float:
    """Returns seconds in the digits in which steps are compared."""
    return float(f"{seconds:.{DIGITS}g}")


def plan_key(plan: Plan) -> tuple[Any, ...]:
    """Returns the fields of a plan as a tuple that can be ordered."""
    values = (getattr(plan, entry.name) for entry in fields(Plan))
    return tuple((value is not None, value if value is not None else 0) for value in values)
