"""GPUs, NICs, nodes and clusters as aligned columns, as a screen, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from foretrace.basics.plain import to_plain
from foretrace.basics.units import format_bandwidth, format_bytes, format_count, format_flops, format_time
from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node
from foretrace.hardware.fabric.topology import Routing, Topology
from foretrace.report.json import to_json, with_properties
from foretrace.report.terminal import MAX_DIAGNOSTICS, Screen, Span, diagnostic_lines, show

if TYPE_CHECKING:
    from foretrace.hardware.fabric.fabric import Fabric

LIST_SCHEMA = "foretrace.list/1"
SHOW_SCHEMA = "foretrace.show/1"

Item = Gpu | Nic | Node | Cluster

_NAMES = {
    "GPU": ("GPU", "GPUs"),
    "LINK_SWITCH": ("link switch", "link switches"),
    "PCIE_SWITCH": ("PCIe switch", "PCIe switches"),
    "NIC": ("NIC", "NICs"),
    "LEAF": ("leaf", "leaves"),
    "SPINE": ("spine", "spines"),
    "CORE": ("core", "cores"),
}
"""The singular and the plural of each kind of device."""
_ROUTING: dict[Routing, str] = {
    "spread": "spread evenly over all shortest paths",
    "ecmp": "one of the shortest paths by hash (ECMP)",
    "rail": "on the receiver's rail (PXN), spread evenly over all shortest paths",
}


def list_json(kind: str, items: Sequence[Item]) -> dict[str, Any]:
    """Returns all presets of a kind ("gpus"): bytes, bytes and FLOP per second, watts; rates one way, peaks dense."""
    return to_json(LIST_SCHEMA, {"kind": kind, kind: [_plain(item) for item in items]})


def show_json(item: Item, fabric: Fabric | None = None) -> dict[str, Any]:
    """Returns one item with all it contains, in the units of `list_json`, and devices of a built network by kind."""
    built = {} if fabric is None else {"devices": _devices(fabric)}
    return to_json(SHOW_SCHEMA, {"kind": type(item).__name__.lower()}, _plain(item), built)


def _plain(item: Item) -> dict[str, Any]:
    """Returns an item as JSON has it; traffic of others by the name of its link."""
    if not isinstance(item, Cluster):
        return dict(to_plain(item))
    plain = with_properties(item, "oversubscription")
    plain["topology"]["background"] = dict(item.topology.background)
    plain["diagnostics"] = plain.pop("remarks")  # as other answers call them
    return plain


def print_list(items: Sequence[Item]) -> None:
    """Prints a line for each item; all are of one kind."""
    rows = _rows(items)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    # Quantities line up on the right, all else on the left.
    left = [not all(_is_quantity(row[column]) for row in rows[1:]) for column in range(len(rows[0]))]
    lines: list[list[Span]] = []
    for number, row in enumerate(rows):
        cells = [f"{cell:<{w}}" if at else f"{cell:>{w}}" for cell, w, at in zip(row, widths, left, strict=True)]
        lines.append([("  " + "  ".join(cells), "" if number else "bold")])
    show(Screen.of(sys.stdout), lines)


def _is_quantity(cell: str) -> bool:
    """Returns whether a cell is a number with its unit, or the dash that stands for none."""
    return cell == "-" or (cell[:1].isdecimal() and cell.count(" ") == 1)


def _rows(items: Sequence[Item]) -> list[tuple[str, ...]]:
    """Returns the heading and a row for each item."""
    first = items[0]
    heading: tuple[str, ...]
    if isinstance(first, Gpu):
        heading = ("gpu", "memory", "bandwidth", "bf16 dense", "fp8 dense", "links one way", "power", "title")
        return [heading, *(_gpu_row(cast("Gpu", item)) for item in items)]
    if isinstance(first, Nic):
        return [("nic", "rate", "title"), *((item.name, _line_rate(cast("Nic", item)), item.title) for item in items)]
    if isinstance(first, Node):
        heading = ("node", "GPUs", "joined by links", "NICs", "title")
        return [heading, *((item.name, *_node_cells(cast("Node", item)), item.title) for item in items)]
    heading = ("cluster", "node", "GPUs a node", "joined by links", "NICs a node")
    clusters = [cast("Cluster", item) for item in items]
    return [heading, *((cluster.name, cluster.node.name, *_node_cells(cluster.node)) for cluster in clusters)]


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    return (
        gpu.name,
        format_bytes(gpu.memory_bytes),
        format_bandwidth(gpu.memory_bytes_per_s),
        format_flops(gpu.peak_flops["bf16"]) if "bf16" in gpu.peak_flops else "-",
        format_flops(gpu.peak_flops["fp8"]) if "fp8" in gpu.peak_flops else "-",
        format_bandwidth(gpu.link_bytes_per_s) if gpu.links else "-",
        f"{gpu.power_w:,.0f} W",
        gpu.title,
    )


def _node_cells(node: Node) -> tuple[str, str, str]:
    return (
        f"{node.gpus} × {node.gpu.name}",
        f"{node.domain_gpus} GPUs, {'switched' if node.switched else 'direct'}" if node.domain_gpus > 1 else "-",
        f"{node.nics} × {_line_rate(node.nic)}",
    )


def print_item(item: Item, fabric: Fabric | None = None) -> None:
    """Prints an item, all it contains, what is assumed, and where the figures come from."""
    facts = item_facts(item, fabric)
    lines: list[list[Span]] = [[(f"  {item.name}", "bold"), (f": {item.title}" if item.title != item.name else "", "")]]
    width = max(len(name) for name, _ in facts)
    previous = ""
    for name, text in facts:
        lines.append([(f"  {name if name != previous else '':<{width}}  {text}", "")])
        previous = name
    remarks = item.remarks if isinstance(item, Cluster) else ()
    show(Screen.of(sys.stdout), [*lines, *diagnostic_lines(remarks, MAX_DIAGNOSTICS)])


def item_facts(item: Item, fabric: Fabric | None = None) -> list[tuple[str, str]]:
    """Returns the figures of an item and all it contains, with notes and sources; names of parts are indented."""
    facts: list[tuple[str, str]] = []
    parts: list[Item] = [item]
    if isinstance(item, Cluster):
        facts += _cluster_facts(item, fabric)
        parts.append(item.node)
    if isinstance(item, Cluster | Node):
        node = item.node if isinstance(item, Cluster) else item
        facts += _node_facts(node)
        parts += [node.gpu, node.nic]
        facts += _gpu_facts(node.gpu, head="gpu")
        facts += _nic_facts(node.nic, head="nic")
    elif isinstance(item, Gpu):
        facts += _gpu_facts(item)
    elif isinstance(item, Nic):
        facts += _nic_facts(item)
    facts += [("note", f"{part.name}: {note}") for part in parts for note in part.notes]
    return facts + [("source", source) for source in dict.fromkeys(text for part in parts for text in part.sources)]


def _cluster_facts(cluster: Cluster, fabric: Fabric | None) -> list[tuple[str, str]]:
    nodes = "as many as a job needs" if cluster.nodes is None else format_count(cluster.nodes)
    gpus = "" if cluster.gpus is None else f", {format_count(cluster.gpus)} GPUs"
    ratio = cluster.oversubscription
    network = "none (every NIC can send at its full rate)" if ratio == 1 else f"{ratio:g}:1"
    facts = [("nodes", nodes + gpus), *_topology_facts(cluster.topology), ("oversubscription", network)]
    if cluster.domain_gpus is not None:
        facts.append(("a job uses", f"{cluster.domain_gpus} of the {cluster.node.island_gpus} GPUs of each domain"))
    if fabric is not None:
        count = format_count(fabric.gpus // fabric.gpus_per_node)
        counts = fabric.counts()
        devices = " · ".join(
            f"{format_count(counts[kind])} {singular if counts[kind] == 1 else plural}"
            for kind, (singular, plural) in _NAMES.items()
            if counts[kind]
        )
        facts.append((f"built for {count}", devices))
    return [*facts, ("file", cluster.where)] if cluster.where else facts


def _devices(fabric: Fabric) -> dict[str, int]:
    """Returns the number of devices of each kind in a network, by the plural of their name."""
    counts = fabric.counts()
    return {plural: counts[kind] for kind, (_, plural) in _NAMES.items() if counts[kind]}


def _topology_facts(topology: Topology) -> list[tuple[str, str]]:
    """Returns the kind of a network, its stated sizes, its routing, what failed and what others send."""
    sizes = (
        ("leaf ports", topology.leaf_ports),
        ("GPUs a pod", topology.pod_gpus),
        ("planes", topology.planes),
        ("leaves a NIC", topology.tors),
    )
    words = [topology.kind, *(f"{format_count(size)} {what}" for what, size in sizes if size)]
    if topology.dimensions:
        words.append(" × ".join(format_count(size) for size in topology.dimensions) + " nodes")
    if topology.core_oversubscription != 1:
        words.append(f"{topology.core_oversubscription:g}:1 below the cores")
    if topology.hop_latency_s:
        words.append(f"{format_time(topology.hop_latency_s)} a switch")
    facts = [("network", ", ".join(words)), ("routing", _ROUTING[topology.routing])]
    facts += [("network file", topology.path)] if topology.path else []
    facts += [("failed", name) for name in topology.failed]
    return facts + [("other traffic", f"{name}: {format_bandwidth(rate)}") for name, rate in topology.background]


def _node_facts(node: Node) -> list[tuple[str, str]]:
    if node.domain_gpus > 1:
        how = "through switches" if node.switched else "directly"
        joined = f"{node.domain_gpus} GPUs, {how}"
    else:
        joined = "none"
    return [
        ("node", node.title if node.title == node.name else f"{node.name}: {node.title}"),
        ("  GPUs", f"{node.gpus} × {node.gpu.name}"),
        ("  joined by links", joined),
        ("  NICs", f"{node.nics} × {node.nic.name}, {_line_rate(node.nic)} each"),
        *([("  host", _host(node))] if {node.launch_factor, node.torch_launch_factor} - {1, None} else []),
    ]


def _host(node: Node) -> str:
    torch = "" if node.torch_launch_factor is None else f", one of plain PyTorch {node.torch_launch_factor:g}x"
    return f"a launch takes {node.launch_factor:g}x as long as usual on x86{torch}"


def _gpu_facts(gpu: Gpu, head: str | None = None) -> list[tuple[str, str]]:
    peaks = " · ".join(f"{dtype} {format_flops(rate)}" for dtype, rate in gpu.peak_flops.items())
    per_link = f" ({gpu.links} × {format_bandwidth(gpu.link_bytes_per_s / gpu.links)})" if gpu.links else ""
    facts = [
        ("memory", f"{format_bytes(gpu.memory_bytes)} at {format_bandwidth(gpu.memory_bytes_per_s)}"),
        ("dense peak", peaks),
        ("links one way", format_bandwidth(gpu.link_bytes_per_s) + per_link if gpu.links else "none"),
        ("PCIe one way", format_bandwidth(gpu.pcie_bytes_per_s)),
        *([("host one way", format_bandwidth(gpu.host_bytes_per_s))] if gpu.host_bytes_per_s else []),
        ("compute units", format_count(gpu.compute_units) if gpu.compute_units else "not stated"),
        ("power", f"{gpu.power_w:,.0f} W" if gpu.power_w else "not stated"),
    ]
    made = f"{gpu.vendor} {gpu.architecture}"
    if head is None:
        return [("made by", made), *facts]
    title = gpu.title if gpu.title == gpu.name else f"{gpu.name}: {gpu.title}"
    return [
        (head, f"{title}, {made}" if gpu.vendor != "unknown" else title),
        *((f"  {name}", text) for name, text in facts),
    ]


def _nic_facts(nic: Nic, head: str | None = None) -> list[tuple[str, str]]:
    rate = f"{_line_rate(nic)} ({format_bandwidth(nic.bytes_per_s)})"
    return [("rate one way", rate)] if head is None else [(head, f"{nic.name}: {nic.title}"), ("  rate one way", rate)]


def _line_rate(nic: Nic) -> str:
    """Returns the rate of a line as it is usually stated, in bits."""
    return f"{nic.bytes_per_s * 8 / 1e9:g} Gb/s"
