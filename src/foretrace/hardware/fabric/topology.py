"""Describes how the nodes of a cluster are joined: the kind of network and its sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

TopologyKind = Literal["fat-tree", "rail-optimised", "spectrum-x", "hpn", "dcn+", "dragonfly+", "torus", "file"]
"""`file`: a SimAI topology file, or devices and links written out in YAML."""

TOPOLOGY_KINDS: tuple[str, ...] = get_args(TopologyKind)

Routing = Literal["spread", "ecmp", "rail"]
"""How a flow is routed over equally short paths: divided evenly over all (adaptive routing, packet spraying), one by
hash, or on the rail of the sender: data for another rail first crosses the links of the sender's node (PXN)."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The network that joins the nodes. Sizes left out (0) are those of the kind's reference design; rates follow the
    NICs."""

    kind: TopologyKind = "fat-tree"
    routing: Routing = "spread"
    leaf_ports: int = 0
    """NIC ports that one leaf serves."""
    pod_gpus: int = 0
    """GPUs beneath one set of spines (a pod, a group of a dragonfly)."""
    planes: int = 0
    """Separate networks: those that a NIC's ports are dealt to (2: dual plane) or, where a NIC has one port, those that
    a node's NICs are dealt to (8: DeepSeek's multi-plane fat tree)."""
    tors: int = 0
    """Leaves that one NIC is joined to (2: dual ToR); its rate is divided among them."""
    oversubscription: float = 1.0
    """The rate into the leaves from below, relative to the rate on to the spines."""
    core_oversubscription: float = 1.0
    """The same between spines and cores."""
    dimensions: tuple[int, ...] = ()
    """Dimensions of a torus, in nodes."""
    hop_latency_s: float = 0.0
    """Seconds of one switch with its cable; 0: the reference design's."""
    failed: tuple[str, ...] = ()
    """Links or switches out of service: "leaf 3", "leaf 3 - spine 1", "node 2 NIC 0"."""
    background: tuple[tuple[str, float], ...] = field(default=())
    """Traffic that is not the job's, in bytes per second: ("leaf 3 - spine 1", 1e10); ("nodes", 1e9) is on every NIC,
    ("uplinks", 1e9) on every link between switches."""
    in_network_reduction: bool = False
    """Whether switches sum what passes them (SHARP), so that NCCL may use CollNet."""
    path: str | None = None
    """The file of a `file` topology."""
    seed: int = 0
    """The seed of the hash of `ecmp`."""
