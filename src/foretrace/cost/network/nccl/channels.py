"""Computes how many channels NCCL runs concurrently, and the speed that its search gives each of them.

NCCL searches paths through the machine. The result is the same on all machines of a kind, so it is computed here from
what the search tries: the highest speed of its list at which the channels fill the links. One channel of the search
becomes two where it is fast (`ncclTopoDupChannels`), and each runs twice (`ncclTopoPostset`): DGX A100 and H100 show 24
channels within a node.

The link widths that NCCL assumes belong to the architecture and the number of links, not to the measured rate of a
link; and the NIC is assumed to be the usual one of the architecture. So NCCL's choice here depends on how a machine is
built and never on its rates, and a faster link cannot make a call slower by another choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.tuning_tables import GB, INTER_SPEEDS, INTRA_SPEEDS, LINK_GB, MAX_CHANNELS, row_of
from foretrace.hardware.cluster import Gpu, Node

OTHER_LINK_GB: Final = 48.0
"""Infinity Fabric of an MI300X as RCCL assumes it (`topo.h`)."""

PCIE_GB: Final = {"volta": 12.0, "ampere": 24.0, "hopper": 48.0, "blackwell": 48.0}
"""PCIe ×16 of generation 3, 4 and 5, three quarters of the line (`topo.h`: 12 GB/s of generation 3)."""

NIC_GB: Final = {"volta": 12.5, "ampere": 25.0, "hopper": 50.0, "blackwell": 50.0}
"""The NIC of each GPU in NVIDIA's nodes of that generation: 100, 200 and 400 Gb/s."""

DUPLICATED_FROM_GB: Final = 25.0
"""Channels of the search that are at least this fast become two (`ncclTopoDupChannels`)."""

USABLE_SHARE: Final = 0.96
"""NCCL's search counts with 48 GB/s of a NIC of 400 Gb/s, and with 96 of one of 800 (`search.cc`)."""


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """The channels that the search finds for an algorithm, and the rate of one in bytes per second within and between
    nodes."""

    channels: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    running: int = 0
    """Channels that run concurrently, where a log says so; 0: each twice."""


def graphs_of(node: Node, layout: GroupLayout) -> dict[str, ChannelGraph]:
    """Returns the channels that NCCL's search finds for a group, by algorithm."""
    row = row_of(node.gpu.architecture)
    links = _links_gb(node, layout, row)
    if layout.islands == 1:
        plain = _duplicated(*_widest(links, INTRA_SPEEDS.get(row, INTRA_SPEEDS["ampere"])))
    else:
        plain = _over_nics(node, layout, row, links)
    graphs = dict.fromkeys(("ring", "tree", "pat", "collnet-direct", "collnet-chain"), plain)
    if layout.islands == 2:
        # Between two nodes a double tree sends every byte once where a ring sends it twice: twice as many fit.
        graphs["tree"] = _over_nics(node, layout, row, links, twice=2)
    heads = layout.most_in_island
    speeds = [speed for speed in INTRA_SPEEDS.get(row, INTRA_SPEEDS["ampere"]) if speed * heads <= links]
    per_head = (speeds[0] if speeds else links / heads) * GB
    # NVLS has one channel of the search for each GPU of a node: each reduces its own part.
    graphs["nvls"] = ChannelGraph(heads, per_head, plain.channels * plain.inter_bytes_per_s / heads)
    graphs["nvls-tree"] = graphs["nvls"]
    return graphs


def fastest_nic_bytes_per_s(gpu: Gpu) -> float:
    """Returns the line rate of the fastest NIC that NCCL's search has a speed for."""
    return INTER_SPEEDS.get(row_of(gpu.architecture), INTER_SPEEDS["ampere"])[0] * GB / USABLE_SHARE


def run_channels(graph: ChannelGraph) -> int:
    """Returns the number of channels that run concurrently."""
    return graph.running or min(2 * graph.channels, MAX_CHANNELS)


def _links_gb(node: Node, layout: GroupLayout, row: str) -> float:
    """Returns the rate that NCCL assumes to leave a GPU within its node."""
    gpu = node.gpu
    if layout.domains > layout.islands or not gpu.links or node.domain_gpus == 1 or layout.most_in_domain == 1:
        return PCIE_GB[row]
    total = gpu.links * (LINK_GB[row] if gpu.vendor.lower() == "nvidia" else OTHER_LINK_GB)
    return total if node.switched else total * (layout.most_in_domain - 1) / (node.domain_gpus - 1)


def _widest(total_gb: float, speeds: tuple[float, ...]) -> tuple[int, float]:
    """Channels and their speed: the most in all, and of equal ones the fastest."""
    most = MAX_CHANNELS // 2  # each is run twice
    ways = [(min(int(total_gb // speed), most), speed) for speed in speeds if total_gb >= speed]
    return max(ways, key=lambda way: (way[0] * way[1], way[1])) if ways else (1, total_gb)


def _duplicated(channels: int, speed_gb: float) -> ChannelGraph:
    if speed_gb >= DUPLICATED_FROM_GB and 2 * channels <= MAX_CHANNELS:
        channels, speed_gb = 2 * channels, speed_gb / 2
    return ChannelGraph(channels, speed_gb * GB, speed_gb * GB)


def _over_nics(node: Node, layout: GroupLayout, row: str, links_gb: float, twice: int = 1) -> ChannelGraph:
    """A channel leaves a node through one NIC: one channel for each rank that has a NIC there, or twice as many."""
    channels = twice * max(1, min(layout.least_in_island, node.nics))
    room = min(NIC_GB[row], links_gb / channels if layout.most_in_domain > 1 else NIC_GB[row])
    speeds = INTER_SPEEDS.get(row, INTER_SPEEDS["ampere"])
    speed = next((speed for speed in speeds if speed <= room), room)
    return _duplicated(channels, speed)
