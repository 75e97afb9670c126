"""The critical path: the chain of ops that makes the step as long as it is.

Where steps repeat, the walk back from the end of a step sooner or later comes to an op it has met before, one step or
more later: the cycle between the two is what sets the period, and it is the path given. The path of a single step leads
from its last end back to its first start.

In a recorded step the walk may come to an op that began long after the step before had ended. It ends there, and the
path covers at most the last period of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.program.columns import Kind, Phase, label
from foretrace.program.graph import Graph
from foretrace.readings.chain import Chain

Bound = Literal["compute", "communication", "host", "mixed"]

MAX_GAP: Final = 0.01
"""The largest gap, as a share of the step, between the end of an op of the step before and the start of an op that
waited for it. After a longer gap, the op did not wait for it."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The nodes on the path, in order, and when each ran (before zero: in the step before). A path may lead through
    several steps before it closes: `length_s` is what it takes per step, and `parts_s` divides that by what its ops
    do."""

    node: Longs
    start_s: Floats
    end_s: Floats
    length_s: float
    part: tuple[str, ...]
    """The part of each op: a phase of computation, an axis of communication, or the host."""
    parts_s: dict[str, float]
    bound: Bound
    """The bound of the step: computation, communication or the host, whichever is more than half of the path."""


def critical_path(chain: Chain) -> CriticalPath:
    """Returns the path that sets the step time of the chain's timeline."""
    timeline = chain.timeline
    if not len(timeline.end_s):
        return CriticalPath(np.empty(0, np.int64), np.empty(0), np.empty(0), 0.0, (), {}, "mixed")
    path, spanned = _walk(chain)
    nodes = np.array([node for node, _ in reversed(path)], dtype=np.int64)
    moved = np.array([steps for _, steps in reversed(path)]) * timeline.step_time_s
    shift = float(moved.min())
    start, end = timeline.start_s[nodes] - moved + shift, timeline.end_s[nodes] - moved + shift
    if timeline.recorded and timeline.graph.program.repeats:
        # Recorded steps vary: what a step runs past its end may overlap what comes next on the path.
        end[:-1] = np.minimum(end[:-1], np.minimum.accumulate(start[:0:-1])[::-1])
        begins_s = end[-1] - max(spanned, 1) * timeline.step_time_s
        kept = np.append(end[:-1] > begins_s, True)
        nodes, end = nodes[kept], end[kept]
        start = np.clip(start[kept], begins_s, end)
    lengths = (end - start) / max(spanned, 1)
    part = _parts(chain, nodes)
    seconds: dict[str, float] = {}
    for name, length in zip(part, lengths.tolist(), strict=True):
        seconds[name] = seconds.get(name, 0.0) + length
    parts_s = {name: total for name, total in sorted(seconds.items(), key=lambda entry: -entry[1]) if total > 0}
    return CriticalPath(nodes, start, end, float(lengths.sum()), part, parts_s, _bound(chain, nodes, lengths))


def _walk(chain: Chain) -> tuple[list[tuple[int, int]], int]:
    """Walks back from the op that ends last.

    Returns:
        The nodes met, each with how many steps earlier it ran, and how many steps the path closes after (0: never).
    """
    timeline = chain.timeline
    last, back, latest = chain.last.tolist(), chain.back.tolist(), chain.latest.tolist()
    recorded = timeline.recorded and timeline.graph.program.repeats
    follows = chain.follows(MAX_GAP * timeline.step_time_s).tolist() if recorded else None
    node, steps = _last_at_pace(chain), 0
    path: list[tuple[int, int]] = []
    place: dict[int, int] = {}
    while True:
        if node in place and path[place[node]][1] != steps:
            path = path[place[node] :]
            return path, steps - path[0][1]
        place[node] = len(path)
        path.append((node, steps))
        came_last = latest[node]
        before = last[came_last]
        if before < 0 or (follows is not None and back[came_last] and not follows[came_last]):
            return path, 0
        steps += back[came_last]
        node = before


def _last_at_pace(chain: Chain) -> int:
    """Returns the op that ends last among those that keep the pace of the step: parts that run ahead do not set it."""
    timeline = chain.timeline
    growth = timeline.end_s - timeline.end_before_s
    at_pace = np.abs(growth - timeline.step_time_s) <= 1e-9 * timeline.step_time_s
    if not timeline.graph.program.repeats or not at_pace.any():
        return int(np.argmax(timeline.end_s))
    return int(np.argmax(np.where(at_pace, timeline.end_s, -np.inf)))


