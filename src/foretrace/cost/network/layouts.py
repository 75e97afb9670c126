"""Which kinds of groups a program's communicators have, and which ranks see which: sorted once, priced by kind."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foretrace.cost.network.interface import Network
from foretrace.program.columns import Collective
from foretrace.program.program import Floats, Ints, Program

CallKey = tuple[int, int, int]
"""A communicator, a collective and bytes."""


class Layouts:
    """The kinds of groups of the communicators in use, and the combinations of them that ranks see."""

    def __init__(self, program: Program, communicators: Sequence[int], network: Network) -> None:
        self.kinds: list[Hashable] = []
        """Distinct layouts."""
        self._program, self._network = program, network
        self._column = {number: column for column, number in enumerate(communicators)}
        kind_of = self._sort(communicators)
        self.profiles, self.profile_of = _profiles(program.world, [kind_of[number] for number in communicators])
        """The kind of each communicator for each profile, [profiles, communicators], and the profile of each rank."""

    def requests(
        self, calls: Sequence[CallKey]
    ) -> Iterator[tuple[Hashable, tuple[NDArray[np.int64], ...], Collective, Floats]]:
        """What to price: a kind, a collective and sizes, with the cells of [profiles, calls] they belong to."""
        wanted: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for call, (communicator, collective, size) in enumerate(calls):
            for profile, kind in enumerate(self.profiles[:, self._column[communicator]].tolist()):
                # A rank outside the communicator has none of its ops: any price will do.
                wanted.setdefault((max(kind, 0), collective), []).append((profile, call, size))
        for (kind, collective), cells in wanted.items():
            rows, columns, sizes = np.array(cells).T
            yield self.kinds[kind], (rows, columns), Collective(collective), sizes.astype(np.float64)

    def _sort(self, communicators: Sequence[int]) -> dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]]:
        """For each communicator, its groups and the number of each group's kind; groups of one size sorted at once."""
        by_size: dict[int, list[tuple[int, NDArray[np.int64]]]] = {}
        same: dict[tuple[object, ...], int] = {}
        alias: dict[int, int] = {}
        for number in communicators:
            one = self._program.communicators[number]
            # Both directions between two stages, and exchanges, are communicators of the same pairs of ranks.
            key = (one.axes, None if one.pair is None else frozenset(one.pair), one.groups)
            if same.setdefault(key, number) == number:
                for groups in one.members(self._program.mesh):
                    by_size.setdefault(groups.shape[1], []).append((number, groups))
            alias[number] = same[key]
        found: dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {number: [] for number in same.values()}
        for parts in by_size.values():
            kinds, kind = self._network.layouts(np.concatenate([groups for _, groups in parts]))
            bounds = np.cumsum([0, *(len(groups) for _, groups in parts)]).tolist()
            for (number, groups), (low, high) in zip(parts, pairwise(bounds), strict=True):
                found[number].append((groups, kind[low:high] + len(self.kinds)))
            self.kinds.extend(kinds)
        return {number: found[alias[number]] for number in communicators}


def _profiles(world: int, kinds: Sequence[Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]]) -> tuple[Ints, Ints]:
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


def _only(parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> int:
    """The one kind that all groups of a communicator are of, -1 where there are several."""
    low = min(int(kind.min()) for _, kind in parts)
    return low if low == max(int(kind.max()) for _, kind in parts) else -1
