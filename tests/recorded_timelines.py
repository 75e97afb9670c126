"""Checks that hold of every recorded timeline."""

from __future__ import annotations

import numpy as np

from foretrace.program.timeline import Timeline


def late_s(timeline: Timeline) -> float:
    """Returns by how much an op was ready before something it waits for had ended, at most."""
    graph = timeline.graph
    owner = np.repeat(np.arange(len(graph)), np.diff(graph.pred_start))
    within = timeline.end_s[graph.pred] - timeline.ready_s[owner]
    between = timeline.end_before_s[graph.next_src] - timeline.ready_s[graph.next_dst]
    return max(float(np.max(late, initial=-np.inf)) for late in (within, between))
