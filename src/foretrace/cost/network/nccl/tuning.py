"""Chooses the algorithm and protocol of a call as NCCL does.

NCCL estimates time = latency + bytes / bandwidth from its tables and takes the minimum (`ncclTopoTuneModel` and
`topoGetAlgoInfo`). As a time this is off by a quarter and more; as a choice it is what runs. Constants and formulas:
NCCL 2.30, `src/graph/tuning.cc` and `src/enqueue.cc`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.tuning_tables import (
    ALGORITHMS,
    BASE_US,
    CHANNEL_NVLS_TREE,
    CHANNEL_RING_LL128,
    CHANNEL_TREE,
    CHANNEL_TREE_LL128,
    DIRECT_PEER_US,
    GB,
    LINK_US,
    LL_MOST,
    NETWORK_US,
    NVLS_EFFICIENCY,
    OVERHEAD_US,
    PAT_SHARE,
    PCIE_US,
    PROTOCOLS,
    SIMPLE_ONLY,
    TREE_CORRECTION,
    US,
)
from foretrace.cost.network.nccl_log.observations import Observed, Way
from foretrace.program.columns import SHARDED, WHOLE, Collective

RING_SIMPLE_NODES: Final = 1.4
"""The factor by which NCCL raises the latency of a ring of Simple over nodes, from 64 bytes a channel and rank on."""

RING_SIMPLE_BYTES: Final = 64.0


def ways(group: NcclGroup, what: Collective, collnet: bool = False, ll128: bool = False) -> list[Way]:
    """Returns the ways in which NCCL can run a collective in a group, least latency first by its tables.

    `collnet` includes those over a network that reduces, `ll128` LL128 even where NCCL would not trust it by itself.
    """
    return [
        (algorithm, protocol)
        for algorithm in ALGORITHMS
        if _runs(group, what, algorithm, collnet)
        for protocol in (("simple",) if algorithm in SIMPLE_ONLY else PROTOCOLS)
        if protocol != "ll128" or ll128 or _ll128(group)
    ]


def _ll128(group: NcclGroup) -> bool:
    """Returns whether NCCL trusts a machine with LL128.

    LL128 needs stores of 128 bytes to arrive whole: over links and NICs, not over PCIe between GPUs. On one node of
    Blackwell it is not used: NVIDIA's tables show the steps of Simple right above the sizes of LL.
    """
    if group.nodes == 1:
        return group.over_links and group.row != "blackwell"
    return group.over_links or group.layout.most_in_island == 1


def _runs(group: NcclGroup, what: Collective, algorithm: str, collnet: bool) -> bool:
    """Returns whether an algorithm is available for a collective, by NCCL's rules."""
    several, switch = group.nodes > 1, _reduces(group)
    match algorithm:
        case "ring":
            return True
        case "tree":
            return what is Collective.ALL_REDUCE
        case "nvls":
            return switch and what not in WHOLE and (not several or collnet)
        case "nvls-tree":
            return switch and what is Collective.ALL_REDUCE and several
        case "pat":
            return what in SHARDED and several and group.layout.most_in_island == 1
        case _:
            direct = algorithm == "collnet-direct" and what in SHARDED
            return several and collnet and (what is Collective.ALL_REDUCE or direct)


def _reduces(group: NcclGroup) -> bool:
    """Returns whether a switch joins these GPUs that can reduce; NCCL uses it for three and more."""
    node = group.cluster.node
    return node.switched and group.over_links and group.row in NVLS_EFFICIENCY and group.layout.least_in_island > 2


def reckoned_s(group: NcclGroup, what: Collective, way: Way, size_bytes: Floats, rule: tuple[float, float]) -> Floats:
    """Returns the seconds that NCCL estimates for a way: its latency and rate, corrected by size."""
    algorithm, protocol = way
    latency, rate = (np.full(size_bytes.shape, value) for value in rule)
    if algorithm == "tree":
        # The exponent of a float is the whole part of its logarithm.
        index = np.clip(np.frexp(size_bytes / 64)[1] - 1, 0, 22)
        rate *= np.where(size_bytes >= 64, np.array(TREE_CORRECTION[protocol])[index], 1.0)
    if way == ("ring", "simple") and what is Collective.ALL_REDUCE and group.nodes > 1:
        share = size_bytes / (group.graphs["ring"].channels * group.layout.size)
        latency = np.where(share >= RING_SIMPLE_BYTES, latency * RING_SIMPLE_NODES, latency)
    return np.asarray(latency + size_bytes / rate)


def latency_us(group: NcclGroup, what: Collective, way: Way) -> float:
    """Returns NCCL's estimate of the latency of a way, in microseconds."""
    algorithm, protocol = way
    at = PROTOCOLS.index(protocol)
    n, nodes, per_node = group.layout.size, group.nodes, group.layout.most_in_island
    near = (LINK_US if group.over_links else PCIE_US)[algorithm][at]
    table = "tree" if algorithm == "ring" and per_node == 1 else algorithm
    far = NETWORK_US[table][at] * (2.0 if protocol == "simple" and algorithm in ("ring", "tree") else 1.0)
    base = BASE_US.get(algorithm, (0.0, 0.0, 0.0))[at]
    depth = nodes.bit_length() - 1
    match algorithm:
        case "ring":
            turns = 2 if what is Collective.ALL_REDUCE else 1
            hops, crossings = turns * (n - 1), turns * (nodes - 1)
            if what in WHOLE:
                return base + near * (n if nodes > 1 else 1)
            step = max(near, OVERHEAD_US[at]) if nodes > 1 else near
            return base + (hops - crossings) * step + crossings * far
        case "tree":
            return base + 2 * ((per_node - 1) * near + depth * far)
        case "nvls":
            return near + (far if nodes > 1 else 0.0)
        case "nvls-tree":
            return near + 2 * depth * far
        case "collnet-direct":
            return 2 * (min(1, per_node - 1) * near + DIRECT_PEER_US * (per_node - 1)) + far
        case "collnet-chain":
            return 2 * (per_node - 1) * near + far
        case _:
            return base + depth * far / 3.5 + 2.8 * n


