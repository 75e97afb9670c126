"""Runs schedules with free transfers: when each action runs, and how many activations a stage holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.schedules.schedule import ActionKind, Schedule, StageActions
from foretrace.schedules.slots import SlotGraph, run_slots, slot_graph


@dataclass(frozen=True, slots=True, eq=False)
class UnitTimes:
    """Start and end of every action of one step, in the unit of the durations given."""

    start: tuple[Floats, ...]
    """Per stage, one value per row of its actions. All members of a slot start and end with the slot."""
    end: tuple[Floats, ...]
    busy: Floats
    """The length of a stage's slots together, `[stages]`."""
    period: float
    """The time per step when steps follow each other and each stage goes on as soon as it can."""

    @property
    def makespan(self) -> float:
        """From the first start to the last end of a single step."""
        return max(float(end.max()) for end in self.end)

    @property
    def idle(self) -> Floats:
        """What each stage spends idle within the makespan, `[stages]`."""
        return self.makespan - self.busy

    @property
    def idle_per_step(self) -> Floats:
        """What each stage spends idle within the period, `[stages]`: the pipeline's bubble."""
        return self.period - self.busy


def unit_times(
    schedule: Schedule,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    overlapped: float | None = None,
) -> UnitTimes:
    """Run a schedule that passes `check` with free transfers and the same durations on every chunk.

    Durations are those of one chunk with one microbatch; a whole backward takes as long as its two parts. A
    slot of several actions takes `overlapped`, or the sum of its members where that is not given.
    """
    graph = slot_graph(schedule)
    by_kind = np.array([forward, backward_input + backward_weight, backward_input, backward_weight])
    length = _slot_lengths(graph, by_kind, overlapped)
    end = run_slots(schedule, graph, length, np.zeros((schedule.stages, 1)))[:, 0]
    bounds = np.cumsum([len(rows) for rows in schedule.stage_actions])[:-1]
    return UnitTimes(
        start=tuple(np.split((end - length)[graph.rows.slot], bounds)),
        end=tuple(np.split(end[graph.rows.slot], bounds)),
        busy=np.add.reduceat(length, graph.rows.first_slot[:-1]),
        period=_period(schedule, graph, length),
    )


def _slot_lengths(graph: SlotGraph, by_kind: Floats, overlapped: float | None) -> Floats:
    """How long each slot takes, given the duration of each kind of action."""
    slot = graph.rows.slot
    length = np.bincount(slot, weights=by_kind[graph.rows.kind]).astype(np.float64)
    if overlapped is not None:
        length[np.bincount(slot) > 1] = overlapped
    return length


def _period(schedule: Schedule, graph: SlotGraph, length: Floats) -> float:
    """The growth per step of a (max,+) linear recurrence: the largest mean weight of a cycle.

    Entry [i, j] of the matrix is the least time from when stage j is free for a step to when stage i ends it.
    """
    ready = np.full((schedule.stages, schedule.stages), -np.inf)
    np.fill_diagonal(ready, 0.0)
    end = run_slots(schedule, graph, length, ready)
    return largest_cycle_mean(end[graph.rows.first_slot[1:] - 1])


def largest_cycle_mean(weight: Floats) -> float:
    """The largest mean weight of a cycle in a complete graph, by Karp's theorem (Discrete Math. 23, 1978).

    It is the maximum over nodes of the minimum over k < n of (d_n − d_k) / (n − k), where d_k is the weight
    of the heaviest walk of k edges from node 0.
    """
    nodes = len(weight)
    walks = np.full((nodes + 1, nodes), -np.inf)
    walks[0, 0] = 0.0
    for steps in range(nodes):
        walks[steps + 1] = (weight + walks[steps]).max(axis=1)
    remaining = np.arange(nodes, 0, -1)[:, None]
    return float(((walks[-1] - walks[:-1]) / remaining).min(axis=0).max())


def peak_in_flight(schedule: Schedule) -> Longs:
    """The most chunk activations each stage holds at once, `[stages]`.

    An activation is held from its forward until its backward has ended; with a split backward, until its
    weight gradient has. Divided by the chunks per stage it counts whole microbatches.
    """
    return np.array([_peak(rows) for rows in schedule.stage_actions], dtype=np.int64)


def _peak(rows: StageActions) -> int:
    takes = rows.kind == ActionKind.FORWARD
    frees = (rows.kind == ActionKind.BACKWARD) | (rows.kind == ActionKind.BACKWARD_WEIGHT)
    started = np.cumsum(np.bincount(rows.slot, weights=takes))
    freed = np.cumsum(np.bincount(rows.slot, weights=frees))
    # What a slot frees is still held while the slot runs.
    freed_before = np.concatenate([[0.0], freed[:-1]])
    return int((started - freed_before).max())
