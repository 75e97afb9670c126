"""Sorts the groups of a program's communicators into kinds, so that each kind is priced once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, distinct
from foretrace.basics.errors import Diagnostic
from foretrace.cost.network.call_book import CallBook
from foretrace.program.columns import Collective
from foretrace.program.expand import Ops
from foretrace.program.fold import folded_size
from foretrace.program.program import Program

MAX_OPS_APART: Final = 1 << 22
"""The most ops of a job whose ranks run apart because the network slows their groups differently; 4 million take 10 s
on two cores. In a larger job the slowest group's price stands for all of its communicator."""

CallKey = tuple[int, int, int, int]
"""A communicator, a collective, bytes, and the string that says how it goes. Below 0: none does, and those with
different numbers have prices of their own."""

CallRequest = tuple[Hashable, tuple[Longs, ...], Collective, Floats, str]
"""A layout, the cells of [profiles, calls] that have it, their collective, the bytes of each, and the way they run."""

Groups = tuple[Longs, Longs]
"""Groups of one size, a row of ranks each, and the number of each one's kind."""


class Layouts:
    """The kinds of groups of the communicators in use, and the combinations of them that ranks see."""

    def __init__(self, program: Program, communicators: Sequence[int], book: CallBook) -> None:
        self.kinds: list[Hashable] = []
        """Distinct layouts."""
        self._program, self._book = program, book
        self._column = {number: column for column, number in enumerate(communicators)}
        self._groups = self._sort(communicators)
        self.profiles, self.profile_of = _profiles(program.world, list(self._groups.values()))
        """The kind of each communicator for each profile, [profiles, communicators], and the profile of each rank."""

    def as_slowest(self) -> Layouts:
        """Returns the same groups, each with the traffic of the slowest of its shape in its communicator."""
        other = copy(self)
        numbers: dict[Hashable, int] = {}
        known: dict[int, list[Groups]] = {}
        for groups in self._groups.values():
            if id(groups) not in known:
                used = distinct(np.concatenate([kind for _, kind in groups]))
                slowest = self._book.as_slowest([self.kinds[kind] for kind in used.tolist()])
                renumbered = np.array([numbers.setdefault(layout, len(numbers)) for layout in slowest])
                known[id(groups)] = [(rows, renumbered[np.searchsorted(used, kind)]) for rows, kind in groups]
        other.kinds = list(numbers)
        other._groups = {number: known[id(groups)] for number, groups in self._groups.items()}
        other.profiles, other.profile_of = _profiles(self._program.world, list(other._groups.values()))
        return other

    def groups(self, communicator: int) -> list[Groups]:
        """The groups of a communicator in use, and the number of each one's kind."""
        return self._groups[communicator]

    def column(self, communicator: int) -> int:
        """Returns which column of the profiles is a communicator's."""
        return self._column[communicator]

    def spread(self, calls: Sequence[CallKey]) -> dict[str, float]:
        """Returns by how much groups of one communicator differ at most, as a factor of time, for each axis where they
        do."""
        factors: dict[str, float] = {}
        known: dict[tuple[object, ...], float] = {}
        for communicator, collective, size, way in calls:
            kinds = tuple(distinct(np.concatenate([kind for _, kind in self._groups[communicator]])).tolist())
            key = (kinds, collective, size, max(way, -1))
            if len(kinds) > 1 and key not in known:
                how = (np.array([float(size)]), self._program.strings[way] if way >= 0 else "")
                priced = [self._book.price(Collective(collective), self.kinds[kind], *how) for kind in kinds]
                times = [float(price.duration_s[0]) for price in priced]
                known[key] = max(times) / min(times) if min(times) > 0 else 1.0
            axis = self._program.communicators[communicator].axis
            factors[axis] = max(factors.get(axis, 1.0), known.get(key, 1.0))
        return {axis: factor for axis, factor in factors.items() if factor > 1}

    def requests(self, calls: Sequence[CallKey]) -> Iterator[CallRequest]:
        """Yields what to price, with the cells of [profiles, calls] that it belongs to."""
        cells_of: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        for call, (communicator, collective, size, way) in enumerate(calls):
            for profile, kind in enumerate(self.profiles[:, self._column[communicator]].tolist()):
                # A rank outside the communicator has none of its ops: any price will do.
                cells_of.setdefault((max(kind, 0), collective, max(way, -1)), []).append((profile, call, size))
        for (kind, collective, way), cells in cells_of.items():
            rows, columns, sizes = np.array(cells).T
            text = self._program.strings[way] if way >= 0 else ""
            yield self.kinds[kind], (rows, columns), Collective(collective), sizes.astype(np.float64), text

    def _sort(self, communicators: Sequence[int]) -> dict[int, list[Groups]]:
        """For each communicator, its groups and the number of each group's kind."""
        numbers: dict[Hashable, int] = {}
        known: dict[tuple[object, ...], list[Groups]] = {}
        groups_of: dict[int, list[Groups]] = {}
        for number in communicators:
            communicator = self._program.communicators[number]
            # Both directions between two stages, and exchanges, are communicators of the same pairs of ranks.
            key = (
                communicator.axes,
                None if communicator.pair is None else frozenset(communicator.pair),
                communicator.groups,
            )
            if key not in known:
                known[key] = []
                for groups in self._book.placed(communicator, self._program.mesh):
                    renumbered = np.array([numbers.setdefault(layout, len(numbers)) for layout in groups.layouts])
                    known[key].append((groups.ranks, renumbered[groups.layout_of]))
            groups_of[number] = known[key]
        self.kinds = list(numbers)
        return groups_of


