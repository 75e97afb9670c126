"""Divides the time of a step into parts that sum to the step.

Every instant of every rank goes to the first that applies: its compute lanes are busy; it waits for a transfer of its
own (exposed, by axis); it waits for a late partner (a bubble across pipeline stages, else imbalance); it waits for
the host; it is idle. The chain of ops that led to the op at the end of a gap tells what the rank waited for: while that
chain runs through a transfer this rank takes part in, the transfer is exposed; while it runs elsewhere, a partner is
late. So a transfer that merely happens to run during a bubble is not called exposed.

`breakdown` adds the parts up; `stretches` returns when each of them was, for pictures of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask, distinct
from foretrace.program.columns import Kind, Phase, label
from foretrace.program.timeline import Timeline
from foretrace.readings.chain import Chain

COMPUTE_PARTS = ("compute", "recompute", "optimizer")
EXPOSED = " exposed"
"""How the name of a part ends in which a rank waits for a transfer of its own; it begins with the axis."""
IMBALANCE, STRAGGLER = "imbalance", "straggler"
"""Names of the part in which a rank waits for a late rank of its own stage. Ranks of a plan differ without any of them
being slow: in what they compute, or in how far their data travel. A late rank is called a straggler only where one was
made slow, or was recorded."""
_PART_OF_PHASE = {Phase.RECOMPUTE: "recompute", Phase.OPTIMIZER: "optimizer"}
"""The part that compute of a phase counts as, where it is not plain compute."""
LATE_PARTS = ("bubble", IMBALANCE, STRAGGLER)
"""The parts in which a rank waits for a late partner."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a step by part, per rank class: [classes, parts]."""

    parts: tuple[str, ...]
    per_class_s: Floats
    mean_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Stretches:
    """When some rank classes were in which part of the breakdown: `owner` and `part` number `classes` and `parts`.

    The stretches of a class do not overlap and fill its step. Compute is split by phase. Where steps repeat, a
    stretch may begin before the step or end after it: it then belongs to the end or the start of every step.
    """

    classes: tuple[int, ...]
    parts: tuple[str, ...]
    owner: Longs
    part: Longs
    low_s: Floats
    high_s: Floats


def breakdown(timeline: Timeline, chain: Chain | None = None, late: str = IMBALANCE) -> Breakdown:
    """Returns the parts of a timeline's step; the mean is over ranks and leaves out parts that take no time.

    `late` names the wait for late ranks of the own stage: `IMBALANCE` or `STRAGGLER`.
    """
    parts = parts_of(timeline, late)
    chain = chain or Chain(timeline)
    seconds = count_seconds(timeline, chain, part_labels(timeline, chain, parts))
    mean = mean_over_ranks(timeline, seconds)
    rounding = 1e-12 * timeline.step_time_s
    return Breakdown(parts, seconds, {part: float(s) for part, s in zip(parts, mean, strict=True) if s > rounding})


def stretches(timeline: Timeline, classes: tuple[int, ...], chain: Chain | None = None) -> Stretches:
    """Returns when each of some rank classes was in which part of the breakdown."""
    phases = [label(phase) for phase in Phase]
    parts = (*phases, *parts_of(timeline)[len(COMPUTE_PARTS) :])
    chain = chain or Chain(timeline)
    rows: list[tuple[Longs, Longs, Floats, Floats]] = []
    labels = part_labels(timeline, chain, parts, phases)
    _Attribution(timeline, chain, labels, lambda *row: rows.append(row)).run(classes)
    owner, part, low, high = (np.concatenate(column) for column in zip(*rows, strict=True))
    place = np.zeros(len(timeline.graph.classes), dtype=np.int64)
    place[list(classes)] = np.arange(len(classes))
    return Stretches(classes, parts, place[owner], part, low, high)


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels to which the time of a step is given, as numbers below `count`.

    `runs` is the label of each node while it runs, `late` the one while its partner is late, `idle` that of the rest.
    `between_stages` says which nodes wait for partners of other pipeline stages.
    """

    count: int
    runs: Longs
    late: Longs
    idle: int
    between_stages: Mask


def parts_of(timeline: Timeline, late: str = IMBALANCE) -> tuple[str, ...]:
    """Returns the parts that a timeline's step may have."""
    axes = dict.fromkeys(communicator.axis for communicator in timeline.graph.program.communicators)
    return (*COMPUTE_PARTS, *(f"{axis}{EXPOSED}" for axis in axes), "bubble", late, "host", "idle")


