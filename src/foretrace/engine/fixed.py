"""The fixed executor: durations are known, so a step is a longest path.

Runs a tape for one set of durations or for many at once (the second dimension: scenarios). Every cell is one maximum
and one addition, in any order the structure admits, so results do not depend on how the work is cut up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.engine import jit
from foretrace.engine.tape import Tape

Floats = NDArray[np.float64]

LEVEL_COST = 60
"""A vectorised level costs about as much as the plain loop takes for this many instructions."""


def along(tape: Tape, durations: Floats) -> Floats:
    """Durations per node, [nodes] or [nodes, scenarios], as the tape's instructions add them."""
    added = durations[tape.node]
    added[tape.node < 0] = 0.0
    return added


def run_tape(tape: Tape, added: Floats, carried: Floats, fast: bool) -> Floats:
    """All cells after a step, in seconds: [cells] or [cells, scenarios].

    `added` is what each instruction adds; `carried` the ends that the step before left behind.
    """
    cells = np.empty((tape.first + len(tape.a), *added.shape[1:]))
    cells[0] = 0.0
    cells[1 : tape.first] = carried
    if fast:
        run = jit.compiled(_run_one if added.ndim == 1 else _run_many)
        run(tape.a, tape.b, added, tape.first, cells)
    elif added.ndim == 1 and len(tape.a) < LEVEL_COST * len(tape.bounds):
        cells[tape.first :] = _run_plain(tape, added, cells[: tape.first])
    else:
        _run_levels(tape, added, cells)
    return cells


def starts(tape: Tape, cells: Floats) -> Floats:
    """When each node's unit starts, from the cells of a run."""
    at = tape.cell - tape.first
    return np.maximum(cells[tape.a[at]], cells[tape.b[at]])


def _run_plain(tape: Tape, added: Floats, before: Floats) -> list[float]:
    cells: list[float] = before.tolist()
    append = cells.append
    for a, b, duration in zip(tape.a.tolist(), tape.b.tolist(), added.tolist(), strict=True):
        x = cells[a]
        y = cells[b]
        append((x if x > y else y) + duration)
    return cells[tape.first :]


def _run_levels(tape: Tape, added: Floats, cells: Floats) -> None:
    first = tape.first
    bounds = tape.bounds.tolist()
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        out = cells[first + low : first + high]
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
