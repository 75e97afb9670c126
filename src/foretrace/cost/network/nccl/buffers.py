"""Counts the GPU memory that a communicator of NCCL holds on one rank: buffers of its connections, and its tables.

NCCL allocates when it connects. Since 2.22 it connects an algorithm, or a pair that sends and receives, when a call
first uses it. Every allocation is rounded to pages of 2 MiB, because device memory comes from `cuMemCreate`. RCCL
started from the same code and is read by the same formulas.

Sources: NCCL 2.28 to 2.30. `src/init.cc` (`computeBuffSizes`, `devCommSetup`, `runtimeConn`), `src/channel.cc`
(`initChannel`), `src/transport/p2p.cc` (`p2pSendSetup`, `p2pRecvSetup`), `src/transport/net.cc` (`sendProxyConnect`,
`sharedNetBuffersInit`), `src/transport/nvls.cc` (`ncclNvlsBufferSetup`), `src/transport/generic.cc`
(`ncclTransportRingConnect` and the others), `src/graph/paths.cc` (`ncclTopoComputeP2pChannels`),
`src/graph/search.cc` (`ncclTopoDupChannels`), `src/include/alloc.h`, `src/include/device.h`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.cost.network.nccl.channels import graphs_of, run_channels
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import machine_of
from foretrace.cost.network.nccl.tuning import chosen, ways
from foretrace.hardware.cluster import Cluster, Node
from foretrace.program.columns import Collective

KIB: Final = 1 << 10
MIB: Final = 1 << 20

PAGE_BYTES: Final = 2 * MIB
"""Allocations are rounded to it: the granularity of `cuMemCreate`, and `CUDA_IPC_MIN` of buffers that peers map."""

STEPS: Final = 8
"""Slots of a buffer (`NCCL_STEPS`)."""

LL_BYTES: Final = 8 * 512 * STEPS * 16
"""A buffer of LL: lines of a thread × threads × steps × 16 bytes, 512 KiB."""

LL128_BYTES: Final = 120 * 640 * STEPS * 8
"""A buffer of LL128: elements of a thread × threads × steps × 8 bytes, 4.6875 MiB."""

SIMPLE_BYTES: Final = 4 * MIB
"""A buffer of Simple (`DEFAULT_BUFFSIZE`)."""

FLAG_BYTES: Final = 4 * KIB
"""Heads and tails that go with the buffers of a connection (`ncclSendMem`, `ncclRecvMem`)."""

PEER_BYTES: Final = 4 * 152
"""A channel keeps this for each rank (`ncclDevChannelPeer`): two connections each way, 152 bytes each."""

COMM_ALLOCATIONS: Final = 2
"""Allocations of a communicator that are less than a page: `ncclDevCommAndChannels`, and `rankToLocalRank`."""

SHARED_STEPS: Final = 16
"""Slots of each channel in the buffer that all sends, or all receives, over NICs share (`NCCL_SHARED_STEPS`)."""

NET_CHUNK_BYTES: Final = 128 * KIB
"""A slot there (`NCCL_P2P_NET_CHUNKSIZE`); twice that for Blackwell GPUs on Arm hosts, which have four GPUs."""

NVLS_CHUNK_BYTES: Final = 128 * KIB
"""A slot of NVLS (`NCCL_NVLS_CHUNKSIZE`)."""

NVLS_CHANNELS: Final = {"hopper": (16, 16), "blackwell": (24, 32)}
"""Channels of NVLS on one node and on several (`ncclNvlsChannels`)."""

MAX_NVLS_HEADS: Final = 32
"""GPUs among which NVLS divides the buffer at most (`NCCL_MAX_NVLS_ARITY`)."""

NET_CHANNEL_GB: Final = 14
"""The part of a NIC's rate, in GB/s, that one channel to a peer is for (`NCCL_P2P_PER_CHANNEL_NET_BW`)."""

PEERS_OF_CHANNEL: Final = 8
"""Peers that a channel serves at a time (`NCCL_MAX_DEV_WORK_P2P_PER_BATCH`)."""

