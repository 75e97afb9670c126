"""Links of a fabric in panels: a tier and a direction each, a row for every node or switch, a column per port."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.hardware.fabric.fabric import Device, Fabric, Floats, Longs

MOST_ROWS: Final = 64
"""More rows are drawn together, several nodes or switches in one."""

_TIERS: Final = {
    (Device.GPU, Device.GPU): "links between GPUs",
    (Device.GPU, Device.LINK_SWITCH): "GPU links",
    (Device.GPU, Device.PCIE_SWITCH): "PCIe of the GPUs",
    (Device.GPU, Device.NIC): "PCIe of the NICs",
    (Device.PCIE_SWITCH, Device.NIC): "PCIe of the NICs",
    (Device.NIC, Device.LEAF): "NICs",
    (Device.LEAF, Device.LEAF): "between leaves",
    (Device.LEAF, Device.SPINE): "leaves to spines",
    (Device.SPINE, Device.SPINE): "between spines",
    (Device.SPINE, Device.CORE): "spines to cores",
}
"""Links by the kinds of their ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Links of one tier that go one way. `link` [rows, columns] holds link numbers, −1 where a row has no such port."""

    tier: str
    way: str
    """"out" from the GPUs, or "in" towards them; "" where a tier has no such sides."""
    rows: tuple[str, ...]
    link: Longs

    def of(self, value: Floats) -> Floats:
        """A value per link as it lies in the panel; NaN where there is no link."""
        return np.where(self.link >= 0, value[self.link], np.nan)


def panels_of(fabric: Fabric) -> list[Panel]:
    """All links of a fabric, from the GPUs outwards."""
    source, target = fabric.kind[fabric.source], fabric.kind[fabric.target]
    outward = target >= source
    lower = np.where(outward, fabric.source, fabric.target)
    kinds = np.stack([np.minimum(source, target), np.maximum(source, target), ~outward], axis=1)
    panels = []
    for low, high, inward in np.unique(kinds, axis=0).tolist():
        links = np.flatnonzero((kinds == (low, high, inward)).all(axis=1))
        way = "" if low == high else "in" if inward else "out"
        panels.append(_panel(fabric, tier_name(low, high), way, links, lower[links]))
    return panels


def tier_name(low: int, high: int) -> str:
    """What links between these kinds of devices are called."""
    words = f"{Device(low).name} to {Device(high).name}".lower().replace("_", " ")
    return _TIERS.get((Device(low), Device(high)), words)


def _panel(fabric: Fabric, tier: str, way: str, links: Longs, lower: Longs) -> Panel:
    """Rows are the nodes of GPUs and NICs, and switches by themselves; columns count the links of a row."""
    owners = [_owner(fabric.labels[device]) for device in lower.tolist()]
    rows = list(dict.fromkeys(owners))
    number = {owner: row for row, owner in enumerate(rows)}
    ports: list[list[int]] = [[] for _ in rows]
    for owner, link in zip(owners, links.tolist(), strict=True):
        ports[number[owner]].append(link)
    grid = np.full((len(rows), max(len(one) for one in ports)), -1, dtype=np.int64)
    for row, one in enumerate(ports):
        grid[row, : len(one)] = one
    return Panel(tier, way, tuple(rows), grid)


def _owner(label: str) -> str:
    """The node that a GPU, NIC or switch within a node belongs to; a switch beyond is its own."""
    found = re.match(r"node \d+", label)
    return found[0] if found else label


def carrying(panels: list[Panel], value: Floats) -> tuple[list[Panel], int]:
    """The panels of a tier without rows in which no link of any panel carries anything, and how many rows that are."""
    busy = {
        name for panel in panels for name, row in zip(panel.rows, panel.of(value), strict=True) if np.nansum(row) > 0
    }
    every = {name for panel in panels for name in panel.rows}
    kept = []
    for panel in panels:
        rows = [number for number, name in enumerate(panel.rows) if name in busy]
        kept.append(replace(panel, rows=tuple(panel.rows[row] for row in rows), link=panel.link[rows]))
    return kept, len(every) - len(busy)


def gathered(panel: Panel, value: Floats) -> tuple[list[str], Floats]:
    """The rows of a panel and a value in them; where there are too many, neighbours together with their largest."""
    grid = panel.of(value)
    count = len(panel.rows)
    step = -(-count // MOST_ROWS)
    if step <= 1:
        return list(panel.rows), grid
    names, merged = [], []
    for low in range(0, count, step):
        high = min(low + step, count)
        last = panel.rows[high - 1].rpartition(" ")[2]
        names.append(panel.rows[low] if high - low == 1 else f"{panel.rows[low]}-{last}")
        merged.append(np.fmax.reduce(grid[low:high], axis=0))
    return names, np.array(merged)
