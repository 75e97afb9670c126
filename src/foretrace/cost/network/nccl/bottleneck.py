"""Names what limits a call, and computes the bytes that it puts on links and NICs."""

from __future__ import annotations

from typing import Final

from foretrace.cost.network.nccl.bound import passes
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.program.columns import ONE_TO_ONE, Collective

GBPS: Final = 8e-9
_TREES: Final = ("tree", "nvls-tree")


def limited_by(group: NcclGroup, what: Collective, way: tuple[str, str], latency_s: float, duration_s: float) -> str:
    """Names what a call spends most of its time on."""
    algorithm, protocol = way
    if latency_s > duration_s / 2:
        return _latency(group, what, algorithm)
    names = _rates(group, what, algorithm)
    name = min(names, key=lambda name: names[name])
    if protocol == "ll":
        return f"LL, which sends a flag with every word over {name}"
    return name


def _latency(group: NcclGroup, what: Collective, algorithm: str) -> str:
    n = group.layout.size
    if algorithm == "ring":
        hops = (2 if what is Collective.ALL_REDUCE else 1) * (n - 1)
        return f"latency of {hops:,} hop{'s' if hops > 1 else ''}"
    if algorithm in _TREES and group.nodes > 1:
        return f"latency of a tree over {group.nodes:,} nodes"
    return "latency"


def _rates(group: NcclGroup, what: Collective, algorithm: str) -> dict[str, float]:
    """Returns the rate at which each kind of wire carries the bytes of a rank, by name."""
    layout = group.layout
    near, far = shares(group, what, algorithm)
    crowding = layout.tree_crowding if algorithm in _TREES else layout.ring_crowding
    if algorithm == "pairs" and what not in ONE_TO_ONE:
        crowding = layout.exchange_crowding
    rates: dict[str, float] = {}
    if near > 0:
        # Past every rank of a ring goes as much as over the links of those that have no NIC to send to.
        near = passes(what, layout.size) if algorithm == "ring" else near
        rates[link_name(group)] = (group.link_rate if group.over_links else group.pcie_rate) / near
    if far > 0:
        rates[nic_name(group, crowding)] = group.nic_rate(crowding) / far
    return rates or {link_name(group): 1.0}


def nic_name(group: NcclGroup, crowding: float) -> str:
    """Names what limits traffic that leaves islands."""
    if crowding * group.oversubscription > 1:
        return "the network beyond the NICs"
    return f"NICs ({group.cluster.node.nic.bytes_per_s * GBPS:g} Gb/s each)"


def link_name(group: NcclGroup) -> str:
    """Names what limits traffic within islands."""
    if not group.over_links:
        return "PCIe"
    return "NVLink" if group.cluster.gpu.vendor.lower() == "nvidia" else "links between GPUs"


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
