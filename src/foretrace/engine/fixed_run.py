"""Runs a graph with fixed durations: durations in, a timeline or the step times of many scenarios out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic
from foretrace.engine import jit
from foretrace.engine.chains import ChainPlayer, compile_chains
from foretrace.engine.steady import until_settled
from foretrace.engine.tape import TapePlayer, compile_tape
from foretrace.program.graph import Graph
from foretrace.program.timeline import Timeline, ready_times

CELLS_AT_ONCE = 1 << 24
"""Scenarios run together as long as their cells fit in this many numbers (128 MiB)."""


@dataclass(frozen=True, slots=True)
class StepRun:
    """One step as a run left it, in seconds from the start of its first op, per node.

    It has what is read off between runs; `timeline` adds the rest. `raw_start_s` and `raw_end_s` are the same on the
    clock of the run, and `raw_before_s` returns when the ops of the step before ended, if there was one.
    """

    graph: Graph
    start_s: Floats
    end_s: Floats
    step_time_s: float
    steps: int
    notes: tuple[Diagnostic, ...]
    origin_s: float
    raw_start_s: Floats
    raw_end_s: Floats
    raw_before_s: Callable[[], Floats] | None

    @classmethod
    def of(
        cls,
        graph: Graph,
        ran: tuple[Floats, Floats, Callable[[], Floats] | None],
        step_time: float,
        steps: int,
        notes: tuple[Diagnostic, ...],
    ) -> StepRun:
        """Returns a step, given the starts and ends of its nodes and what returns the ends of the step before."""
        start, end, before = ran
        starts = start if graph.ops.all_enabled else start[graph.ops.column("enabled")[graph.op] != 0]
        origin = float(starts.min()) if len(starts) else 0.0
        # An op that is switched off and waits for nothing has no place in time.
        start_s, end_s = np.maximum(start - origin, 0.0), np.maximum(end - origin, 0.0)
        return cls(graph, start_s, end_s, step_time, steps, notes, origin, start, end, before)

    def timeline(self) -> Timeline:
        """Returns the step as a timeline."""
        end_before = None if self.raw_before_s is None else self.raw_before_s()
        ready = ready_times(self.graph, self.raw_start_s, self.raw_end_s, end_before) - self.origin_s
        before = (self.raw_end_s - self.step_time_s if end_before is None else end_before) - self.origin_s
        return Timeline(self.graph, ready, self.start_s, self.end_s, before, self.step_time_s, self.steps, self.notes)


class FixedRun:
    """A graph made ready to be run with fixed durations, as often as wanted."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.player = _player(graph)

    def timeline(self, durations: Floats) -> Timeline:
        """The settled step for one set of durations, in seconds per node."""
        return self.step(durations).timeline()

    def step(self, durations: Floats) -> StepRun:
        """The same without what only a timeline has."""
        player = self.player
        added = player.along(durations)
        if not self.graph.program.repeats:
            cells = player.run(added, np.empty(0))
            return StepRun.of(self.graph, (*player.times(cells), None), float(cells.max()), 1, ())
        runs: list[Floats] = []

        def step(carried: Floats) -> Floats:
            runs[:] = [*runs[-1:], player.run(added, carried)]
            return player.carried(runs[-1])

        period, steps, notes = until_settled(step, np.zeros(player.carries))
        before = (lambda: player.times(runs[0])[1]) if steps > 1 else None
        return StepRun.of(self.graph, (*player.times(runs[-1]), before), float(period), steps, notes)

    @property
    def scenarios_at_once(self) -> int:
        """Returns the number of scenarios that are best run together."""
        return max(1, CELLS_AT_ONCE // max(1, self.player.cells))

    def step_times(self, durations: Floats) -> Floats:
        """The step time of each scenario: durations are [nodes, scenarios]."""
        player, count = self.player, durations.shape[1]
        added = player.along(durations)
        if not self.graph.program.repeats:
            return np.asarray(player.run(added, np.empty((0, count))).max(axis=0))

        def step(carried: Floats) -> Floats:
            return player.carried(player.run(added, carried))

        period, *_ = until_settled(step, np.zeros((player.carries, count)))
        return period


def _player(graph: Graph) -> ChainPlayer | TapePlayer:
    chains = compile_chains(graph)
    if chains is not None:
        return ChainPlayer(chains)
    fast = jit.pays(len(graph))
    return TapePlayer(compile_tape(graph, fast), fast)