def bandwidth_gb(group: NcclGroup, what: Collective, way: Way) -> float:
    """Returns NCCL's estimate of the rate of a way, in GB/s of the buffer."""
    algorithm, protocol = way
    n, nodes, per_node = group.layout.size, group.nodes, group.layout.most_in_island
    graph, column = group.graphs[algorithm], group.nodes_column
    collnet = algorithm.startswith("collnet")
    each = (graph.intra_bytes_per_s if nodes <= 2 or collnet else graph.inter_bytes_per_s) / GB
    bus = graph.channels * each
    # Over nodes NCCL goes by the CPU: Intel's get the row of Volta, AMD's that of Ampere, which DGX A100 nodes have.
    row = group.row if nodes == 1 else "ampere" if group.row == "ampere" else "volta"
    match algorithm:
        case "ring":
            bus = _ring_gb(group, protocol, bus, LL_MOST[row][column])
        case "tree":
            bus = _tree_gb(group, protocol, bus, LL_MOST[row][column])
        case "nvls" | "nvls-tree":
            bus = graph.channels * _nvls_gb(group, what, algorithm)
        case "pat":
            bus *= PAT_SHARE
        case "collnet-direct":
            ratio = per_node / graph.channels
            sharded = per_node * min(each, 0.9 * graph.inter_bytes_per_s / GB)
            bus = sharded if what in SHARDED else bus / (ratio - (ratio - 1) / 2)
            bus *= 0.85 if group.row in NVLS_EFFICIENCY else 1.0
        case _:
            pass
    if algorithm in ("ring", "nvls", "nvls-tree"):
        steps = {Collective.ALL_REDUCE: 2 * (n - 1), Collective.BROADCAST: n, Collective.REDUCE: n}.get(what, n - 1)
        return bus * n / steps
    return bus if what in SHARDED else 0.5 * bus


def _ring_gb(group: NcclGroup, protocol: str, bus: float, ll_most: float) -> float:
    if protocol == "ll":
        return min(ll_most, 0.5 * bus)
    if protocol == "ll128":
        each = CHANNEL_RING_LL128[group.row][group.nodes_column]
        return min(0.92 * bus, group.graphs["ring"].channels * each)
    return bus


def _tree_gb(group: NcclGroup, protocol: str, bus: float, ll_most: float) -> float:
    channels, column = group.graphs["tree"].channels, group.nodes_column
    bus = min(0.92 * bus, channels * CHANNEL_TREE[group.row][column])
    if protocol == "ll":
        return min(bus / 3.8, ll_most)
    if protocol == "ll128":
        share = 7 / 9 if group.nodes == 1 else 120 / 128
        return min(share * bus, channels * CHANNEL_TREE_LL128[group.row][column])
    return bus


def _nvls_gb(group: NcclGroup, what: Collective, algorithm: str) -> float:
    """Returns the rate of one channel."""
    graph, per_node = group.graphs[algorithm], group.layout.most_in_island
    near = graph.intra_bytes_per_s / GB * NVLS_EFFICIENCY[group.row] * (graph.channels - 1) / graph.channels
    near *= 2.0 if what is Collective.ALL_REDUCE else (per_node - 1) / per_node
    if group.nodes == 1:
        return near
    far = graph.inter_bytes_per_s / GB
    if algorithm == "nvls-tree":
        far *= 2.0 if group.nodes == 2 else 1.0
        return min(near, far, CHANNEL_NVLS_TREE[group.row][group.nodes_column])
    return min(near, far)


def all_reckoned_s(
    group: NcclGroup, what: Collective, allowed: list[Way], size_bytes: Floats, observed: Observed | None = None
) -> list[Floats]:
    """Returns the seconds that NCCL estimates for each of these ways, by the table it printed on the user's machine or
    by its own."""
    printed = {} if observed is None else observed.expectations(what, group.layout.size, group.layout.islands)
    times = []
    for way in allowed:
        expected = printed.get(way)
        rule = (latency_us(group, what, way) * US, bandwidth_gb(group, what, way) * GB)
        times.append(
            reckoned_s(
                group, what, way, size_bytes, rule if expected is None else (expected.latency_s, expected.bytes_per_s)
            )
        )
    return times


def chosen(
    group: NcclGroup, what: Collective, allowed: list[Way], size_bytes: Floats, observed: Observed | None = None
) -> Longs:
    """Returns for each size the number of the way that NCCL takes: the one it was seen to take on the user's machine,
    else the one with the lowest estimate, by the table it printed there or by its own."""
    layout = group.layout
    number = np.asarray(np.argmin(all_reckoned_s(group, what, allowed, size_bytes, observed), axis=0))
    if observed is not None:
        for at, size in enumerate(size_bytes.tolist()):
            seen = observed.choice(what, size, layout.size, layout.islands)
            if seen in allowed:
                number[at] = allowed.index(seen)
    return number
