"""Writes collectives as messages: who sends what to whom, after what.

Ranks are places 0 … n − 1 in a group. Each channel of a collective carries an equal part of the bytes, and
`messages.repeated` splits it into chunks that follow each other as NCCL's do. Channels visit the ranks of a group node
after node and enter each node at another GPU, so that together they use every NIC, as NCCL's rings and trees do on
nodes with one NIC per GPU. Sizes are those of nccl-tests (`foretrace.cost.network.interface`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs, ranges
from foretrace.basics.trees import binary_tree
from foretrace.engine.network.messages import NONE, Messages
from foretrace.engine.order import sort_by
from foretrace.hardware.fabric.csr import summed
from foretrace.hardware.fabric.fabric import Routes

Routing = Callable[[Longs, Longs], Routes]
"""The ways from GPUs to GPUs, by number."""


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Messages between places of a group, before they are given a way; columns as in `Messages`."""

    source: Longs
    target: Longs
    bytes: Floats
    step: Longs
    after_start: Longs
    after: Longs

    def __len__(self) -> int:
        return len(self.source)


def ring(orders: Longs, size_bytes: float) -> Sends:
    """One step of rings through all places, one for each channel's order, [channels, ranks]: each place passes 1/n of
    its channel's part on, once it has what came in the step before. `repeated` makes the steps of it: 2(n − 1) are an
    all-reduce, n − 1 an all-gather or reduce-scatter."""
    number = np.arange(orders.size).reshape(orders.shape)
    return Sends(
        source=orders.ravel(),
        target=np.roll(orders, -1, axis=1).ravel(),
        bytes=np.full(orders.size, size_bytes / orders.size),
        step=np.zeros(orders.size, dtype=np.int64),
        after_start=np.arange(orders.size + 1),
        after=np.roll(number, 1, axis=1).ravel(),
    )


def chain(orders: Longs, size_bytes: float) -> Sends:
    """A broadcast along each channel's order from its first place; with orders that end at the root, a reduction."""
    channels, n = orders.shape
    hop = np.tile(np.arange(n - 1), channels)
    return Sends(
        source=orders[:, :-1].ravel(),
        target=orders[:, 1:].ravel(),
        bytes=np.full(len(hop), size_bytes / channels),
        step=hop,
        after_start=np.concatenate([[0], np.cumsum(hop > 0)]),
        after=np.flatnonzero(hop > 0) - 1,
    )


def tree(parents: Longs, size_bytes: float) -> Sends:
    """All-reduce over trees, one for each channel: the parent of each place, [channels, ranks], -1 at the root. Sums go
    up from the leaves, results come down again."""
    channels, n = parents.shape
    parent = np.where(parents >= 0, parents + n * np.arange(channels)[:, None], NONE).ravel()
    child = np.flatnonzero(parent >= 0)
    edge = np.full(len(parent), NONE)
    edge[child] = np.arange(len(child))
    depth = _depths(parent)
    by_parent, first = sort_by(parent[child], len(parent), False)
    below = np.diff(first)
    above = parent[child]
    is_top = parent[above] < 0
    # Up: after all that come up to the child. Down: after what comes down to the parent; from the root after all ups.
    downs = np.where(is_top, below[above], 1)
    from_root = by_parent[ranges(first[above], np.where(is_top, below[above], 0))]
    from_above = len(child) + edge[above]
    after_down = np.repeat(from_above, downs)
    after_down[np.repeat(is_top, downs)] = from_root
    waits = np.concatenate([below[child], downs])
    deepest = int(depth.max())
    return Sends(
        source=np.concatenate([child, above]) % n,
        target=np.concatenate([above, child]) % n,
        bytes=np.full(2 * len(child), size_bytes / channels),
        step=np.concatenate([deepest - depth[child], deepest + depth[child] - 1]),
        after_start=np.concatenate([[0], np.cumsum(waits)]),
        after=np.concatenate([by_parent[ranges(first[child], below[child])], after_down]),
    )


def pairs(size_bytes: Floats) -> Sends:
    """All-to-all, all pairs at once: [from, to] bytes; nothing is sent where there are none, nor to oneself."""
    sends = size_bytes > 0
    np.fill_diagonal(sends, False)
    source, target = np.nonzero(sends)
    return at_once(source, target, size_bytes[source, target])


def at_once(source: Longs, target: Longs, size_bytes: Floats) -> Sends:
    """Messages from place to place that wait for none."""
    count = len(source)
    return Sends(
        source=source,
        target=target,
        bytes=size_bytes,
        step=np.zeros(count, dtype=np.int64),
        after_start=np.zeros(count + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int64),
    )


def routed(sends: Sends, gpus: Longs, routing: Routing, link_latency_s: Floats, arrival_s: Floats) -> Messages:
    """Returns the messages of a group on these GPUs with their routes; a place sends nothing before it has arrived."""
    key, route = np.unique(sends.source * len(gpus) + sends.target, return_inverse=True)
    routes = routing(gpus[key // len(gpus)], gpus[key % len(gpus)])
    return Messages(
        bytes=sends.bytes,
        latency_s=route_latency_s(routes, link_latency_s)[route],
        release_s=np.asarray(arrival_s, dtype=np.float64)[sends.source],
        route=route,
        routes=routes,
        after_start=sends.after_start,
        after=sends.after,
        ahead=np.full(len(sends), NONE),
        step=sends.step,
    )


def route_latency_s(routes: Routes, link_latency_s: Floats) -> Floats:
    """Seconds from end to end of each way; where it divides, the mean over its branches."""
    way = np.repeat(np.arange(len(routes.start) - 1), np.diff(routes.start))
    return summed(way, link_latency_s[routes.link] * routes.share, len(routes.start) - 1)


def _depths(parent: Longs) -> Longs:
    """Returns the distance of each place from the root."""
    depth = np.zeros(len(parent), dtype=np.int64)
    above = parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], NONE)
    return depth


def ring_orders(node: Longs) -> Longs:
    """Returns the places in the order of each channel's ring, [channels, ranks].

    `node` is the node of each place. On one node a single ring uses every GPU's links fully; over several nodes there
    are as many rings as the node with the fewest ranks has ranks.
    """
    members = _by_node(node)
    channels = min(len(places) for places in members) if len(members) > 1 else 1
    return np.stack([_in_a_row(members, channel) for channel in range(channels)])


def tree_parents(node: Longs) -> Longs:
    """Returns the parent of each place in each channel's tree, [channels, ranks].

    There are two binary trees over the nodes, as in NCCL, for each rank of a node that may be its head. The other ranks
    of the node form a chain below the head.
    """
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
    """Returns the places on each node, in the order in which they are given."""
    order = np.argsort(node, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(node[order])) + 1)
    return sorted(parts, key=lambda places: int(places[0]))


def _in_a_row(members: list[Longs], first: int) -> Longs:
    """Returns the places node after node, each node rotated to begin with its place number `first`."""
    return np.concatenate([part for places in members for part in (places[first:], places[:first])])