def foldable(layouts: Layouts, ops: Ops, calls: Sequence[CallKey]) -> tuple[Layouts, tuple[Diagnostic, ...]]:
    """Returns layouts with which the job can be run, and a note where they are simplified.

    Where a hash chooses the ways of flows, nearly every rank has prices of its own, and no two ranks fold into one. The
    slowest group's price then stands for all groups of its communicator. Prices only rise by that, and few steps get
    much longer: every group of an axis ends in the same optimizer step, which waits for the slowest.
    """
    if len(layouts.profiles) == 1 or int(np.diff(ops.start)[ops.program.role_of].sum()) <= MAX_OPS_APART:
        return layouts, ()
    size = folded_size(ops, layouts.profile_of)
    merged = layouts.as_slowest() if size > MAX_OPS_APART else layouts
    if len(merged.profiles) == len(layouts.profiles):
        return layouts, ()
    factors = ", ".join(f"{factor:.1f}× the fastest ({axis})" for axis, factor in layouts.spread(calls).items())
    text = (
        f"every group of an axis is priced as its slowest, because separate prices would need {size:,} ops (limit "
        f"{MAX_OPS_APART:,})" + (f"; the slowest takes {factors}" if factors else "")
    )
    return merged, (Diagnostic("note", "slowest-stands-for-all", text),)


def _profiles(world: int, kinds: Sequence[Sequence[Groups]]) -> tuple[Ints, Ints]:
    """The combinations of kinds that ranks see, [profiles, communicators], and the number of each rank's."""
    only = {id(parts): _only(parts) for parts in {id(parts): parts for parts in kinds}.values()}
    uniform = np.array([only[id(parts)] for parts in kinds], dtype=np.int32)
    split = np.flatnonzero(uniform < 0)
    if not len(split):
        return uniform[None], np.zeros(world, dtype=np.int32)
    seen = np.full((world, len(split)), -1, dtype=np.int32)
    for column, number in enumerate(split.tolist()):
        for groups, kind in kinds[number]:
            seen[groups, column] = kind[:, None]
    rows, profile_of = np.unique(seen, axis=0, return_inverse=True)
    profiles = np.repeat(uniform[None], len(rows), axis=0)
    profiles[:, split] = rows
    return profiles, profile_of.ravel().astype(np.int32)


def _only(parts: Sequence[Groups]) -> int:
    """The one kind that all groups of a communicator are of, -1 where there are several."""
    low = min(int(kind.min()) for _, kind in parts)
    return low if low == max(int(kind.max()) for _, kind in parts) else -1
