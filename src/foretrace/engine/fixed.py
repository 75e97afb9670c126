"""The fixed executor: durations are known, so a step is a longest path.

Runs a tape for one set of durations or for many at once (the second dimension: scenarios). Every cell is one maximum
and one addition, in any order the structure admits, so results do not depend on how the work is cut up.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.engine import jit
from foretrace.engine.tape import Tape

LEVEL_COST = 60
"""A vectorised level costs about as much as the plain loop takes for this many instructions."""


class TapePlayer:
    """Runs one tape, whichever way is fastest: compiled, as a plain loop, or a level at a time."""

    def __init__(self, tape: Tape, fast: bool) -> None:
        self.tape = tape
        self.fast = fast
        self._inputs: tuple[list[int], list[int]] | None = None

    @property
    def cells(self) -> int:
        """How many numbers a run fills."""
        return self.tape.first + len(self.tape.a)

    @property
    def carries(self) -> int:
        """How many ends a step leaves for the next."""
        return len(self.tape.carried)

    def along(self, durations: Floats) -> Floats:
        """Durations per node, [nodes] or [nodes, scenarios], as the tape's instructions add them."""
        added = durations[self.tape.node]
        added[self.tape.node < 0] = 0.0
        return added

    def run(self, added: Floats, carried: Floats) -> Floats:
        """All cells after a step, in seconds: [cells] or [cells, scenarios].

        `added` is what each instruction adds; `carried` the ends that the step before left behind.
        """
        tape = self.tape
        cells = np.empty((self.cells, *added.shape[1:]))
        cells[0] = 0.0
        cells[1 : tape.first] = carried
        if not len(added):
            return cells
        if self.fast:
            compiled = jit.compiled(_run_one if added.ndim == 1 else _run_many)
            compiled(tape.a, tape.b, added, tape.first, cells)
        elif added.size < LEVEL_COST * len(tape.bounds):
            for column, durations in zip(cells.reshape(len(cells), -1).T, added.reshape(len(added), -1).T, strict=True):
                column[tape.first :] = self._run_plain(durations, column[: tape.first])
        else:
            self._run_levels(added, cells)
        return cells

    def starts(self, cells: Floats) -> Floats:
        """When each node's unit starts, from the cells of a run."""
        at = self.tape.cell - self.tape.first
        return np.maximum(cells[self.tape.a[at]], cells[self.tape.b[at]])

    def ends(self, cells: Floats) -> Floats:
        """When each node ends."""
        return cells[self.tape.cell]

    def carried(self, cells: Floats) -> Floats:
        """The ends that the next step needs."""
        return cells[self.tape.cell[self.tape.carried]]

    def _run_plain(self, added: Floats, before: Floats) -> list[float]:
        if self._inputs is None:
            self._inputs = self.tape.a.tolist(), self.tape.b.tolist()
        cells: list[float] = before.tolist()
        append = cells.append
        for a, b, duration in zip(*self._inputs, added.tolist(), strict=True):
            x = cells[a]
            y = cells[b]
            append((x if x > y else y) + duration)
        return cells[self.tape.first :]

    def _run_levels(self, added: Floats, cells: Floats) -> None:
        tape = self.tape
        for low, high in pairwise(tape.bounds.tolist()):
            out = cells[tape.first + low : tape.first + high]
            np.maximum(cells[tape.a[low:high]], cells[tape.b[low:high]], out=out)
            out += added[low:high]


def _run_one(a: Any, b: Any, added: Any, first: int, cells: Any) -> None:
    for i in range(len(a)):
        x = cells[a[i]]
        y = cells[b[i]]
        cells[first + i] = (x if x > y else y) + added[i]


def _run_many(a: Any, b: Any, added: Any, first: int, cells: Any) -> None:
    for i in range(len(a)):
        for s in range(cells.shape[1]):
            x = cells[a[i], s]
            y = cells[b[i], s]
            cells[first + i, s] = (x if x > y else y) + added[i, s]
