"""Prices the calls of one collective in one group: the choice of NCCL by size, its time, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.cost.network.interface import Explained, Limit
from foretrace.cost.network.nccl.algorithms.nvls import collnet_s, nvls_s, pat_s
from foretrace.cost.network.nccl.algorithms.pairs import all_to_all_s, transfer_s
from foretrace.cost.network.nccl.algorithms.ring import ring_s
from foretrace.cost.network.nccl.algorithms.tree import tree_s
from foretrace.cost.network.nccl.bottleneck import draws, latency_name, limit_of
from foretrace.cost.network.nccl.bound import bound_s
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.tuning import chosen
from foretrace.cost.network.nccl_log.observations import Observed, Way
from foretrace.program.columns import ONE_TO_ONE, PAIRWISE, Collective

PAIR_WAYS: Final[list[Way]] = [("pairs", "ll"), ("pairs", "simple")]
"""The ways that sends and receives run; the faster for the size is used."""

GRID: Final = np.concatenate([[0.0], [2.0 ** (eighth / 8) for eighth in range(8 * 46 + 1)]])
"""Sizes at which NCCL is asked what it chooses: eight to a doubling up to 64 TiB, powers of two among them. A call
between two of them runs as NCCL runs the smaller."""


class CallPlan:
    """Prices calls of one collective in one group.

    NCCL changes its way where its own estimate says so, which is not always where it pays: a call just beyond may be
    faster than one just before. Prices level such a fall, so that no call is cheaper than a smaller one: the time of a
    way at the end of its range is the minimum for all sizes beyond.
    """

    def __init__(self, group: NcclGroup, what: Collective, ways: list[Way], observed: Observed | None = None) -> None:
        self.group, self.what, self.ways = group, what, ways
        self._pick: Longs | None = None
        self._held = np.zeros(len(GRID))
        self._of_pick = np.zeros(len(GRID))
        if what not in PAIRWISE and what not in ONE_TO_ONE:
            self._pick = chosen(group, what, ways, GRID, observed)
            ends = np.append(GRID[1:], GRID[-1])
            for number in np.unique(self._pick).tolist():
                here = self._pick == number
                self._of_pick[here] = way_s(group, what, ways[number], ends[here])[1]
            self._held[1:] = np.maximum.accumulate(self._of_pick)[:-1]

    def price(self, size_bytes: Floats) -> tuple[Floats, Floats]:
        """Latencies and seconds in all of calls of these sizes."""
        latency, duration, _ = self._run(size_bytes)
        return latency, duration

    def explain(self, size_bytes: Floats) -> list[Explained]:
        """Explains how calls of these sizes run."""
        latency, duration, number = self._run(size_bytes)
        bound = bound_s(self.group.cluster, self.what, self.group.layout, size_bytes)
        columns = (size_bytes.tolist(), latency.tolist(), duration.tolist(), bound.tolist(), number.tolist())
        return [self._explained(*call) for call in zip(*columns, strict=True)]

    def _explained(
        self, size_bytes: float, latency_s: float, duration_s: float, least_s: float, number: int
    ) -> Explained:
        algorithm, protocol = self.ways[number]
        return Explained(
            time_s=duration_s,
            latency_s=latency_s,
            bound_s=least_s,
            algorithm=algorithm,
            protocol=protocol,
            channels=self.group.channels("ring" if algorithm == "pairs" else algorithm),
            draws=draws(self.group, self.what, algorithm, size_bytes),
        )

    def limit(self, size_bytes: float) -> Limit:
        """Finds what limits a call of this size: of the way that decides its price, or of the bound."""
        size = np.array([size_bytes], dtype=np.float64)
        _, duration, number = self._run(size)
        at, cell = int(number[0]), int(np.clip(np.searchsorted(GRID, size_bytes, side="right") - 1, 0, len(GRID) - 1))
        whole = float(duration[0])
        if whole <= bound_s(self.group.cluster, self.what, self.group.layout, size)[0]:
            return self._limit(at, lambda group: bound_s(group.cluster, self.what, group.layout, size))
        if self._pick is not None and whole <= self._held[cell]:
            # The price is held at that of a smaller call, at the end of the range of another way.
            longest = int(self._of_pick[:cell].argmax())
            at, size = int(self._pick[longest]), GRID[[longest + 1]]
        return self._limit(at, lambda group: way_s(group, self.what, self.ways[at], size)[1])

    def _limit(self, number: int, seconds: Callable[[NcclGroup], Floats]) -> Limit:
        way = self.ways[number]
        latency = latency_name(self.group, self.what, way[0])
        return limit_of(self.group, lambda group: float(seconds(group)[0]), way, latency)

    def _run(self, size: Floats) -> tuple[Floats, Floats, Longs]:
        """Latencies, seconds, and the number of the way each size goes."""
        cell = np.clip(np.searchsorted(GRID, size, side="right") - 1, 0, len(GRID) - 1)
        if self._pick is None:
            options = [way_s(self.group, self.what, way, size) for way in self.ways]
            number = np.asarray(np.argmin([seconds for _, seconds in options], axis=0))
        else:
            number = self._pick[cell]
            options = [
                way_s(self.group, self.what, way, size) if (number == at).any() else (0.0, size)
                for at, way in enumerate(self.ways)
            ]
        latency = np.array([latency_s for latency_s, _ in options])[number]
        duration = np.choose(number, [seconds for _, seconds in options])
        least = bound_s(self.group.cluster, self.what, self.group.layout, size)
        return latency, np.maximum(np.maximum(duration, self._held[cell]), least), number


def way_s(group: NcclGroup, what: Collective, way: Way, size_bytes: Floats) -> tuple[float, Floats]:
    """The latency and the seconds of calls of these sizes that go this way."""
    algorithm, protocol = way
    match algorithm:
        case "pairs":
            return (transfer_s if what in ONE_TO_ONE else all_to_all_s)(group, protocol, size_bytes)
        case "ring":
            return ring_s(group, what, protocol, size_bytes)
        case "tree":
            return tree_s(group, protocol, size_bytes)
        case "nvls" | "nvls-tree":
            return nvls_s(group, what, algorithm, size_bytes)
        case "pat":
            return pat_s(group, size_bytes)
        case _:
            return collnet_s(group, what, algorithm, size_bytes)
