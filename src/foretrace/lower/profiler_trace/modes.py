"""How the host of a recorded step runs: as recorded, without the profiler, not at all, or as one CUDA graph."""

from __future__ import annotations

import numpy as np

from foretrace.lower.choices import HostMode
from foretrace.lower.profiler_trace.rank_step import RankStep
from foretrace.lower.profiler_trace.write import Times


def times(rank: RankStep, mode: HostMode) -> Times:
    """What the ops of a step take with its host in a mode."""
    host, device = rank.host, rank.device
    work, own = host.work_s.mean(axis=0), host.own_s
    gap = device.gap_s
    if mode == "none":
        early = np.where(device.idle_early, device.idle_s, 0.0)
        return Times(np.zeros_like(work), np.zeros_like(own), device.busy_s, gap, early)
    return Times(work, own, device.busy_s, gap, device.idle_s)
