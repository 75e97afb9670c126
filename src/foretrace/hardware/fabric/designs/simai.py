"""A fabric as SimAI's topology files write it: GPUs, NVSwitches, switches, and links of a rate in Gb/s."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs, Mask
from foretrace.basics.errors import InputError
from foretrace.hardware.fabric.designs.simai_topology import SimaiTopology, TopologyLink
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.graph import FabricGraph
from foretrace.hardware.fabric.routing.attachment import attachment_of


def simai_topology(fabric: Fabric, gpu: str, path: str) -> SimaiTopology:
    """The fabric for SimAI, which knows neither NICs nor PCIe: each GPU is linked to the switches beyond its NICs, at
    the rate of the narrowest link on the way and with the latencies of all."""
    direct = (fabric.kind[fabric.source] == Device.GPU) & (fabric.kind[fabric.target] == Device.GPU)
    if direct.any():
        hint = "SimAI's GPUs are joined by switches; clusters whose nodes are switched can be written"
        raise InputError("bad-topology", "SimAI's topologies have no links from GPU to GPU", where=path, hint=hint)
    kept = np.flatnonzero(np.isin(fabric.kind, (Device.LINK_SWITCH, Device.LEAF, Device.SPINE, Device.CORE)))
    kept = kept[np.argsort(fabric.kind[kept], kind="stable")]
    number = np.full(fabric.devices, -1, dtype=np.int64)
    number[: fabric.gpus] = np.arange(fabric.gpus)
    number[kept] = fabric.gpus + np.arange(len(kept))
    nv_switches = int((fabric.kind == Device.LINK_SWITCH).sum())
    links = [*_inner(fabric, number), *_outer(fabric, number)]
    links.sort(key=lambda link: (link.source, link.target))
    ids = tuple(range(fabric.gpus, fabric.gpus + len(kept)))
    switches = len(kept) - nv_switches
    return SimaiTopology(path, fabric.gpus_per_node, nv_switches, switches, gpu, ids, tuple(links), True)


def _inner(fabric: Fabric, number: Longs) -> list[TopologyLink]:
    """Links between devices that SimAI knows, each once, cable by cable."""
    near, far = number[fabric.source], number[fabric.target]
    once = np.flatnonzero((near >= 0) & (far > near) & ~_out_of_gpus(fabric))
    between = fabric.kind[fabric.source[once]] >= Device.LEAF
    times = np.where(between, fabric.cable_counts[once], 1)
    each = [
        _link(
            int(near[link]), int(far[link]), float(fabric.bytes_per_s[link]) / int(count), float(fabric.latency_s[link])
        )
        for link, count in zip(once, times, strict=True)
    ]
    return [link for link, count in zip(each, times, strict=True) for _ in range(int(count))]


def _out_of_gpus(fabric: Fabric) -> Mask:
    """Links from GPUs to switches of the network, which `_outer` writes."""
    return np.asarray((fabric.kind[fabric.source] == Device.GPU) & (fabric.kind[fabric.target] >= Device.LEAF))


def _outer(fabric: Fabric, number: Longs) -> list[TopologyLink]:
    """A link for each exit of each GPU."""
    graph = FabricGraph(fabric)
    held = attachment_of(graph)
    gpu = np.repeat(np.arange(fabric.gpus), np.diff(held.exit_start))
    there = held.exit_path >= 0
    rate = np.where(there, fabric.bytes_per_s[held.exit_path], np.inf).min(axis=1)
    # The way back has the switch's latency too; SimAI has one number for both, so both get the mean.
    both = (fabric.latency_s + fabric.latency_s[graph.back]) / 2
    out = np.where(there, both[held.exit_path], 0.0).sum(axis=1)
    return [
        _link(int(source), int(number[switch]), float(each), float(seconds))
        for source, switch, each, seconds in zip(gpu, held.exit_switch, rate, out, strict=True)
    ]


def _link(source: int, target: int, bytes_per_s: float, latency_s: float) -> TopologyLink:
    rate, latency = f"{bytes_per_s * 8 / 1e9:.10g}Gbps", f"{latency_s * 1e3:.10g}ms"
    return TopologyLink(source, target, rate, latency, "0", 0)
