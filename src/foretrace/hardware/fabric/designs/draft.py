"""Collects the devices and links of a fabric, in blocks of arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from foretrace.basics.arrays import Floats, Longs
from foretrace.hardware.fabric.fabric import Device, Fabric


class FabricDraft:
    """Devices and links so far; GPUs are added first."""

    def __init__(self) -> None:
        self._kinds: list[int] = []
        self._labels: list[str] = []
        self._ends: list[tuple[Longs, Longs]] = []
        self._numbers: list[tuple[Floats, Floats, Longs]] = []

    def add(self, kind: Device, labels: Iterable[str]) -> Longs:
        """Adds devices; their numbers."""
        first = len(self._labels)
        self._labels.extend(labels)
        self._kinds.extend([int(kind)] * (len(self._labels) - first))
        return np.arange(first, len(self._labels), dtype=np.int64)

    def count(self, kind: Device) -> int:
        """Returns the number of devices of a kind so far."""
        return self._kinds.count(int(kind))

    def add_numbered(self, kind: Device, count: int) -> Longs:
        """Adds `count` switches of a kind, named by its word and the next numbers: "leaf 12"."""
        first, word = self.count(kind), WORDS[kind]
        return self.add(kind, (f"{word} {first + number}" for number in range(count)))

    def join(
        self,
        below: ArrayLike,
        above: ArrayLike,
        bytes_per_s: ArrayLike,
        up_s: ArrayLike = 0.0,
        down_s: ArrayLike = 0.0,
        cables: ArrayLike = 1,
    ) -> None:
        """Links each of `below` to its partner of `above`, both ways.

        Args:
            below: devices nearer to the GPUs.
            above: their partners.
            bytes_per_s: the rate of each link, one way.
            up_s: seconds of latency from below to above.
            down_s: seconds of latency from above to below.
            cables: equal cables that each link stands for.
        """
        ends = np.broadcast_arrays(np.asarray(below, np.int64), np.asarray(above, np.int64))
        first, second = (np.array(end).ravel() for end in ends)
        rate, up, down = (
            np.broadcast_to(np.asarray(values, np.float64), ends[0].shape).ravel()
            for values in (bytes_per_s, up_s, down_s)
        )
        number = np.broadcast_to(np.asarray(cables, np.int64), ends[0].shape).ravel()
        self._ends += [(first, second), (second, first)]
        self._numbers += [(rate, up, number), (rate, down, number)]

    def fabric(self, name: str, gpus: int, gpus_per_node: int) -> Fabric:
        """Returns the fabric of what has been added."""
        nothing = np.zeros(0)
        source, target = (
            np.concatenate([nothing.astype(np.int64), *(ends[side] for ends in self._ends)]) for side in (0, 1)
        )
        rate, latency, cables = (
            np.concatenate([nothing, *(numbers[column] for numbers in self._numbers)]) for column in (0, 1, 2)
        )
        kind = np.array(self._kinds, dtype=np.int8)
        number = cables.astype(np.int64)
        return Fabric(name, gpus, gpus_per_node, kind, tuple(self._labels), source, target, rate, latency, number)


WORDS = {
    Device.GPU: "GPU",
    Device.LINK_SWITCH: "link switch",
    Device.PCIE_SWITCH: "PCIe",
    Device.NIC: "NIC",
    Device.LEAF: "leaf",
    Device.SPINE: "spine",
    Device.CORE: "core",
}
"""The words for kinds of devices in labels."""
