"""What NCCL's protocols cost: latencies and bandwidth limits, from its own tuning tables.

Source: NCCL 2.30, src/graph/tuning.cc (`baseLat`, `hwLat`, `llMaxBws`, `perChMaxRingLL128Bws`) and src/graph/topo.h
(link widths). Times there are microseconds, rates GB/s (10⁹). They are the figures NCCL chooses its algorithm by, not a
fit to any measurement of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

US: Final = 1e-6
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way in which NCCL moves data: start-up and per-hop latencies of ring and tree in seconds, and the share of
    the link rate it can use."""

    name: str
    ring_base_s: float
    ring_link_s: float
    ring_pcie_s: float
    ring_network_s: float
    tree_base_s: float
    tree_link_s: float
    tree_pcie_s: float
    tree_network_s: float
    ring_share: float
    tree_share: float
    overhead_s: float
    """What the CPU thread that drives the NIC adds to a step."""


PROTOCOLS: Final = (
    Protocol(
        "LL", 6.6 * US, 0.6 * US, 1.0 * US, 2.7 * US, 6.8 * US, 0.6 * US, 1.0 * US, 5.0 * US, 0.5, 1 / 3.8, 1 * US
    ),
    Protocol(
        "LL128", 14.0 * US, 1.9 * US, 2.5 * US, 4.0 * US, 14.0 * US, 1.25 * US, 1.9 * US, 8.5 * US, 0.92, 0.72, 1 * US
    ),
    Protocol(
        "Simple", 8.4 * US, 3.4 * US, 5.7 * US, 14.0 * US, 8.4 * US, 4.0 * US, 4.0 * US, 14.0 * US, 1.0, 0.92, 3 * US
    ),
)
"""LL128's share of a tree is 0.92 · 7/9, that within a node; trees over two and more nodes may use 0.92 · 120/128."""

LL_LIMITS: Final[dict[str, tuple[float, float, float]]] = {
    "ampere": (87.7 * GB, 22.5 * GB, 19.0 * GB),
    "hopper": (141.0 * GB, 45.0 * GB, 35.0 * GB),
    "blackwell": (282.0 * GB, 90.0 * GB, 70.0 * GB),
}
"""The most that LL moves on one, two and more nodes."""

LINK_SHARE: Final[dict[str, float]] = {"ampere": 20.0 / 25.0, "hopper": 20.6 / 25.0, "blackwell": 40.1 / 50.0}
"""What NCCL reckons of a link's datasheet rate, by GPU architecture: the rest is packet headers and flow control."""

LINK_SHARE_ELSEWHERE: Final = 0.75
"""Of links not in that table (Infinity Fabric): RCCL's topo.h reckons 48 GB/s of the 64 of an MI300X link."""

PCIE_SHARE: Final = 0.75
"""NCCL reckons 12 GB/s of the 16 of a PCIe 3.0 ×16 slot."""

PCIE_PAYLOAD: Final = 256 / (256 + 24)
"""Payload of a PCIe packet of 256 bytes over all it takes on the link: what a NIC can draw from its GPU at most."""

NETWORK_SHARE: Final = 4096 / (4096 + 82)
"""Payload of a RoCEv2 packet of 4 KiB over all it takes on the wire: Ethernet, IP, UDP and transport headers,
checksums, preamble and gap."""
