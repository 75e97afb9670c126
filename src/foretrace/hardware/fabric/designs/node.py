"""Builds the inside of nodes: GPUs, the links that join them, PCIe, and NICs.

Latencies of one crossing. Between a GPU and its NIC: half of the 0.6 us that NVIDIA states from one ConnectX to another
(ConnectX-6 and -7 product briefs, "less than 0.6 us"), PCIe included. Over links: 0.2 us, assumed: a load from a GPU
beyond a switch takes about 0.8 us longer than one from its own memory, over four crossings. Over PCIe: 0.15 us, what
makers of PCIe switches state (Broadcom PEX, 0.1 to 0.15 us).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.hardware.cluster import Node
from foretrace.hardware.fabric.designs.draft import FabricDraft
from foretrace.hardware.fabric.fabric import Device

LINK_S: Final = 0.2e-6
PCIE_S: Final = 0.15e-6
NIC_S: Final = 0.3e-6


def add_nodes(draft: FabricDraft, node: Node, nodes: int) -> Longs:
    """Adds `nodes` nodes, GPUs first; returns their NICs, [nodes, NICs of a node]."""
    gpus = draft.add(Device.GPU, (f"node {number} GPU {slot}" for number in range(nodes) for slot in range(node.gpus)))
    if node.gpu.links and node.domain_gpus > 1:
        _add_links(draft, node, gpus)
    return _add_nics(draft, node, gpus.reshape(nodes, node.gpus))


def rails_of(node: Node) -> int:
    """Returns the number of sets of NICs of a node that serve GPUs of their own."""
    return math.gcd(node.gpus, node.nics)


def _add_links(draft: FabricDraft, node: Node, gpus: Longs) -> None:
    """Joins the GPUs of every domain: to a switch, or each to each with the links of a GPU dealt out."""
    domain = gpus // node.domain_gpus
    if node.switched:
        switches = draft.add_numbered(Device.LINK_SWITCH, int(domain[-1]) + 1)
        draft.join(gpus, switches[domain], node.gpu.link_bytes_per_s, LINK_S, LINK_S)
        return
    first, second = np.triu_indices(node.domain_gpus, 1)
    starts = np.arange(0, len(gpus), node.domain_gpus)[:, None]
    ends = (starts + first).ravel(), (starts + second).ravel()
    there = ends[1] < len(gpus)  # the last domain of a job may not be full
    rate = node.gpu.link_bytes_per_s / (node.domain_gpus - 1)
    draft.join(ends[0][there], ends[1][there], rate, LINK_S, LINK_S)


def _add_nics(draft: FabricDraft, node: Node, gpus: Longs) -> Longs:
    """Joins GPUs to their NICs: directly, one to one, or through a PCIe switch for those that share."""
    nodes = len(gpus)
    nics = draft.add(
        Device.NIC, (f"node {number} NIC {nic}" for number in range(nodes) for nic in range(node.nics))
    ).reshape(nodes, node.nics)
    apart = node.gpus > max(1, node.domain_gpus)  # GPUs of the node that links do not join
    rate = node.gpu.pcie_bytes_per_s
    if node.nics == node.gpus and not apart:
        draft.join(gpus, nics, rate, NIC_S, NIC_S)
        return nics
    rails = rails_of(node)
    switches = draft.add(
        Device.PCIE_SWITCH, (f"node {number} PCIe {rail}" for number in range(nodes) for rail in range(rails))
    ).reshape(nodes, rails)
    draft.join(gpus, np.repeat(switches, node.gpus // rails, axis=1), rate, PCIE_S, PCIE_S)
    draft.join(np.repeat(switches, node.nics // rails, axis=1), nics, node.nic.bytes_per_s, PCIE_S, PCIE_S)
    if apart and rails > 1:
        roots = draft.add(Device.PCIE_SWITCH, (f"node {number} PCIe root" for number in range(nodes)))
        draft.join(switches, roots[:, None], rate, PCIE_S, PCIE_S)
    return nics
