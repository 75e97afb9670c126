"""Times an all-reduce up and down a double binary tree over the nodes, with a chain through each node."""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.elementary import log2
from foretrace.cost.network.nccl.algorithms.ring import LINK_SHARES
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.tuning_tables import TREE_CORRECTION

CHAIN: Final = 0.5 * 0.85
"""Bytes of the buffer for each that a GPU's links could carry: all of it passes twice, and NCCL assumes 0.85 for a
chain that reduces and copies on (tuning.cc)."""


def tree_s(group: NcclGroup, protocol: str, size_bytes: Floats) -> tuple[float, Floats]:
    """The latency of an all-reduce and the seconds it takes in all."""
    depth = group.nodes.bit_length() - 1
    chain = (group.layout.most_in_island - 1) * group.near_s("tree", protocol)
    latency = group.machine.launch_s + 2 * (chain + depth * group.far_s("tree", protocol))
    return latency, latency + size_bytes / (tree_rate(group, protocol) * _filled(protocol, size_bytes))


def _filled(protocol: str, size_bytes: Floats) -> Floats:
    """Returns how far the pipeline through the tree is filled: NCCL's correction by size, linear between its sizes."""
    factors = TREE_CORRECTION[protocol]
    place = log2(np.maximum(size_bytes, 64.0) / 64)
    return np.asarray(np.interp(place, np.arange(len(factors)), factors))


def tree_rate(group: NcclGroup, protocol: str) -> float:
    """Bytes of the buffer per second.

    All of it passes a chain's links twice, up and down. Over two nodes each sends all of it once, half up one tree and
    half down the other; over more, a node within one of the trees sends up once and down twice.
    """
    layout = group.layout
    share = LINK_SHARES[protocol]
    rates = [group.channels_bytes_per_s("tree", "ll") / 2] if protocol == "ll" else []
    if layout.most_in_domain > 1:
        rates.append(CHAIN * share * group.link_rate)
    if layout.domains > layout.islands:
        rates.append(CHAIN * share * group.pcie_rate)
    if layout.islands > 1:
        out = layout.least_in_island * group.nic_rate(layout.tree_crowding)
        rates.append(share * out * (1.0 if layout.islands == 2 else 0.5))
    return float(min(rates))
