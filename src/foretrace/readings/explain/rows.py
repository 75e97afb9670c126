"""A run as columns, one row for each op that happens, and what waiting cost each rank.

An op may wait for a partner while its rank computes something else: a receive that is posted early costs nothing. So
next to the wait of every op (from ready to start) stands how long it *held its rank up*: the part of the wait in which
nothing ran on the lanes the rank computes on and no other of its waits was to end sooner. The time that a rank is held
up never exceeds the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.program.columns import Collective, Kind
from foretrace.program.expand import Ops
from foretrace.program.graph import Graph
from foretrace.program.timeline import Timeline
from foretrace.readings.answer.answer import Answer
from foretrace.readings.chain import Chain

ACROSS_STAGES = ("pp", "embd")
"""Axes whose groups hold ranks of several pipeline stages: whoever waits on them waits for another stage."""

ROUNDING = 1e-6
"""A wait of a smaller share of the step than this is no wait."""


@dataclass(frozen=True, slots=True)
class OpPlace:
    """The place of an op: rank, pipeline stage, name, block, microbatch and layer (None: of none).

    `rank` is the first of `identical` ranks that behave identically.
    """

    rank: int
    identical: int
    stage: int
    op: str
    block: str
    microbatch: int | None
    layer: int | None


@dataclass(frozen=True, slots=True)
class OpRows:
    """The ops that happen, class by class in the order of issue.

    `ranks` is how many ranks a row stands for. `last` is the row of the member of its rendezvous that came last, itself
    where it waited for nobody; `before` the row of the op of its own rank that it waited for last, -1 for none.
    """

    graph: Graph
    step_s: float
    node: Longs
    owner: Longs
    ranks: Floats
    kind: Longs
    phase: Longs
    collective: Longs
    communicator: Longs
    microbatch: Longs
    layer: Longs
    bytes: Longs
    unit: Longs
    start_s: Floats
    running_s: Floats
    wait_s: Floats
    held_s: Floats
    last: Longs
    before: Longs

    @classmethod
    def of(cls, simulation: Answer) -> OpRows:
        """Returns the rows of a run."""
        timeline = simulation.timeline
        graph, ops = timeline.graph, timeline.graph.ops
        node = np.flatnonzero(ops.column("enabled")[graph.op])
        op = graph.op[node]
        row_of = np.full(len(graph) + 1, -1, dtype=np.int64)
        row_of[node] = np.arange(len(node))
        chain = Chain(timeline)
        owner, kind = graph.rank_class[node].astype(np.int64), ops.ints("kind")[op]
        # A partner waited for since the step before counts for this step only once.
        meets = ops.ints("communicator")[op] >= 0
        wait = np.where(meets, np.clip(timeline.wait_s[node], 0.0, timeline.step_time_s), 0.0)
        start, end = timeline.start_s[node], timeline.end_s[node]
        lane = ops.ints("lane")[op]
        # Gaps that a recording has on a stream are ops, but nothing runs in them.
        busies = np.isin(lane, lane[kind == Kind.COMPUTE]) & (kind != Kind.HOST)
        return cls(
            graph=graph,
            step_s=timeline.step_time_s,
            node=node,
            owner=owner,
            ranks=graph.classes.count[owner].astype(np.float64),
            kind=kind,
            phase=ops.ints("phase")[op],
            collective=ops.ints("collective")[op],
            communicator=ops.ints("communicator")[op],
            microbatch=ops.microbatch[op].astype(np.int64),
            layer=ops.ints("layer")[op],
            bytes=_bytes(ops)[op],
            unit=graph.unit[node].astype(np.int64),
            start_s=start,
            running_s=end - start,
            wait_s=wait,
            held_s=_held(timeline, owner, busies, start, end, wait),
            last=row_of[chain.latest[node]],
            before=row_of[chain.last[node]],
        )

    @property
    def world(self) -> int:
        """How many ranks the job has."""
        return self.graph.program.world

    @property
    def stage_of_class(self) -> Longs:
        """The pipeline stage of each rank class, by the rank that stands for it."""
        return np.asarray(self.graph.program.mesh.coordinate("pp")[self.graph.classes.representative], dtype=np.int64)

    @property
    def axis(self) -> NDArray[np.str_]:
        """The axis each row communicates over, empty where it does not."""
        names = np.array([*(communicator.axis for communicator in self.graph.program.communicators), ""])
        return np.asarray(names[self.communicator])

    @property
    def members(self) -> Floats:
        """The number of ranks in each row's unit; in a folded graph, in all identical units together."""
        return np.asarray(np.bincount(self.unit, weights=self.ranks, minlength=self.graph.units)[self.unit])

    def mean_over_ranks(self, seconds: Floats, which: NDArray[np.generic] | slice = slice(None)) -> float:
        """Returns the seconds of some rows as a mean over all ranks of the job."""
        return float((seconds * self.ranks)[which].sum()) / max(self.world, 1)

    def place(self, row: int) -> OpPlace:
        """Returns the place of a row's op."""
        program, ops = self.graph.program, self.graph.ops
        op, owner = int(self.graph.op[self.node[row]]), int(self.owner[row])
        template = int(ops.template[op])
        block = int(program.instances.block[ops.instance[op]])
        microbatch, layer = int(self.microbatch[row]), int(self.layer[row])
        return OpPlace(
            rank=int(self.graph.classes.representative[owner]),
            identical=int(self.graph.classes.count[owner]),
            stage=int(self.stage_of_class[owner]),
            op=program.strings[int(program.templates.columns["name"][template])],
            block=program.blocks[block].name,
            microbatch=None if microbatch < 0 else microbatch,
            layer=None if layer < 0 else layer,
        )


