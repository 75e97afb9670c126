"""Links of a fabric in panels: a tier and a direction each, a row for every node or switch, a column per port."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.hardware.fabric.fabric import Device, Fabric

MAX_ROWS: Final = 64
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


NO_PORT: Final = -1
NOT_IN_SERVICE: Final = -2

_Port = tuple[str, int]
"""What identifies a column: a device in the node or the switch at the other end, and the number of the link to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Links of one tier that go one way.

    `link` [rows, columns] holds link numbers. It is `NO_PORT` where there is no link, and `NOT_IN_SERVICE` where other
    rows with the same ports have one. Both panels of a tier have the same rows and columns.
    """

    tier: str
    way: str
    """"out" from the GPUs, or "in" towards them; "" where a tier has no such sides."""
    rows: tuple[str, ...]
    link: Longs

    def of(self, value: Floats) -> Floats:
        """Returns a value per link in the order of the panel; NaN where there is no link."""
        return np.where(self.link >= 0, value[self.link], np.nan)


def panels_of(fabric: Fabric) -> list[Panel]:
    """Returns all links of a fabric, from the GPUs outwards."""
    outward = fabric.kind[fabric.target] >= fabric.kind[fabric.source]
    lower = np.where(outward, fabric.source, fabric.target)
    upper = np.where(outward, fabric.target, fabric.source)
    kinds = np.stack([fabric.kind[lower], fabric.kind[upper]], axis=1)
    panels = []
    for low, high in np.unique(kinds, axis=0).tolist():
        links = np.flatnonzero((kinds == (low, high)).all(axis=1))
        links = links[np.lexsort((upper[links], lower[links]))]
        ports = _ports(fabric, lower[links], upper[links], outward[links])
        for way in ("",) if low == high else ("out", "in"):
            mine = outward[links] != (way == "in")
            panels.append(_panel(tier_name(low, high), way, links[mine], [ports[at] for at in np.flatnonzero(mine)]))
    return panels


def tier_name(low: int, high: int) -> str:
    """Returns the name of links between two kinds of devices."""
    words = f"{Device(low).name} to {Device(high).name}".lower().replace("_", " ")
    return _TIERS.get((Device(low), Device(high)), words)


def _ports(fabric: Fabric, lower: Longs, upper: Longs, outward: Mask) -> list[tuple[str, _Port]]:
    """Returns the row of each link, a node or a switch outside nodes, and its port there; the same for both ways."""
    ports, seen = [], Counter[tuple[str, str, bool]]()
    for near, far, out in zip(lower.tolist(), upper.tolist(), outward.tolist(), strict=True):
        label = fabric.labels[near]
        owner = _owner(label)
        with_whom = label.removeprefix(owner) or fabric.labels[far]
        ports.append((owner, (with_whom, seen[owner, with_whom, out])))
        seen[owner, with_whom, out] += 1
    return ports


def _panel(tier: str, way: str, links: Longs, ports: list[tuple[str, _Port]]) -> Panel:
    """Builds a panel of links in the order of their devices, with their rows and ports."""
    of_row: dict[str, list[_Port]] = {}
    for owner, port in ports:
        of_row.setdefault(owner, []).append(port)
    columns = _columns(of_row)
    grid = np.full((len(of_row), max(len(column) for column in columns.values())), NO_PORT, dtype=np.int64)
    number = {owner: row for row, owner in enumerate(of_row)}
    for owner, row in number.items():
        grid[row, : len(columns[owner])] = NOT_IN_SERVICE
    for (owner, port), link in zip(ports, links.tolist(), strict=True):
        grid[number[owner], columns[owner][port]] = link
    return Panel(tier, way, tuple(of_row), grid)


def _columns(of_row: dict[str, list[_Port]]) -> dict[str, dict[_Port, int]]:
    """Returns the columns of each row's ports.

    A row whose ports are all in another row has the columns of that row, so that a link out of service leaves its
    place empty.
    """
    columns: dict[str, dict[_Port, int]] = {}
    known: dict[_Port, list[dict[_Port, int]]] = {}
    for owner, ports in sorted(of_row.items(), key=lambda item: -len(item[1])):
        whole = next((other for other in known.get(ports[0], ()) if all(port in other for port in ports)), None)
        if whole is None:
            whole = {port: column for column, port in enumerate(ports)}
            for port in ports:
                known.setdefault(port, []).append(whole)
        columns[owner] = whole
    return columns


def _owner(label: str) -> str:
    """Returns the node that a GPU, NIC or switch within a node belongs to; for a switch outside nodes the switch."""
    node = re.match(r"node \d+", label)
    return node[0] if node else label


def carrying(panels: list[Panel], value: Floats) -> tuple[list[Panel], int]:
    """Returns the panels of a tier without the rows in which no panel carries anything, and how many those are."""
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
    """Returns the rows of a panel and their values; where there are too many, neighbours are merged by the maximum."""
    grid = panel.of(value)
    count = len(panel.rows)
    step = -(-count // MAX_ROWS)
    if step <= 1:
        return list(panel.rows), grid
    names, merged = [], []
    for low in range(0, count, step):
        high = min(low + step, count)
        last = panel.rows[high - 1].rpartition(" ")[2]
        names.append(panel.rows[low] if high - low == 1 else f"{panel.rows[low]}-{last}")
        merged.append(np.fmax.reduce(grid[low:high], axis=0))
    return names, np.array(merged)
