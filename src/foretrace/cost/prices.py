"""Prices: what each op takes alone, what it shares with others, where that was learned and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import InputError
from foretrace.program.arrays import distinct
from foretrace.program.graph import Graph
from foretrace.program.program import Floats, Resource, Source

Longs = NDArray[np.int64]

BOUND_BY = 0.5
"""An op is bound by a resource if what it draws would keep that busy for this share of the op's time. A judgement, not
a measurement: what is bound by a link or memory uses most of it, what is bound by something else little."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What ops take from shared resources: per row an op, a resource, an amount in all, and what it holds meanwhile."""

    op: Longs
    resource: Longs
    amount: Floats
    held: Floats
    resources: tuple[Resource, ...]

    def __bool__(self) -> bool:
        return len(self.op) > 0

    def narrowest(self, ops: int) -> Floats:
        """For each op the longest time any resource needs for what the op draws from it; 0 where it draws nothing."""
        capacity = np.array([one.capacity_per_s for one in self.resources])
        longest = np.zeros(ops)
        if len(self.op):
            np.maximum.at(longest, self.op, self.amount / capacity[self.resource])
        return longest


@dataclass(frozen=True, slots=True)
class Prices:
    """What each op takes: its duration alone, and the latency within it that no sharing changes, in seconds.

    `low` and `high` are the ends of each op's band, as factors of its price; ops of one `group` are off together. An op
    whose price several sources make up has `source` for the one with most of it, and in `mix` the row of `mixes` that
    says each source's share (-1: `source` has all of it).

    Ranks may pay differently: `duration_s` and `latency_s` have a row per profile, [profiles, ops], and rank r pays
    those of row `profile_of[r]`. Ops that meet have the same number in `meeting` (-1: none); those of other groups may
    have it too.
    """

    duration_s: Floats
    latency_s: Floats
    source: Longs
    sources: tuple[Source, ...]
    low: Floats
    high: Floats
    group: Longs
    mix: Longs
    mixes: Floats
    draws: Draws
    meeting: Longs
    profile_of: NDArray[np.int32]

    def durations(self, graph: Graph) -> Floats:
        """What each node of a graph takes alone, in seconds."""
        return self._of_nodes(graph, self.duration_s)

    def latencies(self, graph: Graph) -> Floats:
        """The part of it that no sharing changes."""
        return self._of_nodes(graph, self.latency_s)

    def _of_nodes(self, graph: Graph, rows: Floats) -> Floats:
        if len(rows) == 1:
            return np.asarray(rows[0][graph.op])
        profile = self.profile_of[graph.classes.representative]
        return np.asarray(rows[profile[graph.rank_class], graph.op])

    def seconds_by_source(self, taken_s: Floats) -> Floats:
        """What each source answers for, of what each op takes in all."""
        mixed = self.mix >= 0
        alone = np.bincount(self.source, weights=np.where(mixed, 0.0, taken_s), minlength=len(self.sources))
        if not len(self.mixes):
            return np.asarray(alone, dtype=np.float64)
        together = np.bincount(self.mix[mixed], weights=taken_s[mixed], minlength=len(self.mixes))
        return np.asarray(alone + together @ self.mixes)

    def slowed(self, ranks: Sequence[int], factor: float, ops: NDArray[np.bool_] | bool = True) -> Prices:
        """The same prices with these ranks paying `factor` times as much, for all ops or those selected."""
        world = len(self.profile_of)
        chosen = distinct(np.asarray(ranks, dtype=np.int64))
        if len(chosen) and (chosen[0] < 0 or chosen[-1] >= world):
            bad = chosen[-1] if chosen[-1] >= world else chosen[0]
            raise InputError(f"there is no rank {bad}; the job has ranks 0 to {world - 1}")
        slower = np.where(np.broadcast_to(ops, self.duration_s.shape[1]), factor, 1.0)
        profile_of = self.profile_of.copy()
        paid = distinct(self.profile_of[chosen])
        for number, row in enumerate(paid, start=len(self.duration_s)):
            profile_of[chosen[self.profile_of[chosen] == row]] = number
        return replace(
            self,
            duration_s=np.concatenate([self.duration_s, self.duration_s[paid] * slower]),
            latency_s=np.concatenate([self.latency_s, self.latency_s[paid] * slower]),
            profile_of=profile_of,
        )

    def scaled(self, factor: Floats) -> Prices:
        """The same prices with each op's multiplied by a factor: its time, and what it draws in that time."""
        draws = replace(self.draws, amount=self.draws.amount * factor[self.draws.op])
        return replace(self, duration_s=self.duration_s * factor, latency_s=self.latency_s * factor, draws=draws)

    def widened(self, resource: str, factor: float) -> Prices:
        """The same prices with `factor` times as much of a resource.

        An op takes as long, past its latency, as what it draws most of in proportion to what there is of it; more of
        that makes it faster, until something else it draws on is the narrowest. An op that takes much longer than any
        of its draws need is bound by something else, and stays as it is. What draws nothing itself, such as the
        receiving end of a transfer, goes as fast as those it meets.
        """
        names = [one.name for one in self.draws.resources]
        number = names.index(resource)
        wider = replace(
            self.draws.resources[number], capacity_per_s=self.draws.resources[number].capacity_per_s * factor
        )
        draws = replace(
            self.draws, resources=(*self.draws.resources[:number], wider, *self.draws.resources[number + 1 :])
        )
        ops = self.duration_s.shape[1]
        before, after = self.draws.narrowest(ops), draws.narrowest(ops)
        busy = self.duration_s - self.latency_s
        faster = np.stack([self._gained(before, after, row) for row in busy])
        return replace(self, duration_s=self.latency_s + np.maximum(busy * faster, after), draws=draws)

    def _gained(self, before: Floats, after: Floats, busy: Floats) -> Floats:
        """What each op's time past its latency is multiplied by when its narrowest draw takes `after`, not `before`."""
        bound = before >= BOUND_BY * busy
        faster = np.divide(after, before, out=np.ones(len(before)), where=(before > 0) & bound)
        follows = (before == 0) & (self.meeting >= 0)
        slowest = np.zeros(int(self.meeting.max(initial=-1)) + 1)
        leads = (before > 0) & (self.meeting >= 0)
        np.maximum.at(slowest, self.meeting[leads], faster[leads])
        pace = slowest[self.meeting[follows]]
        faster[follows] = np.where(pace > 0, pace, 1.0)
        return faster
