"""Computes what communication costs the computation next to it: how much work of each op it covers.

A call covers the work that its rank gets done while it runs. That work is followed from the place in the computation
where the call starts, at the pace that the call leaves. The cost has three parts:

- *Calls of every microbatch* start where their unit is written to start them: the gather of a layer starts with the
  layer before it, whatever that costs. So all microbatches cost the same.
- *Transfers between stages* start when another stage is done, next to other kernels in each microbatch. All kernels of
  a microbatch bear their cost in proportion.
- *Calls of a step*, such as reductions of gradients, start where the timeline has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask, distinct, ranges
from foretrace.cost.overlap import Overlaps
from foretrace.program.graph import Graph
from foretrace.program.timeline import Timeline

ROUNDS: Final = 2
"""How often a job is run to find where its calls start; the cost of the first run moves them a little."""
CLOSE_ENOUGH: Final = 1e-2
"""Share of its own time by which no op differs if a run confirms a cost. A share of the step would be reached sooner in
a step of more microbatches, and equal microbatches would take different times."""
CLOSE_TO_STEP: Final = 1e-3
"""Share of the step by which no op differs if a run with shared links confirms a cost."""
MAX_STEPS: Final = 4
"""Steps after its own in which the computation next to a call is looked for."""
MAX_LOST: Final = 0.75
"""Share of its pace that communications together may cost an op."""


def overlap_cost_s(run: Callable[[Floats], Timeline], alone_s: Floats, overlaps: Overlaps | None) -> Floats:
    """Returns the seconds by which each node takes longer than alone, because of what runs next to it.

    `run` returns the timeline of given durations; it is not called if nothing costs anything. If the last call of it
    confirms the cost, it has run with exactly that cost.
    """
    cost_s = np.zeros(len(alone_s))
    if overlaps is None or not (overlaps.slowdown > 1).any():
        return cost_s
    for round_ in range(ROUNDS):
        observed_s = covered_cost_s(run(alone_s + cost_s), alone_s, overlaps)
        if round_ and (np.abs(observed_s - cost_s) <= CLOSE_ENOUGH * alone_s).all():
            break
        cost_s = observed_s
    return cost_s


def settles(run: Callable[[Floats], Timeline], alone_s: Floats, overlaps: Overlaps, cost_s: Floats) -> bool:
    """Returns whether a run with this cost shows it, up to a share of the step by which ops differ.

    Where communications share links, runs take so long that a small difference is not worth another one.
    """
    timeline = run(alone_s + cost_s)
    change = np.abs(covered_cost_s(timeline, alone_s, overlaps) - cost_s)
    return bool(change.max(initial=0.0) <= CLOSE_TO_STEP * timeline.step_time_s)


def covered_cost_s(timeline: Timeline, alone_s: Floats, overlaps: Overlaps) -> Floats:
    """Returns what the communications of a timeline cost each node, in seconds."""
    graph = timeline.graph
    costly = np.append((overlaps.slowdown > 1).any(axis=0), False)
    kernels, uses = overlaps.kernels[graph.op], overlaps.uses[graph.op]
    lasts = timeline.end_s - timeline.start_s
    computes, communicates = (kernels >= 0) & (lasts > 0), costly[uses] & (lasts > 0)
    in_microbatch = (graph.ops.microbatch >= 0)[graph.op]
    period = timeline.step_time_s if graph.program.repeats else 0.0
    lane_of_pair = _lanes_of_pairs(graph, in_microbatch)
    cost_s = np.zeros(len(graph))
    for first, last in zip(graph.start[:-1].tolist(), graph.start[1:].tolist(), strict=True):
        nodes, calls = (first + np.flatnonzero(which[first:last]) for which in (computes, communicates))
        if not len(nodes) or not len(calls):
            continue
        nodes = nodes[np.argsort(timeline.start_s[nodes], kind="stable")]
        work = _Work(timeline.start_s[nodes], timeline.end_s[nodes], alone_s[nodes], in_microbatch[nodes], period)
        lanes = lane_of_pair[calls]
        # Transfers that computation waits for share one lane; others have one for every channel (schedules/pipeline).
        is_transfer = (lanes >= 0) & (len(distinct(lanes[lanes >= 0])) > 1)
        calls_of_rank = _Calls(timeline.start_s[calls], lasts[calls], uses[calls], is_transfer)
        cost_s[nodes] = work.cost_s(calls_of_rank, overlaps.slowdown[kernels[nodes]])
    return np.minimum(cost_s, alone_s * MAX_LOST / (1 - MAX_LOST))


def _lanes_of_pairs(graph: Graph, in_microbatch: Mask) -> Longs:
    """Returns the lane of each node that moves a microbatch between stages; -1 for other nodes."""
    pairs = np.array([communicator.pair is not None for communicator in graph.program.communicators] + [False])
    if not pairs.any():
        return np.full(len(graph), -1)
    moves = pairs[graph.ops.ints("communicator")][graph.op] & in_microbatch
    return np.where(moves, graph.ops.ints("lane")[graph.op], -1)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one rank class: when each starts, how long it lasts, and the kind of its resource use."""

    start_s: Floats
    last_s: Floats
    use: Longs
    is_transfer: Mask
    """Whether it moves a microbatch between stages next to computation."""

    def by_use(self, which: Mask) -> list[tuple[int, Floats, Floats]]:
        """Returns each kind of use with the starts and durations of its calls, of those that are chosen."""
        chosen = [(use, which & (self.use == use)) for use in distinct(self.use[which]).tolist()]
        return [(use, self.start_s[is_of_use], self.last_s[is_of_use]) for use, is_of_use in chosen]


