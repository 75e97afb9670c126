"""Chains: ops that each wait only for the one before them, so that all of them can run once the first can.

A node continues another if its unit is it alone, and that other is all it waits for: nothing else of this step, nothing
of the step before. Most ops of a training step do: a layer's kernels follow each other on one stream. An order then
needs to be found only for the heads of chains, and a chain runs as one running sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Ints, Longs, Mask, ranges
from foretrace.program.graph import Graph

MIN_MEAN = 4
"""Chains that hold fewer nodes than this on average are not worth the search for them."""


@dataclass(frozen=True, slots=True)
class Chains:
    """The nodes of all chains, one chain after the other; those of chain c are `node[start[c] : start[c + 1]]`. The
    head of chain c waits for the nodes `pred[pred_start[c] : pred_start[c + 1]]` of this step."""

    node: Longs
    start: Longs
    pred: Ints
    pred_start: Longs

    def __len__(self) -> int:
        return len(self.start) - 1

    @property
    def head(self) -> Longs:
        """The first node of each chain."""
        return self.node[self.start[:-1]]


def find_chains(graph: Graph) -> Chains | None:
    """A cover of the graph by chains; None where they are short, or where nodes go round in a circle."""
    nodes, counts = len(graph), np.diff(graph.pred_start)
    free = np.bincount(graph.unit, minlength=graph.units)[graph.unit] == 1
    free[graph.next_dst] = False
    if np.count_nonzero(free & (counts == 1)) * MIN_MEAN < nodes * (MIN_MEAN - 1):
        return None
    kept = _undominated(graph, counts, free)
    left, before = _waits(graph, counts, kept)
    run_start, follower, followed = _runs(free & (left == 1), before)
    runs, chain_start = _joined(run_start, follower, followed)
    if len(chain_start) == 1 or len(chain_start) * MIN_MEAN > nodes:
        return None
    lengths = np.diff(np.append(run_start, nodes))[runs]
    if lengths.sum() < nodes:  # some runs continue each other in a circle, and no head leads to them
        return None
    head = run_start[runs[chain_start[:-1]]]
    edge = ranges(graph.pred_start[head], counts[head])
    return Chains(
        node=ranges(run_start[runs], lengths),
        start=np.append(0, np.cumsum(lengths))[chain_start],
        pred=graph.pred[edge[kept[edge]]],
        pred_start=np.append(0, np.cumsum(left[head])),
    )


def _undominated(graph: Graph, counts: Ints, free: Mask) -> Mask:
    """Of all waits, those that stay when a free node's are left out that another of its waits implies, because that
    one waits for it itself.

    Only where all three nodes are listed in this order: waits that lead back in the listing alone form no circle, so
    what is left still leads to all that was there.
    """
    kept = np.ones(len(graph.pred), dtype=bool)
    many = np.flatnonzero(free & (counts > 1))
    edge = ranges(graph.pred_start[many], counts[many])
    if not len(edge):
        return kept
    waiter, waited = np.repeat(many, counts[many]), graph.pred[edge].astype(np.int64)
    further = counts[waited]
    between, owner = np.repeat(waited, further), np.repeat(waiter, further)
    implied = graph.pred[ranges(graph.pred_start[waited], further)]
    listed = (implied < between) & (between < owner)
    implied_key, key = owner[listed] * len(graph) + implied[listed], waiter * len(graph) + waited
    order = np.argsort(key)
    at = np.searchsorted(key[order], implied_key)
    candidate = order[np.minimum(at, len(key) - 1)]
    kept[edge[candidate[key[candidate] == implied_key]]] = False
    return kept


def _waits(graph: Graph, counts: Ints, kept: Mask) -> tuple[Longs, Ints]:
    """How many waits each node is left with, and the first of them."""
    left, edge = counts.astype(np.int64), graph.pred_start[:-1].astype(np.int64)
    dropped = np.flatnonzero(~kept)
    waiter = np.searchsorted(graph.pred_start, dropped, side="right") - 1
    np.subtract.at(left, waiter, 1)
    beheaded = waiter[edge[waiter] == dropped]  # its first wait is gone: the next that is kept comes in its place
    others = ranges(edge[beheaded], counts[beheaded])
    stays = np.flatnonzero(kept[others])[::-1]
    edge[np.repeat(beheaded, counts[beheaded])[stays]] = others[stays]
    if not len(graph.pred):
        return left, np.full(len(left), -1, dtype=np.int32)
    return left, graph.pred[np.minimum(edge, len(graph.pred) - 1)]


def _runs(single: Mask, before: Ints) -> tuple[Longs, Longs, Longs]:
    """Nodes that continue the one listed right before them make runs: (the first node of every run, the nodes that
    continue one listed elsewhere, what these continue). `before` is what a single node waits for."""
    adjacent = single & (before == np.arange(-1, len(before) - 1))
    jumps = np.flatnonzero(single & ~adjacent)
    # What the next listed node continues is taken; of several that wait for one node, the first listed continues it.
    jumps = jumps[~np.append(adjacent, False)[before[jumps] + 1]]
    followed, first = np.unique(before[jumps], return_index=True)
    return np.flatnonzero(~adjacent), jumps[first], followed.astype(np.int64)


def _joined(run_start: Longs, follower: Longs, followed: Longs) -> tuple[Longs, Longs]:
    """(runs in the order of their chains, where in it each chain begins)."""
    if not len(follower):
        return np.arange(len(run_start)), np.arange(len(run_start) + 1)
    run_of_follower = np.searchsorted(run_start, follower)
    run_of_followed = np.searchsorted(run_start, followed, side="right") - 1
    following = dict(zip(run_of_followed.tolist(), run_of_follower.tolist(), strict=True))
    first = np.ones(len(run_start), dtype=bool)
    first[run_of_follower] = False
    order: list[int] = []
    starts: list[int] = []
    for run in np.flatnonzero(first).tolist():
        starts.append(len(order))
        order.append(run)
        while (run := following.get(run, -1)) >= 0:
            order.append(run)
    return np.array(order, dtype=np.int64), np.array([*starts, len(order)], dtype=np.int64)
