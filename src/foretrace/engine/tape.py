"""Compiles a graph to straight-line arithmetic and runs it: cell = max(cell a, cell b) + duration, thousands of times.

With fixed durations a step is a longest path. An op ends its duration after the latest op that its unit waits for.
Units that wait for more than two ops get cells of duration zero that take the maximum pairwise. The tape depends on
structure only, so it is compiled once and runs for any durations, any number of scenarios (the second dimension) and
any number of steps. Every cell is one maximum and one addition in any order that the structure admits, so results do
not depend on how the work is divided.

Cell 0 is the start of time; then come the cells carried over from the step before, then one cell per instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, ranges
from foretrace.engine import jit
from foretrace.engine.order import Order, find_order, sort_by
from foretrace.program.graph import Graph

LEVEL_COST = 60
"""A vectorised level costs about as much as the plain loop takes for this many instructions."""


@dataclass(frozen=True, slots=True)
class Tape:
    """Instruction i fills cell `first + i` from cells `a[i]` and `b[i]`; instructions `bounds[k] : bounds[k + 1]`
    need only cells filled before `bounds[k]`. `cell` is where each node's end is found, and `node` inverts it (-1 for
    cells that only take a maximum); `carried` are the nodes whose ends the next step needs, in cells 1, 2, …."""

    a: NDArray[np.integer]
    b: NDArray[np.integer]
    node: Ints
    cell: Ints
    bounds: Longs
    carried: Ints

    @property
    def first(self) -> int:
        """The cell of the first instruction."""
        return 1 + len(self.carried)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Maxima of two: what each takes the maximum of, the unit it is for, and in which round it is taken."""

    a: Ints
    b: Ints
    unit: Ints
    round: Ints


def compile_tape(graph: Graph, fast: bool) -> Tape:
    """The tape of a graph; a cycle in the graph is an error that names the ops on it."""
    if fast:
        return _compile_fast(graph)
    order = find_order(graph, fast)
    carried, carry_of = np.unique(graph.next_src, return_inverse=True)
    awaited, counts = _awaited(graph, carry_of.ravel().astype(np.int32), fast)
    a, b, pairs = _pair_up(awaited, counts, len(graph))
    sequence, bounds = _sequence(graph, order, pairs, fast)

    instructions = len(sequence)
    cell = np.empty(instructions, dtype=np.int32)
    cell[sequence] = np.arange(1 + len(carried), 1 + len(carried) + instructions, dtype=np.int32)
    # Looked up with what is awaited as index: carried ends count from the end, nothing (-1) is cell 0.
    lookup = np.concatenate([cell, np.arange(len(carried), -1, -1, dtype=np.int32)])
    cell_a = lookup[np.concatenate([a[graph.unit], pairs.a])[sequence]].astype(np.int64)
    cell_b = lookup[np.concatenate([b[graph.unit], pairs.b])[sequence]].astype(np.int64)
    node = np.where(sequence < len(graph), sequence, -1).astype(np.int32)
    return Tape(cell_a, cell_b, node, cell[: len(graph)], bounds, carried.astype(np.int32))


def _compile_fast(graph: Graph) -> Tape:
    """Returns the tape of a graph, written by compiled loops: units in the order in which they become free to start."""
    carried, carry_of = np.unique(graph.next_src, return_inverse=True)
    first, by_unit = 1 + len(carried), np.argsort(graph.unit[graph.next_dst], kind="stable")
    waits = np.diff(graph.pred_start)
    counts = np.bincount(graph.unit, weights=waits, minlength=graph.units).astype(np.int64)
    counts += np.bincount(graph.unit[graph.next_dst], minlength=graph.units)
    size = len(graph) + int(np.maximum(counts - 2, 0).sum())
    a, b, node = (np.empty(size, dtype=np.int32) for _ in range(3))
    cell = np.empty(len(graph), dtype=np.int32)
    written = jit.compiled(_record)(
        (graph.pred_start, graph.pred),
        (graph.unit, graph.units),
        (graph.next_dst[by_unit], (carry_of.ravel()[by_unit] + 1).astype(np.int32)),
        first,
        (a, b, node, cell),
    )
    if written < size:
        find_order(graph, True)  # which names the cycle
    return Tape(a, b, node, cell, np.array([0, size]), carried.astype(np.int32))