def _parts(chain: Chain, nodes: Longs) -> tuple[str, ...]:
    graph = chain.timeline.graph
    ops = graph.op[nodes]
    phases = ["compute", *(label(phase) for phase in Phase if phase != Phase.NONE)]
    axes = list(dict.fromkeys(communicator.axis for communicator in graph.program.communicators))
    names = [*phases, *axes, "host"]
    axis_of = np.array(
        [len(phases) + axes.index(communicator.axis) for communicator in graph.program.communicators] + [0]
    )
    kind = graph.ops.ints("kind")[ops]
    part = np.where(kind == Kind.COMPUTE, graph.ops.ints("phase")[ops], axis_of[graph.ops.ints("communicator")[ops]])
    part[kind == Kind.HOST] = len(names) - 1
    return tuple(names[number] for number in part.tolist())


def _bound(chain: Chain, nodes: Longs, lengths: Floats) -> Bound:
    kind = chain.kind[nodes]
    bounds: dict[Bound, Mask] = {
        "compute": kind == Kind.COMPUTE,
        "communication": (kind == Kind.COLLECTIVE) | (kind == Kind.TRANSFER),
        "host": kind == Kind.HOST,
    }
    half_s = float(lengths.sum()) / 2
    return next((bound for bound, mine in bounds.items() if float(lengths[mine].sum()) > half_s), "mixed")


_PASSES: Final = {Phase.BACKWARD_INPUT: Phase.BACKWARD, Phase.BACKWARD_WEIGHT: Phase.BACKWARD}
"""The pass that a phase belongs to, where it is not itself one."""


@dataclass(frozen=True, slots=True)
class PathStretch:
    """Ops of the path that follow each other on one rank, in one pass of one microbatch.

    Attributes:
        start_s: When the first of them starts.
        rank: The rank, which stands for identical ones.
        microbatch: The microbatch; -1 where they have none.
        phase: The pass: `forward`, `backward`, `optimizer`, …; `none` where no op has a phase.
        parts_s: Seconds of a step by part, the largest first.
        ops: How many ops these are.
        longest: The name of the longest op.
    """

    start_s: float
    rank: int
    microbatch: int
    phase: str
    parts_s: dict[str, float]
    ops: int
    longest: str

    @property
    def seconds(self) -> float:
        """The time that the stretch takes of a step."""
        return sum(self.parts_s.values())


def path_stretches(path: CriticalPath, graph: Graph) -> list[PathStretch]:
    """Divides a path into stretches, in order of time. Their seconds sum to the length of the path.

    A transfer counts as a part of the pass that it belongs to, that of the next op of its rank and microbatch.
    """
    if not len(path.node):
        return []
    op = graph.op[path.node]
    owner, microbatch = graph.rank_class[path.node].astype(np.int64), graph.ops.microbatch[op].astype(np.int64)
    phase = graph.ops.ints("phase")[op].astype(np.int64)
    for part, whole in _PASSES.items():
        phase[phase == part] = whole
    moved = (np.diff(owner) != 0) | (np.diff(microbatch) != 0)
    phase = _filled(_filled(phase[::-1], moved[::-1])[::-1], moved)
    begins = np.flatnonzero(np.concatenate([[True], moved | (np.diff(phase) != 0)]))
    ends = np.append(begins[1:], len(op))
    length = path.end_s - path.start_s
    length *= path.length_s / (float(length.sum()) or 1.0)
    names, strings = graph.ops.ints("name")[op], graph.program.strings
    stretches = []
    for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
        seconds: dict[str, float] = {}
        for name, size in zip(path.part[first:last], length[first:last].tolist(), strict=True):
            seconds[name] = seconds.get(name, 0.0) + size
        stretches.append(
            PathStretch(
                start_s=float(path.start_s[first]),
                rank=int(graph.classes.representative[owner[first]]),
                microbatch=int(microbatch[first]),
                phase=label(Phase(int(phase[first]))),
                parts_s=dict(sorted(seconds.items(), key=lambda entry: -entry[1])),
                ops=last - first,
                longest=strings[int(names[first + int(np.argmax(length[first:last]))])],
            )
        )
    return stretches


def _filled(phase: Longs, moved: Mask) -> Longs:
    """Returns phases in which `none` is that of the op before, unless that one is of another rank or microbatch."""
    number = np.arange(len(phase))
    run = np.concatenate([[0], np.cumsum(moved)])
    known = np.maximum.accumulate(np.where(phase != Phase.NONE, number, -1))
    inherits = (phase == Phase.NONE) & (known >= 0) & (run[known] == run)
    return np.where(inherits, phase[known], phase)
