"""Prepares units for the shared executor, as flows that advance at a rate and draw on resources.

A unit with draws is one flow. Alone it takes its latency and then its work at its full rate; concurrently with others
its rate is what the resources leave it. Its members end when the flow reaches their part of the work, so a member with
less to transfer ends earlier. A flow holds some resources (the SMs that its channels occupy) from start to end,
whatever its rate.

In a folded graph a flow stands for many: `load` counts what all of them together put on one instance of a resource.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs
from foretrace.basics.errors import InputError
from foretrace.engine.order import sort_by
from foretrace.program.graph import Graph
from foretrace.program.program import Resource


class SharedDraws(Protocol):
    """The shared resources that ops draw on: per row an op, a resource, the total it draws and what it holds meanwhile.

    The first row of an op is the measure of its work: ops that meet on a resource divide it evenly in that measure,
    which therefore should be bytes for all that share links or memory. A row is for all ranks that run the op, or for
    those of one profile, where `profile` has its number (-1: all) and `profile_of` the profile of each rank.
    """

    @property
    def op(self) -> Longs: ...
    @property
    def resource(self) -> Longs: ...
    @property
    def amount(self) -> Floats: ...
    @property
    def held(self) -> Floats: ...
    @property
    def resources(self) -> tuple[Resource, ...]: ...
    @property
    def profile(self) -> Longs | None: ...
    @property
    def profile_of(self) -> Ints | None: ...


@dataclass(frozen=True, slots=True)
class Flows:
    """Per unit: latency, work (0: nothing is shared) and full rate in work per second. Per node: the work after which
    it ends. The members of unit u are `member[member_start[u] : member_start[u + 1]]`, those that end first first; what
    member i uses is in rows `use_start[i] : use_start[i + 1]`: what it puts on a resource per unit of work, and holds.
    """

    latency_s: Floats
    work: Floats
    full_rate: Floats
    threshold: Floats
    member_start: Longs
    member: Longs
    use_start: Longs
    use_resource: Longs
    use_load: Floats
    use_held: Floats
    capacity: Floats


def make_flows(graph: Graph, durations: Floats, latency_s: Floats, draws: SharedDraws) -> Flows:
    """The flows of a graph's units, from prices per node (durations, latency) and per op (draws)."""
    instance, capacity, crowd = _instances(graph, draws.resources)
    node, row = rows_of_nodes(graph, draws)
    longest = np.zeros(graph.units)
    np.maximum.at(longest, graph.unit, durations)
    latency = longest.copy()  # the least of the members that draw: no draw waits longer than its own latency
    np.minimum.at(latency, graph.unit[node], np.minimum(latency_s, durations)[node])
    busy = longest - latency
    work = _work(graph, draws, node, row, busy)
    measure = np.where(work > 0, busy, 1.0)
    part = np.maximum(durations - latency[graph.unit], 0.0) / measure[graph.unit]
    threshold = np.minimum(part, 1.0) * work[graph.unit]

    member = np.lexsort((threshold, graph.unit))
    place = np.empty(len(member), dtype=np.int64)
    place[member] = np.arange(len(member))
    own = durations - np.minimum(latency_s, durations)
    there = capacity[instance[draws.resource[row], graph.rank_class[node]]]
    _check_alone(graph, draws, node, row, own[node] + 1e-12 * durations[node], there)  # own is a difference, so rounded
    used = threshold[node] > 0
    node, row = node[used], row[used]
    order, use_start = sort_by(place[node], len(graph), False)
    node, row = node[order], row[order]
    owner = graph.rank_class[node]
    many = crowd[draws.resource[row], owner]
    if len(many) and many.min() == 0:
        at = int(np.argmin(many))
        name = draws.resources[int(draws.resource[row[at]])].name
        raise InputError(
            "invalid-program", f'{graph.place(int(node[at]))} draws on "{name}", but the rank is in none of its sets'
        )
    return Flows(
        latency_s=latency,
        work=work,
        full_rate=work / measure,
        threshold=threshold,
        member_start=np.concatenate([[0], np.cumsum(np.bincount(graph.unit, minlength=graph.units))]),
        member=member,
        use_start=use_start,
        use_resource=instance[draws.resource[row], owner],
        use_load=draws.amount[row] * many / threshold[node],
        use_held=draws.held[row] * many,
        capacity=capacity,
    )


