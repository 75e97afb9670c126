"""Holds the prices of ops: what each takes alone, what it draws from shared resources, its source and its band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, Mask, distinct
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.cost.network.experts import limit_call
from foretrace.cost.network.interface import Limit, Network
from foretrace.cost.network.layouts import CallKey, Layouts
from foretrace.cost.overlap import Overlaps
from foretrace.program.dispatch import COPIES
from foretrace.program.graph import Graph
from foretrace.program.program import Resource, Source

BOUND_BY = 0.5
"""An op is bound by a resource if what it draws would keep that busy for this share of the op's time. A judgement, not
a measurement: what is bound by a link or memory uses most of it, what is bound by something else little."""


MIN_SHARE = 0.01
"""The share of the communication time of an axis from which on a call counts for the limit of the axis."""


@dataclass(frozen=True, slots=True, eq=False)
class NetworkCalls:
    """The calls that a network priced: the distinct ones, and the call of each op (-1: none)."""

    network: Network
    layouts: Layouts
    keys: Sequence[CallKey]
    of_op: Longs

    def limits(self, op_s: Floats, axes: Sequence[str]) -> dict[str, Limit]:
        """Finds what limits the communication of each axis: the figure that limits the calls of most of its time.

        Args:
            op_s: the seconds that each op takes in all.
            axes: the axis of each communicator.

        Returns:
            The limit of each axis; its `share` is the part of the axis's time in the calls that it limits. Where ranks
            are placed differently, a call counts as the first of them runs it.
        """
        among = np.flatnonzero(self.of_op >= 0)
        call_s = np.zeros(len(self.keys))
        np.add.at(call_s, self.of_op[among], op_s[among])
        axis_of = [axes[communicator] for communicator, *_ in self.keys]
        axis_s = dict.fromkeys(axis_of, 0.0)
        for axis, seconds in zip(axis_of, call_s.tolist(), strict=True):
            axis_s[axis] += seconds
        limit_of: dict[int, Limit] = {}
        for kind, (_, columns), what, sizes, way in self.layouts.requests(self.keys):
            for call, size in zip(columns.tolist(), sizes.tolist(), strict=True):
                counts = call_s[call] > MIN_SHARE * axis_s[axis_of[call]] and way != COPIES
                if counts and call not in limit_of:
                    limit_of[call] = limit_call(self.network, what, kind, size, way)
        limits: dict[str, Limit] = {}
        for axis, whole_s in axis_s.items():
            mine = [call for call in limit_of if axis_of[call] == axis]
            if mine:
                limits[axis] = _of_most_time([limit_of[call] for call in mine], call_s[mine], whole_s)
        return limits


def _of_most_time(limits: Sequence[Limit], seconds: Floats, whole_s: float) -> Limit:
    """Returns the limit of the kind that limits calls for most seconds, with their share of `whole_s`; of several of
    this kind, that of the longest call."""
    by_kind: dict[str, float] = {}
    for limit, call_s in zip(limits, seconds.tolist(), strict=True):
        by_kind[limit.kind] = by_kind.get(limit.kind, 0.0) + call_s
    kind = max(by_kind, key=lambda kind: by_kind[kind])
    longest = max((call for call, limit in enumerate(limits) if limit.kind == kind), key=lambda call: seconds[call])
    return replace(limits[longest], share=by_kind[kind] / whole_s)


@dataclass(frozen=True, slots=True)
class Draws:
    """The use of shared resources by ops: per row an op, a resource, a total amount, and what it holds meanwhile.

    A row is for all ranks that run the op, or for those of one profile: `profile` has its number (-1: all ranks), and
    rank r is of profile `profile_of[r]`. Both are None where every row is for all.
    """

    op: Longs
    resource: Longs
    amount: Floats
    held: Floats
    resources: tuple[Resource, ...]
    profile: Longs | None = None
    profile_of: Ints | None = None

    def __bool__(self) -> bool:
        return len(self.op) > 0

    def beside(self, other: Draws) -> Draws:
        """Returns these draws and others. The draws of an op here come first and is the measure by which it shares.
        Resources of the same name are one, and must be equal."""
        numbers = {resource.name: number for number, resource in enumerate(self.resources)}
        for resource in other.resources:
            number = numbers.setdefault(resource.name, len(numbers))
            if number < len(self.resources) and self.resources[number] != resource:
                raise InputError(
                    "duplicate-name",
                    f'resource "{resource.name}" is declared twice, differently',
                    hint="give one another name",
                )
        fresh = [resource for resource in other.resources if numbers[resource.name] >= len(self.resources)]
        renumbered = np.array([numbers[resource.name] for resource in other.resources], dtype=np.int64)
        mine, yours, profile_of = _told_apart(self, other)
        return Draws(
            np.concatenate([mine.op, yours.op]),
            np.concatenate([mine.resource, renumbered[yours.resource]]),
            np.concatenate([mine.amount, yours.amount]),
            np.concatenate([mine.held, yours.held]),
            (*self.resources, *fresh),
            None if profile_of is None else np.concatenate([mine.profiles(), yours.profiles()]),
            profile_of,
        )

    def of_ops(self, chosen: Mask) -> Draws:
        """Returns what the chosen ops draw."""
        rows = np.flatnonzero(chosen[self.op])
        return replace(
            self,
            op=self.op[rows],
            resource=self.resource[rows],
            amount=self.amount[rows],
            held=self.held[rows],
            profile=None if self.profile is None else self.profile[rows],
        )

    def profiles(self) -> Longs:
        """The profile that each row is for, -1 where it is for all."""
        return np.full(len(self.op), -1, dtype=np.int64) if self.profile is None else self.profile

    def narrowest(self, ops: int, ranks: Mask) -> Floats:
        """For each op the longest time any resource needs for what one of these ranks draws from it with the op; 0
        where it draws nothing."""
        longest = np.zeros(ops)
        if not len(self.op):
            return longest
        world = len(ranks)
        profile_of = np.zeros(world, dtype=np.int64) if self.profile_of is None else self.profile_of
        capacity = np.array([resource.capacity_of(world) for resource in self.resources])
        for number in distinct(profile_of[ranks]).tolist():
            least = capacity[:, ranks & (profile_of == number)].min(axis=1)
            rows = np.flatnonzero((self.profiles() < 0) | (self.profiles() == number))
            np.maximum.at(longest, self.op[rows], self.amount[rows] / least[self.resource[rows]])
        return longest


def _told_apart(first: Draws, second: Draws) -> tuple[Draws, Draws, Ints | None]:
    """Returns both with common profiles, the combinations of theirs; rows of a profile are repeated for each."""
    if first.profile_of is None or second.profile_of is None:
        return first, second, second.profile_of if first.profile_of is None else first.profile_of
    width = int(second.profile_of.max()) + 1
    pairs, profile_of = np.unique(first.profile_of.astype(np.int64) * width + second.profile_of, return_inverse=True)
    mine, yours = (_repeated(part, before) for part, before in ((first, pairs // width), (second, pairs % width)))
    return mine, yours, profile_of.ravel().astype(np.int32)


def _repeated(draws: Draws, before: Longs) -> Draws:
    """The rows for finer profiles, of which number i was `before[i]`."""
    profile = draws.profiles()
    order, start = np.argsort(before, kind="stable"), np.searchsorted(np.sort(before), np.arange(int(before.max()) + 2))
    counts = np.where(profile < 0, 1, np.diff(start)[profile])
    row = np.repeat(np.arange(len(profile)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    fine = np.where(profile[row] < 0, -1, order[np.minimum(start[profile[row]] + within, len(order) - 1)])
    return replace(
        draws,
        op=draws.op[row],
        resource=draws.resource[row],
        amount=draws.amount[row],
        held=draws.held[row],
        profile=fine,
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of each op: its duration alone, and the latency within it that no sharing changes, in seconds.

    `low` and `high` are the ends of each op's band, as factors of its price; ops of one `group` are off together. An op
    whose price several sources make up has `source` for the one with most of it, and in `mix` the row of `mixes` that
    says each source's share (-1: `source` has all of it).

    Ranks may pay differently: `duration_s` and `latency_s` have a row per profile, [profiles, ops], and rank r pays
    those of row `profile_of[r]`. Ops that meet have the same number in `meeting` (-1: none); those of other groups may
    have it too. `overlaps` says what ops cost each other that run at the same time. `calls` are those that a network
    priced; None where there are none.
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
    profile_of: Ints
    overlaps: Overlaps | None = None
    calls: NetworkCalls | None = None
    notes: tuple[Diagnostic, ...] = ()
    """Notes on what was simplified in them."""

    def durations(self, graph: Graph) -> Floats:
        """Returns the seconds of each node of a graph alone."""
        return self._of_nodes(graph, self.duration_s)

    def latencies(self, graph: Graph) -> Floats:
        """The part of it that no sharing changes."""
        return self._of_nodes(graph, self.latency_s)

    def _of_nodes(self, graph: Graph, rows: Floats) -> Floats:
        if len(rows) == 1:
            return np.asarray(rows[0][graph.op])
        profile = self.profile_of[graph.classes.representative]
        return np.asarray(rows[profile[graph.rank_class], graph.op])

    def kinds_of_ranks(self, sharing: bool) -> Ints:
        """A number for each rank; those of one number pay the same, and with `sharing` draw the same."""
        if not sharing or self.draws.profile_of is None:
            return self.profile_of
        pairs = self.profile_of.astype(np.int64) * (int(self.draws.profile_of.max()) + 1) + self.draws.profile_of
        return np.asarray(np.unique(pairs, return_inverse=True)[1].ravel(), dtype=np.int32)

    def seconds_by_source(self, taken_s: Floats) -> Floats:
        """Returns the seconds that each source accounts for, from the total of each op."""
        mixed = self.mix >= 0
        alone = np.bincount(self.source, weights=np.where(mixed, 0.0, taken_s), minlength=len(self.sources))
        if not len(self.mixes):
            return np.asarray(alone, dtype=np.float64)
        together = np.bincount(self.mix + 1, weights=taken_s, minlength=len(self.mixes) + 1)[1:]
        return np.asarray(alone + (together[:, None] * self.mixes).sum(axis=0))

    def slowed(self, ranks: Sequence[int], factor: float, ops: Mask | bool = True) -> Prices:
        """The same prices with these ranks paying `factor` times as much, for all ops or those selected."""
        world = len(self.profile_of)
        chosen = distinct(np.asarray(ranks, dtype=np.int64))
        if len(chosen) and (chosen[0] < 0 or chosen[-1] >= world):
            bad = chosen[-1] if chosen[-1] >= world else chosen[0]
            raise InputError("no-such-rank", f"there is no rank {bad}; the job has ranks 0 to {world - 1}")
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
        """Returns the same prices with `factor` times the capacity of a resource.

        Beyond its latency an op is limited by its bottleneck, the resource with the largest ratio of demand to
        capacity. More of that resource makes the op faster, until another resource is the bottleneck. An op that takes
        much longer than any of its draws need is limited by something else, and does not change. An op without draws,
        such as the receiving end of a transfer, goes as fast as the ops it meets.
        """
        resources = tuple(item.widened(factor) if item.name == resource else item for item in self.draws.resources)
        draws = replace(self.draws, resources=resources)
        busy_s = self.duration_s - self.latency_s
        for profile, busy in enumerate(busy_s):
            ranks = self.profile_of == profile
            before, after = (drawn.narrowest(len(busy), ranks) for drawn in (self.draws, draws))
            busy_s[profile] = np.maximum(busy * self._gained(before, after, busy), after)
        return replace(self, duration_s=self.latency_s + busy_s, draws=draws)

    def _gained(self, before: Floats, after: Floats, busy: Floats) -> Floats:
        """Returns the factor on each op's time past its latency when its narrowest draw takes `after` instead of
        `before`."""
        bound = before >= BOUND_BY * busy
        faster = np.divide(after, before, out=np.ones(len(before)), where=(before > 0) & bound)
        follows = (before == 0) & (self.meeting >= 0)
        slowest = np.zeros(int(self.meeting.max(initial=-1)) + 1)
        leads = (before > 0) & (self.meeting >= 0)
        np.maximum.at(slowest, self.meeting[leads], faster[leads])
        pace = slowest[self.meeting[follows]]
        faster[follows] = np.where(pace > 0, pace, 1.0)
        return faster
