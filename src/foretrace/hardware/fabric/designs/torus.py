"""Builds tori: a router for each node, joined to its neighbours along every dimension in rings."""

from __future__ import annotations

import math

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import InputError
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.designs.draft import FabricDraft
from foretrace.hardware.fabric.designs.reference import hop_s
from foretrace.hardware.fabric.fabric import Device


def torus_nodes(cluster: Cluster, nodes: int) -> int:
    """Returns the number of nodes of the torus, which is at least the job's."""
    sizes = cluster.topology.dimensions
    example = "topology: {kind: torus, dimensions: [4, 4]}"
    if not sizes:
        raise InputError(
            "missing-field",
            "a torus needs its dimensions, in nodes",
            where=cluster.where,
            hint=f"for example {example}",
        )
    held = math.prod(sizes)
    shape = " × ".join(str(size) for size in sizes)
    if nodes > held:
        raise InputError(
            "bad-topology",
            f"a torus of {shape} has {held:,} nodes, the job {nodes:,}",
            where=cluster.where,
            hint="change dimensions",
        )
    if cluster.nodes is not None and cluster.nodes != held:
        raise InputError(
            "bad-topology",
            f"a torus of {shape} has {held:,} nodes, the cluster {cluster.nodes:,}",
            where=cluster.where,
            hint="change dimensions or nodes",
        )
    return held


def add_torus(draft: FabricDraft, nics: Longs, cluster: Cluster) -> None:
    """Joins each node's NICs to a router, and routers to their neighbours: what the NICs of a node send, all together,
    is divided evenly over its directions."""
    sizes, hop = cluster.topology.dimensions, hop_s(cluster.topology)
    rate = cluster.node.nic.bytes_per_s
    routers = draft.add_numbered(Device.LEAF, len(nics))
    draft.join(nics, routers[:, None], rate, 0.0, hop)
    place = np.arange(len(nics)).reshape(sizes)
    directions = 2 * sum(size > 1 for size in sizes)
    # The oversubscription narrows what goes on to other routers, as it does above leaves.
    each = rate * nics.shape[1] / directions / cluster.topology.oversubscription
    for axis, size in enumerate(sizes):
        if size == 1:
            continue
        following = np.roll(place, -1, axis=axis)
        if size == 2:  # both directions lead to the same neighbour
            near = np.take(place, [0], axis=axis)
            draft.join(routers[near], routers[np.take(place, [1], axis=axis)], 2 * each, hop, hop, 2)
        else:
            draft.join(routers[place], routers[following], each, hop, hop)
