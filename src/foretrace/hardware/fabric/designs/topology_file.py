"""Builds networks that are listed link by link: SimAI's topology files, and links between devices in YAML.

In YAML, devices are told apart by their names: `node 0 GPU 1`, `node 0 NIC 1`, `node 0 PCIe 0`, `link switch 0`,
`leaf 3`, `spine 1`, `core 0`. Every link leads both ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.documents import Document
from foretrace.basics.errors import InputError, shortened
from foretrace.basics.files import read_whole
from foretrace.basics.units import format_bandwidth, format_time, parse_bandwidth, parse_time
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.designs.draft import WORDS, FabricDraft
from foretrace.hardware.fabric.designs.simai_topology import (
    MAX_FILE_BYTES,
    MAX_LINK_BYTES_PER_S,
    MAX_LINK_LATENCY_S,
    MIN_LINK_BYTES_PER_S,
    SimaiTopology,
    looks_like_simai,
    parse_topology,
)
from foretrace.hardware.fabric.fabric import Device, Fabric

if TYPE_CHECKING:
    import yaml

_EXAMPLE = "links: [{from: node 0 GPU 0, to: leaf 0, rate: 400Gbps, latency: 500ns}]"
_NAME = re.compile(r"(node ([0-9]{1,7}) )?(GPU|NIC|PCIe|link switch|leaf|spine|core) ([0-9]{1,7}|root)", re.IGNORECASE)
_KIND = {word.casefold(): kind for kind, word in WORDS.items()}
_IN_NODES = (Device.GPU, Device.NIC, Device.PCIE_SWITCH)


def written_fabric(cluster: Cluster, nodes: int) -> Fabric:
    """The network in the topology's file, whole; it must have the nodes that the job needs, of the cluster's size."""
    path = cluster.topology.path
    if path is None:
        hint = "for example topology: {kind: file, path: network.yaml}"
        raise InputError("missing-field", "a topology of kind file needs its path", where=cluster.where, hint=hint)
    data = read_whole(path, "topology file", "expected a topology in YAML, or one of SimAI's", MAX_FILE_BYTES)
    text = data.decode("utf-8", "replace")
    fabric = _simai_fabric(parse_topology(text, path)) if looks_like_simai(text) else _yaml_fabric(path)
    if fabric.gpus_per_node != cluster.node.gpus:
        raise InputError(
            "bad-topology",
            f"the file has nodes of {fabric.gpus_per_node} GPUs, the cluster {cluster.name} of {cluster.node.gpus}",
            where=path,
            hint="the file's nodes and the cluster's must be of one size",
        )
    if fabric.gpus < nodes * cluster.node.gpus:
        held = fabric.gpus // fabric.gpus_per_node
        raise InputError(
            "cluster-too-small", f"the file has {held:,} nodes, the job {nodes:,}", where=path, hint="use fewer nodes"
        )
    return fabric


def _simai_fabric(topology: SimaiTopology) -> Fabric:
    """SimAI's devices: switches next to GPUs are leaves, those next to leaves spines, the others cores."""
    gpus, per_node = topology.gpus, topology.gpus_per_server
    source = np.array([link.source for link in topology.links], dtype=np.int64)
    target = np.array([link.target for link in topology.links], dtype=np.int64)
    kind = np.full(topology.devices, Device.CORE, dtype=np.int8)
    kind[:gpus] = Device.GPU
    kind[list(topology.switch_ids[: topology.nv_switches])] = Device.LINK_SWITCH
    for below, own in ((Device.GPU, Device.LEAF), (Device.LEAF, Device.SPINE)):
        for near, far in ((source, target), (target, source)):
            above = far[(kind[near] == below) & (kind[far] == Device.CORE)]
            kind[above] = own
    draft = FabricDraft()
    draft.add(Device.GPU, (f"node {gpu // per_node} GPU {gpu % per_node}" for gpu in range(gpus)))
    for device in range(gpus, topology.devices):
        draft.add_numbered(Device(int(kind[device])), 1)
    rate = np.array([link.bytes_per_s for link in topology.links])
    latency = np.array([link.latency_s for link in topology.links])
    _join_once(draft, source, target, rate, latency)
    return draft.fabric(Path(topology.path).name, gpus, per_node)


def _join_once(draft: FabricDraft, source: Longs, target: Longs, rate: Floats, latency: Floats) -> None:
    """Adds links, those between the same devices as one of their rates together."""
    low, high = np.minimum(source, target), np.maximum(source, target)
    key, first, which = np.unique(low << 32 | high, return_index=True, return_inverse=True)
    cables = np.bincount(which, minlength=len(key))
    together = np.bincount(which, rate, minlength=len(key))
    draft.join(key >> 32, key & 0xFFFFFFFF, together, latency[first], latency[first], cables)


