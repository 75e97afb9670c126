"""How busy each lane is, and what its ops wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.engine.order import sort_by
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
    enabled, lane = graph.ops.column("enabled")[graph.op], graph.ops.ints("lane")[graph.op]
    nodes, start = sort_by(np.where(enabled, lane, len(graph.program.lanes)), len(graph.program.lanes) + 1, False)
    owner, count = graph.rank_class[nodes], graph.classes.count
    run = (timeline.end_s - timeline.start_s)[nodes] * count[owner]
    # A partner waited for since the step before counts for this step only once.
    wait = np.clip(timeline.wait_s[nodes], 0.0, step) * count[owner]
    uses = []
    for row, low, high in zip(graph.program.lanes, start[:-2].tolist(), start[1:-1].tolist(), strict=True):
        if low < high:
            ops = np.bincount(owner[low:high], minlength=len(count))
            ranks = int(count[ops > 0].sum())
            share = ranks * step if step > 0 else 1.0
            busy, waiting = float(run[low:high].sum()) / share, float(wait[low:high].sum()) / share
            uses.append(LaneUse(row.name, ranks, float((ops * count).sum()) / ranks, busy, min(waiting, 1.0)))
    return uses
