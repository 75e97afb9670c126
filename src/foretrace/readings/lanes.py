"""Measures how busy each lane is, how long its ops wait, which stage is slow, and whether the host keeps up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_percent, format_time
from foretrace.engine.order import sort_by
from foretrace.program.columns import Kind, Phase
from foretrace.program.timeline import Timeline

BUSY_SHARE: Final = 0.7
"""The share of the step from which on launches, which vary between steps, are likely to hold the GPU up."""

SLOW_SHARE: Final = 0.05
"""By how much longer than the mean of all stages the slowest works before it is reported."""

_LAUNCHES: Final = ("launch", "launches")


@dataclass(frozen=True, slots=True)
class LaneUse:
    """One lane, averaged over the ranks that use it: the share of the step its ops run, and wait for partners."""

    lane: str
    ranks: int
    ops_per_rank: float
    busy: float
    waiting: float


def lane_use(timeline: Timeline) -> list[LaneUse]:
    """Returns every lane in use, in the order of the program's table."""
    graph, step = timeline.graph, timeline.step_time_s
    enabled, lane = graph.ops.column("enabled")[graph.op], graph.ops.ints("lane")[graph.op]
    nodes, start = sort_by(np.where(enabled, lane, len(graph.program.lanes)), len(graph.program.lanes) + 1, False)
    owner, count = graph.rank_class[nodes], graph.classes.count
    run = (timeline.end_s - timeline.start_s)[nodes] * count[owner]
    # A partner waited for since the step before counts for this step only once.
    wait = np.clip(timeline.wait_s[nodes], 0.0, step) * count[owner]
    uses = []
    for row, low, high in zip(graph.program.lanes, start[:-2].tolist(), start[1:-1].tolist(), strict=True):
        if low < high:
            ops = np.bincount(owner[low:high], minlength=len(count))
            ranks = int(count[ops > 0].sum())
            share = ranks * step if step > 0 else 1.0
            busy, waiting = float(run[low:high].sum()) / share, float(wait[low:high].sum()) / share
            uses.append(LaneUse(row.name, ranks, float((ops * count).sum()) / ranks, busy, min(waiting, 1.0)))
    return uses


def unit_loads(timeline: Timeline) -> dict[tuple[int, int, int], float]:
    """Returns the seconds of a step that ops of the compute lanes take, by stage, chunk and layer.

    Ops of the optimizer do not count; collectives for which a layer waits do, and waits for partners do not. Seconds
    are means over the ranks of a stage. Layers are numbered within their chunk, and ends of the model are -1.
    """
    graph, ops = timeline.graph, timeline.graph.ops
    nodes, seconds = _worked(timeline)
    stage = graph.program.mesh.coordinate("pp")[graph.classes.representative]
    owner, op = graph.rank_class[nodes], graph.op[nodes]
    chunk, layer = ops.ints("chunk") + 1, ops.ints("layer") + 1  # -1 stands for none
    chunks, layers = int(chunk.max(initial=0)) + 1, int(layer.max(initial=0)) + 1
    unit = ((stage * chunks)[owner] + chunk[op]) * layers + layer[op]
    totals, counts = np.bincount(unit, weights=seconds), np.bincount(unit)
    return {
        (number // (chunks * layers), number // layers % chunks - 1, number % layers - 1): float(totals[number])
        for number in np.flatnonzero(counts).tolist()
    }


def _worked(timeline: Timeline) -> tuple[Longs, Floats]:
    """Returns the nodes of the compute lanes that are not the optimizer's, with their seconds per rank of a stage."""
    graph, ops = timeline.graph, timeline.graph.ops
    mesh, classes = graph.program.mesh, graph.classes
    computes = np.array([lane.kind == "compute" for lane in graph.program.lanes], dtype=bool)
    phases = np.ones(len(Phase), dtype=bool)
    phases[[Phase.NONE, Phase.OPTIMIZER]] = False
    works = ops.which(lambda phase, lane: phases[phase] & computes[lane], "phase", "lane")
    nodes = np.flatnonzero(works[graph.op])
    count = np.repeat(classes.count, np.diff(np.searchsorted(nodes, graph.start)))
    return nodes, (timeline.end_s[nodes] - timeline.start_s[nodes]) * count / (mesh.world // mesh.pp)


def stage_notes(timeline: Timeline) -> tuple[Diagnostic, ...]:
    """Returns a note on the slowest stage if it works for longer than the mean of all by more than `SLOW_SHARE`."""
    graph = timeline.graph
    loads = np.zeros(graph.program.mesh.pp)
    if len(loads) > 1:
        nodes, seconds = _worked(timeline)
        ends = np.searchsorted(nodes, graph.start).tolist()
        stages = graph.program.mesh.coordinate("pp")[graph.classes.representative].tolist()
        for stage, low, high in zip(stages, ends[:-1], ends[1:], strict=True):
            loads[stage] += seconds[low:high].sum()
    slowest, mean_s = int(loads.argmax()), float(loads.mean())
    if loads[slowest] <= (1 + SLOW_SHARE) * mean_s:
        return ()
    most_s = float(loads[slowest])
    message = (
        f"stage {slowest} is the slowest: its layers take {format_time(most_s)} of a step, "
        f"{format_percent(most_s / mean_s - 1)} more than those of a mean stage, and the others wait for it"
    )
    return (Diagnostic("note", "slow-stage", message),)


def launching_s(timeline: Timeline) -> float:
    """Returns the seconds of a step in which the host of the busiest rank launches kernels."""
    graph = timeline.graph
    called = [number for number, text in enumerate(graph.program.strings) if text in _LAUNCHES]
    if not called:
        return 0.0
    is_called = np.zeros(len(graph.program.strings), dtype=bool)
    is_called[called] = True
    launches = graph.ops.which(
        lambda kind, name, enabled: (kind == Kind.HOST) & is_called[name] & (enabled != 0), "kind", "name", "enabled"
    )
    nodes = np.flatnonzero(launches[graph.op])
    if not len(nodes):
        return 0.0
    lasting_s = timeline.end_s[nodes] - timeline.start_s[nodes]
    owner = np.repeat(np.arange(len(graph.classes)), np.diff(np.searchsorted(nodes, graph.start)))
    return float(np.bincount(owner, weights=lasting_s).max())


def host_notes(timeline: Timeline) -> tuple[Diagnostic, ...]:
    """Returns a note if the host launches kernels for more than `BUSY_SHARE` of the step."""
    busy, step = launching_s(timeline), timeline.step_time_s
    if busy <= BUSY_SHARE * step:
        return ()
    message = (
        f"the host launches kernels for {format_time(busy)} of the step's {format_time(step)}: "
        "CUDA graphs (--cuda-graphs full) would take that away"
    )
    return (Diagnostic("note", "host-busy", message),)
