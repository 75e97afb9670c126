"""Builds Dragonfly+ networks: groups of leaves and spines, and cables between the spines of every two groups.

Each group is a small fat tree. Routes are minimal: one cable between groups. Source: Shpiner et al., Dragonfly+: low
cost topology for scaling datacenters, HiPINEB 2017.
"""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import InputError
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.designs.draft import FabricDraft
from foretrace.hardware.fabric.designs.reference import hop_s
from foretrace.hardware.fabric.fabric import Device

LEAF_PORTS = 32
"""Ports of a leaf that go down, of switches with 64: as many go up, and a group has as many leaves and spines as a leaf
has ports."""


def add_dragonfly(draft: FabricDraft, nics: Longs, cluster: Cluster) -> None:
    """Joins NICs, [nodes, NICs of a node], through groups of leaves and spines."""
    topology, node, hop = cluster.topology, cluster.node, hop_s(cluster.topology)
    rate = node.nic.bytes_per_s
    ports = topology.leaf_ports or LEAF_PORTS
    group_nics = topology.pod_gpus * node.nics // node.gpus or ports * ports
    nodes_per_group = max(1, group_nics // node.nics)
    leaves_per_group = max(1, -(-nodes_per_group * node.nics // ports))
    groups = -(-len(nics) // nodes_per_group)
    group = np.arange(len(nics)) // nodes_per_group
    within = (np.arange(len(nics)) - group * nodes_per_group)[:, None] * node.nics + np.arange(node.nics)
    leaf = group[:, None] * leaves_per_group + within // ports
    used, leaf_of = np.unique(leaf, return_inverse=True)
    leaves = draft.add_numbered(Device.LEAF, len(used))
    draft.join(nics, leaves[leaf_of.reshape(nics.shape)], rate, 0.0, hop)
    if len(used) == 1:
        return
    # One spine for each leaf of a full group, and no more than a leaf has cables up.
    cables = max(1, round(ports / topology.oversubscription))
    count = min(cables, leaves_per_group)
    spines = draft.add_numbered(Device.SPINE, groups * count).reshape(groups, count)
    each = ports * rate / topology.oversubscription / count
    of_group = spines[used // leaves_per_group]
    draft.join(leaves[:, None], of_group, each, hop, hop, max(1, round(each / rate)))
    if groups > 1:
        _join_groups(draft, spines, leaves_per_group * ports, cluster)


def _join_groups(draft: FabricDraft, spines: Longs, ports: int, cluster: Cluster) -> None:
    """Deals a group's outward cables evenly to the other groups: as many as it has ports below, unless fewer are
    stated."""
    groups, count = spines.shape
    outward = int(ports / cluster.topology.core_oversubscription)
    each = outward // (groups - 1)
    if each < 1:
        raise InputError(
            "bad-topology",
            f"{outward:,} outward cables of a group cannot join {groups:,} groups each to each",
            where=cluster.where,
            hint="larger groups: pod_gpus, or a smaller core_oversubscription",
        )
    first, second = np.triu_indices(groups, 1)
    cable = np.arange(each)
    near = ((second - first - 1) * each)[:, None] + cable
    far = ((first - second - 1) % groups * each)[:, None] + cable
    ends = spines[first[:, None], near % count] * (1 << 32) + spines[second[:, None], far % count]
    pairs, cables = np.unique(ends, return_counts=True)
    rate, hop = cluster.node.nic.bytes_per_s, hop_s(cluster.topology)
    draft.join(pairs >> 32, pairs & 0xFFFFFFFF, rate * cables, hop, hop, cables)
