"""Jitter: what a group waits for its slowest member, when every computation takes a little more or less each time.

Every computation takes its time times (1 + jitter · a standard normal), independently for each op, rank and step. The
mean of a computation stays what it is; what grows is waiting, since a meeting starts with the last to come. Ranks are
folded into classes, so nothing is drawn: the expected wait is worked out and added to the op that waits.

* Of n ranks that computed independently, for d1, d2, … seconds each since they were last together, the last comes
  m(n) · jitter · √(d1² + d2² + …) after the mean, m(n) being the expected maximum of n standard normals.
* Ranks that meet in other groups meanwhile carry over what those meetings left uncertain: the maximum of n normals has
  a variance of its own. So for every group a rank is in, the variance gathered since that group last met is kept.
* Ranks of different roles (two stages) come at different times: how far apart they are on average counts, by Clark's
  formula for the maximum of two normals (C. E. Clark, The greatest of a finite set of random variables, Operations
  Research 9, 1961), and so it does where an op waits for two things on its own rank.

The approximation: arrivals are taken as normal, and as independent but for the history that two groups share at their
last meeting. Against draws for every rank the extra time is within 7 % where stages wait for their transfers or have
tensor-parallel or data-parallel groups. For a pipeline alone whose transfers run concurrently with computation, about
three fifths of it are found, since how far apart stages are is then forgotten with each message. Computation after the
last meeting of a step that does not repeat has its mean time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import InputError
from foretrace.engine.order import find_order, sort_by
from foretrace.program.columns import Kind
from foretrace.program.graph import Graph
from foretrace.program.program import Communicator

STEPS = 3
"""How many steps are walked through where steps repeat: by then what one leaves uncertain for the next has settled."""

Normal = tuple[float, float]
"""Mean and variance."""


def check_jitter(jitter: float) -> float:
    """Returns the jitter if it is valid: a share of each computation's time, from 0 to 1."""
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise InputError("out-of-range", f"jitter is {jitter!r}", hint="expected a share from 0 to 1: 0.03 is 3 %")
    return float(jitter)


@lru_cache(maxsize=256)
def largest_of(count: int) -> Normal:
    """Returns the mean and variance of the largest of `count` standard normals."""
    if count <= 1:
        return 0.0, 1.0
    x, density, log_below = _normal_table()
    weight = density * np.exp((count - 1) * log_below)
    weight /= weight.sum()
    mean = float(weight @ x)
    return mean, float(weight @ (x - mean) ** 2)


@lru_cache(maxsize=1)
def _normal_table() -> tuple[Floats, Floats, Floats]:
    """Returns points, the normal density there, and the logarithm of the probability to lie below."""
    x = np.linspace(-10.0, 12.0, 8801)
    tail = np.array([math.erfc(abs(deviation) / math.sqrt(2)) / 2 for deviation in x.tolist()])
    return x, np.exp(-(x**2) / 2), np.where(x < 0, np.log(tail), np.log1p(-tail))


def later_of(normal: Normal, other: Normal) -> tuple[Normal, float]:
    """Returns the maximum of two independent normals as a normal (Clark), and the probability that it is the first."""
    spread = math.sqrt(normal[1] + other[1])
    if spread == 0.0:
        return (normal, 1.0) if normal[0] >= other[0] else (other, 0.0)
    apart = (normal[0] - other[0]) / spread
    first = math.erfc(-apart / math.sqrt(2)) / 2
    density = math.exp(-apart * apart / 2) / math.sqrt(2 * math.pi)
    # Counted from the later mean, so that nothing is lost where times are long and spreads short.
    base = max(normal[0], other[0])
    a, b = normal[0] - base, other[0] - base
    mean = a * first + b * (1 - first) + spread * density
    square = (a * a + normal[1]) * first + (b * b + other[1]) * (1 - first) + (a + b) * spread * density
    return (base + max(mean, 0.0), max(square - mean * mean, 0.0)), first