def weighted_median(values: Floats, weights: Floats) -> float:
    """Returns the median of values that count `weights` times each; 0 if there are none.

    For an even number it is the mean of the middle two.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or reached[-1] <= 0:
        return 0.0
    half = reached[-1] / 2
    low, high = (int(np.searchsorted(reached, half, side=side)) for side in ("left", "right"))
    return float((values[order[low]] + values[order[min(high, len(order) - 1)]]) / 2)


def _bytes(ops: Ops) -> Longs:
    """Returns the bytes of each op: what a rank gives to an all-to-all whose parts are known, otherwise what is
    written."""
    templates = ops.program.templates
    kinds = len(templates.columns["kind"])
    given = np.zeros(kinds, dtype=np.int64)
    np.add.at(given, templates.send_op, templates.send_bytes)
    known = np.bincount(templates.send_op, minlength=kinds) > 0
    uneven = known[ops.template] & (ops.ints("collective") == Collective.ALL_TO_ALL)
    return np.where(uneven, given[ops.template], ops.ints("bytes"))


def _held(timeline: Timeline, owner: Longs, busies: Mask, start: Floats, end: Floats, wait: Floats) -> Floats:
    """Returns how long each wait held its rank up, in seconds."""
    held = np.zeros(len(wait))
    period = timeline.step_time_s if timeline.graph.program.repeats and timeline.step_time_s > 0 else None
    edges = np.searchsorted(owner, np.arange(len(timeline.graph.classes) + 1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        waits = low + np.flatnonzero(wait[low:high] > 0)
        if not len(waits):
            continue
        waits = waits[np.argsort(start[waits], kind="stable")]
        until = start[waits]
        # Of several waits at once, time goes to the one that ends first; the last of the step before may reach in.
        sooner = until[-1] - period if period else -np.inf
        since = np.maximum(until - wait[waits], np.concatenate([[sooner], until[:-1]]))
        busy = _Busy.of(start[low:high][busies[low:high]], end[low:high][busies[low:high]], period)
        held[waits] = np.maximum(until - since - (busy.until(until) - busy.until(since)), 0.0)
    return held


@dataclass(frozen=True, slots=True)
class _Busy:
    """How long something was busy up to a moment: a broken line that repeats with the period, if there is one."""

    moment: Floats
    busy: Floats
    period: float | None

    @classmethod
    def of(cls, start: Floats, end: Floats, period: float | None) -> _Busy:
        """Unites intervals, which may overlap."""
        if period is not None:
            length = np.minimum(end - start, period)
            start = start % period
            over = np.flatnonzero(start + length > period)
            end = np.minimum(start + length, period)
            start = np.concatenate([start, np.zeros(len(over))])
            end = np.concatenate([end, (start[over] + length[over]) - period])
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if not len(start):
            return cls(np.zeros(1), np.zeros(1), period)
        reached = np.maximum.accumulate(end)
        begin = np.maximum(start, np.concatenate([[start[0]], reached[:-1]]))
        stop = np.maximum(reached, begin)
        total = np.cumsum(stop - begin)
        moments = np.stack([begin, stop], axis=1).ravel()
        return cls(moments, np.stack([total - (stop - begin), total], axis=1).ravel(), period)

    def until(self, moment: Floats) -> Floats:
        """Returns seconds busy from zero to each moment."""
        if self.period is None:
            return np.asarray(np.interp(moment, self.moment, self.busy))
        return np.asarray(
            np.floor(moment / self.period) * self.busy[-1] + np.interp(moment % self.period, self.moment, self.busy)
        )
