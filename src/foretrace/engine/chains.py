"""Runs graphs of long chains with fixed durations: heads in order, each chain as one running sum.

A chain is a sequence of ops that each wait only for the one before. A node continues another node if it is alone in its
unit and waits for that node only: for nothing else of this step, and nothing of the step before. Most ops of a training
step do: the kernels of a layer follow each other on one stream. So an order is needed for the heads of chains only.

A row of cells is a chain: the moment its head starts, then the end of each of its nodes. Rows whose heads can start
together and that have similar lengths form a block; shorter rows are padded with ops of no duration. A block runs as
one maximum and one running sum (`np.add.accumulate`, which adds from left to right as the plain loop does).

Cell 0 is the start of time; then come the cells carried over from the step before, then the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, Mask, ranges, stable_order
from foretrace.engine.order import peel
from foretrace.program.graph import Graph

MIN_MEAN = 4
"""Chains that hold fewer nodes than this on average are not worth the search for them."""

BLOCK_COST = 80
"""A block costs about as much as the plain loop takes for this many nodes."""


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
    """Returns which waits stay when waits of free nodes are dropped that another of their waits implies.

    Node a need not wait for c if it waits for b and b waits for c. A wait is dropped only where all three nodes are
    listed in this order: waits that lead backwards in the listing cannot form a cycle, so what is left still implies
    all that was there.
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
    """Returns how many waits each node is left with, and the first of them."""
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


class Block(NamedTuple):
    """Rows of cells from cell `first` on, [rows, width]; each begins with the latest of the cells `awaited` in its
    column, [most awaited, rows]."""

    first: int
    rows: int
    width: int
    awaited: Longs


@dataclass(frozen=True, slots=True)
class ChainTape:
    """Blocks in an order in which they can run; `cell` is where each node's end is found, its start one before;
    `carried` are the nodes whose ends the next step needs, in cells 1, 2, …."""

    blocks: tuple[Block, ...]
    cells: int
    cell: Longs
    carried: Longs


def compile_chains(graph: Graph) -> ChainTape | None:
    """The tape of a graph; None where its chains are short or few can run at once, and where it has a cycle."""
    chains = find_chains(graph)
    if chains is None:
        return None
    used, unit = np.unique(graph.unit[chains.head], return_inverse=True)
    lengths = np.diff(chains.start)
    unit_of = np.empty(len(graph), dtype=np.int64)  # of each node, the unit of its chain's head
    unit_of[chains.node] = np.repeat(unit, lengths)
    waiter = np.repeat(unit, np.diff(chains.pred_start))
    level = peel(len(used), unit_of[chains.pred], waiter, False)
    if (level < 0).any():
        return None
    carried, carry_of = np.unique(graph.next_src, return_inverse=True)
    # Only heads wait for what is carried.
    waiter = np.concatenate([waiter, unit_of[graph.next_dst]])
    awaited = np.concatenate([chains.pred, len(graph) + carry_of])[stable_order(waiter)]
    counts = np.bincount(waiter, minlength=len(used))
    rows = _Rows(level[unit], lengths + 1, counts[unit], 1 + len(carried))
    if len(rows.block_first) * BLOCK_COST > len(graph):
        return None
    cell = np.empty(len(graph), dtype=np.int64)
    cell[chains.node] = ranges(rows.first + 1, lengths)
    lookup = np.append(cell, np.arange(1, 1 + len(carried)))
    blocks = rows.blocks(lookup[awaited], (np.cumsum(counts) - counts)[unit])
    return ChainTape(blocks, rows.cells, cell, carried.astype(np.int64))


class _Rows:
    """The positions of rows of cells, given the level of each, its number of cells and the number of cells it waits
    for."""

    def __init__(self, level: Ints, widths: Longs, counts: Longs, cell: int) -> None:
        # Of a level, rows within a factor of two of each other go together, so that padding at most doubles them.
        key = (level * np.int64(64) + np.frexp(widths)[1]) * 64 + np.frexp(np.maximum(counts, 2))[1]
        self.counts, self.order = counts, np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[self.order], prepend=-1))
        self.block_width = np.maximum.reduceat(widths[self.order], starts)
        self.block_depth = np.maximum(np.maximum.reduceat(counts[self.order], starts), 1)
        self.block_rows = np.diff(np.append(starts, len(key)))
        area = self.block_width * self.block_rows
        self.cells = cell + int(area.sum())
        self.block_first = cell + np.cumsum(area) - area
        step = np.repeat(self.block_width, self.block_rows)
        self.first = np.empty(len(key), dtype=np.int64)
        place = ranges(np.zeros(len(starts), dtype=np.int64), self.block_rows)
        self.first[self.order] = np.repeat(self.block_first, self.block_rows) + place * step

    def blocks(self, awaited: Longs, first_awaited: Longs) -> tuple[Block, ...]:
        """The blocks, given the cells that rows wait for, and where those of each row begin."""
        sizes = self.block_rows * self.block_depth
        block = np.repeat(np.arange(len(sizes)), sizes)
        turn, place = np.divmod(ranges(np.zeros(len(sizes), dtype=np.int64), sizes), self.block_rows[block])
        row = self.order[(np.cumsum(self.block_rows) - self.block_rows)[block] + place]
        # What waits for fewer waits for its last again, and what waits for nothing for the start of time.
        last = self.counts[row] - 1
        at = np.where(last >= 0, first_awaited[row] + np.minimum(turn, last), len(awaited))
        cells = np.append(awaited, 0)[at]
        ends = np.cumsum(sizes).tolist()
        table = zip(
            self.block_first.tolist(),
            self.block_rows.tolist(),
            self.block_width.tolist(),
            [0, *ends],
            ends,
            strict=False,
        )
        return tuple(
            Block(first, rows, width, cells[low:high].reshape(-1, rows)) for first, rows, width, low, high in table
        )


class ChainPlayer:
    """Runs one tape of chains."""

    def __init__(self, tape: ChainTape) -> None:
        self.tape = tape

    @property
    def cells(self) -> int:
        """The number of cells that a run fills."""
        return self.tape.cells

    @property
    def carries(self) -> int:
        """The number of ends that a step leaves for the next."""
        return len(self.tape.carried)

    def along(self, durations: Floats) -> Floats:
        """Durations per node, [nodes] or [nodes, scenarios], where the running sums find them."""
        added = np.zeros((self.tape.cells, *durations.shape[1:]))
        added[self.tape.cell] = durations
        return added

    def run(self, added: Floats, carried: Floats) -> Floats:
        """All cells after a step, in seconds: [cells] or [cells, scenarios].

        `added` is what each cell adds; `carried` the ends that the step before left behind.
        """
        cells = added.copy()
        cells[1 : 1 + len(carried)] = carried
        latest, accumulate, scenarios = np.maximum.reduce, np.add.accumulate, added.shape[1:]
        for first, rows, width, awaited in self.tape.blocks:
            out = cells[first : first + rows * width].reshape(rows, width, *scenarios)
            latest(cells[awaited], axis=0, out=out[:, 0])
            accumulate(out, axis=1, out=out)
        return cells

    def times(self, cells: Floats) -> tuple[Floats, Floats]:
        """Returns when each node starts and ends, from the cells of a run."""
        return cells[self.tape.cell - 1], cells[self.tape.cell]

    def carried(self, cells: Floats) -> Floats:
        """The ends that the next step needs."""
        return cells[self.tape.cell[self.tape.carried]]