class Waits:
    """The expected waits of a folded graph: worked out once for its structure, then for any durations."""

    def __init__(self, graph: Graph, jitter: float) -> None:
        self.graph = graph
        self.jitter = jitter
        self.computes: list[bool] = (graph.ops.ints("kind")[graph.op] == Kind.COMPUTE).tolist()
        level = find_order(graph, False).level[graph.unit]
        members, start = sort_by(graph.unit, graph.units, False)
        by_level = np.argsort(level[members[start[:-1]]], kind="stable")
        self.units = [members[start[unit] : start[unit + 1]].tolist() for unit in by_level.tolist()]
        self.owner: list[int] = graph.rank_class.tolist()
        self.preds: list[list[int]] = [
            graph.pred[low:high].tolist()
            for low, high in zip(graph.pred_start[:-1].tolist(), graph.pred_start[1:].tolist(), strict=True)
        ]
        self.earlier: list[list[int]] = [[] for _ in self.preds]
        for source, target in zip(graph.next_src.tolist(), graph.next_dst.tolist(), strict=True):
            self.earlier[target].append(source)
        self._find_groups()
        self._find_sent()

    def _find_groups(self) -> None:
        """Finds the group that each node meets (-1: nobody) and how many ranks of its class are in it.

        Also finds, for each class, the places of its groups among what it keeps.
        """
        graph, program, classes = self.graph, self.graph.program, self.graph.classes
        numbers: dict[object, int] = {}
        group_of: list[int] = []
        self.place: list[dict[int, int]] = [{} for _ in range(len(classes))]
        self.pairs: set[int] = set()
        kin = np.ones((len(program.communicators) + 1, len(classes)), dtype=np.int64)
        for number, communicator in enumerate(program.communicators):
            # Every channel between two stages brings the same ranks together.
            ranks = (
                communicator.groups
                if communicator.groups is not None
                else (communicator.axes, communicator.pair and tuple(sorted(communicator.pair)))
            )
            group_of.append(numbers.setdefault(ranks, len(numbers)))
            if communicator.pair is not None:
                self.pairs.add(group_of[-1])
            for owner, count in _kin(graph, communicator).items():
                kin[number, owner] = count
                self.place[owner].setdefault(group_of[-1], len(self.place[owner]))
        number_of_node = np.where(graph.ops.order >= 0, graph.ops.ints("communicator"), -1)[graph.op]
        groups = np.array([*group_of, -1])[number_of_node].tolist()
        self.group = [
            group if group in self.place[owner] else -1 for group, owner in zip(groups, self.owner, strict=True)
        ]
        self.kin: list[int] = kin[number_of_node, self.owner].tolist()

    def _find_sent(self) -> None:
        """Finds, for each node, the pairs to which a message goes out after it that nothing computed here waits for."""
        self.sent: list[set[int]] = [set() for _ in self.group]
        held_up = {pred for node, preds in enumerate(self.preds) if self.computes[node] for pred in preds}
        for node, group in enumerate(self.group):
            if group in self.pairs and node not in held_up:
                for before in self.preds[node]:
                    if self.group[before] != group:
                        self.sent[before].add(group)

    def of(self, elapsed_s: Floats, computing_s: Floats) -> Floats:
        """Returns what each node waits on average beyond the last mean arrival, in seconds.

        Nodes run for `elapsed_s` from their start, and those that compute take `computing_s` by themselves.
        """
        walk = _Walk(self, elapsed_s, computing_s)
        for _ in range(STEPS if self.graph.program.repeats else 1):
            walk.step()
        return np.array(walk.extra)


def _kin(graph: Graph, communicator: Communicator) -> dict[int, int]:
    """Returns, for each class that meets others on a communicator, how many of its own ranks are in its group."""
    program, classes = graph.program, graph.classes
    group = communicator.group_of(program.mesh, program.world).astype(np.int64)
    inside = np.flatnonzero(group >= 0)
    size = np.bincount(group[inside])
    kin = np.bincount(group[inside] * len(classes) + classes.of_rank[inside], minlength=len(size) * len(classes))
    kin_of = {}
    for owner, rank in enumerate(classes.representative.tolist()):
        if group[rank] >= 0 and size[group[rank]] > 1:
            kin_of[owner] = int(kin[group[rank] * len(classes) + owner])
    return kin_of