UNDOUBLED_CHANNELS: Final = 4
"""On GPUs after Ampere, more channels than this over NICs stay as they are: none is faster than the 50 GB/s from which
`ncclTopoDupChannels` makes two of each."""

TREE_PEERS: Final = 2
"""Peers on other nodes of a channel of a tree, over both trees: three where a node is inner, one where it is a leaf."""

SizedCall = tuple[Collective, float]
"""A collective and the bytes of its buffer."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks that a rank sends to and receives from, apart from collectives."""

    near: int = 0
    """On its own island."""
    far: int = 0
    """Over NICs."""
    relayed: int = 1
    """Ranks of the island whose messages leave by the NIC of this rank, itself included (PXN, where a message takes the
    NIC of its receiver's rail). Each has a buffer on this GPU."""


def communicator_bytes(
    cluster: Cluster, layout: GroupLayout, calls: Iterable[SizedCall] = (), peers: Peers | None = None
) -> int:
    """Returns the memory that a communicator holds on its busiest rank, in bytes.

    Args:
        cluster: Where the group is.
        layout: The places of its ranks.
        calls: The collectives that it runs; NCCL connects the algorithms that it chooses for them.
        peers: The ranks that a rank exchanges messages with; None: it only runs collectives.
    """
    if layout.size == 1:
        return 0
    group = NcclGroup(cluster, layout, machine_of(cluster.gpu), graphs_of(cluster.node, layout))
    channels = _channels(group)
    total = _tables_bytes(group, channels) + _connections_bytes(group, channels, _algorithms(group, calls))
    return total + (0 if peers is None else _exchange_bytes(group, channels, peers))


def pages(size_bytes: float) -> int:
    """Returns the bytes of whole pages that hold `size_bytes`."""
    return math.ceil(size_bytes / PAGE_BYTES) * PAGE_BYTES


NEAR_BYTES: Final = pages(FLAG_BYTES + LL_BYTES + LL128_BYTES + SIMPLE_BYTES) + pages(FLAG_BYTES)
"""A connection from a GPU of the island and one to a GPU of it: the receiver has the buffers, the sender flags. Where
GPUs read (Ampere over NVLink), the buffer of Simple is at the sender, and the sum is the same."""

FAR_BYTES: Final = pages(LL128_BYTES + SIMPLE_BYTES)
"""One way of a connection over NICs: each side has buffers on the GPU, that of LL is in the host's memory."""


def _channels(group: NcclGroup) -> int:
    """Returns the channels of rings and trees (`comm->nChannels`)."""
    graph = group.graphs["ring"]
    newer = group.row in NVLS_CHANNELS
    if newer and group.nodes > 1 and graph.channels > 2 * UNDOUBLED_CHANNELS:
        return graph.channels  # which counts each twice
    return run_channels(graph)


def _algorithms(group: NcclGroup, calls: Iterable[SizedCall]) -> set[str]:
    """Returns the algorithms that NCCL chooses for these calls."""
    sizes: dict[Collective, list[float]] = {}
    for what, size_bytes in calls:
        sizes.setdefault(what, []).append(max(size_bytes, 1.0))
    algorithms: set[str] = set()
    for what, each in sizes.items():
        possible = ways(group, what)
        numbers = chosen(group, what, possible, np.array(each))
        algorithms |= {possible[number][0] for number in numbers.tolist()}
    return algorithms


def _nvls_channels(group: NcclGroup) -> int:
    """Returns the channels of NVLS; 0 where no switch reduces."""
    if not any(algorithm.startswith("nvls") for algorithm, _ in ways(group, Collective.ALL_REDUCE)):
        return 0
    return NVLS_CHANNELS[group.row][0 if group.nodes == 1 else 1]


def tables_bytes(channels: int, ranks: int, island_ranks: int) -> int:
    """Returns what a communicator of `ranks` holds before any call, apart from NVLS.

    Each channel has its peers, pointers to them, and the order of the ring.
    """
    each = pages(PEER_BYTES * ranks) + pages(8 * (ranks + 1 + island_ranks)) + pages(4 * ranks)
    return COMM_ALLOCATIONS * PAGE_BYTES + channels * each