def _record(waits: Any, units: Any, later: Any, first: int, tape: Any) -> int:
    """Writes the instructions of a tape; returns how many there are, fewer than nodes and pairs if units wait in a
    circle.

    Nodes are visited as they are listed. One that waits for a node without a cell is put aside until that node has
    one, and the last member of a unit to be visited writes the unit.

    `waits` are the starts and sources of the nodes' waits, `units` the unit of each node and their number, `later`
    the nodes that wait for the step before, by unit, with the cells of what they wait for, `tape` the columns to fill.
    """
    pred_start, pred = waits
    unit, count = units
    later_node, later_cell = later
    a, b, node, cell = tape
    cell[:] = 0
    missing = np.zeros(count, np.int32)
    for i in range(len(unit)):
        missing[unit[i]] += 1
    first_later = np.full(count, -1, np.int32)
    for i in range(len(later_node) - 1, -1, -1):
        first_later[unit[later_node[i]]] = i
    member = np.full(count, -1, np.int32)  # the last visited node of each unit, and the one visited before each node
    before = np.empty(len(unit), np.int32)
    aside = np.full(len(unit), -1, np.int32)  # the last node put aside for each node, and the one put aside before it
    next_aside = np.empty(len(unit), np.int32)
    stack = np.empty(len(unit), np.int32)
    at = 0
    for listed in range(len(unit)):
        stack[0] = listed
        height = 1
        while height > 0:
            height -= 1
            visited = stack[height]
            awaited = -1
            for edge in range(pred_start[visited], pred_start[visited + 1]):
                if cell[pred[edge]] == 0:
                    awaited = pred[edge]
                    break
            if awaited >= 0:
                next_aside[visited] = aside[awaited]
                aside[awaited] = visited
                continue
            owner = unit[visited]
            before[visited] = member[owner]
            member[owner] = visited
            missing[owner] -= 1
            if missing[owner] > 0:
                continue
            x = y = 0  # the start of time
            known = 0
            i = visited
            while i >= 0:
                for edge in range(pred_start[i], pred_start[i + 1]):
                    if known > 1:
                        a[at], b[at], node[at] = x, y, -1
                        x, y = first + at, cell[pred[edge]]
                        at += 1
                    elif known == 1:
                        y = cell[pred[edge]]
                    else:
                        x = y = cell[pred[edge]]
                    known += 1
                i = before[i]
            i = first_later[owner]
            while i >= 0 and i < len(later_node) and unit[later_node[i]] == owner:
                if known > 1:
                    a[at], b[at], node[at] = x, y, -1
                    x, y = first + at, later_cell[i]
                    at += 1
                elif known == 1:
                    y = later_cell[i]
                else:
                    x = y = later_cell[i]
                known += 1
                i += 1
            i = visited
            while i >= 0:
                a[at], b[at], node[at] = x, y, i
                cell[i] = first + at
                at += 1
                waiter = aside[i]
                while waiter >= 0:
                    stack[height] = waiter
                    height += 1
                    waiter = next_aside[waiter]
                i = before[i]
    return at


def _awaited(graph: Graph, carry_of: Ints, fast: bool) -> tuple[Ints, Longs]:
    """Returns what each unit waits for, unit by unit, and how much that is: nodes by number, carried ends as -2, -3,
    …."""
    if graph.rendezvous == 0:  # units are the nodes, in their order
        awaited, counts = graph.pred, np.diff(graph.pred_start).astype(np.int64)
    else:
        by_unit, _ = sort_by(graph.unit, graph.units, fast)
        per_node = np.diff(graph.pred_start)[by_unit]
        awaited = graph.pred[ranges(graph.pred_start[by_unit], per_node)]
        counts = np.bincount(graph.unit[by_unit], weights=per_node, minlength=graph.units).astype(np.int64)
    by_later, _ = sort_by(graph.unit[graph.next_dst], graph.units, False)
    later = graph.unit[graph.next_dst][by_later]
    awaited = np.insert(awaited, np.cumsum(counts)[later], -2 - carry_of[by_later])
    return awaited, counts + np.bincount(later, minlength=graph.units)


