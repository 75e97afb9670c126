"""Remembers the prices of calls on a network, how they run, and the layouts of groups.

The price of a call depends on its collective, the layout of its group, its bytes, and the way it runs. Plans of one
model on one machine have most of their calls in common, so a `Machine` keeps a book for each network and pays for new
calls only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.cost.network.experts import explain_calls, limit_call, price_call, priced_layouts
from foretrace.cost.network.interface import CallPrices, Explained, Limit, Network
from foretrace.cost.network.measured_network import MeasuredNetwork
from foretrace.program.columns import Collective
from foretrace.program.program import Communicator, Source

MAX_CALLS: Final = 1 << 17
"""The most calls that are remembered, about 100 MB; beyond it all are forgotten."""

MAX_MEMBERS: Final = 1 << 22
"""The most members of groups whose layouts are remembered, 32 MiB; beyond it those used longest ago are forgotten."""

Call = tuple[Collective, Hashable, str]
"""A collective, the layout of a group, and the way that it runs: all of a call but its bytes."""

_Price = tuple[float, float, int]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, eq=False)
class GroupsInPlace:
    """Groups of one size, a row of ranks each: their layouts, and the number of the layout of each group."""

    ranks: Longs
    layouts: Sequence[Hashable]
    layout_of: Longs


@dataclass(slots=True)
class _Known:
    """Holds what is remembered of one network."""

    prices: dict[Call, dict[float, _Price]] = field(default_factory=dict)
    explained: dict[Call, dict[float, Explained]] = field(default_factory=dict)
    calls: int = 0
    groups: dict[Mesh, dict[object, list[GroupsInPlace]]] = field(default_factory=dict)
    members: int = 0


class CallBook:
    """A network that remembers what it was asked. It is a `Network` itself, and knows the ways of all-to-alls too.

    Its notes are those of the calls that it was asked for since it was made, or since `for_job`.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.sources: tuple[Source, ...] = network.sources
        self._known = _Known()
        self._asked: dict[Call, None] = {}

    def for_job(self) -> CallBook:
        """Returns a book that remembers the same and was not asked for any call yet."""
        other = CallBook(self.network)
        other._known = self._known
        return other

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Returns the notes of the network on the calls of this job."""
        if not isinstance(self.network, MeasuredNetwork):
            return self.network.notes
        parts = ((what, part) for what, layout, way in self._asked for part in priced_layouts(what, layout, way))
        return self.network.notes_on(dict.fromkeys(parts))

    def layouts(self, groups: NDArray[np.integer]) -> tuple[list[Hashable], Longs]:
        """The kinds of groups of one communicator, [groups, size], and the number of the kind of each."""
        return self.network.layouts(groups)

    def placed(self, communicator: Communicator, mesh: Mesh) -> list[GroupsInPlace]:
        """Returns the groups of a communicator with their layouts."""
        if communicator.groups is not None:
            return self._place(communicator, mesh)
        known = self._known
        of_mesh = known.groups[mesh] = known.groups.pop(mesh, {})
        # Both directions between two stages, and exchanges, are communicators of the same pairs of ranks.
        key = (communicator.axes, None if communicator.pair is None else frozenset(communicator.pair))
        if key not in of_mesh:
            of_mesh[key] = self._place(communicator, mesh)
            known.members += sum(part.ranks.size for part in of_mesh[key])
            while known.members > MAX_MEMBERS and len(known.groups) > 1:
                oldest = known.groups.pop(next(iter(known.groups)))
                known.members -= sum(part.ranks.size for parts in oldest.values() for part in parts)
        return of_mesh[key]

    def _place(self, communicator: Communicator, mesh: Mesh) -> list[GroupsInPlace]:
        return [GroupsInPlace(ranks, *self.network.layouts(ranks)) for ranks in communicator.members(mesh)]

    def as_slowest(self, layouts: Sequence[Hashable]) -> list[Hashable]:
        """Returns each layout with the traffic of the slowest of its shape."""
        return self.network.as_slowest(layouts)

    def price(self, collective: Collective, layout: Hashable, size_bytes: Floats, way: str = "") -> CallPrices:
        """Prices calls of these sizes in a group of this layout; `way` names how an all-to-all of tokens runs."""
        call = (collective, layout, way)
        self._asked[call] = None
        sizes = size_bytes.tolist()
        known, new = self._new(self._known.prices, call, sizes)
        if new:
            priced = price_call(self.network, collective, layout, np.array(new), way)
            columns = (priced.latency_s.tolist(), priced.duration_s.tolist(), priced.source.tolist())
            known.update(zip(new, zip(*columns, strict=True), strict=True))
        rows = np.array([known[size] for size in sizes]).reshape(len(sizes), 3)
        return CallPrices(rows[:, 0], rows[:, 1], rows[:, 2].astype(np.int64))

    def explain_all(
        self, collective: Collective, layout: Hashable, size_bytes: Floats, way: str = ""
    ) -> list[Explained]:
        """Explains how calls of these sizes run."""
        sizes = size_bytes.tolist()
        known, new = self._new(self._known.explained, (collective, layout, way), sizes)
        if new:
            explained = explain_calls(self.network, collective, layout, np.array(new), way)
            known.update(zip(new, explained, strict=True))
        return [known[size] for size in sizes]

    def explain(self, collective: Collective, layout: Hashable, size_bytes: float, way: str = "") -> Explained:
        """Explains how a call of this size runs."""
        return self.explain_all(collective, layout, np.array([size_bytes]), way)[0]

    def limit(self, collective: Collective, layout: Hashable, size_bytes: float, way: str = "") -> Limit:
        """Finds what limits a call of this size."""
        return limit_call(self.network, collective, layout, size_bytes, way)

    def _new(
        self, of_calls: dict[Call, dict[float, _Value]], call: Call, sizes: list[float]
    ) -> tuple[dict[float, _Value], list[float]]:
        """Returns what is known of a call by its bytes, and the sizes that are not; makes room for them."""
        new = [size for size in dict.fromkeys(sizes) if size not in of_calls.get(call, ())]
        if self._known.calls + len(new) > MAX_CALLS:
            self._known.prices.clear()
            self._known.explained.clear()
            self._known.calls, new = 0, list(dict.fromkeys(sizes))
        self._known.calls += len(new)
        return of_calls.setdefault(call, {}), new


def book_of(network: Network) -> CallBook:
    """Returns the book of a network, new where the network is not one itself."""
    return network if isinstance(network, CallBook) else CallBook(network)