@dataclass(frozen=True, slots=True)
class _Link:
    """A link of a YAML file: the names of its ends, as labels write them."""

    ends: tuple[str, str]
    bytes_per_s: float
    latency_s: float


def _yaml_fabric(path: str) -> Fabric:
    document = Document(path, "topology file", f"expected a topology in YAML, e.g. {_EXAMPLE}", _EXAMPLE)
    root = document.fields(document.compose(document.read()), ("links",))
    links = [_link(document, node) for node in document.items(root["links"], "a list of links")]
    names = {name: None for link in links for name in link.ends}
    per_node, gpus = _gpus(list(names), path)
    draft = FabricDraft()
    number = {name: at for at, name in enumerate(gpus)}
    draft.add(Device.GPU, gpus)
    for name in names:
        if name not in number:
            number[name] = int(draft.add(_kind(name), [name])[0])
    _join_once(
        draft,
        np.array([number[link.ends[0]] for link in links], dtype=np.int64),
        np.array([number[link.ends[1]] for link in links], dtype=np.int64),
        np.array([link.bytes_per_s for link in links]),
        np.array([link.latency_s for link in links]),
    )
    return draft.fabric(Path(path).stem, len(gpus), per_node)


def _link(document: Document, node: yaml.Node) -> _Link:
    fields = document.fields(node, ("from", "to", "rate", "latency"), ("from", "to", "rate"))
    ends = tuple(_name(document, fields[end], fields.where(end)) for end in ("from", "to"))
    if ends[0] == ends[1]:
        raise InputError(
            "bad-topology", f"a link joins {ends[0]} to itself", where=document.where(node), hint=f"e.g. {_EXAMPLE}"
        )
    rate = fields.number("rate", parse_bandwidth, MIN_LINK_BYTES_PER_S, MAX_LINK_BYTES_PER_S, format_bandwidth)
    latency = 0.0
    if "latency" in fields:
        latency = fields.number("latency", parse_time, 0.0, MAX_LINK_LATENCY_S, format_time)
    return _Link((ends[0], ends[1]), rate, latency)


def _name(document: Document, node: yaml.Node, where: str) -> str:
    """A device's name as labels write it."""
    text = " ".join(document.text(node, "the name of a device").split())
    match = _NAME.fullmatch(text)
    kind = _KIND[match[3].casefold()] if match else Device.GPU
    in_node = kind in _IN_NODES
    root = match is not None and match[4].casefold() == "root"
    if match is None or bool(match[1]) != in_node or (root and kind != Device.PCIE_SWITCH):
        names = '"node 0 GPU 1", "node 0 NIC 1", "node 0 PCIe 0", "link switch 0", "leaf 3", "spine 1", "core 0"'
        raise InputError(
            "bad-value", f'"{shortened(text)}" is no name of a device', where=where, hint=f"names are like {names}"
        )
    last = match[4].casefold() if not match[4].isdecimal() else str(int(match[4]))
    own = f"{WORDS[kind]} {last}"
    return f"node {int(match[2])} {own}" if in_node else own


def _kind(name: str) -> Device:
    match = _NAME.fullmatch(name)
    assert match is not None
    return _KIND[match[3].casefold()]


def _gpus(names: list[str], path: str) -> tuple[int, list[str]]:
    """Returns the number of GPUs of a node, and all GPUs in order; every node must have the same slots, from 0 on."""
    gpus = {name for name in names if _kind(name) == Device.GPU}
    if not gpus:
        raise InputError("bad-topology", "no link has a GPU", where=path, hint=f"for example {_EXAMPLE}")
    places = [(int(words[1]), int(words[3])) for words in (name.split() for name in gpus)]
    nodes, slots = max(node for node, _ in places) + 1, max(slot for _, slot in places) + 1
    # Of numbers with gaps, which may be huge, the first that is missing lies among the first few.
    few = len(gpus) + 1
    expected = [f"node {node} GPU {slot}" for node in range(min(nodes, few)) for slot in range(min(slots, few))]
    missing = next((name for name in expected if name not in gpus), None)
    if missing is not None:
        raise InputError(
            "bad-topology",
            f"{missing} has no link",
            where=path,
            hint="nodes and their GPUs are numbered from 0, without gaps",
        )
    return slots, expected
