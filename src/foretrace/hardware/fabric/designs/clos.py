"""Builds networks of leaves, spines and cores: fat trees, rail-optimised networks, Spectrum-X, HPN and DCN+.

One builder serves all. A design states which leaf serves which port and how many spines and cores there are; rates
follow from the ports below and the oversubscription above. The cables between two switches are one link with the sum of
their rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.hardware.fabric.designs.draft import FabricDraft
from foretrace.hardware.fabric.fabric import Device


@dataclass(frozen=True, slots=True)
class Design:
    """The layout of a Clos network, with every size chosen."""

    rails: bool
    """Whether a leaf serves one NIC of each of many nodes, rather than all NICs of a few."""
    leaf_ports: int
    """NIC ports that one leaf serves."""
    tors: int
    """Ports of a NIC, each on a leaf of its own."""
    planes: int
    pod_ports: int
    """NICs beneath one set of spines; 0: as many as spines have ports for, beyond that pods of half as many leaves."""
    spines: int
    """In a pod and plane; 0: as many as its leaves need."""
    spine_ports: int
    """Ports of a spine or core."""
    oversubscription: float
    core_oversubscription: float
    hop_s: float


def add_clos(draft: FabricDraft, nics: Longs, nic_bytes_per_s: float, design: Design) -> None:
    """Joins NICs, [nodes, NICs of a node], through leaves and, where one does not hold all, spines and cores."""
    port_rate = nic_bytes_per_s / design.tors
    plane, block, rail = _leaf_keys(nics.shape, design)
    key = (plane * (block.max() + 1) + block) * (rail.max() + 1) + rail
    used, leaf_of = np.unique(key, return_inverse=True)
    leaves = draft.add_numbered(Device.LEAF, len(used))
    ports = np.broadcast_to(nics[:, :, None], key.shape)
    draft.join(ports, leaves[leaf_of.reshape(key.shape)], port_rate, 0.0, design.hop_s)
    rails, blocks = int(rail.max()) + 1, int(block.max()) + 1
    for number in range(int(plane.max()) + 1):
        own = used // (rails * blocks) == number
        if own.sum() > 1:
            at = used[own] % (rails * blocks)
            up = design.leaf_ports * port_rate / design.oversubscription
            _add_spines(draft, leaves[own], at // rails, at % rails, nics.shape[1], _Up(up, nic_bytes_per_s), design)


def _leaf_keys(shape: tuple[int, ...], design: Design) -> tuple[Longs, Longs, Longs]:
    """Returns for each port [nodes, NICs, ports of a NIC] its plane, its block of nodes or NICs, and the leaf within
    these."""
    nodes, nics = shape[:2]
    node, nic, port = np.meshgrid(np.arange(nodes), np.arange(nics), np.arange(design.tors), indexing="ij")
    by_port = design.tors > 1
    plane = port % design.planes if by_port else nic % design.planes
    twin = port // design.planes if by_port else np.zeros_like(port)
    twins = -(-design.tors // design.planes) if by_port else 1
    if design.rails:
        return plane, node // design.leaf_ports, nic * twins + twin
    in_plane = node * nics + nic if by_port else (node * nics + nic) // design.planes
    return plane, in_plane // design.leaf_ports, twin


@dataclass(frozen=True, slots=True)
class _Up:
    """The total rate that goes up from a switch, and the rate of one cable: a NIC's, also where its ports are
    slower."""

    bytes_per_s: float
    cable_bytes_per_s: float

    @property
    def cables(self) -> int:
        return max(1, round(self.bytes_per_s / self.cable_bytes_per_s))

    def over(self, count: int) -> tuple[float, int]:
        """Returns the rate and the cables to each of `count` switches."""
        rate = self.bytes_per_s / count
        return rate, max(1, round(rate / self.cable_bytes_per_s))


def _add_spines(
    draft: FabricDraft, leaves: Longs, block: Longs, rail: Longs, nics: int, up: _Up, design: Design
) -> None:
    """Adds the spines of one plane, pod by pod, and the cores above them."""
    pod, per_pod = _pods(block, rail, nics, design)
    pods = int(pod.max()) + 1
    down_ports = design.spine_ports if pods == 1 else design.spine_ports // 2
    count = design.spines or _divisor(up.cables, -(-per_pod * up.cables // down_ports))
    rate, cables = up.over(count)
    spines = draft.add_numbered(Device.SPINE, pods * count).reshape(pods, count)
    draft.join(leaves[:, None], spines[pod], rate, design.hop_s, design.hop_s, cables)
    if pods > 1:
        _add_cores(draft, spines, _Up(per_pod * rate / design.core_oversubscription, up.cable_bytes_per_s), design)


def _pods(block: Longs, rail: Longs, nics: int, design: Design) -> tuple[Longs, int]:
    """The pod of each leaf, and how many leaves a full one has."""
    if design.pod_ports:
        rails = int(rail.max()) + 1
        if design.rails:
            blocks = max(1, design.pod_ports // (nics * design.leaf_ports))
        else:
            blocks = max(1, design.pod_ports // (design.leaf_ports * (design.planes if design.tors == 1 else 1)))
        pods = block // blocks
        return pods, min(blocks, int(block.max()) + 1) * rails
    if len(block) <= design.spine_ports:
        return np.zeros_like(block), len(block)
    # Leaves of a rail stay together, so that a rail crosses no core within a pod.
    order = np.lexsort((block, rail))
    half = design.spine_ports // 2
    pods = np.empty_like(block)
    pods[order] = np.arange(len(order)) // half
    return pods, half


def _add_cores(draft: FabricDraft, spines: Longs, up: _Up, design: Design) -> None:
    """Joins the spines of the same number in all pods through a set of cores of their own."""
    pods, count = spines.shape
    each = _divisor(up.cables, -(-pods * up.cables // design.spine_ports))
    cores = draft.add_numbered(Device.CORE, count * each).reshape(count, each)
    rate, cables = up.over(each)
    draft.join(spines[:, :, None], cores[None], rate, design.hop_s, design.hop_s, cables)


def _divisor(number: int, least: int) -> int:
    """The smallest divisor of a number that is at least so large, or the number itself."""
    divisors = [
        divisor
        for low in range(1, math.isqrt(number) + 1)
        if number % low == 0
        for divisor in (low, number // low)
        if divisor >= least
    ]
    return min(divisors, default=number)
