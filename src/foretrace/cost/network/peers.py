"""Finds which ranks of a group send to each other between islands.

An *island* is a set of GPUs that need no NIC to reach each other. Rings go from island to island in the order in which
the group first reaches them, once through each. All ranks of the group on an island send, each to the rank in the same
place of the next island, evenly where there are more or fewer: NCCL has one ring per NIC, and a NIC sends to the NIC of
the same rail. Trees are the two binary trees of NCCL over the islands in that order, with the same ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask, ranges
from foretrace.basics.placement import Placement
from foretrace.basics.trees import binary_tree
from foretrace.hardware.cluster import Node

INNER_SENDS: Final = 4
"""The traffic of the busiest of more than two islands in both trees together, in halves of the size: up and to two
below in the tree in which it is inner, up in the other. With two islands, each sends up in one tree and down in the
other."""


@dataclass(frozen=True, slots=True, eq=False)
class Partners:
    """Pairs of ranks: their group, who sends, who receives, whether they are on different islands, and which share of
    what the sender puts on its NICs (where they are) or on its links (where not) goes there."""

    group: Longs
    source: Longs
    target: Longs
    beyond: Mask
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """All ranks, group by group in the order of the ring (`rank`), cut into blocks of one island.

    `first`, `count` and `row` are each block's first place, number of ranks and group.
    """

    rank: Longs
    first: Longs
    count: Longs
    row: Longs

    def opposite(self, block: Longs, other: Longs, place: Longs) -> Longs:
        """The rank of another block that stands where the rank in a place of its block stands."""
        within = place - self.first[block]
        return np.asarray(self.rank[self.first[other] + within * self.count[other] // self.count[block]])


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The place of every rank: its GPU's number in the fabric (node × GPUs per node + slot), slot and island."""

    gpu: Longs
    slot: Longs
    island: Longs

    @classmethod
    def of(cls, node: Node, placement: Placement) -> Places:
        """The places of a placement on nodes of one kind."""
        slot = placement.slot.astype(np.int64)
        gpu = placement.host.astype(np.int64) * node.gpus + slot
        return cls(gpu, slot, gpu // node.island_gpus)

    def ring_peers(self, groups: Longs) -> Longs:
        """For each member of each group, [groups, size], the rank it sends to over NICs in a ring; -1 for members of a
        group that is on one island."""
        order, blocks = self._blocks(groups)
        rows = len(groups)
        following = np.arange(1, len(blocks.first) + 1)
        row = blocks.row
        following[np.append(row[1:], rows) != row] = np.searchsorted(row, np.arange(rows))  # a row's last to its first
        own = np.repeat(np.arange(len(row)), blocks.count)
        target = following[own]
        peer = blocks.opposite(own, target, np.arange(groups.size))
        peer[target == own] = -1
        peers = np.empty_like(groups)
        np.put_along_axis(peers, order, peer.reshape(groups.shape), axis=1)
        return peers

    def tree_partners(self, groups: Longs) -> Partners:
        """Returns the pairs that exchange data over NICs in trees, up and down; a pair that both trees join comes
        twice.

        Shares are of what a rank of the busiest island puts on its NICs.
        """
        _, blocks = self._blocks(groups)
        begins = np.searchsorted(blocks.row, np.arange(len(groups) + 1))
        islands = np.diff(begins)
        below, above = [], []
        for number in np.unique(islands).tolist():
            first = begins[:-1][islands == number, None]
            for parent in (binary_tree(number), binary_tree(number, second=True)):
                child = np.flatnonzero(parent >= 0)
                below.append((first + child).ravel())
                above.append((first + parent[child]).ravel())
        sender, receiver = np.concatenate([*below, *above]), np.concatenate([*above, *below])
        ranks = blocks.count[sender]
        place = ranges(blocks.first[sender], ranks)
        sender, receiver = np.repeat(sender, ranks), np.repeat(receiver, ranks)
        row, target = blocks.row[sender], blocks.opposite(sender, receiver, place)
        share = 1 / np.where(islands > 2, INNER_SENDS, 2)[row]
        return Partners(row, blocks.rank[place], target, np.ones(len(row), dtype=bool), share)

    def beyond(self, groups: Longs) -> Longs:
        """For each member of each group, [groups, size], how many of the group are on other islands."""
        return np.asarray(groups.shape[1] - company(self.island[groups]))

    def island_peers(self, groups: Longs) -> Longs:
        """For each member of each group, [groups, size], the next of the group on its island, from the last on to the
        first; -1 for those that are alone there."""
        order = np.argsort(self.island[groups], axis=1, kind="stable")
        ring = np.take_along_axis(groups, order, axis=1)
        begins = np.ones(ring.shape, dtype=bool)
        begins[:, 1:] = self.island[ring[:, 1:]] != self.island[ring[:, :-1]]
        first = np.flatnonzero(begins)
        count = np.diff(np.append(first, ring.size))
        block = np.cumsum(begins) - 1
        place = np.arange(ring.size) - first[block]
        peer = np.where(count[block] > 1, ring.ravel()[first[block] + (place + 1) % count[block]], -1)
        peers = np.empty_like(groups)
        np.put_along_axis(peers, order, peer.reshape(ring.shape), axis=1)
        return peers

    def partners(self, groups: Longs, most: int) -> Partners:
        """Returns the pairs of an all-to-all of each group, [groups, size].

        Beyond `most` pairs only some partners of each rank are returned: those at evenly spread distances in the group,
        the same for all ranks.
        """
        size = groups.shape[1]
        count = int(np.clip(most // groups.size, 1, size - 1))
        # In the middle of as many equal parts of the group: ends would make near partners too many.
        further = 1 + ((np.arange(count) + 0.5) * (size - 1) / count).astype(np.int64)
        target = groups[:, (np.arange(size)[:, None] + further) % size]
        source = np.broadcast_to(groups[:, :, None], target.shape)
        row = np.broadcast_to(np.arange(len(groups))[:, None, None], target.shape)
        beyond = self.island[source] != self.island[target]
        share = np.where(beyond, beyond.sum(axis=2, keepdims=True), (~beyond).sum(axis=2, keepdims=True))
        return Partners(row.ravel(), source.ravel(), target.ravel(), beyond.ravel(), 1.0 / share.ravel())

    def _blocks(self, groups: Longs) -> tuple[Longs, _Blocks]:
        """The members of each group in the order of its ring, and the islands that they come through."""
        order = np.argsort(self._ring_place(groups), axis=1, kind="stable")
        ring = np.take_along_axis(groups, order, axis=1)
        island = self.island[ring]
        begins = np.ones(ring.shape, dtype=bool)
        begins[:, 1:] = island[:, 1:] != island[:, :-1]
        first = np.flatnonzero(begins)
        return order, _Blocks(ring.ravel(), first, np.diff(np.append(first, ring.size)), first // groups.shape[1])

    def _ring_place(self, groups: Longs) -> Longs:
        """A number by which the members of each group come in the order of the ring."""
        size = groups.shape[1]
        island = self.island[groups]
        by_island = np.argsort(island, axis=1, kind="stable")
        sorted_ = np.take_along_axis(island, by_island, axis=1)
        begins = np.ones(groups.shape, dtype=bool)
        begins[:, 1:] = sorted_[:, 1:] != sorted_[:, :-1]
        begin = np.maximum.accumulate(np.where(begins, np.arange(size), 0), axis=1)
        reached = np.empty_like(groups)
        np.put_along_axis(reached, by_island, np.take_along_axis(by_island, begin, axis=1), axis=1)
        return np.asarray(reached * (int(self.slot.max()) + 1) + self.slot[groups])


def company(places: Longs) -> Longs:
    """Returns how many members of each group, [groups, size], are in the place of each."""
    return summed(places, np.ones(places.shape)).astype(np.int64)


def summed(places: Longs, values: Floats) -> Floats:
    """The sum of the values of a group's members, [groups, size], that are in the place of each."""
    width = int(places.max()) + 1
    key = (np.arange(len(places))[:, None] * width + places).ravel()
    number = np.unique(key, return_inverse=True)[1].ravel()
    return np.asarray(np.bincount(number, weights=values.ravel())[number].reshape(places.shape))