def part_labels(
    timeline: Timeline, chain: Chain, parts: tuple[str, ...], phases: Sequence[str] | None = None
) -> Labels:
    """Returns the parts that running nodes and late partners count as.

    Args:
        timeline: The step.
        chain: What each node of it waited for.
        parts: The names of the parts.
        phases: The part that compute of each phase counts as; None for those of the breakdown.
    """
    graph, part = timeline.graph, parts.index
    phase, communicator = graph.ops.ints("phase")[graph.op], graph.ops.ints("communicator")[graph.op]
    axes = [communicator.axis for communicator in graph.program.communicators]
    idle, bubble = part("idle"), part("bubble")
    exposed = np.array([*(part(f"{axis}{EXPOSED}") for axis in axes), idle])
    late = np.array([*(bubble if axis == "pp" else bubble + 1 for axis in axes), idle])
    of_phase = phases or [_PART_OF_PHASE.get(each, "compute") for each in Phase]
    compute = np.array([part(name) for name in of_phase])
    runs = np.where(chain.kind == Kind.COMPUTE, compute[phase], exposed[communicator])
    runs = np.where(chain.kind == Kind.HOST, part("host"), runs)
    return Labels(len(parts), runs, late[communicator], idle, late[communicator] == bubble)


def count_seconds(timeline: Timeline, chain: Chain, labels: Labels) -> Floats:
    """Gives every instant of every rank to a label: seconds by rank class and label, which sum to the step."""
    seconds = np.zeros((len(timeline.graph.classes), labels.count))

    def add(owner: Longs, part: Longs, low: Floats, high: Floats) -> None:
        np.add.at(seconds, (owner, part), high - low)

    _Attribution(timeline, chain, labels, add).run(range(len(timeline.graph.classes)))
    return seconds


def mean_over_ranks(timeline: Timeline, seconds: Floats) -> Floats:
    """Returns the mean over ranks of seconds by rank class."""
    count = timeline.graph.classes.count
    return np.asarray(count @ seconds / max(int(count.sum()), 1))


