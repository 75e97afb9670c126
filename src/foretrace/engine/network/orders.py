"""The orders in which channels visit the ranks of a group: node after node, entering each at another GPU, so that the
channels together use every NIC (as NCCL's rings and trees do on nodes with a NIC for each GPU)."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.trees import binary_tree
from foretrace.engine.network.messages import NONE


def ring_orders(node: Longs) -> Longs:
    """Places in the order of each channel's ring, [channels, ranks], for the nodes that the places are on. On one node
    one ring uses every GPU's links in full; over nodes there are as many as the emptiest node has ranks."""
    members = _by_node(node)
    channels = min(len(places) for places in members) if len(members) > 1 else 1
    return np.stack([_in_a_row(members, channel) for channel in range(channels)])


def tree_parents(node: Longs) -> Longs:
    """Parents of each place, [channels, ranks]: both of NCCL's binary trees over the nodes for each rank of a node that
    may stand for it; the node's other ranks are a chain that hangs on this one."""
    members = _by_node(node)
    channels = 2 * min(len(places) for places in members) if len(members) > 1 else 1
    first = np.cumsum([0, *(len(places) for places in members[:-1])])
    parents = np.full((channels, len(node)), NONE, dtype=np.int64)
    for channel in range(channels):
        row = _in_a_row(members, channel // 2)
        heads = row[first]
        above = binary_tree(len(members), second=channel % 2 == 1)
        parents[channel, row[1:]] = row[:-1]
        parents[channel, heads] = np.where(above >= 0, heads[above], NONE)
    return parents


def _by_node(node: Longs) -> list[Longs]:
    """The places on each node, in the order in which they are given."""
    order = np.argsort(node, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(node[order])) + 1)
    return sorted(parts, key=lambda places: int(places[0]))


def _in_a_row(members: list[Longs], first: int) -> Longs:
    """The places of all nodes, node after node, each beginning with its so-manieth."""
    return np.concatenate([part for places in members for part in (places[first:], places[:first])])
