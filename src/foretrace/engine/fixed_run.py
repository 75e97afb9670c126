"""Runs a graph with fixed durations: durations in, a timeline or the step times of many scenarios out."""

from __future__ import annotations

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


class FixedRun:
    """A graph made ready to be run with fixed durations, as often as wanted."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.player = _player(graph)

    def timeline(self, durations: Floats) -> Timeline:
        """The settled step for one set of durations, in seconds per node."""
        player = self.player
        added = player.along(durations)
        if not self.graph.program.repeats:
            cells = player.run(added, np.empty(0))
            return timeline_of(self.graph, player.starts(cells), player.ends(cells), None, float(cells.max()), 1, ())
        runs: list[Floats] = []

        def step(carried: Floats) -> Floats:
            runs[:] = [*runs[-1:], player.run(added, carried)]
            return player.carried(runs[-1])

        period, steps, notes = until_settled(step, np.zeros(player.carries))
        start, end = player.starts(runs[-1]), player.ends(runs[-1])
        before = player.ends(runs[0]) if steps > 1 else None
        return timeline_of(self.graph, start, end, before, float(period), steps, notes)

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
    enabled = graph.ops.column("enabled")
    starts = start if enabled.all() else start[enabled[graph.op] != 0]
    origin = float(starts.min()) if len(starts) else 0.0
    ready = ready_times(graph, start, end, end_before) - origin
    before = end - step_time if end_before is None else end_before
    # An op that is switched off and waits for nothing has no place in time.
    start, end = np.maximum(start - origin, 0.0), np.maximum(end - origin, 0.0)
    return Timeline(graph, ready, start, end, before - origin, step_time, steps, notes)
