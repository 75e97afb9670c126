"""Computes what communication costs the computation next to it, by the part of each op in a timeline that overlaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, ranges
from foretrace.cost.overlap import Overlaps
from foretrace.program.timeline import Timeline

ROUNDS: Final = 4
"""How often a job is run again with what the last run showed. Longer computation shifts what it overlaps with, a
little less each time."""
CLOSE_ENOUGH: Final = 1e-3
"""Share of the step: if no op changes by more, its durations are settled."""
MAX_STEPS: Final = 4
"""Steps away from its own in which overlaps of an op are looked for."""
MAX_LOST: Final = 0.75
"""Share of its pace that communications together may cost an op at any time."""


def overlap_cost_s(run: Callable[[Floats], Timeline], alone_s: Floats, overlaps: Overlaps | None) -> Floats:
    """Returns the seconds by which each node takes longer than alone, because of what runs next to it.

    `run` returns the timeline of given durations; it is not called if nothing costs anything.
    """
    extra = np.zeros(len(alone_s))
    if overlaps is None or not (overlaps.slowdown > 1).any():
        return extra
    for round_ in range(ROUNDS):
        timeline = run(alone_s + extra)
        lost = lost_pace(timeline, overlaps)
        total = alone_s * lost / (1 - lost)
        if round_ > 1:
            total = (total + extra) / 2  # what hides from one overlap may meet another, and so back and forth
        change = float(np.abs(total - extra).max(initial=0.0))
        extra = total
        if change <= CLOSE_ENOUGH * timeline.step_time_s:
            break
    return extra


def settles(run: Callable[[Floats], Timeline], alone_s: Floats, overlaps: Overlaps, extra_s: Floats) -> bool:
    """Whether a run in which nodes take these seconds longer than alone shows them to, as `overlap_cost_s` asks."""
    timeline = run(alone_s + extra_s)
    lost = lost_pace(timeline, overlaps)
    change = float(np.abs(alone_s * lost / (1 - lost) - extra_s).max(initial=0.0))
    return change <= CLOSE_ENOUGH * timeline.step_time_s


def lost_pace(timeline: Timeline, overlaps: Overlaps) -> Floats:
    """Returns the share of each node's time that communication next to it cost, 0 to `MAX_LOST`."""
    graph = timeline.graph
    kernels, uses = overlaps.kernels[graph.op], overlaps.uses[graph.op]
    ran = timeline.end_s > timeline.start_s
    lost = np.zeros(len(graph))
    period = timeline.step_time_s if graph.program.repeats else 0.0
    for first, last in zip(graph.start[:-1].tolist(), graph.start[1:].tolist(), strict=True):
        mine = slice(first, last)
        computing = first + np.flatnonzero((kernels[mine] >= 0) & ran[mine])
        communicating = first + np.flatnonzero((uses[mine] >= 0) & ran[mine])
        if len(computing) and len(communicating):
            _add_lost(lost, timeline, computing, communicating, period, overlaps)
    return np.minimum(lost, MAX_LOST)


def _add_lost(
    lost: Floats, timeline: Timeline, computing: Longs, communicating: Longs, period: float, overlaps: Overlaps
) -> None:
    """Adds what the communications of one rank class cost its computations.

    Steps follow each other every `period` seconds (0: there is one step), so the end of a step may overlap with the
    begin of the next.
    """
    op = timeline.graph.op
    computing = computing[np.argsort(timeline.start_s[computing], kind="stable")]
    start, end = timeline.start_s[computing], timeline.end_s[computing]
    furthest = min(max(int(timeline.makespan_s / period), 1), MAX_STEPS) if period > 0 else 0
    steps = np.asarray(period * np.arange(-furthest, furthest + 1), dtype=np.float64)
    begins = (timeline.start_s[communicating] + steps[:, None]).ravel()
    ends = (timeline.end_s[communicating] + steps[:, None]).ravel()
    communicating = np.tile(communicating, len(steps))
    # One op at a time computes on a rank, so ends are in the order of starts.
    low, high = np.searchsorted(end, begins, side="right"), np.searchsorted(start, ends, side="left")
    count = np.maximum(high - low, 0)
    at, by = ranges(low, count), np.repeat(np.arange(len(begins)), count)
    together = np.minimum(end[at], ends[by]) - np.maximum(start[at], begins[by])
    slower = overlaps.slowdown[overlaps.kernels[op[computing[at]]], overlaps.uses[op[communicating[by]]]]
    share = np.maximum(together, 0.0) / (end[at] - start[at]) * (1 - 1 / slower)
    np.add.at(lost, computing[at], share)
