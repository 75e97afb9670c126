"""Finds rank classes: the coarsest partition of the ranks in which ranks of a class provably behave identically.

Two ranks are in one class if they run the same ops at the same prices and, in every group they meet others in, meet
ranks of the same classes in the same numbers. This is colour refinement: start from the roles and prices, split a class
where two of its ranks see different company, and repeat until nothing splits. What ranks of one final class see
of the world is then the same however far one looks, so one of them can stand for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Ints, Longs


@dataclass(frozen=True, slots=True)
class RankClasses:
    """Which class every rank is in, one rank that stands for each class, and how many ranks it stands for."""

    of_rank: Ints
    representative: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.count)


def coarsest(colour: NDArray[np.integer], groups: Sequence[NDArray[np.integer]]) -> RankClasses:
    """The coarsest equitable partition that refines `colour`.

    Each entry of `groups` is a set of disjoint groups of equal size, one row of ranks each.
    """
    classes, count = _compact(colour)
    while True:
        population = np.bincount(classes, minlength=count)
        keys = [classes] + [_company(classes, rows, count, population) for rows in groups]
        classes, finer = _compact(_combine(keys))
        if finer == count:
            return classes_of(classes)
        count = finer


def each_rank(world: int) -> RankClasses:
    """Every rank a class of its own: the unfolded program."""
    ranks = np.arange(world, dtype=np.int32)
    return RankClasses(ranks, ranks, np.ones(world, dtype=np.int32))


def _compact(colour: NDArray[np.integer]) -> tuple[Longs, int]:
    """The same partition with classes numbered by their first rank."""
    _, first, inverse = np.unique(colour, return_index=True, return_inverse=True)
    rank_of_first = np.argsort(np.argsort(first))
    return rank_of_first[inverse].astype(np.int64), len(first)


def _combine(keys: Sequence[Longs]) -> Longs:
    """One number per rank that differs wherever any key differs."""
    combined = keys[0]
    for key in keys[1:]:
        if len(key):
            combined, _ = _compact(combined * (int(key.max()) + 1) + key)
    return combined


def _company(classes: Longs, rows: NDArray[np.integer], count: int, population: Longs) -> Longs:
    """One number per rank that says which classes its group holds, in which numbers; 0 for ranks in no group.

    Empty where the classes as they are already tell: each keeps one kind of company.
    """
    members = classes[rows]
    if not members.size or _even(members, population):
        return np.empty(0, dtype=np.int64)
    codes = _row_codes(np.sort(members, axis=1), count)
    company = np.zeros(len(classes), dtype=np.int64)
    company[rows] = codes[:, None] + 1
    seen = np.empty(count, dtype=np.int64)
    seen[classes] = company
    return np.empty(0, dtype=np.int64) if (seen[classes] == company).all() else company


def _even(members: Longs, population: Longs) -> bool:
    """Whether all groups hold the same classes in the same places, and no rank of these classes is outside: the usual
    case of the pairs of two stages."""
    classes = set(members[0].tolist())
    return sum(population[list(classes)].tolist()) == members.size and bool((members == members[0]).all())


def _row_codes(rows: Longs, count: int) -> Longs:
    """A number per row, equal for equal rows. Rows of one class or of two members, the usual cases, are cheap."""
    if rows.shape[1] <= 2:
        return rows[:, 0] * count + rows[:, -1]
    codes = rows[:, 0] * count + rows[:, 0]
    mixed = np.flatnonzero(rows[:, 0] != rows[:, -1])
    if len(mixed):
        _, inverse = np.unique(rows[mixed], axis=0, return_inverse=True)
        codes[mixed] = count * count + inverse.ravel()
    return codes


def classes_of(of_rank: Longs) -> RankClasses:
    _, representative, count = np.unique(of_rank, return_index=True, return_counts=True)
    return RankClasses(of_rank.astype(np.int32), representative.astype(np.int32), count.astype(np.int32))
