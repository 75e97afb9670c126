"""Where a run in which communications share links differs from one in which each goes as if alone, and what is hot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.cost.machine import NetworkMode
from foretrace.cost.network.interface import LimitKind
from foretrace.cost.prices import Draws
from foretrace.engine.shared_flows import rows_of_nodes
from foretrace.program.program import Resource
from foretrace.program.timeline import Timeline

SLOWER: Final = 1e-6
"""By less than this share of its time nothing is called slower: that is rounding."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """The communication over an axis: seconds per rank and step, alone and among the others."""

    axis: str
    analytic_s: float
    flow_s: float


@dataclass(frozen=True, slots=True)
class Hot:
    """The busiest instance of a resource: the ranks that draw on it, what it gives per second, which share of that is
    drawn over the step, and over the time in which anything draws."""

    resource: str
    ranks: str
    capacity_per_s: float
    utilisation: float
    utilisation_in_use: float


@dataclass(frozen=True, slots=True)
class AxisLimit:
    """The limit of the calls of most of the communication time of an axis, each as if alone, and the share of that
    time."""

    axis: str
    kind: LimitKind
    name: str
    share: float


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """How communications were run, and what sharing did to them; in an analytic run nothing is slowed, nor hot.

    `limits` has what limits each axis; it is empty where that was not worked out.
    """

    mode: NetworkMode
    analytic_step_time_s: float
    slowed: tuple[Slowed, ...] = ()
    hot: tuple[Hot, ...] = ()
    limits: tuple[AxisLimit, ...] = ()


def network_use(alone: Timeline, shared: Timeline, draws: Draws) -> NetworkUse:
    """Returns what sharing changed, from the same job run with every communication alone and with links divided."""
    before, after = by_axis_s(alone), by_axis_s(shared)
    slowed = [Slowed(axis, before[axis], now_s) for axis, now_s in after.items() if now_s > before[axis] * (1 + SLOWER)]
    slowed.sort(key=lambda axis: axis.analytic_s - axis.flow_s)
    return NetworkUse("flow", alone.step_time_s, tuple(slowed), tuple(hot(shared, draws)))


def by_axis_s(timeline: Timeline) -> dict[str, float]:
    """Returns how long communications over each axis run in a step, mean over ranks."""
    graph = timeline.graph
    communicators = graph.program.communicators
    number = graph.ops.ints("communicator")[graph.op]
    meets = number >= 0
    lasting_s = ((timeline.end_s - timeline.start_s) * graph.weight)[meets]
    seconds = np.bincount(number[meets], weights=lasting_s, minlength=len(communicators)) / graph.program.world
    by_axis: dict[str, float] = {}
    for communicator, mine in zip(communicators, seconds.tolist(), strict=True):
        by_axis[communicator.axis] = by_axis.get(communicator.axis, 0.0) + mine
    return by_axis


def hot(timeline: Timeline, draws: Draws) -> list[Hot]:
    """Returns the busiest instance of every resource that anything draws on, the busiest resource first."""
    graph = timeline.graph
    node, row = rows_of_nodes(graph, draws)
    uses = [
        _busiest(timeline, resource, node[mine], draws.amount[row[mine]])
        for number, resource in enumerate(draws.resources)
        if (mine := draws.resource[row] == number).any()
    ]
    return sorted(uses, key=lambda use: -use.utilisation)


def _busiest(timeline: Timeline, resource: Resource, node: Longs, amount: Floats) -> Hot:
    graph, step = timeline.graph, timeline.step_time_s
    world, owner = graph.program.world, graph.rank_class[node]
    of_class = np.bincount(owner, weights=amount, minlength=len(graph.classes))
    instance, capacity = resource.instance_of(world), resource.capacity_of(world)
    inside = np.flatnonzero(instance >= 0)
    drawn = np.bincount(instance[inside], weights=of_class[graph.classes.of_rank[inside]])
    rate = np.full(len(drawn), resource.capacity_per_s)
    rate[instance[inside]] = capacity[inside]
    most = int((drawn / rate).argmax())
    ranks = np.flatnonzero(instance == most)
    mine = node[np.isin(owner, graph.classes.of_rank[ranks])]
    in_use = _covered_s(timeline.start_s[mine], timeline.end_s[mine])
    per_s = float(drawn[most] / rate[most])
    return Hot(
        resource.name,
        ranks_text(ranks),
        float(rate[most]),
        per_s / step if step > 0 else 0.0,
        per_s / in_use if in_use > 0 else 0.0,
    )


def _covered_s(start: Floats, end: Floats) -> float:
    """Returns how long at least one of these intervals lasts."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    until = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(end - np.maximum(start, until), 0.0).sum())


def ranks_text(ranks: Longs, shown: int = 4) -> str:
    """Returns ranks in short: "0-7", "3, 11, 19 and 13 more"."""
    breaks = np.flatnonzero(np.diff(ranks) != 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(ranks, breaks)]
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:shown]]
    left = int(sum(last - first + 1 for first, last in runs[shown:]))
    return ", ".join(texts) + (f" and {left} more" if left else "")
