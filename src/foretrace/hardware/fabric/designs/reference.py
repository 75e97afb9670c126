"""Lists the reference designs of Clos networks, which supply the sizes that a topology leaves out.

Latencies of a switch with its cable. InfiniBand: 0.13 us (NVIDIA Quantum QM8700 product brief) and some 30 m of fibre
at 5 ns a metre. Ethernet: 0.6 us, between the 0.5 us that SimAI's topologies write for every link and what vendors
state for switches of 51.2 Tb/s with forward error correction.
"""

from __future__ import annotations

from typing import Final

from foretrace.basics.errors import InputError
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.designs.clos import Design
from foretrace.hardware.fabric.topology import Topology, TopologyKind

INFINIBAND_HOP_S: Final = 0.3e-6
ETHERNET_HOP_S: Final = 0.6e-6

HOP_S: Final[dict[TopologyKind, float]] = {
    "fat-tree": INFINIBAND_HOP_S,
    "rail-optimised": INFINIBAND_HOP_S,
    "spectrum-x": ETHERNET_HOP_S,
    "hpn": ETHERNET_HOP_S,
    "dcn+": ETHERNET_HOP_S,
    "dragonfly+": INFINIBAND_HOP_S,
    "torus": INFINIBAND_HOP_S,
}
"""Seconds of a switch with its cable, by kind."""

HPN_SPINES: Final = 60
"""Spines in a plane of a pod: each of a ToR's 60 uplinks goes to another (HPN, SIGCOMM 2024, section 4)."""

HPN_SEGMENTS: Final = 15
HPN_CORE: Final = 15.0
"""Oversubscription between pods, as published: 120 ports of a spine go down, 8 up (HPN, section 6)."""

DCN_SPINES: Final = 8
DCN_POD_GPUS: Final = 512
SPECTRUM_SPINES: Final = 64
SPECTRUM_POD_GPUS: Final = 4096
"""SimAI's templates of DCN+ and Spectrum-X: one pod."""


def design_of(cluster: Cluster) -> Design:
    """Returns the layout of the cluster's network: the sizes that are stated, and the reference design's for the
    others."""
    topology = cluster.topology
    if topology.kind == "spectrum-x":
        return _design(cluster, rails=True, leaf_ports=64, pod_gpus=SPECTRUM_POD_GPUS, spines=SPECTRUM_SPINES)
    if topology.kind == "hpn":
        return _hpn(cluster)
    if topology.kind == "dcn+":
        tors = topology.tors or 2
        return _design(cluster, rails=False, leaf_ports=64 * tors, tors=tors, pod_gpus=DCN_POD_GPUS, spines=DCN_SPINES)
    return _design(cluster, rails=topology.kind == "rail-optimised", leaf_ports=32)


def hop_s(topology: Topology) -> float:
    """Seconds of a switch with its cable."""
    return topology.hop_latency_s or HOP_S[topology.kind]


def _hpn(cluster: Cluster) -> Design:
    """Segments of 128 nodes below 16 ToRs, two a rail; in each of two planes 60 spines."""
    ports = cluster.topology.leaf_ports or 128
    # 60 uplinks of twice a port's rate for 128 ports: 1.067:1.
    built_in = 128 / (2 * HPN_SPINES)
    return _design(
        cluster,
        rails=True,
        leaf_ports=128,
        tors=2,
        planes=2,
        pod_gpus=HPN_SEGMENTS * ports * cluster.node.gpus,
        spines=HPN_SPINES,
        oversubscription=built_in,
        core_oversubscription=HPN_CORE,
    )


def _design(
    cluster: Cluster,
    *,
    rails: bool,
    leaf_ports: int,
    tors: int = 1,
    planes: int = 1,
    pod_gpus: int = 0,
    spines: int = 0,
    oversubscription: float = 1.0,
    core_oversubscription: float = 1.0,
) -> Design:
    topology, node = cluster.topology, cluster.node
    ports, tors, planes = topology.leaf_ports or leaf_ports, topology.tors or tors, topology.planes or planes
    if planes > 1 and (tors % planes if tors > 1 else node.nics % planes):
        of = f"the {tors} ports of a NIC" if tors > 1 else f"the {node.nics} NICs of a node"
        raise InputError(
            "not-divisible",
            f"{of} cannot be dealt evenly to {planes} planes",
            where=cluster.where,
            hint="change planes, tors or nics",
        )
    return Design(
        rails=rails,
        leaf_ports=ports,
        tors=tors,
        planes=planes,
        pod_ports=(topology.pod_gpus or pod_gpus) * node.nics // node.gpus,
        spines=spines,
        spine_ports=2 * ports,
        oversubscription=oversubscription * topology.oversubscription,
        core_oversubscription=core_oversubscription * topology.core_oversubscription,
        hop_s=hop_s(topology),
    )
