"""Defines a network as a graph: GPUs, switches within and between nodes, and directed links."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs


class Device(IntEnum):
    """The kinds of devices, from the GPU outwards."""

    GPU = 0
    LINK_SWITCH = 1
    """Joins the GPUs of a link domain (NVSwitch)."""
    PCIE_SWITCH = 2
    """Joins GPUs of a node that links do not, and NICs that several GPUs share."""
    NIC = 3
    LEAF = 4
    """The first switch beyond a NIC (ToR, ASW)."""
    SPINE = 5
    """Above the leaves (PSW, aggregation); the routers of a dragonfly or torus are leaves."""
    CORE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """Devices and directed links. GPUs come first: device g is GPU g, the slot g % gpus_per_node of node
    g // gpus_per_node. Rates are line rates in bytes per second, one way, less what other traffic takes of them;
    latencies are of one crossing, in seconds. Every link has one that leads back."""

    name: str
    gpus: int
    gpus_per_node: int
    kind: NDArray[np.int8]
    """The `Device` kind of each device."""
    labels: tuple[str, ...]
    """The label of each device, as in reports: "node 3 GPU 1", "leaf 12"."""
    source: Longs
    """The device that each link leaves."""
    target: Longs
    """The device that each link enters."""
    bytes_per_s: Floats
    latency_s: Floats
    cables: Longs | None = None
    """Equal cables that each link stands for, with the sum of their rates; None: one each."""

    @property
    def devices(self) -> int:
        """The number of devices, GPUs included."""
        return len(self.kind)

    @property
    def links(self) -> int:
        """The number of links, each direction counted."""
        return len(self.source)

    @property
    def cable_counts(self) -> Longs:
        """The number of cables that each link stands for."""
        return np.ones(self.links, dtype=np.int64) if self.cables is None else self.cables

    def counts(self) -> dict[str, int]:
        """The number of devices of each kind, by its name."""
        return {kind.name: int((self.kind == kind).sum()) for kind in Device}

    def link_label(self, link: int) -> str:
        """A link as reports call it: "leaf 3 - spine 1"."""
        return f"{self.labels[int(self.source[link])]} - {self.labels[int(self.target[link])]}"


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The ways that flows take: flow f crosses the links `link[start[f] : start[f + 1]]`, each with `share` of its
    bytes (1 on a single path; less where equal paths divide it)."""

    start: Longs
    link: Longs
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """Places at which traffic that leaves a part of the network is narrow, one for each part: the NICs of a node, the
    uplinks of a leaf. GPU g is in part `part_of[g]`; what it sends to another part passes its own part's exit, which
    carries `bytes_per_s[part]` (usable rate, one way)."""

    name: str
    part_of: Longs
    bytes_per_s: Floats