@dataclass(frozen=True, slots=True)
class _Work:
    """The computations of one rank class, in order: when each starts and ends, and what it takes alone.

    Steps follow each other every `period` seconds (0: there is one step), so that the end of a step runs next to the
    begin of the next.
    """

    start_s: Floats
    end_s: Floats
    alone_s: Floats
    in_microbatch: Mask
    period: float

    def cost_s(self, calls: _Calls, slower: Floats) -> Floats:
        """Returns what calls cost each computation, which takes `slower` [computations, uses] times as long."""
        cost = np.zeros(len(self.alone_s))
        for use, _, last_s in calls.by_use(calls.is_transfer):
            cost += self._spread(float(last_s.sum()), slower[:, use])
        return cost + self._covered(calls.by_use(~calls.is_transfer), slower, cost)

    def _spread(self, seconds: float, slower: Floats) -> Floats:
        """Returns the cost of `seconds` of calls that cover all microbatches' computation evenly."""
        alone = self.alone_s * self.in_microbatch
        under = float((alone * slower).sum())
        return np.asarray(min(seconds / under, 1.0) * alone * (slower - 1)) if under > 0 else np.zeros(len(alone))

    def _covered(self, calls: list[tuple[int, Floats, Floats]], slower: Floats, before_s: Floats) -> Floats:
        """Returns what calls cost that start at their places, where others cost `before_s` already."""
        if not calls:
            return np.zeros(len(self.alone_s))
        cost = np.zeros((len(calls), len(self.alone_s)))
        # Calls of different uses that run at once leave less of the pace, so each covers less than alone.
        for _ in range(2 if len(calls) > 1 else 1):
            others = before_s + cost.sum(axis=0) - cost
            cost = np.stack(
                [
                    self._covered_by(starts, lasts, slower[:, use], others[number])
                    for number, (use, starts, lasts) in enumerate(calls)
                ]
            )
        return np.asarray(cost.sum(axis=0))

    def _covered_by(self, starts: Floats, lasts: Floats, slower: Floats, others_s: Floats) -> Floats:
        """Returns what calls of one use cost, where other calls cost `others_s`.

        Time is counted as if a call of this use covered everything. A call then covers what lies between its start
        and its end.
        """
        under = self.alone_s * slower + others_s
        gaps = np.maximum(np.append(self.start_s[1:], self.start_s[0] + self.period) - self.end_s, 0.0)
        lap = under + gaps
        begin = np.cumsum(lap) - lap
        finish = begin + under
        at, share, past = self._places(starts)
        begins = np.where(at < 0, past, begin[at] + share * under[at] + past)
        ends = begins + lasts
        if self.period > 0:
            whole = float(begin[-1] + lap[-1])
            turns = whole * np.arange(min(int(ends.max() / whole), MAX_STEPS) + 1)[:, None]
            begins, ends = (begins - turns).ravel(), (ends - turns).ravel()
        low, high = np.searchsorted(finish, begins, side="right"), np.searchsorted(begin, ends, side="left")
        count = np.maximum(high - low, 0)
        covered, by = ranges(low, count), np.repeat(np.arange(len(begins)), count)
        together = np.minimum(finish[covered], ends[by]) - np.maximum(begin[covered], begins[by])
        seconds = np.bincount(covered, weights=np.maximum(together, 0.0), minlength=len(under))
        return np.asarray(seconds * self.alone_s * (slower - 1) / under)

    def _places(self, starts: Floats) -> tuple[Longs, Floats, Floats]:
        """Returns where calls start: within or after which computation, the share of it that is done, seconds past it.

        A call that starts before all computations has no computation (-1), and negative seconds.
        """
        if self.period > 0:
            starts = starts - self.period * np.floor((starts - self.start_s[0]) / self.period)
        at = np.searchsorted(self.start_s, starts, side="right") - 1
        share = np.clip((starts - self.start_s[at]) / (self.end_s - self.start_s)[at], 0.0, 1.0)
        past = np.where(at < 0, starts - self.start_s[0], np.maximum(starts - self.end_s[at], 0.0))
        return at, share, past
