"""What holds a call up, in words, and what it puts on links and NICs."""

from __future__ import annotations

from typing import Final

from foretrace.cost.network.nccl.bound import passes
from foretrace.cost.network.nccl.group import Group
from foretrace.program.columns import Collective

GBPS: Final = 8e-9
_ONE_TO_ONE: Final = (Collective.TRANSFER, Collective.EXCHANGE)


def limited_by(group: Group, what: Collective, way: tuple[str, str], latency_s: float, duration_s: float) -> str:
    """What a call spends most of its time on."""
    algorithm, protocol = way
    if latency_s > duration_s / 2:
        return _latency(group, what, algorithm)
    names = _rates(group, what, algorithm)
    name = min(names, key=lambda one: names[one])
    if protocol == "ll" and name == _links(group):
        return f"LL, which sends a flag with every word over {name}"
    return name


def _latency(group: Group, what: Collective, algorithm: str) -> str:
    n = group.layout.size
    if algorithm == "ring":
        hops = (2 if what is Collective.ALL_REDUCE else 1) * (n - 1)
        return f"latency of {hops:,} hop{'s' if hops > 1 else ''}"
    if algorithm in ("tree", "nvls-tree") and group.nodes > 1:
        return f"latency of a tree over {group.nodes:,} nodes"
    return "latency"


def _rates(group: Group, what: Collective, algorithm: str) -> dict[str, float]:
    """What each kind of wire carries for a rank of the bytes it must, by name."""
    layout = group.layout
    near, far = shares(group, what, algorithm)
    crowding = layout.exchange_crowding if algorithm == "pairs" and what not in _ONE_TO_ONE else layout.ring_crowding
    rates: dict[str, float] = {}
    if near > 0:
        rates[_links(group)] = (group.link_rate if group.over_links else group.pcie_rate) / near
    if far > 0:
        nic = group.cluster.node.nic.bytes_per_s * GBPS
        crowded = crowding * group.oversubscription > 1
        name = "the network beyond the NICs" if crowded else f"NICs ({nic:g} Gb/s each)"
        rates[name] = group.nic_rate(crowding) / far
    return rates or {_links(group): 1.0}


def _links(group: Group) -> str:
    if not group.over_links:
        return "PCIe"
    return "NVLink" if group.cluster.gpu.vendor.lower() == "nvidia" else "links between GPUs"


def shares(group: Group, what: Collective, algorithm: str) -> tuple[float, float]:
    """What a rank sends within its island and out of it, as multiples of the size; the mean over ranks."""
    layout, n = group.layout, group.layout.size
    held = n / layout.islands
    within = (held - 1) / held
    if algorithm == "pairs" and what in _ONE_TO_ONE:
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


def draws(group: Group, what: Collective, algorithm: str, size_bytes: float) -> tuple[tuple[str, float], ...]:
    """What each rank sends over links and over its share of the NICs, in bytes for one call; the mean over ranks."""
    near, far = shares(group, what, algorithm)
    found = (("link", near * size_bytes), ("nic", far * size_bytes))
    return tuple((name, sent) for name, sent in found if sent > 0)
