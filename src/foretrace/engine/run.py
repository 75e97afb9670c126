"""Running a graph: durations in, a timeline or the step times of many scenarios out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.engine import jit
from foretrace.engine.fixed import along, run_tape, starts
from foretrace.engine.steady import until_settled
from foretrace.engine.tape import Tape, compile_tape
from foretrace.errors import Diagnostic
from foretrace.program.graph import Graph
from foretrace.program.timeline import Timeline, ready_times

Floats = NDArray[np.float64]

CELLS_AT_ONCE = 1 << 24
"""Scenarios run together as long as their cells fit in this many numbers (128 MiB)."""


class FixedRun:
    """A graph made ready to be run with fixed durations, as often as wanted."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fast = jit.pays(len(graph))
        self.tape: Tape = compile_tape(graph, self.fast)

    def timeline(self, durations: Floats) -> Timeline:
        """The settled step for one set of durations, in seconds per node."""
        added = along(self.tape, durations)
        if not self.graph.program.repeats:
            cells = run_tape(self.tape, added, np.empty(0), self.fast)
            return self._read(cells, None, float(cells.max()), 1, ())
        runs: list[Floats] = []

        def step(carried: Floats) -> Floats:
            runs[:] = [*runs[-1:], run_tape(self.tape, added, carried, self.fast)]
            return runs[-1][self.tape.cell[self.tape.carried]]

        period, steps, settled, drifts = until_settled(step, np.zeros(len(self.tape.carried)))
        before = runs[0] if steps > 1 else None
        return self._read(runs[-1], before, float(period), steps, notes_on(settled, drifts, steps))

    def step_times(self, durations: Floats) -> Floats:
        """The step time of each scenario: durations are [nodes, scenarios]."""
        at_once = max(1, CELLS_AT_ONCE // max(1, len(self.tape.a)))
        parts = [
            self._step_times(np.ascontiguousarray(durations[:, low : low + at_once]))
            for low in range(0, durations.shape[1], at_once)
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def _step_times(self, durations: Floats) -> Floats:
        added = along(self.tape, durations)

        def step(carried: Floats) -> Floats:
            return run_tape(self.tape, added, carried, self.fast)[self.tape.cell[self.tape.carried]]

        if not self.graph.program.repeats:
            return np.asarray(run_tape(self.tape, added, np.empty((0, added.shape[1])), self.fast).max(axis=0))
        period, *_ = until_settled(step, np.zeros((len(self.tape.carried), durations.shape[1])))
        return period

    def _read(
        self,
        cells: Floats,
        before: Floats | None,
        step_time: float,
        steps: int,
        notes: tuple[Diagnostic, ...],
    ) -> Timeline:
        start, end = starts(self.tape, cells), cells[self.tape.cell]
        end_before = None if before is None else before[self.tape.cell]
        return timeline_of(self.graph, start, end, end_before, step_time, steps, notes)


def timeline_of(
    graph: Graph,
    start: Floats,
    end: Floats,
    end_before: Floats | None,
    step_time: float,
    steps: int,
    notes: tuple[Diagnostic, ...],
) -> Timeline:
    """A step of a run as a timeline that begins with its first op."""
    takes_part = graph.ops.column("enabled")[graph.op].astype(bool)
    origin = start[takes_part].min() if takes_part.any() else 0.0
    ready = ready_times(graph, start, end, end_before) - origin
    return Timeline(
        graph,
        ready,
        np.maximum(start - origin, 0.0),
        np.maximum(end - origin, 0.0),
        step_time,
        steps,
        notes,
    )


def notes_on(settled: bool, drifts: bool, steps: int) -> tuple[Diagnostic, ...]:
    """What a reader should know of how the steps settled."""
    if not settled:
        return (Diagnostic("warning", f"steps had not settled after {steps}; the mean of the later half is given"),)
    if drifts:
        return (
            Diagnostic(
                "note", "nothing holds some parts of the job to the pace of the others; the slowest sets the step time"
            ),
        )
    return ()
