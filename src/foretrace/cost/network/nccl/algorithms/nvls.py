"""Times reduction in switches: NVLS within a node, NVLSTree between nodes, and CollNet over reducing networks."""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.tuning_tables import (
    DIRECT_PEER_US,
    NETWORK_US,
    NVLS_EFFICIENCY,
    PAT_SHARE,
    US,
)
from foretrace.program.columns import Collective

START_S: Final = 16.6e-6
"""A call of NVLS beyond its launch: the multicast barrier before and after. Fitted as CORNER in ring.py."""

CHUNKS_S: Final = 86e-6
CHUNKS_BYTES: Final = 17.9e6
"""Chunks grow from 16 to 64 KiB with the size (`enqueue.cc`), and small ones are the less efficient: up to CHUNKS_S
more, half of it at CHUNKS_BYTES. Fitted as CORNER in ring.py."""


def nvls_s(group: NcclGroup, what: Collective, algorithm: str, size_bytes: Floats) -> tuple[float, Floats]:
    """The latency of a call and the seconds it takes in all."""
    latency = group.machine.launch_s + START_S
    rate = _switch_rate(group, what)
    if group.nodes > 1:
        depth = group.nodes.bit_length() - 1 if algorithm == "nvls-tree" else 1
        latency += 2 * depth * (group.machine.step_scale * NETWORK_US[algorithm][2] * US + group.layout.extra_hop_s)
        rate = min(rate, _network_rate(group, algorithm))
    chunks = CHUNKS_S * size_bytes / (size_bytes + CHUNKS_BYTES) / group.machine.clock
    return latency, latency + chunks + size_bytes / rate


def _switch_rate(group: NcclGroup, what: Collective) -> float:
    """Bytes of the buffer per second through the NVSwitch: of n GPUs, n − 1 parts in n come over the links."""
    n = group.layout.most_in_island
    rate = group.link_rate * NVLS_EFFICIENCY[group.row] * (n - 1) / n
    return rate if what is Collective.ALL_REDUCE else rate * group.layout.size / max(group.layout.size - 1, 1)


def _network_rate(group: NcclGroup, algorithm: str) -> float:
    layout = group.layout
    if algorithm != "nvls-tree":
        return layout.least_in_island * group.nic_rate(layout.ring_crowding)
    out = layout.least_in_island * group.nic_rate(layout.tree_crowding)
    channels = 0.5 * group.channels_bytes_per_s(algorithm, "simple")
    return min(out * (1.0 if layout.islands == 2 else 0.5), channels)


def collnet_s(group: NcclGroup, what: Collective, algorithm: str, size_bytes: Floats) -> tuple[float, Floats]:
    """A call whose sum is made by the switches of the network: all bytes leave and enter each node once."""
    near = group.near_s(algorithm, "simple")
    hops = group.layout.most_in_island - 1
    within = 2 * hops * near if algorithm == "collnet-chain" else 2 * (min(1, hops) * near + DIRECT_PEER_US * US * hops)
    latency = group.machine.launch_s + within + group.far_s(algorithm, "simple")
    out = group.layout.least_in_island * group.nic_rate(group.layout.ring_crowding)
    inside = group.link_rate / 2 if group.layout.most_in_domain > 1 else np.inf
    others = 1.0 if what is Collective.ALL_REDUCE else 1 - group.layout.least_in_island / group.layout.size
    return latency, latency + size_bytes * others / min(out, inside)


def pat_s(group: NcclGroup, size_bytes: Floats) -> tuple[float, Floats]:
    """All-gather and reduce-scatter of one GPU a node by a tree over all of them (NCCL's PAT)."""
    n = group.layout.size
    depth = (n - 1).bit_length()
    latency = group.machine.launch_s + depth * group.far_s("pat", "simple")
    return latency, latency + size_bytes * (n - 1) / n / (PAT_SHARE * group.ring_rate)
