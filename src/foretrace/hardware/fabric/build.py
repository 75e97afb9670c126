"""Builds the network of a cluster as a graph, for the nodes of a job.

The design of the topology gives the whole fabric. Links and switches that failed are then taken out, and the traffic of
other jobs is subtracted from the rates of the links.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Mask
from foretrace.basics.errors import InputError
from foretrace.basics.units import format_bandwidth
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.designs.clos import add_clos
from foretrace.hardware.fabric.designs.draft import FabricDraft
from foretrace.hardware.fabric.designs.dragonfly import add_dragonfly
from foretrace.hardware.fabric.designs.node import add_nodes
from foretrace.hardware.fabric.designs.reference import design_of
from foretrace.hardware.fabric.designs.topology_file import written_fabric
from foretrace.hardware.fabric.designs.torus import add_torus, torus_nodes
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.merging import merged, split_cables
from foretrace.hardware.fabric.names import links_named

MAX_GPUS: Final = 262_144
"""The largest fabric that is built link by link: a few seconds and a gigabyte."""

MIN_SHARE: Final = 0.01
"""The share of a link's rate that background traffic always leaves: fair queues starve nobody, and a job on a link of
rate 0 would never end."""


def fabric_of(cluster: Cluster, nodes: int, *, merge: bool = True) -> Fabric:
    """Returns the network of `nodes` nodes without what failed and without the rates that background traffic uses.

    A torus, a written-out network, and a network whose links are named (as failed, or as used by others) are built
    whole, with GPUs that a smaller job does not use. With `merge`, interchangeable spines and cores become one device.
    That changes no load where traffic is divided evenly, and makes routes short. Where traffic is hashed, every cable
    is a link of its own.
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
    """Returns the whole network of a kind that has a design."""
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


def without_failed(fabric: Fabric, cluster: Cluster) -> Fabric:
    """Returns the fabric without failed links and without the links of failed devices."""
    if not cluster.topology.failed:
        return fabric
    kept = in_service(fabric, cluster)
    return replace(
        fabric,
        source=fabric.source[kept],
        target=fabric.target[kept],
        bytes_per_s=fabric.bytes_per_s[kept],
        latency_s=fabric.latency_s[kept],
        cables=None if fabric.cables is None else fabric.cables[kept],
    )


def in_service(fabric: Fabric, cluster: Cluster) -> Mask:
    """Returns whether each link of a whole fabric is in service."""
    kept = np.ones(fabric.links, dtype=np.bool_)
    for name in cluster.topology.failed:
        _check_no_gpu(fabric, name, cluster.where)
        kept[links_named(fabric, name, cluster.where)] = False
    return kept


def _check_no_gpu(fabric: Fabric, name: str, where: str | None) -> None:
    """Raises an error for what cannot fail here: a GPU (the job needs it), or one direction of a link."""
    folded = " ".join(name.split()).casefold()
    if ">" in folded or folded in ("nodes", "uplinks"):
        raise InputError(
            "bad-value",
            f'"{name}" cannot fail',
            where=where,
            hint='name a switch, a NIC or a link: "leaf 3", "leaf 3 - spine 1"',
        )
    for number in np.flatnonzero(fabric.kind == Device.GPU):
        if fabric.labels[int(number)].casefold() == folded:
            hint = "leave its node out of the job; links and switches can fail"
            raise InputError("bad-value", f"{name} is a GPU, without which the job cannot run", where=where, hint=hint)


def with_background(fabric: Fabric, cluster: Cluster) -> Fabric:
    """Returns the whole fabric with the rates that background traffic leaves; traffic on the same link adds up."""
    background = cluster.topology.background
    if not background:
        return fabric
    background_bytes_per_s, working = np.zeros(fabric.links), in_service(fabric, cluster)
    for name, bytes_per_s in background:
        links = links_named(fabric, name, cluster.where)
        if len(links) and not working[links].any():
            raise InputError(
                "conflicting-values",
                f'"{name}" is out of service and carries no background traffic',
                where=cluster.where,
                hint="take it out of background, or out of failed",
            )
        background_bytes_per_s[links] += bytes_per_s
        over = links[background_bytes_per_s[links] > fabric.bytes_per_s[links]]
        if len(over):
            rate = format_bandwidth(float(fabric.bytes_per_s[over[0]]))
            raise InputError(
                "out-of-range",
                f"background traffic of {format_bandwidth(float(background_bytes_per_s[over[0]]))} is more than "
                f"{fabric.link_label(int(over[0]))} carries ({rate})",
                where=cluster.where,
                hint="give what others send over this link, one way",
            )
    left = np.maximum(fabric.bytes_per_s - background_bytes_per_s, MIN_SHARE * fabric.bytes_per_s)
    return replace(fabric, bytes_per_s=left)
