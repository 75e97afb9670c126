"""Indexes a fabric's links by the device they leave and by both of their ends."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs, Mask
from foretrace.hardware.fabric.csr import items_of, starts_of
from foretrace.hardware.fabric.fabric import Fabric


class FabricGraph:
    """Indexes of a fabric that routing needs; nothing here depends on who sends to whom."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.link = np.argsort(fabric.source, kind="stable")
        """Links in the order of the devices they leave."""
        self.start = starts_of(np.bincount(fabric.source, minlength=fabric.devices))
        key = fabric.source * fabric.devices + fabric.target
        self._by_ends = np.argsort(key, kind="stable")
        self._ends = key[self._by_ends]
        self.back = self.find(fabric.target, fabric.source)
        """For each link, one that leads back."""

    def find(self, source: Longs, target: Longs) -> Longs:
        """The (first) link from each source to its target, -1 where there is none."""
        if not len(self._ends):
            return np.full(len(source), -1, dtype=np.int64)
        key = source * self.fabric.devices + target
        at = np.minimum(np.searchsorted(self._ends, key), len(self._ends) - 1)
        return np.where(self._ends[at] == key, self._by_ends[at], -1)

    def out(self, device: Longs, kinds: Mask) -> tuple[Longs, Longs]:
        """The links out of each device to devices of these kinds, and which of the devices each leaves."""
        at, counts = items_of(self.start, device)
        link, owner = self.link[at], np.repeat(np.arange(len(device)), counts)
        kept = kinds[self.fabric.kind[self.fabric.target[link]]]
        return link[kept], owner[kept]


def together(count: int, first: Longs, second: Longs) -> Longs:
    """Returns the connected component of each of `count` items, as the smallest number in it.

    Each of `first` is joined to its partner of `second`.
    """
    part = np.arange(count, dtype=np.int64)
    while True:
        lower = part.copy()
        np.minimum.at(lower, first, part[second])
        np.minimum.at(lower, second, part[first])
        lower = lower[lower]
        if np.array_equal(lower, part):
            return part
        part = lower


def among(*kinds: int) -> Mask:
    """Returns a mask over the numbers of `Device` that is true for these kinds."""
    chosen = np.zeros(16, dtype=np.bool_)
    chosen[list(kinds)] = True
    return chosen
