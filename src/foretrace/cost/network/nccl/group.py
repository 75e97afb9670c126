"""Describes a group for pricing: its layout, the constants of its machine, and the rates of links, PCIe and NICs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretrace.cost.network.nccl.channels import ChannelGraph, run_channels
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import NcclMachine
from foretrace.cost.network.nccl.tuning_tables import (
    LINK_US,
    NETWORK_US,
    OVERHEAD_US,
    PCIE_SHARE,
    PCIE_US,
    PROTOCOLS,
    US,
    row_of,
)
from foretrace.hardware.cluster import Cluster

PCIE_PAYLOAD: Final = 256 / (256 + 24)
"""Payload of a PCIe packet of 256 bytes over all it takes on the link: what a NIC can draw from its GPU at most."""


@dataclass(frozen=True, slots=True)
class NcclGroup:
    """The ranks of one communicator on a cluster. Rates are what one rank can send, in bytes per second."""

    cluster: Cluster
    layout: GroupLayout
    machine: NcclMachine
    graphs: dict[str, ChannelGraph]
    oversubscription: float = 1.0
    """The factor by which the network beyond the NICs slows all traffic, where its layout does not say."""

    @property
    def row(self) -> str:
        """The row of NCCL's tables."""
        return row_of(self.cluster.gpu.architecture)

    @property
    def nodes(self) -> int:
        """Returns the number of what NCCL calls nodes: parts that need no NIC within."""
        return self.layout.islands

    @property
    def nodes_column(self) -> int:
        """The column of NCCL's tables: one, two or more nodes."""
        return min(self.nodes, 3) - 1

    @property
    def over_links(self) -> bool:
        """Returns whether ranks of an island reach each other over links alone."""
        has_links = self.cluster.gpu.links > 0 and self.cluster.node.domain_gpus > 1
        return has_links and self.layout.domains <= self.layout.islands

    def channels(self, algorithm: str) -> int:
        """Returns the number of channels that run concurrently."""
        return run_channels(self.graphs[algorithm])

    def near_s(self, algorithm: str, protocol: str) -> float:
        """A hop within an island."""
        at = PROTOCOLS.index(protocol)
        table = LINK_US if self.over_links else PCIE_US
        if protocol == "simple":
            return self.machine.simple_step_s * table[algorithm][at] / LINK_US["ring"][at]
        return self.machine.step_scale * table[algorithm][at] * US

    def far_s(self, algorithm: str, protocol: str) -> float:
        """A hop over NICs."""
        at = PROTOCOLS.index(protocol)
        return self.machine.step_scale * (NETWORK_US[algorithm][at] + OVERHEAD_US[at]) * US + self.layout.extra_hop_s

    @property
    def link_rate(self) -> float:
        """Over links, to all others of its domain together."""
        node, gpu = self.cluster.node, self.cluster.gpu
        if not (gpu.links > 0 and node.domain_gpus > 1):
            return self.pcie_rate
        rate = gpu.link_bytes_per_s * self.machine.link_share * self.machine.clock
        return rate if node.switched else rate * (self.layout.most_in_domain - 1) / (node.domain_gpus - 1)

    @property
    def pcie_rate(self) -> float:
        """Over PCIe to GPUs of its host that links do not reach."""
        return self.cluster.gpu.pcie_bytes_per_s * PCIE_SHARE

    def nic_rate(self, crowding: float) -> float:
        """Out of its island."""
        nic = self.cluster.node.nic.bytes_per_s * self.machine.network_share * self.layout.nics_per_rank
        return min(nic / (crowding * self.oversubscription), self.cluster.gpu.pcie_bytes_per_s * PCIE_PAYLOAD)

    @property
    def ring_rate(self) -> float:
        """Returns the rate at which a ring moves data past every rank ("bus bandwidth")."""
        rates, layout = [], self.layout
        if layout.most_in_domain > 1:
            # Of a ring that leaves a domain of k again, k − 1 in k hops are links. That makes it no faster: SMs copy
            # what goes to a NIC too, and NCCL reckons with the same rate for both (tuning.cc).
            rates.append(self.link_rate)
        if layout.domains > layout.islands:
            rates.append(layout.least_in_domain * self.pcie_rate)
        if layout.islands > 1:
            rates.append(layout.least_in_island * self.nic_rate(layout.ring_crowding))
        return min(rates)