def _pair_up(awaited: Ints, counts: Longs, nodes: int) -> tuple[Ints, Ints, Pairs]:
    """The two things each unit waits for in the end (-1: nothing), after pairs have been made of the others."""
    first = np.cumsum(counts) - counts
    padded = np.append(awaited, np.int32(-1)).astype(np.int32)
    a = np.where(counts > 0, padded[np.minimum(first, len(awaited))], np.int32(-1))
    b = np.where(counts > 1, padded[np.minimum(first + 1, len(awaited))], a)
    crowded = np.flatnonzero(counts > 2)
    many = counts[crowded]
    left = awaited[ranges(first[crowded], many)]
    made: list[tuple[Ints, Ints, Ints, Ints]] = []
    total = nodes
    while len(many) and many.max() > 2:
        # Units that are done keep their two; the others pair neighbours, and an odd one stays over.
        unit = np.repeat(np.arange(len(many)), many)
        place = np.arange(len(left)) - np.repeat(np.cumsum(many) - many, many)
        active = many[unit] > 2
        heads = np.flatnonzero(active & (place % 2 == 0) & (place + 1 < many[unit]))
        owner = crowded[unit[heads]].astype(np.int32)
        made.append((left[heads], left[heads + 1], owner, np.full(len(heads), len(made), dtype=np.int32)))
        left[heads] = np.arange(total, total + len(heads))
        total += len(heads)
        left = left[~active | (place % 2 == 0)]
        many = np.where(many > 2, (many + 1) // 2, many)
    if len(crowded):
        start = np.cumsum(many) - many
        a[crowded], b[crowded] = left[start], left[start + 1]
    none = np.empty(0, dtype=np.int32)
    return (
        a,
        b,
        Pairs(*(np.concatenate(column) for column in zip(*made, strict=True)))
        if made
        else Pairs(none, none, none, none),
    )


def _sequence(graph: Graph, order: Order, pairs: Pairs, fast: bool) -> tuple[Longs, Longs]:
    """(instructions in an order in which they can run, bounds between those that need each other)."""
    rounds = int(pairs.round.max()) + 2 if len(pairs.round) else 1
    last = order.level[graph.unit] * rounds + (rounds - 1)
    key = np.concatenate([last, order.level[pairs.unit] * rounds + pairs.round])
    sequence, start = sort_by(key, order.levels * rounds, fast)
    return sequence, start[np.flatnonzero(np.diff(start, prepend=-1))]


class TapePlayer:
    """Runs one tape, whichever way is fastest: compiled, as a plain loop, or a level at a time."""

    def __init__(self, tape: Tape, fast: bool) -> None:
        self.tape = tape
        self.fast = fast
        self._inputs: tuple[list[int], list[int]] | None = None

    @property
    def cells(self) -> int:
        """The number of cells that a run fills."""
        return self.tape.first + len(self.tape.a)

    @property
    def carries(self) -> int:
        """The number of ends that a step leaves for the next."""
        return len(self.tape.carried)

    def along(self, durations: Floats) -> Floats:
        """Durations per node, [nodes] or [nodes, scenarios], as the tape's instructions add them."""
        added = durations[self.tape.node]
        added[self.tape.node < 0] = 0.0
        return added

    def run(self, added: Floats, carried: Floats) -> Floats:
        """All cells after a step, in seconds: [cells] or [cells, scenarios].

        `added` is what each instruction adds; `carried` the ends that the step before left behind.
        """
        tape = self.tape
        cells = np.empty((self.cells, *added.shape[1:]))
        cells[0] = 0.0
        cells[1 : tape.first] = carried
        if not len(added):
            return cells
        if self.fast:
            compiled = jit.compiled(_run_one if added.ndim == 1 else _run_many)
            compiled(tape.a, tape.b, added, tape.first, cells)
        elif added.size < LEVEL_COST * len(tape.bounds):
            for column, durations in zip(cells.reshape(len(cells), -1).T, added.reshape(len(added), -1).T, strict=True):
                column[tape.first :] = self._run_plain(durations, column[: tape.first])
        else:
            self._run_levels(added, cells)
        return cells

    def times(self, cells: Floats) -> tuple[Floats, Floats]:
        """Returns when each node's unit starts and when the node ends, from the cells of a run."""
        tape = self.tape
        if self.fast:
            start, end = np.empty(len(tape.cell)), np.empty(len(tape.cell))
            jit.compiled(_read_times)(tape.a, tape.b, tape.node, tape.first, cells, start, end)
            return start, end
        at = tape.cell - tape.first
        return np.maximum(cells[tape.a[at]], cells[tape.b[at]]), cells[tape.cell]

    def carried(self, cells: Floats) -> Floats:
        """The ends that the next step needs."""
        return cells[self.tape.cell[self.tape.carried]]

    def _run_plain(self, added: Floats, before: Floats) -> list[float]:
        if self._inputs is None:
            self._inputs = self.tape.a.tolist(), self.tape.b.tolist()
        cells: list[float] = before.tolist()
        append = cells.append
        for a, b, duration in zip(*self._inputs, added.tolist(), strict=True):
            x = cells[a]
            y = cells[b]
            append((x if x > y else y) + duration)
        return cells[self.tape.first :]

    def _run_levels(self, added: Floats, cells: Floats) -> None:
        tape = self.tape
        for low, high in pairwise(tape.bounds.tolist()):
            out = cells[tape.first + low : tape.first + high]
            np.maximum(cells[tape.a[low:high]], cells[tape.b[low:high]], out=out)
            out += added[low:high]


def _run_one(a: Any, b: Any, added: Any, first: int, cells: Any) -> None:
    for i in range(len(a)):
        x = cells[a[i]]
        y = cells[b[i]]
        cells[first + i] = (x if x > y else y) + added[i]


def _read_times(a: Any, b: Any, node: Any, first: int, cells: Any, start: Any, end: Any) -> None:
    for i in range(len(a)):
        if node[i] >= 0:
            x = cells[a[i]]
            y = cells[b[i]]
            start[node[i]] = x if x > y else y
            end[node[i]] = cells[first + i]


def _run_many(a: Any, b: Any, added: Any, first: int, cells: Any) -> None:
    for i in range(len(a)):
        for s in range(cells.shape[1]):
            x = cells[a[i], s]
            y = cells[b[i], s]
            cells[first + i, s] = (x if x > y else y) + added[i, s]