@dataclass(slots=True)
class _Gaps:
    """Stretches in which a class computes nothing, and where the walk back through each stands: on an op that ran
    `moved` seconds before its place on the timeline, at time `at`, and what counts while it is among other ranks."""

    owner: Longs
    node: Longs
    low: Floats
    at: Floats
    moved: Floats
    away: Longs

    @classmethod
    def all_of(cls, parts: list[_Gaps]) -> _Gaps:
        """Joins several sets of gaps, one at least."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def keep(self, which: Longs) -> _Gaps:
        """Returns some of the gaps."""
        return _Gaps(*(getattr(self, field.name)[which] for field in fields(self)))


class _Attribution:
    """Gives every stretch of a class's step to a label, in calls of `add(owner, label, low_s, high_s)`."""

    def __init__(
        self, timeline: Timeline, chain: Chain, labels: Labels, add: Callable[[Longs, Longs, Floats, Floats], None]
    ) -> None:
        graph = timeline.graph
        self.timeline, self.chain, self.labels, self.add = timeline, chain, labels, add
        self.rank_class = graph.rank_class.astype(np.int64)
        self.runs, self.late, self.idle = labels.runs, labels.late, labels.idle
        meets = np.flatnonzero(graph.unit < graph.rendezvous)
        self.meetings = distinct(graph.unit[meets] * np.int64(len(graph.classes)) + self.rank_class[meets])
        self.earliest = self._earliest()

    def run(self, classes: Iterable[int]) -> None:
        """Attributes the step of each of some classes."""
        self._explain(_Gaps.all_of([self._count_compute(number) for number in classes]))

    def _earliest(self) -> Longs:
        """Returns, for each node, how far back the walk leads over ops of its rank that no other rank takes part in.

        A rank that waits for them from afar need not tell them apart.
        """
        graph, chain = self.timeline.graph, self.chain
        members = np.bincount(graph.unit, minlength=graph.units)[graph.unit]
        nodes = np.arange(len(graph))
        goes_on = (chain.latest == nodes) & (chain.back == 0) & (chain.last >= 0) & (members[chain.last] == 1)
        earliest = np.where(goes_on, chain.last, nodes)
        while True:
            further = earliest[earliest]
            if (further == earliest).all():
                return earliest
            earliest = further

    def _count_compute(self, number: int) -> _Gaps:
        """Counts a class's compute, and returns the gaps between, each with the op that ends it."""
        timeline, graph = self.timeline, self.timeline.graph
        first, last = int(graph.start[number]), int(graph.start[number + 1])
        if first == last:
            self.add(np.array([number]), np.array([self.idle]), np.zeros(1), np.array([timeline.step_time_s]))
        start, end = timeline.start_s[first:last], timeline.end_s[first:last]
        busy = np.flatnonzero((self.chain.kind[first:last] == Kind.COMPUTE) & (end > start))
        # Where steps repeat, what runs past the end of its step is seen in a later one.
        wraps = graph.program.repeats and len(busy) > 0 and timeline.step_time_s > 0
        moved = np.floor(start / timeline.step_time_s) * timeline.step_time_s if wraps else np.zeros(last - first)
        busy = busy[np.argsort(start[busy] - moved[busy], kind="stable")]
        begins, ends = start[busy] - moved[busy], end[busy] - moved[busy]
        before = float(ends.max()) - timeline.step_time_s if wraps else 0.0
        until = np.maximum.accumulate(np.concatenate([[before], ends]))
        counted = np.maximum(begins, until[:-1])
        owner = np.full(len(busy), number)
        self.add(owner, self.runs[first + busy], counted, np.maximum(ends, counted))
        gap = np.flatnonzero(begins > until[:-1])
        node, low, high, moved = first + busy[gap], until[gap], begins[gap], moved[busy[gap]]
        if not wraps and timeline.step_time_s > until[-1] and last > first:
            # No computation ends the rest of the step: after the rank's last op it is idle.
            node = np.append(node, first + int(np.argmax(end)))
            low, high, moved = np.append(low, until[-1]), np.append(high, timeline.step_time_s), np.append(moved, 0.0)
        return _Gaps(np.full(len(node), number), node, low, high, moved, np.full(len(node), -1))

    def _explain(self, gaps: _Gaps) -> None:
        """Walks back from the op at the end of each gap and gives every stretch of the gap to a part."""
        timeline, chain = self.timeline, self.chain
        # If the gap ends in a compute op, nothing is left to attribute. Otherwise the op's own duration comes first.
        self._give(gaps, np.full(len(gaps.owner), self.idle), timeline.end_s[gaps.node] - gaps.moved)
        self._give(gaps, self.runs[gaps.node], timeline.start_s[gaps.node] - gaps.moved)
        while True:
            gaps = gaps.keep(np.flatnonzero(gaps.at > gaps.low))
            if not len(gaps.owner) or timeline.step_time_s <= 0:
                return
            self._cross(gaps)
            before = chain.last[gaps.node]
            gaps.moved += chain.back[gaps.node] * timeline.step_time_s
            rest = np.where(gaps.away >= 0, gaps.away, self.idle)
            gaps.node = np.maximum(before, 0)
            end = np.where(before >= 0, timeline.end_s[gaps.node] - gaps.moved, gaps.low)
            self._give(gaps, rest, end)
            here = self.rank_class[gaps.node] == gaps.owner
            gaps.away[here] = -1
            runs = np.where(self._takes_part(gaps) | here, self.runs[gaps.node], rest)
            self._give(gaps, runs, timeline.start_s[gaps.node] - gaps.moved)
            gaps.node = np.where(gaps.away >= 0, self.earliest[gaps.node], gaps.node)
            self._give(gaps, rest, timeline.start_s[gaps.node] - gaps.moved)

    def _cross(self, gaps: _Gaps) -> None:
        """Moves from an op to the member of its rendezvous that came last; off its rank, a partner is late."""
        latest = self.chain.latest[gaps.node]
        # A partner that is late because it waits for another stage is itself in a bubble, and so is who waits for it.
        leaves = (latest != gaps.node) & ((gaps.away < 0) | self.labels.between_stages[gaps.node])
        gaps.away[leaves] = self.late[gaps.node[leaves]]
        gaps.node = latest
        gaps.away[self.rank_class[latest] == gaps.owner] = -1

    def _takes_part(self, gaps: _Gaps) -> Mask:
        """Returns whether the gap's own rank is a member of the rendezvous the walk has come to."""
        graph = self.timeline.graph
        key = graph.unit[gaps.node] * np.int64(len(graph.classes)) + gaps.owner
        place = np.minimum(np.searchsorted(self.meetings, key), max(len(self.meetings) - 1, 0))
        if not len(self.meetings):
            return np.zeros(len(key), dtype=bool)
        return np.asarray(self.meetings[place] == key)

    def _give(self, gaps: _Gaps, part: Longs, until: Floats) -> None:
        """Gives the stretch down to `until`, or to the start of the gap, to a part."""
        reach = np.clip(until, gaps.low, gaps.at)
        self.add(gaps.owner, part, reach, gaps.at)
        gaps.at = reach
