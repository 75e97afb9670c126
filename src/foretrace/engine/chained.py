"""The fixed executor for programs of long chains: the heads are put in order, and each chain is a running sum.

A row of cells is a chain: the moment its head starts, then the end of each of its nodes. Rows whose heads can start
together and that are about as long form a block, shorter rows padded with ops of no duration: a block runs as one
maximum and one running sum (`np.add.accumulate`, which adds from left to right as the plain loop does).

Cell 0 is the start of time; then come the cells carried over from the step before, then the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, ranges, stable_order
from foretrace.engine.chains import find_chains
from foretrace.engine.order import peel
from foretrace.program.graph import Graph

BLOCK_COST = 80
"""A block costs about as much as the plain loop takes for this many nodes."""


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
    """Where rows of cells lie, given the level of each, how many cells it has and how many it waits for."""

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
        """How many numbers a run fills."""
        return self.tape.cells

    @property
    def carries(self) -> int:
        """How many ends a step leaves for the next."""
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

    def starts(self, cells: Floats) -> Floats:
        """When each node's unit starts, from the cells of a run."""
        return cells[self.tape.cell - 1]

    def ends(self, cells: Floats) -> Floats:
        """When each node ends."""
        return cells[self.tape.cell]

    def carried(self, cells: Floats) -> Floats:
        """The ends that the next step needs."""
        return cells[self.tape.cell[self.tape.carried]]
