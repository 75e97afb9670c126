"""Describes where the ranks of groups are placed, and sorts groups of equal layout together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import InputError
from foretrace.basics.placement import Placement
from foretrace.cost.network.peers import Places
from foretrace.hardware.cluster import Cluster, Node

CrowdingRule = Callable[[NDArray[np.integer]], tuple[Floats, Floats, Floats, Floats]]
"""For groups of one communicator, [groups, size], that run concurrently: the factors (1 and more) by which the network
beyond the NICs slows traffic of rings, of trees and of all-to-alls, and the seconds that its switches add to a hop."""


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """The places of the ranks of a group: how many in all, over how many islands and link domains, how many in the
    island and in the domain with the fewest and the most, and the NICs that each rank has to itself.

    An island is a set of GPUs that need no NIC to reach each other: a host, or a link domain that spans hosts.
    """

    size: int
    islands: int
    domains: int
    least_in_island: int
    least_in_domain: int
    most_in_island: int
    most_in_domain: int
    nics_per_rank: float
    ring_crowding: float = 1.0
    """By which factor, 1 or more, the network beyond the NICs slows traffic between neighbours of a ring."""
    tree_crowding: float = 1.0
    """The same of trees."""
    exchange_crowding: float = 1.0
    """The same of all-to-all traffic."""
    extra_hop_s: float = 0.0
    """Seconds that switches add to a hop over NICs."""


class Seats:
    """Ranks in their places on a cluster."""

    def __init__(self, cluster: Cluster, placement: Placement, crowding: CrowdingRule | None = None) -> None:
        check_placement(cluster, placement)
        places = Places.of(cluster.node, placement)
        self._domain = places.gpu // cluster.node.domain_gpus
        self._island = places.island
        self._nics = nics_per_rank(cluster.node, placement)
        self._crowding = crowding

    @property
    def several_islands(self) -> bool:
        """Whether some ranks reach others over NICs alone."""
        return bool((self._island != self._island[0]).any())

    @property
    def several_in_domain(self) -> bool:
        """Whether any two ranks are in one link domain."""
        return len(np.unique(self._domain)) < len(self._domain)

    def layouts(self, groups: NDArray[np.integer]) -> tuple[list[Hashable], Longs]:
        """The kinds of groups among these, and which kind each is."""
        islands, least_in_island, most_in_island = _spread(self._island[groups])
        domains, least_in_domain, most_in_domain = _spread(self._domain[groups])
        nics = self._nics[groups].min(axis=1)
        facts: list[NDArray[np.generic]] = [islands, domains, least_in_island, least_in_domain]
        facts += [most_in_island, most_in_domain, nics]
        if self._crowding is not None and (islands > 1).any():
            facts += self._crowding(groups)
        first, number = _kinds(facts)
        size = groups.shape[1]
        return [GroupLayout(size, *(fact[group].item() for fact in facts)) for group in first.tolist()], number


def as_slowest(layouts: Sequence[Hashable]) -> list[Hashable]:
    """Returns each layout with the largest crowding and the longest hops of those that are otherwise the same."""
    shapes: list[GroupLayout] = []
    slowest: dict[GroupLayout, GroupLayout] = {}
    for layout in layouts:
        assert isinstance(layout, GroupLayout)
        shape = replace(layout, ring_crowding=1.0, tree_crowding=1.0, exchange_crowding=1.0, extra_hop_s=0.0)
        known = slowest.setdefault(shape, layout)
        slowest[shape] = replace(
            known,
            ring_crowding=max(known.ring_crowding, layout.ring_crowding),
            tree_crowding=max(known.tree_crowding, layout.tree_crowding),
            exchange_crowding=max(known.exchange_crowding, layout.exchange_crowding),
            extra_hop_s=max(known.extra_hop_s, layout.extra_hop_s),
        )
        shapes.append(shape)
    return [slowest[shape] for shape in shapes]


def nics_per_rank(node: Node, placement: Placement) -> Floats:
    """The NICs that each rank has to itself. It uses those next to it; what other ranks of the job leave idle does not
    make it faster."""
    ranks_here = placement.ranks_per_host()[placement.host]
    return np.asarray(np.minimum(node.nics / ranks_here, max(1.0, node.nics / node.gpus)))


def check_placement(cluster: Cluster, placement: Placement) -> None:
    """Raises an error where ranks are placed on GPUs or nodes that the cluster does not have, or two on one GPU."""
    node = cluster.node
    if int(placement.slot.max()) >= node.gpus:
        rank = int(placement.slot.argmax())
        raise InputError(
            "bad-placement",
            f"rank {rank} is placed on GPU {int(placement.slot[rank])}, but nodes of {cluster.name} have {node.gpus}",
            hint=f"GPUs of a node are numbered from 0 to {node.gpus - 1}",
        )
    place = placement.host.astype(np.int64) * node.gpus + placement.slot
    if not (np.diff(place) > 0).all():  # not simply in order
        order = np.argsort(place, kind="stable")
        same = np.flatnonzero(np.diff(place[order]) == 0)
        if len(same):
            first, second = order[same[0]], order[same[0] + 1]
            raise InputError(
                "bad-placement",
                f"ranks {first} and {second} are placed on one GPU, {placement.slot[first]} of node"
                f" {placement.host[first]}",
                hint="give each rank a GPU of its own",
            )
    if cluster.nodes is not None and placement.hosts > cluster.nodes:
        raise InputError(
            "cluster-too-small",
            f"the placement needs {placement.hosts:,} nodes, the cluster {cluster.name} has {cluster.nodes:,}",
            hint=f"place the ranks on fewer, or raise nodes in {cluster.where or 'the cluster'}",
        )


def _spread(places: Longs) -> tuple[Longs, Longs, Longs]:
    """Per row of [groups, size]: how many places it has, and how many ranks the emptiest and the fullest of them
    hold."""
    groups, size = places.shape
    together = places[:, 1:] == places[:, :-1]
    single, every = np.ones(groups, dtype=np.int64), np.full(groups, size)
    if size == 2:
        same = together[:, 0].astype(np.int64)
        return 2 - same, 1 + same, 1 + same
    if together.all():
        return single, every, every
    if (places[:, 1:] > places[:, :-1]).all():
        return every, single, single
    ordered = np.sort(places, axis=1)
    starts = np.ones(ordered.shape, dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    flat = np.flatnonzero(starts)
    held = np.diff(np.append(flat, starts.size))
    counts = starts.sum(axis=1)
    first = np.cumsum(counts) - counts
    return counts, np.minimum.reduceat(held, first), np.maximum.reduceat(held, first)


def _kinds(facts: Sequence[NDArray[np.generic]]) -> tuple[Longs, Longs]:
    """The first of the groups of each kind, and the number of each group's kind: those of a kind have the same
    facts."""
    number = np.zeros(len(facts[0]), dtype=np.int64)
    for fact in facts:
        if (fact != fact[0]).any():
            values, place = np.unique(fact, return_inverse=True)
            number = np.unique(number * len(values) + place.ravel(), return_inverse=True)[1].ravel()
    first = np.unique(number, return_index=True)[1] if number.any() else np.zeros(1, dtype=np.int64)
    return first, number
