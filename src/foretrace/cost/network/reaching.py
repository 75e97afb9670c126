"""A cluster whose links and NICs reach given rates, whatever their datasheets say."""

from __future__ import annotations

from dataclasses import replace

from foretrace.cost.network.nccl.group import PCIE_PAYLOAD
from foretrace.cost.network.nccl.machine import machine_of
from foretrace.hardware.cluster import Cluster


def reaching(cluster: Cluster, *, link_bytes_per_s: float | None, nic_bytes_per_s: float | None) -> Cluster:
    """A cluster on which the network model's links and NICs reach these rates for large messages."""
    node, gpu, nic = cluster.node, cluster.gpu, cluster.node.nic
    machine = machine_of(gpu)
    if link_bytes_per_s is not None:
        gpu = replace(gpu, link_bytes_per_s=link_bytes_per_s / machine.link_share)
    if nic_bytes_per_s is not None:
        nic = replace(nic, bytes_per_s=nic_bytes_per_s / machine.network_share)
        gpu = replace(gpu, pcie_bytes_per_s=max(gpu.pcie_bytes_per_s, nic_bytes_per_s / PCIE_PAYLOAD))
    return replace(cluster, node=replace(node, gpu=gpu, nic=nic))
