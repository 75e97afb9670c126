"""How busy each lane is, and what its ops wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.program.timeline import Timeline


@dataclass(frozen=True, slots=True)
class LaneUse:
    """One lane, averaged over the ranks that use it: the share of the step its ops run, and wait for partners."""

    lane: str
    ranks: int
    ops_per_rank: float
    busy: float
    waiting: float


def lane_use(timeline: Timeline) -> list[LaneUse]:
    """Every lane in use, in the order of the program's table."""
    graph, step = timeline.graph, timeline.step_time_s
    enabled = graph.ops.column("enabled").astype(bool)[graph.op]
    lane = graph.ops.ints("lane")[graph.op]
    owner = graph.rank_class
    run = timeline.end_s - timeline.start_s
    # A partner waited for since the step before counts for this step only once.
    wait = np.clip(timeline.wait_s, 0.0, step)
    uses = []
    for number, one in enumerate(graph.program.lanes):
        mine = np.flatnonzero(enabled & (lane == number))
        if not len(mine):
            continue
        ranks = int(graph.classes.count[np.unique(owner[mine])].sum())
        weight = graph.classes.count[owner[mine]]
        share = ranks * step if step > 0 else 1.0
        busy, waiting = float(weight @ run[mine]) / share, float(weight @ wait[mine]) / share
        uses.append(LaneUse(one.name, ranks, float(weight.sum()) / ranks, busy, min(waiting, 1.0)))
    return uses
