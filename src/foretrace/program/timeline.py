"""Defines the timeline: when every op of a program was ready, started and ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arguments import checked_methods
from foretrace.basics.arrays import Floats, Ints, Mask, ranges
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.program.graph import Graph


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """The ops of one rank in the order of issue: name, lane, microbatch (-1: none), and times in seconds."""

    name: list[str]
    lane: list[str]
    microbatch: Ints
    ready_s: Floats
    start_s: Floats
    end_s: Floats


@checked_methods
@dataclass(frozen=True, slots=True, repr=False)
class Timeline:
    """One step, in seconds from the start of its first op, for every node of the graph.

    `ready_s` is when the op had what it needed on its own rank; from then to `start_s` it waited for partners, and
    from `start_s` to `end_s` it ran. `step_time_s` is the steady period where the program repeats, otherwise the
    makespan. Where steps repeat, an op posted while the step before still ran has a `ready_s` below zero, and
    `end_before_s` is when the same op of the step before ended. `steps_run` is how many steps the engine ran, 0 where
    the times were recorded; `origin_s` is then when the first op started on the clock of the recording.
    """

    graph: Graph
    ready_s: Floats
    start_s: Floats
    end_s: Floats
    end_before_s: Floats
    step_time_s: float
    steps_run: int
    diagnostics: tuple[Diagnostic, ...] = ()
    origin_s: float = 0.0

    def __repr__(self) -> str:
        classes = len(self.graph.classes)
        return f"<Timeline: step {self.step_time_s:.6g} s, {len(self.graph):,} ops of {classes:,} rank classes>"

    def rank(self, rank: int) -> RankTimeline:
        """Returns the ops of one rank."""
        graph = self.graph
        if not 0 <= rank < graph.program.world:
            raise InputError(
                "no-such-rank", f"there is no rank {rank}; the job has ranks 0 to {graph.program.world - 1}"
            )
        owner = graph.classes.of_rank[rank]
        nodes = slice(int(graph.start[owner]), int(graph.start[owner + 1]))
        op = graph.op[nodes]
        strings, lanes = graph.program.strings, graph.program.lanes
        return RankTimeline(
            [strings[i] for i in graph.ops.ints("name")[op].tolist()],
            [lanes[i].name for i in graph.ops.ints("lane")[op].tolist()],
            graph.ops.microbatch[op],
            self.ready_s[nodes],
            self.start_s[nodes],
            self.end_s[nodes],
        )

    @property
    def recorded(self) -> bool:
        """Whether the times were recorded; otherwise the engine found them."""
        return self.steps_run == 0

    @property
    def on_device(self) -> Mask:
        """Whether each op runs on a device: not on a lane of the host."""
        of_host = np.array([lane.kind == "host" for lane in self.graph.program.lanes], dtype=bool)
        return np.asarray(~of_host[self.graph.ops.ints("lane")[self.graph.op]])

    @property
    def device_begins_s(self) -> float:
        """When the first op of a device starts; zero where steps do not repeat.

        Where they do, a host that runs ahead begins its step long before the device does.
        """
        on_device = self.on_device
        return float(self.start_s[on_device].min()) if self.graph.program.repeats and on_device.any() else 0.0

    @property
    def makespan_s(self) -> float:
        """From the start of the first op to the end of the last."""
        return float(self.end_s.max()) if len(self.end_s) else 0.0

    @property
    def wait_s(self) -> Floats:
        """How long each op waited for the last of its partners."""
        return self.start_s - self.ready_s


def ready_times(graph: Graph, start: Floats, end: Floats, end_before: Floats | None) -> Floats:
    """When each node had what it needed on its own rank, given the ends of this step and of the one before.

    An op that meets no other starts when it is ready. One that does and waits for nothing was ready all along in the
    first step, and when it started in a later one.
    """
    ready = start.copy()
    several = np.bincount(graph.unit, minlength=graph.units) > 1
    meets = np.flatnonzero(several[graph.unit])
    if not len(meets):
        return ready
    counts = graph.pred_start[meets + 1] - graph.pred_start[meets]
    ended = end[graph.pred[ranges(graph.pred_start[meets], counts)]]
    latest = np.full(len(meets), -np.inf)
    waiting = np.flatnonzero(counts)
    if len(waiting):
        latest[waiting] = np.maximum.reduceat(ended, (np.cumsum(counts) - counts)[waiting])
    ready[meets] = latest
    if end_before is not None:
        later = np.flatnonzero(several[graph.unit[graph.next_dst]])
        np.maximum.at(ready, graph.next_dst[later], end_before[graph.next_src[later]])
    free = meets[np.isinf(ready[meets])]
    ready[free] = start[free] if end_before is not None else 0.0
    return ready
