"""Describes the network of a cluster for flows: its graph, the routes, and the payload that each link carries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.cost.network.nccl.group import PCIE_PAYLOAD
from foretrace.cost.network.nccl.machine import NcclMachine, machine_of
from foretrace.engine.network.collectives import Routing
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.build import fabric_of
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.routing.router import Router


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """A network that flows run on: its graph, the routes, and the payload bytes per second that each link carries.

    If it `spreads`, equal paths share the bytes evenly, so that identical sources load identical links.
    """

    fabric: Fabric
    routing: Routing
    capacity: Floats
    spreads: bool = True
    island_gpus: int = 0
    """GPUs that reach each other without a NIC; 0: those of a node."""

    def nodes_of(self, gpus: Longs) -> Longs:
        """The node of each GPU, or the rack, where links reach over nodes."""
        return gpus // (self.island_gpus or self.fabric.gpus_per_node)

    def with_shares(self, links: float, nics: float) -> FlowNetwork:
        """Returns the network with links between GPUs that carry `links` times as much, and NICs that do `nics` times
        as much."""
        share = np.where(_over_links(self.fabric), links, np.where(_of_nics(self.fabric), nics, 1.0))
        return replace(self, capacity=share * self.capacity)


def flow_network(cluster: Cluster, nodes: int) -> FlowNetwork:
    """Returns the network of `nodes` nodes of a cluster. Parallel spines count as one where traffic spreads."""
    fabric = fabric_of(cluster, nodes, merge=True)
    router = Router(fabric, cluster.topology)
    capacity = fabric.bytes_per_s * payload_shares(fabric, machine_of(cluster.gpu))
    spreads = cluster.topology.routing != "ecmp"
    return FlowNetwork(fabric, router.routes, capacity, spreads, cluster.node.island_gpus)


def payload_shares(fabric: Fabric, machine: NcclMachine) -> Floats:
    """Returns the share of each link's rate that is payload.

    For links between GPUs and for the network it is the machine's, for PCIe that of its packets.
    """
    ends = np.sort(np.stack([fabric.kind[fabric.source], fabric.kind[fabric.target]]), axis=0)
    over_links = _over_links(fabric)
    over_pcie = ~over_links & (ends[0] <= Device.PCIE_SWITCH) & (ends[1] <= Device.NIC)
    return np.where(over_links, machine.link_share, np.where(over_pcie, PCIE_PAYLOAD, machine.network_share))


def _over_links(fabric: Fabric) -> Mask:
    """Which links are those between GPUs, or between them and their switches."""
    last = int(Device.LINK_SWITCH)
    return np.asarray((fabric.kind[fabric.source] <= last) & (fabric.kind[fabric.target] <= last))


def _of_nics(fabric: Fabric) -> Mask:
    """Which links join NICs to the network."""
    ends = np.sort(np.stack([fabric.kind[fabric.source], fabric.kind[fabric.target]]), axis=0)
    return np.asarray((ends[0] == Device.NIC) & (ends[1] > Device.NIC))
