"""Sorts the groups of a program's communicators into kinds, so that each kind is priced once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs
from foretrace.cost.network.interface import Network
from foretrace.program.columns import Collective
from foretrace.program.program import Program

CallKey = tuple[int, int, int, int]
"""A communicator, a collective, bytes, and the string that says how it goes. Below 0: none does, and those with
different numbers have prices of their own."""

Groups = tuple[Longs, Longs]
"""Groups of one size, a row of ranks each, and the number of each one's kind."""


class Layouts:
    """The kinds of groups of the communicators in use, and the combinations of them that ranks see."""

    def __init__(self, program: Program, communicators: Sequence[int], network: Network) -> None:
        self.kinds: list[Hashable] = []
        """Distinct layouts."""
        self._program, self._network = program, network
        self._column = {number: column for column, number in enumerate(communicators)}
        self._groups = self._sort(communicators)
        self.profiles, self.profile_of = _profiles(program.world, [self._groups[number] for number in communicators])
        """The kind of each communicator for each profile, [profiles, communicators], and the profile of each rank."""

    def groups(self, communicator: int) -> list[Groups]:
        """The groups of a communicator in use, and the number of each one's kind."""
        return self._groups[communicator]

    def column(self, communicator: int) -> int:
        """Returns which column of the profiles is a communicator's."""
        return self._column[communicator]

    def requests(
        self, calls: Sequence[CallKey]
    ) -> Iterator[tuple[Hashable, tuple[Longs, ...], Collective, Floats, str]]:
        """Yields what to price: a kind, a collective, sizes and the way it runs, with the cells of [profiles, calls]
        they belong to."""
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
                for groups in communicator.members(self._program.mesh):
                    kinds, kind = self._network.layouts(groups)
                    renumbered = np.array([numbers.setdefault(layout, len(numbers)) for layout in kinds])
                    known[key].append((groups, renumbered[kind]))
            groups_of[number] = known[key]
        self.kinds = list(numbers)
        return groups_of


def _profiles(world: int, kinds: Sequence[Sequence[Groups]]) -> tuple[Ints, Ints]:
    """The combinations of kinds that ranks see, [profiles, communicators], and the number of each rank's."""
    uniform = np.array([_only(parts) for parts in kinds], dtype=np.int32)
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
