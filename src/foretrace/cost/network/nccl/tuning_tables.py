"""Lists NCCL's tuning tables: the figures by which it chooses among algorithms and protocols.

Source: NCCL 2.30, `src/graph/tuning.cc` (`baseLat`, `hwLat`, `llMaxBws`, `perChMax…Bws`, `treeCorrectionFactor`,
`nvlsEfficiency`), `src/graph/topo.h` (widths of links) and `src/graph/search.cc` (speeds of channels). Times there are
microseconds, rates GB/s (10⁹). None of them is a measurement of ours.
"""

from __future__ import annotations

from typing import Final

US: Final = 1e-6
GB: Final = 1e9

PROTOCOLS: Final = ("ll", "ll128", "simple")

ALGORITHMS: Final = ("ring", "tree", "nvls", "nvls-tree", "collnet-direct", "collnet-chain", "pat")

SIMPLE_ONLY: Final = frozenset({"nvls", "nvls-tree", "collnet-direct", "collnet-chain", "pat"})
"""Algorithms that run with the protocol Simple alone."""

BASE_US: Final = {
    "ring": (6.6, 14.0, 8.4),
    "tree": (6.8, 14.0, 8.4),
    "pat": (8.0, 8.0, 8.0),
}
"""Latency of a call before its first hop, by protocol; 0 for the others."""

LINK_US: Final = {
    "ring": (0.6, 1.9, 3.4),
    "tree": (0.6, 1.25, 4.0),
    "collnet-direct": (0.0, 0.0, 3.7),
    "collnet-chain": (0.0, 0.0, 2.8),
    "nvls": (0.0, 0.0, 25.0),
    "nvls-tree": (0.0, 0.0, 25.0),
    "pat": (0.0, 0.0, 4.0),
}
"""A hop over links (NVLink)."""

PCIE_US: Final = {
    "ring": (1.0, 2.5, 5.7),
    "tree": (1.0, 1.9, 4.0),
    "collnet-direct": (0.0, 0.0, 3.7),
    "collnet-chain": (0.0, 0.0, 2.8),
    "nvls": (0.0, 0.0, 0.0),
    "nvls-tree": (0.0, 0.0, 0.0),
    "pat": (0.0, 0.0, 4.0),
}

NETWORK_US: Final = {
    "ring": (2.7, 4.0, 14.0),
    "tree": (5.0, 8.5, 14.0),
    "collnet-direct": (0.0, 0.0, 31.0),
    "collnet-chain": (0.0, 0.0, 30.0),
    "nvls": (0.0, 0.0, 18.0),
    "nvls-tree": (0.0, 0.0, 20.9),
    "pat": (0.0, 0.0, 14.0),
}

OVERHEAD_US: Final = (1.0, 1.0, 3.0)
"""Latency that the CPU thread that drives a NIC adds to a step, by protocol (Intel and others)."""

PER_NODES = tuple[float, float, float]
"""For one, two and more nodes."""

LL_MOST: Final[dict[str, PER_NODES]] = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
"""The most that LL moves in all."""

CHANNEL_RING_LL128: Final[dict[str, PER_NODES]] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 36.7),
    "blackwell": (40.0, 40.0, 40.0),
}
"""The most of one channel."""

CHANNEL_TREE_LL128: Final[dict[str, PER_NODES]] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}

CHANNEL_TREE: Final[dict[str, PER_NODES]] = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}

CHANNEL_NVLS_TREE: Final[dict[str, PER_NODES]] = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}

NVLS_EFFICIENCY: Final = {"hopper": 0.85, "blackwell": 0.74}
"""The share of the links' rate that reduction in the NVSwitch reaches; architectures without it are not listed."""

TREE_CORRECTION: Final = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}
"""Factors on a tree's rate, for sizes of 64 bytes, 128, 256, …"""

LINK_GB: Final = {"volta": 20.0, "ampere": 20.0, "hopper": 20.6, "blackwell": 40.1}
"""The rate that NCCL assumes for one link, one way."""

INTRA_SPEEDS: Final = {
    "ampere": (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0),
    "hopper": (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    "blackwell": (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}
"""Speeds that NCCL's search tries for a channel within a node, in GB/s."""

INTER_SPEEDS: Final = {
    "ampere": (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2),
    "hopper": (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2),
    "blackwell": (96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0),
}

PAT_SHARE: Final = 0.75
"""The rate of PAT relative to a ring."""

DIRECT_PEER_US: Final = 0.4
"""Latency that each further GPU of a node adds to CollNet, where each sends to all others."""

THREADS: Final = {"ll": 512, "ll128": 640, "simple": 512}
"""The most that one channel runs."""

THREAD_BYTES: Final = {"ll": 8, "ll128": 8, "simple": 64}
"""Bytes of a call for each thread, below which NCCL takes fewer channels (`enqueue.cc`); of a ring's LL, times its
ranks."""

MAX_CHANNELS: Final = 32

PCIE_SHARE: Final = 0.75
"""NCCL assumes 12 GB/s of the 16 of a PCIe 3.0 ×16 slot."""

LIKE: Final = {"rubin": "blackwell", "ada": "ampere", "turing": "volta"}
"""Architectures that NCCL's tables do not name, and whose rows it uses."""


def row_of(architecture: str) -> str:
    """The row of NCCL's tables for a GPU's architecture ("Blackwell Ultra" is blackwell's); those of other makers are
    read in Ampere's, as RCCL started from them."""
    family = architecture.lower().partition(" ")[0]
    family = LIKE.get(family, family)
    return family if family in LL_MOST else "ampere"
