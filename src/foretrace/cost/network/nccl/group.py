"""Describes a group for pricing: its layout, the constants of its machine, and the rates of links, PCIe and NICs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from foretrace.cost.network.interface import LimitKind
from foretrace.cost.network.nccl.channels import ChannelGraph, run_channels
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import NcclMachine
from foretrace.cost.network.nccl.tuning_tables import (
    CHANNEL_NVLS_TREE,
    CHANNEL_RING_LL128,
    GB,
    LINK_US,
    LL_MOST,
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
    channel_scale: float = 1.0
    """A factor on the rates of channels, by which `scaled` asks what these limit."""

    def scaled(self, kind: LimitKind, factor: float) -> NcclGroup:
        """Returns the same group with one figure of its machine multiplied by `factor`; the others stay."""
        node = self.cluster.node
        if kind == "channels":
            return replace(self, channel_scale=self.channel_scale * factor)
        if kind == "uplink":
            return self._crowded(1 / factor)
        if kind == "nic":
            node = replace(node, nic=replace(node.nic, bytes_per_s=node.nic.bytes_per_s * factor))
            # The capacity of the network beyond stays, so that faster NICs crowd it more.
            return replace(self._crowded(factor), cluster=replace(self.cluster, node=node))
        field = "link_bytes_per_s" if kind == "nvlink" else "pcie_bytes_per_s"
        gpu = replace(node.gpu, **{field: getattr(node.gpu, field) * factor})
        return replace(self, cluster=replace(self.cluster, node=replace(node, gpu=gpu)))

    def _crowded(self, factor: float) -> NcclGroup:
        """Returns the same group with the slowdowns by the network beyond the NICs multiplied, where there are any."""
        ring, tree, exchange, whole = (
            crowding * factor if crowding > 1 else crowding
            for crowding in (
                self.layout.ring_crowding,
                self.layout.tree_crowding,
                self.layout.exchange_crowding,
                self.oversubscription,
            )
        )
        layout = replace(self.layout, ring_crowding=ring, tree_crowding=tree, exchange_crowding=exchange)
        return replace(self, layout=layout, oversubscription=whole)

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

    def channels_bytes_per_s(self, algorithm: str, protocol: str) -> float:
        """Returns the bus bandwidth that all channels together can copy, by NCCL's tables; infinite for ways for which
        these state none that the links do not."""
        column, clock = self.nodes_column, self.machine.clock
        if protocol == "ll":
            rate = LL_MOST[self.row][column] * clock
        elif (algorithm, protocol) == ("ring", "ll128"):
            rate = self.graphs["ring"].channels * CHANNEL_RING_LL128[self.row][column] * clock
        elif algorithm == "nvls-tree":
            rate = self.graphs["nvls-tree"].channels * CHANNEL_NVLS_TREE[self.row][column]
        else:
            return math.inf
        return rate * GB * self.channel_scale

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

    def nic_rate(self, crowding: float, share: float = 1.0) -> float:
        """Out of its island; `share` of the NICs' line rate is the most that the traffic reaches."""
        line = self.cluster.node.nic.bytes_per_s * self.layout.nics_per_rank
        beyond = line * self.machine.network_share / (crowding * self.oversubscription)
        return min(line * share, beyond, self.cluster.gpu.pcie_bytes_per_s * PCIE_PAYLOAD)

    @property
    def ring_rate(self) -> float:
        """Returns the rate at which a ring moves data past every rank ("bus bandwidth")."""
        rates, layout = [], self.layout
        if layout.most_in_domain > 1:
            # In a ring that leaves a domain of k again, k − 1 in k hops are links. That makes it no faster: SMs copy
            # what goes to a NIC too, and NCCL reckons with the same rate for both (tuning.cc).
            rates.append(self.link_rate)
        if layout.domains > layout.islands:
            rates.append(layout.least_in_domain * self.pcie_rate)
        if layout.islands > 1:
            rates.append(layout.least_in_island * self.nic_rate(layout.ring_crowding))
        return min(rates)
