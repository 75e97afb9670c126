"""Whether the host keeps up: how long it launches kernels, beside the step."""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_time
from foretrace.program.columns import Kind
from foretrace.program.timeline import Timeline

BUSY_SHARE: Final = 0.7
"""Of the step; from here on launches, which vary from step to step, are likely to hold the GPU up."""

_LAUNCHES: Final = ("launch", "launches")


def launching_s(timeline: Timeline) -> float:
    """How long the host of the busiest rank launches kernels in a step."""
    graph = timeline.graph
    called = [number for number, text in enumerate(graph.program.strings) if text in _LAUNCHES]
    launches = (graph.ops.ints("kind") == Kind.HOST) & np.isin(graph.ops.ints("name"), called)
    nodes = np.flatnonzero((launches & (graph.ops.ints("enabled") != 0))[graph.op])
    if not len(nodes):
        return 0.0
    lasting_s = (timeline.end_s - timeline.start_s)[nodes]
    return float(np.bincount(graph.rank_class[nodes], weights=lasting_s).max())


def host_notes(timeline: Timeline) -> tuple[Diagnostic, ...]:
    """A note where the host is busy for most of the step."""
    busy, step = launching_s(timeline), timeline.step_time_s
    if busy <= BUSY_SHARE * step:
        return ()
    message = (
        f"the host launches kernels for {format_time(busy)} of the step's {format_time(step)}: "
        "CUDA graphs (--cuda-graphs full) would take that away"
    )
    return (Diagnostic("note", "host-bound", message),)
