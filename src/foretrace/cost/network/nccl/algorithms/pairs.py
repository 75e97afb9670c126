"""Times sends and receives: transfers, and all-to-alls made of them.

NCCL sends small messages by LL, one channel per peer, and larger ones by Simple over all channels (`enqueue.cc`,
`NCCL_P2P_LL_THRESHOLD`). Bytes for a GPU of another rail first cross the links to the GPU of that rail in the sender's
own node (PXN). So every NIC carries only the traffic of its own rail, over one connection per other island.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.network.nccl.algorithms.ring import ramp_s, step_s
from foretrace.cost.network.nccl.group import NcclGroup

PER_PEER_S: Final = 0.55e-6
"""Seconds of a further peer of an all-to-all, where hops take what NCCL's table says. Fitted as CORNER in ring.py."""

OWN: Final = 0.3
"""The time of a rank's own part of an all-to-all, relative to that of one peer: it is copied by the same SMs. Fitted as
CORNER in ring.py."""

PER_ISLAND_S: Final = 1e-6
"""Seconds that the CPU thread that drives a NIC spends on each island it sends to (NCCL's network overhead,
tuning.cc)."""

EXCHANGE_SHARE: Final = 0.92
"""The share of a NIC's line rate that an all-to-all over nodes reaches: 46 to 49 of 50 GB/s per NIC were published for
ConnectX-7 at best (NVIDIA/nccl-tests issues 267 and 290), the lower of which is taken for the usual one."""

EXCHANGE_BAND: Final = (46 / 49, 46 / 20)
"""The error of that share, as factors of the time: up to the 49 GB/s of these, down to the 20 GB/s of an all-to-all
whose flows collide (NVIDIA/nccl issue 1792)."""


def transfer_s(group: NcclGroup, protocol: str, size_bytes: Floats) -> tuple[float, Floats]:
    """One rank to another; an exchange goes both ways at once, as links and NICs do."""
    layout, far = group.layout, group.layout.islands > 1
    latency = (group.far_s if far else group.near_s)("ring", protocol)
    rate = group.nic_rate(layout.ring_crowding) if far else group.link_rate if group.over_links else group.pcie_rate
    launch = group.machine.launch_s
    if protocol == "ll":
        return launch + latency, launch + latency + size_bytes / min(_one_channel(group), rate / 2)
    return launch + latency, launch + step_s(size_bytes / rate, latency)


def all_to_all_s(group: NcclGroup, protocol: str, size_bytes: Floats) -> tuple[float, Floats]:
    """Times an all-to-all: over links, PCIe and NICs concurrently, the slowest of which decides."""
    layout, n = group.layout, group.layout.size
    far = n - layout.least_in_island
    data = _busiest_s(group, size_bytes)
    latency = group.near_s("ring", protocol)
    launch = group.machine.launch_s + (n - 2) * PER_PEER_S * group.machine.step_scale
    if far:
        latency = group.far_s("ring", protocol)
        launch += (layout.islands - 1) * PER_ISLAND_S
    if protocol == "ll":
        each = launch + latency + size_bytes / n / _one_channel(group)
        return launch + latency, np.maximum(each, launch + latency + 2 * data)
    ramp = ramp_s(size_bytes, group.machine.clock)
    return launch + latency, launch + ramp + (1 + OWN / (n - 1)) * step_s(data, latency)


def _busiest_s(group: NcclGroup, size_bytes: Floats) -> Floats:
    """Returns the seconds of the bytes on the busiest of links, PCIe and NICs."""
    layout, n = group.layout, group.layout.size
    across = max(layout.most_in_island - layout.least_in_domain, 0) if layout.domains > layout.islands else 0
    per_byte = across / n / group.pcie_rate
    if layout.most_in_domain > 1:
        # With PXN all that leaves the island crosses links first, but for the sender's own rail.
        relayed = (n - layout.most_in_island) * (layout.least_in_domain - 1) / layout.least_in_domain
        near = layout.most_in_domain - 1 + (relayed if group.over_links else 0.0)
        per_byte = max(per_byte, near / n / group.link_rate)
    if layout.islands > 1:
        away = (n - layout.least_in_island) / n
        per_byte = max(per_byte, away / group.nic_rate(layout.exchange_crowding, EXCHANGE_SHARE))
    return np.asarray(size_bytes * per_byte)


def _one_channel(group: NcclGroup) -> float:
    """Returns the rate of LL on one channel."""
    return group.channels_bytes_per_s("pairs", "ll") / group.channels("ring")