def _tables_bytes(group: NcclGroup, channels: int) -> int:
    """Returns what a communicator holds before any call; NVLS adds its channels' peers, and the counters of all."""
    total = tables_bytes(_pow2_up(channels), group.layout.size, group.layout.most_in_island)
    nvls = _nvls_channels(group)
    return total + (nvls + 1) * PAGE_BYTES if nvls else total


def _connections_bytes(group: NcclGroup, channels: int, algorithms: set[str]) -> int:
    """Returns the buffers of the connections that these algorithms use; ring and tree share those within an island."""
    layout, nodes = group.layout, group.nodes
    most = layout.most_in_island
    exits = math.ceil(channels / layout.least_in_island) if nodes > 1 else 0
    tree_peers = 1 if nodes == 2 else TREE_PEERS
    total = 0
    if algorithms & {"ring", "tree"} and most > 1:
        # Rings have a rank before and one behind. The chains of trees run along them, and back: with two ranks on one
        # island that is the same pair.
        back = "tree" in algorithms and (most > 2 or nodes > 1)
        total += channels * NEAR_BYTES * (2 if back else 1)
    if "ring" in algorithms:
        # Where a channel leaves the island, one of the two goes over NICs, or both of a rank that is alone there.
        total += exits * (2 * FAR_BYTES - (NEAR_BYTES if most > 1 else 0))
    if "tree" in algorithms:
        total += exits * tree_peers * 2 * FAR_BYTES
    if algorithms & {"nvls", "nvls-tree"}:
        nvls = _nvls_channels(group)
        total += pages(2 * nvls * STEPS * NVLS_CHUNK_BYTES * min(most, MAX_NVLS_HEADS))
        total += math.ceil(nvls / layout.least_in_island) * tree_peers * 2 * FAR_BYTES if nodes > 1 else 0
    if "pat" in algorithms:
        # Ranks at every power of two, before and behind, each way.
        total += channels * math.ceil(math.log2(layout.size)) * 4 * FAR_BYTES
    return total


def _exchange_bytes(group: NcclGroup, channels: int, peers: Peers) -> int:
    """Returns the buffers for messages: own ones for each channel to each peer of the island, shared ones over NICs."""
    pool = _pow2_up(channels)
    near = peers.near * _channels_per_peer(group, pool) * NEAR_BYTES
    if not peers.far:
        return near
    node = group.cluster.node
    on_arm = group.row == "blackwell" and node.domain_gpus > node.gpus
    shared = pages(pool * SHARED_STEPS * NET_CHUNK_BYTES * (2 if on_arm else 1))
    return near + (peers.relayed + 1) * shared


def _channels_per_peer(group: NcclGroup, pool: int) -> int:
    """Returns the channels that a message to one peer is divided over: as many as the narrowest way to any rank of the
    group takes, and over nodes so few that all peers are served at once."""
    node, layout = group.cluster.node, group.layout
    widths = [_near_channels(node, group.over_links)] if layout.most_in_island > 1 else []
    if group.nodes > 1:
        nics = max(1, node.nics // node.gpus)
        widths.append(max(nics, math.ceil(int(nics * node.nic.bytes_per_s / 1e9) / NET_CHANNEL_GB)))
    each = _pow2_up(min(widths))
    if group.nodes == 1:
        return min(each, pool)
    while each > 1 and each * math.ceil(layout.size / PEERS_OF_CHANNEL) > pool:
        each //= 2
    return each


def _near_channels(node: Node, over_links: bool) -> int:
    """Returns the channels to a GPU of the island: two for each link that leads there, two over PCIe."""
    if not over_links:
        return 2
    return 2 * max(1, node.gpu.links if node.switched else node.gpu.links // max(node.domain_gpus - 1, 1))


def _pow2_up(number: int) -> int:
    return 1 << (number - 1).bit_length()
