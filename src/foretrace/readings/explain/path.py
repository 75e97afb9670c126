"""Reads the critical path, where it runs and what it consists of, and where the host keeps ranks waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.program.columns import Kind
from foretrace.readings.answer.answer import Answer
from foretrace.readings.critical_path import Bound
from foretrace.readings.explain.rows import OpPlace, OpRows

MAX_OPS = 5


@dataclass(frozen=True, slots=True)
class LongOp:
    """A single op and what it takes in seconds."""

    place: OpPlace
    seconds: float


@dataclass(frozen=True, slots=True)
class PathOps:
    """The ops of one name on the critical path: how many, and their seconds per step."""

    name: str
    count: int
    total_s: float


@dataclass(frozen=True, slots=True)
class PathReading:
    """The critical path, seconds per step: by what its ops do, by pipeline stage, by rank (the first of several that
    are identical) and by name, the most time first.

    `bound` is what more than half of it consists of. `gaps_s` is the part of the step in which none of its ops runs;
    `longest` are its longest ops.
    """

    bound: Bound
    ops: int
    length_s: float
    gaps_s: float
    by_part_s: dict[str, float]
    by_stage_s: dict[int, float]
    by_rank_s: dict[int, float]
    by_name: tuple[PathOps, ...]
    longest: tuple[LongOp, ...]


@dataclass(frozen=True, slots=True)
class HostGaps:
    """Work of the host on the way of computation: how many stretches, seconds per step (mean over ranks), their share
    of the step, and the longest."""

    gaps: int
    total_s: float
    share: float
    longest: tuple[LongOp, ...]


def path_reading(simulation: Answer, rows: OpRows) -> PathReading:
    """Reads the critical path of a run."""
    path = simulation.critical_path
    place = np.searchsorted(rows.node, path.node)
    lasts = path.end_s - path.start_s
    total = float(lasts.sum())
    # A path that closes over several steps is given per step.
    per_step = lasts * (path.length_s / total if total > 0 else 0.0)
    owner = rows.graph.rank_class[path.node]
    ranks = np.bincount(owner, weights=per_step, minlength=len(rows.graph.classes))
    stages = np.bincount(rows.stage_of_class[owner], weights=per_step, minlength=rows.graph.program.mesh.pp)
    happens = np.flatnonzero((place < len(rows.node)) & (lasts > 0))
    longest = happens[np.argsort(-lasts[happens], kind="stable")][:MAX_OPS]
    by_rank = {
        int(rows.graph.classes.representative[number]): float(ranks[number])
        for number in np.argsort(-ranks, kind="stable").tolist()
        if ranks[number] > 0
    }
    return PathReading(
        bound=path.bound,
        ops=len(path.node),
        length_s=path.length_s,
        gaps_s=max(simulation.step_time_s - path.length_s, 0.0),
        by_part_s=dict(path.parts_s),
        by_stage_s={number: float(seconds) for number, seconds in enumerate(stages)},
        by_rank_s=by_rank,
        by_name=_by_name(rows, path.node, per_step),
        longest=tuple(
            LongOp(rows.place(int(place[position])), float(lasts[position])) for position in longest.tolist()
        ),
    )


def _by_name(rows: OpRows, nodes: Longs, seconds: Floats) -> tuple[PathOps, ...]:
    graph = rows.graph
    names, place = np.unique(graph.ops.ints("name")[graph.op[nodes]], return_inverse=True)
    total_s = np.bincount(place.ravel(), weights=seconds, minlength=len(names))
    count = np.bincount(place.ravel(), weights=seconds > 0, minlength=len(names))
    order = np.argsort(-total_s, kind="stable")
    return tuple(
        PathOps(graph.program.strings[int(names[at])], int(count[at]), float(total_s[at]))
        for at in order.tolist()
        if total_s[at] > 0
    )


def host_gaps(rows: OpRows) -> HostGaps:
    """Returns the time that the host takes of a run."""
    mine = np.flatnonzero((rows.kind == Kind.HOST) & (rows.running_s > 0))
    total = rows.mean_over_ranks(rows.running_s, mine)
    longest = mine[np.argsort(-rows.running_s[mine], kind="stable")][:MAX_OPS]
    return HostGaps(
        gaps=round(float(rows.ranks[mine].sum())),
        total_s=total,
        share=total / rows.step_s if rows.step_s > 0 else 0.0,
        longest=tuple(LongOp(rows.place(row), float(rows.running_s[row])) for row in longest.tolist()),
    )