def _work(graph: Graph, draws: SharedDraws, node: Longs, row: Longs, busy: Floats) -> Floats:
    """The work of each unit: the most that any member's first draw amounts to; of what only holds, to last."""
    work = np.zeros(graph.units)
    drawn = draws.amount[row] > 0
    members, first = np.unique(node[drawn], return_index=True)
    np.maximum.at(work, graph.unit[members], draws.amount[row[drawn][first]])
    holding = graph.unit[node[work[graph.unit[node]] == 0]]
    work[holding] = busy[holding]
    work[busy <= 0] = 0.0
    return work


def _instances(graph: Graph, resources: tuple[Resource, ...]) -> tuple[Longs, Floats, Floats]:
    """(instance each class draws on, capacity of each instance, ranks of the class on that instance), the first and
    last per resource and class. Instances that hold the same classes in the same numbers are one."""
    classes, world = graph.classes, graph.program.world
    number = np.zeros((len(resources), len(classes)), dtype=np.int64)
    crowd = np.ones((len(resources), len(classes)))
    capacity: list[Floats] = []
    made = 0
    for i, resource in enumerate(resources):
        of_rank = resource.instance_of(world)
        inside = np.flatnonzero(of_rank >= 0)
        smallest = np.full(int(of_rank.max()) + 1, len(classes))
        np.minimum.at(smallest, of_rank[inside], classes.of_rank[inside])
        home = of_rank[classes.representative]
        kinds, first, inverse = np.unique(
            np.where(home >= 0, smallest[home], -1), return_index=True, return_inverse=True
        )
        number[i] = made + inverse
        made += len(kinds)
        capacity.append(resource.capacity_of(world)[classes.representative[first]])
        if resource.instances is not None:
            pair = of_rank[inside].astype(np.int64) * len(classes) + classes.of_rank[inside]
            pairs, count = np.unique(pair, return_counts=True)
            mine = np.searchsorted(pairs, home.astype(np.int64) * len(classes) + np.arange(len(classes)))
            crowd[i] = np.where(home >= 0, count[np.minimum(mine, len(count) - 1)], 0)
    return number, np.concatenate(capacity) if capacity else np.empty(0), crowd


def rows_of_nodes(graph: Graph, draws: SharedDraws) -> tuple[Longs, Longs]:
    """(node, row) for every draw of every node."""
    order, start = sort_by(draws.op, len(graph.ops), False)
    counts = np.diff(start)[graph.op]
    node = np.repeat(np.arange(len(graph)), counts)
    within = np.arange(len(node)) - np.repeat(np.cumsum(counts) - counts, counts)
    row = order[start[graph.op[node]] + within]
    if draws.profile is None or draws.profile_of is None:
        return node, row
    meant = draws.profile[row]
    profile = draws.profile_of[graph.classes.representative]
    mine = (meant < 0) | (meant == profile[graph.rank_class[node]])
    return node[mine], row[mine]


def _check_alone(graph: Graph, draws: SharedDraws, node: Longs, row: Longs, busy: Floats, capacity: Floats) -> None:
    """An op may not draw more than there is even when it runs alone: its duration would be a lie."""
    over = draws.amount[row] > capacity * busy * (1 + 1e-9)
    if over.any():
        at = int(np.flatnonzero(over)[0])
        name = draws.resources[int(draws.resource[row[at]])].name
        raise InputError(
            "invalid-program",
            f'{graph.place(int(node[at]))} draws {draws.amount[row[at]]:g} from "{name}" in {busy[at]:g} s; '
            f"at {capacity[at]:g} per second that takes {draws.amount[row[at]] / capacity[at]:g} s",
        )
