"""Finds the paths through the switches of the network: distances, next hops, and the shares of equal paths.

Every switch forwards data over those of its links whose far end is one hop nearer to the destination, divided evenly
over their cables. Distances are computed once for each destination in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.hardware.fabric.csr import items_of, starts_of, summed
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.graph import together

FAR: Final = 1 << 14
"""The distance of what cannot be reached: more hops than any path has."""

_BLOCK: Final = 1 << 24
"""Links times destinations that are worked on at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """For each pair of switches, the links between them and the share of the traffic on each."""

    start: Longs
    link: Longs
    share: Floats


class Switching:
    """The leaves, spines and cores of a fabric and the links between them, by number of the device."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.of_device = np.full(fabric.devices, -1, dtype=np.int64)
        """The number of a device among the switches."""
        switches = np.flatnonzero(fabric.kind >= Device.LEAF)
        self.of_device[switches] = np.arange(len(switches))
        self._count = len(switches)
        between = (self.of_device[fabric.source] >= 0) & (self.of_device[fabric.target] >= 0)
        link = np.flatnonzero(between)
        self._link = link[np.argsort(self.of_device[fabric.source[link]], kind="stable")]
        self._source = self.of_device[fabric.source[self._link]]
        self._target = self.of_device[fabric.target[self._link]]
        self._start = starts_of(np.bincount(self._source, minlength=self._count))
        self._cables = fabric.cable_counts[self._link].astype(np.float64)
        self._column = np.full(self._count, -1, dtype=np.int64)
        self._distance = np.zeros((self._count, 0), dtype=np.int16)

    def components(self) -> Longs:
        """Returns for each switch the smallest number among those it can reach."""
        return together(self._count, self._source, self._target)

    def distance(self, source: Longs, target: Longs) -> Longs:
        """Hops between switches, `FAR` where there is no way."""
        self._measure(np.unique(target))
        return self._distance[source, self._column[target]].astype(np.int64)

    def next_hops(self, at: Longs, target: Longs) -> tuple[Longs, Longs]:
        """For each switch and destination, where its ways onwards start, and these ways as positions of `link_at`."""
        place, counts = items_of(self._start, at)
        owner = np.repeat(np.arange(len(at)), counts)
        column = self._column[target]
        nearer = self._distance[self._target[place], column[owner]] + 1 == self._distance[at, column][owner]
        return starts_of(np.bincount(owner[nearer], minlength=len(at))), place[nearer]

    def link_at(self, place: Longs) -> Longs:
        """The fabric's links at these positions."""
        return self._link[place]

    def target_at(self, place: Longs) -> Longs:
        """The switches that they enter."""
        return self._target[place]

    def spread(self, source: Longs, target: Longs) -> Paths:
        """All shortest ways between each pair, with the shares that even division gives."""
        self._measure(np.unique(target))
        steps: list[tuple[Longs, Longs, Floats]] = []
        pair = np.flatnonzero(source != target)
        at, share = source[pair], np.ones(len(pair))
        while len(pair):
            key, which = np.unique(at * self._count + target[pair], return_inverse=True)
            start, place = self.next_hops(key // self._count, key % self._count)
            weight = self._cables[place]
            owner = np.repeat(np.arange(len(key)), np.diff(start))
            weight = weight / summed(owner, weight, len(key))[owner]
            step, counts = items_of(start, which)
            pair, share = np.repeat(pair, counts), np.repeat(share, counts) * weight[step]
            steps.append((pair, self._link[place[step]], share))
            pair, at, share = self._gathered(pair, self._target[place[step]], share)
            on = at != target[pair]
            pair, at, share = pair[on], at[on], share[on]
        return _in_order(steps, len(source))

    def _gathered(self, pair: Longs, at: Longs, share: Floats) -> tuple[Longs, Longs, Floats]:
        """Adds up what reaches the same switch for the same pair."""
        key, which = np.unique(pair * self._count + at, return_inverse=True)
        return key // self._count, key % self._count, summed(which, share, len(key))

    def _measure(self, targets: Longs) -> None:
        """Finds the distances to these switches, unless they are known."""
        new = targets[self._column[targets] < 0]
        if not len(new):
            return
        size = max(1, _BLOCK // max(1, len(self._link)))
        columns = [self._distance]
        columns += [self._distances_to(new[first : first + size]) for first in range(0, len(new), size)]
        self._column[new] = self._distance.shape[1] + np.arange(len(new))
        self._distance = np.hstack(columns)

    def _distances_to(self, targets: Longs) -> np.ndarray[tuple[int, int], np.dtype[np.int16]]:
        hops = np.full((self._count, len(targets)), FAR, dtype=np.int16)
        hops[targets, np.arange(len(targets))] = 0
        if not len(self._link):
            return hops
        rows = np.flatnonzero(np.diff(self._start))
        while True:
            nearer = np.minimum.reduceat(hops[self._target], self._start[rows], axis=0) + np.int16(1)
            nearer = np.minimum(hops[rows], nearer)
            if np.array_equal(nearer, hops[rows]):
                return hops
            hops[rows] = nearer


def _in_order(steps: list[tuple[Longs, Longs, Floats]], pairs: int) -> Paths:
    """Links of all steps, pair by pair, nearest to the source first."""
    if not steps:
        nothing = np.zeros(0, dtype=np.int64)
        return Paths(np.zeros(pairs + 1, dtype=np.int64), nothing, np.zeros(0))
    pair, link, share = (np.concatenate(column) for column in zip(*steps, strict=True))
    order = np.argsort(pair, kind="stable")
    return Paths(starts_of(np.bincount(pair, minlength=pairs)), link[order], share[order])
