"""Finds an order in which the units of a graph can start, from structure alone, or the cycle that forbids one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Ints, Longs, ranges, stable_order
from foretrace.basics.errors import DeadlockError, InputError
from foretrace.engine import jit
from foretrace.program.fold import fold
from foretrace.program.graph import Graph

FRONTIER_COST = 100
"""One step of the vectorised search costs about as much as the plain search takes for this many units."""

MIN_SHRINKAGE = 4
"""How many times smaller the program folded by structure must be for the order to be found on it."""


@dataclass(frozen=True, slots=True)
class Order:
    """The level of every unit: the length of the longest chain of units before it."""

    level: Ints
    levels: int


def sort_by(keys: NDArray[np.integer], count: int, fast: bool) -> tuple[Longs, Longs]:
    """(order, start): positions sorted by key, stably; those with key k are `order[start[k] : start[k + 1]]`."""
    start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=start[1:])
    if fast:
        order = np.empty(len(keys), dtype=np.int64)
        jit.compiled(_scatter)(keys, start[:-1].copy(), order)
        return order, start
    return stable_order(keys), start


def _scatter(keys: Any, at: Any, order: Any) -> None:
    for i in range(len(keys)):
        key = keys[i]
        order[at[key]] = i
        at[key] += 1


def find_order(graph: Graph, fast: bool) -> Order:
    """The levels of a graph's units; a cycle is an error that names the ops on it.

    Ranks of one structure have one order, whatever they cost, so the levels are found on the program folded by
    structure alone wherever that is much smaller.
    """
    folded = fold(graph.ops) if len(graph) > MIN_SHRINKAGE * len(graph.ops) else graph
    if len(folded) * MIN_SHRINKAGE > len(graph):
        return _levels(graph, fast)
    order = _levels(folded, fast)
    first = folded.start[folded.classes.of_rank[graph.classes.representative]]
    sizes = np.diff(graph.start)
    node_level = order.level[folded.unit[ranges(first, sizes)]]
    level = np.empty(graph.units, dtype=np.int32)
    level[graph.unit] = node_level
    return Order(level, order.levels)


def _levels(graph: Graph, fast: bool) -> Order:
    if graph.units == len(graph):
        owner = np.repeat(np.arange(len(graph), dtype=np.int32), np.diff(graph.pred_start))
        if (graph.pred < owner).all():
            return _listed_levels(graph, fast)
    waiter = graph.unit[np.repeat(np.arange(len(graph), dtype=np.int32), np.diff(graph.pred_start))]
    level = peel(graph.units, graph.unit[graph.pred], waiter, fast)
    if (level < 0).any():
        raise _cycle(graph, level)
    return Order(level, int(level.max()) + 1 if graph.units else 0)


def peel(units: int, source: NDArray[np.integer], waiter: NDArray[np.integer], fast: bool) -> Ints:
    """The level of each unit, given that every waiter waits for its source; -1 on or behind a cycle."""
    by_source, start = sort_by(source, units, fast)
    successor = waiter[by_source]
    waiting = np.bincount(waiter, minlength=units).astype(np.int32)
    level = np.full(units, -1, dtype=np.int32)
    if fast:
        jit.compiled(_peel_compiled)(start, successor, waiting.copy(), level)
    elif units < 32 * FRONTIER_COST or not _peel_wide(start, successor, waiting.copy(), level):
        level[:] = _peel(start.tolist(), successor.tolist(), waiting.tolist())
    return level


def _listed_levels(graph: Graph, fast: bool) -> Order:
    """The levels where nobody meets and every node waits only for nodes listed before it."""
    level = np.empty(graph.units, dtype=np.int32)
    if fast:
        listed = np.empty(len(graph), dtype=np.int32)
        jit.compiled(_listed_compiled)(graph.pred_start, graph.pred, listed)
        level[graph.unit] = listed
    else:
        level[graph.unit] = _listed(graph.pred_start.tolist(), graph.pred.tolist())
    return Order(level, int(level.max(initial=-1)) + 1)


def _listed_compiled(start: Any, pred: Any, level: Any) -> None:
    for node in range(len(level)):
        deepest = -1
        for i in range(start[node], start[node + 1]):
            deepest = max(deepest, level[pred[i]])
        level[node] = deepest + 1


def _listed(start: list[int], pred: list[int]) -> list[int]:
    level: list[int] = []
    append = level.append
    for low, high in pairwise(start):
        if high - low == 2:
            x = level[pred[low]]
            y = level[pred[low + 1]]
            append((x if x > y else y) + 1)
        elif high - low == 1:
            append(level[pred[low]] + 1)
        else:
            append(max((level[before] for before in pred[low:high]), default=-1) + 1)
    return level


def _peel(start: list[int], successor: list[int], waiting: list[int]) -> list[int]:
    """The level of each unit, -1 on or behind a cycle: takes off the units that wait for nothing, and so on."""
    queue = [unit for unit, count in enumerate(waiting) if not count]
    level = [-1 if count else 0 for count in waiting]
    add = queue.append
    for unit in queue:
        for other in successor[start[unit] : start[unit + 1]]:
            left = waiting[other] - 1
            waiting[other] = left
            if not left:
                level[other] = level[unit] + 1
                add(other)
    return level


def _peel_compiled(start: Any, successor: Any, waiting: Any, level: Any) -> int:
    """The same as one flat loop over a queue, for compilation."""
    queue = np.empty(len(waiting), dtype=np.int32)
    filled = 0
    for unit in range(len(waiting)):
        if waiting[unit] == 0:
            level[unit] = 0
            queue[filled] = unit
            filled += 1
    head = 0
    while head < filled:
        unit = queue[head]
        head += 1
        for edge in range(start[unit], start[unit + 1]):
            other = successor[edge]
            waiting[other] -= 1
            if waiting[other] == 0:
                level[other] = level[unit] + 1
                queue[filled] = other
                filled += 1
    return filled


def _peel_wide(start: Longs, successor: NDArray[np.integer], waiting: Ints, level: Ints) -> bool:
    """The same with whole frontiers at a time; gives up (False) where they are too narrow for that to pay."""
    frontier = np.flatnonzero(waiting == 0)
    mark = np.empty(len(waiting), dtype=np.int64)
    depth = peeled = 0
    while len(frontier):
        level[frontier] = depth
        depth += 1
        peeled += len(frontier)
        if depth % 32 == 0 and peeled < depth * FRONTIER_COST:
            return False
        first = start[frontier]
        others = successor[ranges(first, start[frontier + 1] - first)]
        np.subtract.at(waiting, others, 1)
        others = others[waiting[others] == 0]
        numbers = np.arange(len(others))
        mark[others] = numbers
        frontier = others[mark[others] == numbers]
    return True


def _cycle(graph: Graph, level: Ints) -> InputError | DeadlockError:
    """The error for units that wait for each other: follow what each waits for until a unit comes back."""
    stuck = level < 0
    members, member_start = sort_by(graph.unit, graph.units, False)
    path: list[tuple[int, int, int]] = []  # unit, the op of it that waits, the op that it waits for
    seen: dict[int, int] = {}
    unit = int(np.flatnonzero(stuck)[0])
    while unit not in seen:
        seen[unit] = len(path)
        for node in members[member_start[unit] : member_start[unit + 1]]:
            preds = graph.pred[graph.pred_start[node] : graph.pred_start[node + 1]]
            blocked = preds[stuck[graph.unit[preds]]]
            if len(blocked):
                path.append((unit, int(node), int(blocked[0])))
                unit = int(graph.unit[blocked[0]])
                break
    return _cycle_error(graph, path[seen[unit] :])


def _cycle_error(graph: Graph, cycle: list[tuple[int, int, int]]) -> InputError | DeadlockError:
    parts: list[str] = []
    meets = False
    for position, (_, waiter, _) in enumerate(cycle):
        arrived = cycle[position - 1][2]  # the member of this unit that the one before waits for
        if arrived != waiter:
            meets = True
            parts.append(f"{graph.place(arrived)} waits for its partner {graph.place(waiter)}")
        parts.append(f"{graph.place(waiter)} comes after {graph.place(cycle[position][2])}")
    text = "; ".join(parts[:6]) + (f"; … {len(parts) - 6} more" if len(parts) > 6 else "")
    if meets:
        return DeadlockError("deadlock", f"deadlock: {text}")
    return InputError("invalid-program", f"the dependencies go round in a circle: {text}")