class _Walk:
    """Walks over the units of one step after the other, in an order in which they can start.

    `end[node]` is the mean time at which a node ends; `spread[node]`, for every group of its rank, the variance of that
    since the group last met; `fresh[node]` what of it a meeting brought along; `reach[node]` the last computation that
    a communication waits for.
    """

    def __init__(self, waits: Waits, elapsed_s: Floats, computing_s: Floats) -> None:
        self.waits = waits
        self.elapsed: list[float] = elapsed_s.tolist()
        adds = np.where(waits.computes, (waits.jitter * computing_s) ** 2, 0.0)
        self.adds: list[float] = adds.tolist()
        self.added: list[float] = np.cumsum(adds).tolist()
        nodes = len(self.elapsed)
        self.end: list[float] = [0.0] * nodes
        self.end_before: list[float] = [-math.inf] * nodes
        self.spread: list[list[float]] = [[]] * nodes
        self.spread_before = self.spread
        self.fresh: list[float] = [0.0] * nodes
        self.extra: list[float] = [0.0] * nodes
        self.reach: list[int] = [-1] * nodes

    def step(self) -> None:
        """Walks through one more step."""
        waits = self.waits
        for unit in waits.units:
            if waits.group[unit[0]] >= 0:
                self._meet(unit)
            else:
                for node in unit:
                    self._alone(node)
        self.end_before, self.spread_before = self.end[:], self.spread[:]

    def _arriving(self, node: int) -> tuple[float, list[float]]:
        """Returns when a node is ready on its own rank, on average, and the uncertainty of that."""
        ready, last, spreads = 0.0, -1, self.spread
        for pred in self.waits.preds[node]:
            if self.end[pred] >= ready:
                ready, last = self.end[pred], pred
        for source in self.waits.earlier[node]:
            if self.end_before[source] > ready:
                ready, last, spreads = self.end_before[source], source, self.spread_before
        if last < 0:
            return ready, [0.0] * len(self.waits.place[self.waits.owner[node]])
        return ready, self._past(last, node, spreads)

    def _past(self, last: int, node: int, spreads: list[list[float]]) -> list[float]:
        """Returns the uncertainty of the end of an op, to one that follows it.

        If a message went out in between, how far apart sender and receiver are counts from there.
        """
        sent = self.waits.sent[last]
        if not sent or self.waits.group[node] in sent:
            return spreads[last]
        place = self.waits.place[self.waits.owner[last]]
        past = spreads[last][:]
        for group in sent:
            past[place[group]] = 0.0
        return past

    def _alone(self, node: int) -> None:
        waits = self.waits
        ready, spread = self._arriving(node)
        if waits.computes[node]:
            if len(waits.preds[node]) > 1:
                spread = self._join(node, spread)
            add = self.adds[node]
            spread = [variance + add for variance in spread]
        else:
            self._note_reach(node)
        self.spread[node] = spread
        self.end[node] = ready + self.extra[node] + self.elapsed[node]

    def _note_reach(self, node: int) -> None:
        computes, reach = self.waits.computes, self.reach
        self.reach[node] = max((pred if computes[pred] else reach[pred] for pred in self.waits.preds[node]), default=-1)

    def _join(self, node: int, spread: list[float]) -> list[float]:
        """Returns the uncertainty of a computation that waits for a meeting and for the computation before it.

        It starts with the later of the two, where the meeting did not wait for that computation.
        """
        waits, end = self.waits, self.end
        own = max((pred for pred in waits.preds[node] if waits.computes[pred]), default=-1, key=end.__getitem__)
        meetings = [pred for pred in waits.preds[node] if waits.group[pred] >= 0 and self.reach[pred] < own]
        if own < 0 or not meetings:
            return spread
        come = max(meetings, key=end.__getitem__)
        place = waits.place[waits.owner[node]][waits.group[come]]
        # What was computed before the meeting was called holds up both.
        alone = self.added[own] - (self.added[self.reach[come]] if self.reach[come] >= 0 else 0.0)
        if alone <= 0:
            return spread
        ours = self._past(own, node, self.spread)
        apart = end[come] - end[own]
        (later, _), theirs = later_of((apart, self.fresh[come] + min(ours[place], alone)), (0.0, 0.0))
        self.extra[node] = later - max(apart, 0.0)
        # As far as the meeting decides, what it brings takes the place of what the rank had gathered meanwhile.
        after = ours[:]
        for group, at in waits.place[waits.owner[node]].items():
            brings = self.spread[come][at] - ours[at]
            if group in waits.pairs:
                brings = self.fresh[come] - min(ours[place], ours[at])
            after[at] = 0.0 if at == place else max(ours[at] + theirs * brings, 0.0)
        return after

    def _arrival(self, node: int, group: int) -> tuple[float, list[float]]:
        """Returns when a member of a group comes, and the uncertainty of that.

        It is given by what the member did apart from the group, where it did anything.
        """
        apart = [pred for pred in self.waits.preds[node] if self.waits.group[pred] != group]
        if not apart:
            return self._arriving(node)
        own = max(apart, key=self.end.__getitem__)
        return self.end[own], self._past(own, node, self.spread)

    def _queued(self, node: int, group: int) -> float:
        """Returns when the group's earlier calls have ended."""
        waits = self.waits
        ends = [self.end[pred] for pred in waits.preds[node] if waits.group[pred] == group]
        before = [self.end_before[source] for source in waits.earlier[node] if waits.group[source] == group]
        return max([*ends, *before, 0.0])

    def _meet(self, unit: Sequence[int]) -> None:
        """Runs a rendezvous: finds when the last member comes, and the variance each keeps for its other groups."""
        waits, group = self.waits, self.waits.group[unit[0]]
        members: list[_Member] = []
        for node in unit:
            came, spread = self._arrival(node, group)
            place = waits.place[waits.owner[node]]
            members.append(_Member(came, spread, place, spread[place[group]], *largest_of(waits.kin[node])))
        latest, share = _last_of(members)
        if len(unit) == 1:  # what the group did before, all together, may have taken longer than any of them
            latest, _ = later_of(latest, (self._queued(unit[0], group), 0.0))
        kept = sum(part * member.shrinks * member.gathered for part, member in zip(share, members, strict=True))
        calmer = min(latest[1] / kept, 1.0) if kept > 0 else 1.0
        start = max(self._arriving(node)[0] for node in unit)
        extra = max(latest[0] - start, 0.0)
        for node, member in zip(unit, members, strict=True):
            self.extra[node], self.fresh[node] = extra, latest[1]
            self.end[node] = start + extra + self.elapsed[node]
            self.spread[node] = [
                0.0 if other == group else _left(member, other, members, share, calmer) for other in member.place
            ]
            self._note_reach(node)


