"""Finds how GPUs are attached to the network: the links from each GPU through PCIe and NICs to the first switches.

A GPU may have several NICs, and a NIC several ports, so its way out is a small tree; its *exits* are the ends of that
tree. GPUs whose trees have the same shape and the same switches at their ends form a class. Paths between two classes
are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Longs, ranges
from foretrace.hardware.fabric.csr import starts_of
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.graph import FabricGraph, among
from foretrace.hardware.fabric.hashing import mixed

DEPTH = 3
"""Links from a GPU to the first switch of the network at most: to PCIe, to the NIC, to the leaf."""

_BEYOND = among(Device.LEAF, Device.SPINE, Device.CORE)
_STEPS = {
    Device.GPU: among(Device.PCIE_SWITCH, Device.NIC) | _BEYOND,
    Device.PCIE_SWITCH: among(Device.NIC) | _BEYOND,
    Device.NIC: _BEYOND,
}
"""The kinds of devices that follow each kind on the way out: never another GPU, and from a NIC only switches."""


@dataclass(frozen=True, slots=True, eq=False)
class Attachment:
    """Exits and links of every GPU, GPU by GPU."""

    exit_start: Longs
    exit_switch: Longs
    """The switch at the end of each exit."""
    exit_last: Longs
    """The device before it: a NIC, or a GPU without one."""
    exit_path: Longs
    """The links to it, [exits, DEPTH]; -1 beyond the end."""
    tree_start: Longs
    tree_link: Longs
    """Links outwards, nearest first."""
    exit_tree: Longs
    """Positions of the links of `exit_path` among the tree's own, [exits, DEPTH]; -1 beyond the end."""
    class_of: Longs
    one_of: Longs
    """A GPU of each class."""


def attachment_of(graph: FabricGraph) -> Attachment:
    """The attachment of all GPUs of a fabric."""
    gpu, path = _exits(graph)
    fabric = graph.fabric
    depth = (path >= 0).sum(axis=1)
    last = path[np.arange(len(path)), depth - 1]
    exit_start = starts_of(np.bincount(gpu, minlength=fabric.gpus))
    # Every link of a GPU's tree once, nearest first.
    valid = path >= 0
    key = ((gpu[:, None] * DEPTH + np.arange(DEPTH)) * max(1, fabric.links) + path)[valid]
    used, place = np.unique(key, return_inverse=True)
    tree_gpu = used // max(1, fabric.links) // DEPTH
    tree_start = starts_of(np.bincount(tree_gpu, minlength=fabric.gpus))
    exit_tree = np.full(path.shape, -1, dtype=np.int64)
    exit_tree[valid] = place - np.repeat(tree_start[gpu], depth)
    switch = fabric.target[last]
    class_of, one_of = _classes(fabric, gpu, exit_start, switch, exit_tree)
    return Attachment(
        exit_start=exit_start,
        exit_switch=switch,
        exit_last=fabric.source[last],
        exit_path=path,
        tree_start=tree_start,
        tree_link=used % max(1, fabric.links),
        exit_tree=exit_tree,
        class_of=class_of,
        one_of=one_of,
    )


def _exits(graph: FabricGraph) -> tuple[Longs, Longs]:
    """All ways out: the GPU and the links, sorted by GPU."""
    fabric = graph.fabric
    gpu = np.arange(fabric.gpus, dtype=np.int64)
    at, path = gpu, np.full((fabric.gpus, DEPTH), -1, dtype=np.int64)
    done_gpu, done_path = [gpu[:0]], [path[:0]]
    for depth in range(DEPTH):
        steps_gpu, steps_path = [gpu[:0]], [path[:0]]
        for kind, onwards in _STEPS.items():
            here = np.flatnonzero(fabric.kind[at] == kind)
            link, owner = graph.out(at[here], onwards)
            longer = path[here[owner]].copy()
            longer[:, depth] = link
            steps_gpu.append(gpu[here[owner]])
            steps_path.append(longer)
        gpu, path = np.concatenate(steps_gpu), np.concatenate(steps_path)
        at = fabric.target[path[:, depth]]
        out = _BEYOND[fabric.kind[at]]
        done_gpu.append(gpu[out])
        done_path.append(path[out])
        gpu, path, at = gpu[~out], path[~out], at[~out]
    gpu, path = np.concatenate(done_gpu), np.concatenate(done_path)
    order = np.argsort(gpu, kind="stable")
    return gpu[order], path[order]


def _classes(fabric: Fabric, gpu: Longs, exit_start: Longs, switch: Longs, exit_tree: Longs) -> tuple[Longs, Longs]:
    """Returns the class of each GPU and a GPU of each class. GPUs are of one class if their exits agree, one by one."""
    counts = np.diff(exit_start)
    place = ranges(np.zeros(len(counts), dtype=np.int64), counts)
    item = mixed(place, switch)
    for column in range(DEPTH):
        item = mixed(item.view(np.int64), exit_tree[:, column])
    total = np.zeros(fabric.gpus, dtype=np.uint64)
    np.add.at(total, gpu, item)  # wraps around, which a hash may
    _, one_of, class_of = np.unique(total, return_index=True, return_inverse=True)
    return class_of.astype(np.int64), one_of.astype(np.int64)
