"""A cluster's network as a graph, for as many nodes as a job has."""

from __future__ import annotations

from typing import Final

from foretrace.basics.errors import InputError
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.background import with_background
from foretrace.hardware.fabric.designs.clos import add_clos
from foretrace.hardware.fabric.designs.draft import FabricDraft
from foretrace.hardware.fabric.designs.dragonfly import add_dragonfly
from foretrace.hardware.fabric.designs.node import add_nodes
from foretrace.hardware.fabric.designs.reference import design_of
from foretrace.hardware.fabric.designs.torus import add_torus, torus_nodes
from foretrace.hardware.fabric.designs.written import written_fabric
from foretrace.hardware.fabric.fabric import Fabric
from foretrace.hardware.fabric.failures import without_failed
from foretrace.hardware.fabric.merging import merged, split_cables

MAX_GPUS: Final = 262_144
"""The largest fabric that is built link by link: a few seconds and a gigabyte."""


def fabric_of(cluster: Cluster, nodes: int, *, merge: bool = True) -> Fabric:
    """The network of so many nodes: what their topology builds, less what failed and what other traffic takes.

    A torus, a written-out network, and one whose links are named (as failed, or as used by others) are built whole,
    with GPUs that a smaller job does not use. Spines and cores that stand side by side count as one (without `merge`:
    each apart), which changes no load where traffic is divided evenly, and makes routes short. Where traffic is hashed,
    every cable is a link of its own.
    """
    _check_size(cluster, nodes)
    topology = cluster.topology
    if cluster.nodes is not None and (topology.failed or topology.background):
        nodes = cluster.nodes
        _check_size(cluster, nodes)
    fabric = written_fabric(cluster, nodes) if topology.kind == "file" else _built(cluster, nodes)
    fabric = without_failed(with_background(fabric, cluster), cluster)
    if topology.routing == "ecmp":
        return split_cables(fabric)
    return merged(fabric) if merge else fabric


def _built(cluster: Cluster, nodes: int) -> Fabric:
    """The network of a named kind, whole."""
    kind, node = cluster.topology.kind, cluster.node
    count = torus_nodes(cluster, nodes) if kind == "torus" else nodes
    draft = FabricDraft()
    nics = add_nodes(draft, node, count)
    if count > 1:
        if kind == "torus":
            add_torus(draft, nics, cluster)
        elif kind == "dragonfly+":
            add_dragonfly(draft, nics, cluster)
        else:
            add_clos(draft, nics, node.nic.bytes_per_s, design_of(cluster))
    return draft.fabric(cluster.name, count * node.gpus, node.gpus)


def _check_size(cluster: Cluster, nodes: int) -> None:
    if nodes < 1:
        raise InputError("out-of-range", f"a network of {nodes} nodes cannot be built", hint="at least one")
    if cluster.nodes is not None and nodes > cluster.nodes:
        raise InputError(
            "cluster-too-small",
            f"the job has {nodes:,} nodes, the cluster {cluster.name} {cluster.nodes:,}",
            hint=f"raise nodes in {cluster.where or 'the cluster'}",
        )
    if nodes * cluster.node.gpus > MAX_GPUS:
        raise InputError(
            "too-large",
            f"a network of {nodes * cluster.node.gpus:,} GPUs is not built link by link",
            hint=f"at most {MAX_GPUS:,}; --network analytic needs links only where the topology is narrow or hashed",
        )
