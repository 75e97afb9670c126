"""Finds what limits a call, and computes the bytes that it puts on links and NICs.

The limit is found by asking the price itself: each figure of the machine is made a little larger, and the one by which
the price falls most decides most of the time. A rate that something else keeps from being used decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foretrace.cost.network.interface import Limit, LimitKind
from foretrace.cost.network.nccl.bound import passes
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.program.columns import ONE_TO_ONE, Collective

GBPS: Final = 8e-9
RATES: Final[tuple[LimitKind, ...]] = ("nic", "uplink", "nvlink", "pcie", "channels")
FASTER: Final = 1 + 1e-6
"""The factor by which rates are made larger: so little that no other becomes the limit."""
TIE: Final = 1e-3
"""The share of the time below which no rate counts as deciding anything."""
_TREES: Final = ("tree", "nvls-tree")


def limit_of(group: NcclGroup, seconds: Callable[[NcclGroup], float], way: tuple[str, str], latency: str) -> Limit:
    """Finds what limits a call in a group.

    Args:
        group: the group.
        seconds: the time of the call in this group, or in one with other figures.
        way: the algorithm and protocol of the call.
        latency: the name of its latency, for where that decides more than any figure.
    """
    whole = seconds(group)
    if whole <= 0:
        return Limit("latency", latency, 1.0)
    decided = {kind: (1 - seconds(group.scaled(kind, FASTER)) / whole) / (1 - 1 / FASTER) for kind in RATES}
    if max(decided.values()) < TIE:  # two rates that limit equally: neither helps alone, and either lowered costs time
        decided = {kind: (seconds(group.scaled(kind, 1 / FASTER)) / whole - 1) / (FASTER - 1) for kind in RATES}
    kind: LimitKind = max(decided, key=lambda kind: decided[kind])
    rest = 1 - sum(decided.values())
    if rest >= decided[kind]:
        return Limit("latency", latency, min(rest, 1.0))
    return Limit(kind, _name(group, kind, *way), min(decided[kind], 1.0))


def _name(group: NcclGroup, kind: LimitKind, algorithm: str, protocol: str) -> str:
    """Names a figure that limits a call."""
    gpu = group.cluster.gpu
    if kind == "channels":
        channels = group.channels("ring" if algorithm == "pairs" else algorithm)
        each = group.channels_bytes_per_s(algorithm, protocol) / channels / 1e9
        return f"{channels} NCCL channels ({each:.3g} GB/s each on {gpu.architecture}, whatever the links and NICs)"
    name = {
        "nic": f"NICs ({group.cluster.node.nic.bytes_per_s * GBPS:g} Gb/s each)",
        "uplink": "the network beyond the NICs",
        "pcie": f"PCIe ({gpu.pcie_bytes_per_s / 1e9:.3g} GB/s)",
    }.get(kind, "NVLink" if gpu.vendor.lower() == "nvidia" else "links between GPUs")
    return f"LL, which sends a flag with every word over {name}" if protocol == "ll" else name


def latency_name(group: NcclGroup, what: Collective, algorithm: str) -> str:
    """Names the latency of a call."""
    n = group.layout.size
    if algorithm == "ring":
        hops = (2 if what is Collective.ALL_REDUCE else 1) * (n - 1)
        return f"latency of {hops:,} hop{'s' if hops > 1 else ''}"
    if algorithm in _TREES and group.nodes > 1:
        return f"latency of a tree over {group.nodes:,} nodes"
    return "latency"


def shares(group: NcclGroup, what: Collective, algorithm: str) -> tuple[float, float]:
    """Returns the bytes that a rank sends within its island and out of it, as multiples of the size; the mean over
    ranks."""
    layout, n = group.layout, group.layout.size
    held = n / layout.islands
    within = (held - 1) / held
    if algorithm == "pairs" and what in ONE_TO_ONE:
        return (0.0, 1.0) if layout.islands > 1 else (1.0, 0.0)
    if algorithm == "pairs":
        return (held - 1) / n, (n - held) / n
    if algorithm == "ring":
        hops = passes(what, n)
        crossing = layout.islands / n if layout.islands > 1 else 0.0
        return hops * (1 - crossing), hops * crossing
    out = 2 * (layout.islands - 1) / layout.islands / held if layout.islands > 1 else 0.0
    if algorithm == "pat":
        return 0.0, passes(what, n)
    if algorithm.startswith("nvls"):
        return (1.0 if what is Collective.ALL_REDUCE else within), out
    if algorithm.startswith("collnet"):
        return 2 * within, 1 / held
    return 2 * within, out


def draws(group: NcclGroup, what: Collective, algorithm: str, size_bytes: float) -> tuple[tuple[str, float], ...]:
    """Returns the bytes of one call that each rank sends over links and over its share of the NICs; the mean over
    ranks."""
    near, far = shares(group, what, algorithm)
    amounts = (("link", near * size_bytes), ("nic", far * size_bytes))
    return tuple((name, sent) for name, sent in amounts if sent > 0)