@dataclass(frozen=True, slots=True)
class _Member:
    """The ranks of one class at a meeting: when they come on average, what is uncertain about that for each of their
    groups (by `place`), how much of it they `gathered` since this group last met, and mean and variance of the largest
    of as many standard normals."""

    came: float
    spread: list[float]
    place: dict[int, int]
    gathered: float
    lags: float
    shrinks: float


def _last_of(members: list[_Member]) -> tuple[Normal, list[float]]:
    """Returns when the last rank of all comes, and the probability for each member that it is one of its ranks."""
    latest: Normal = (-math.inf, 0.0)
    share: list[float] = []
    for member in members:
        mine = (member.came + member.lags * math.sqrt(member.gathered), member.shrinks * member.gathered)
        latest, before = later_of(latest, mine) if share else (mine, 0.0)
        share = [*(before * part for part in share), 1 - before]
    return latest, share


def _left(member: _Member, other: int, members: list[_Member], share: list[float], calmer: float) -> float:
    """Returns the uncertainty that a meeting leaves for a member towards another of its groups.

    What the last to come gathered since this group last met leaves only the variance of a maximum; what is older stays
    in full.
    """
    at = member.place[other]
    left = 0.0
    for part, last in zip(share, members, strict=True):
        since, older = last.gathered, max(member.spread[at] - member.gathered, 0.0)
        if other in last.place:
            known = last.spread[last.place[other]]
            since, older = min(known, since), max(known - since, 0.0)
        left += part * (older + calmer * last.shrinks * since)
    return left
