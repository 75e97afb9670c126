"""How the host of a recorded step runs: as recorded, without the profiler, not at all, or as one CUDA graph."""

from __future__ import annotations

import numpy as np

from foretrace.errors import Diagnostic
from foretrace.formats.profiler_trace.records import Floats
from foretrace.lower.choices import HostMode
from foretrace.lower.profiler_trace.concurrency import alone_s, fills_gpu
from foretrace.lower.profiler_trace.host import HostStep
from foretrace.lower.profiler_trace.overhead import (
    GRAPH_GAP_S,
    ProfilingCost,
    graph_launch_s,
    profiling_cost,
    unprofiled_gap_s,
)
from foretrace.lower.profiler_trace.rank_step import RankStep
from foretrace.lower.profiler_trace.write import Times


def times(rank: RankStep, mode: HostMode) -> Times:
    """What the ops of a step take with its host in a mode."""
    host, device = rank.host, rank.device
    if mode == "profiled":
        return Times(host.work_s.mean(axis=0), host.own_s, device.busy_s, device.gap_s, device.idle_s)
    shares = fills_gpu(rank.streams, rank.alike.device)
    if rank.recorded.bound == "device":
        shares[:] = False  # the host did not keep kernels apart: those that can overlap did
    busy = alone_s(rank.streams, rank.alike.device) if shares.any() else device.busy_s
    gap = unprofiled_gap_s(device.gap_s)
    # Idle after a late launch, or because steps vary, goes with the host that caused it.
    idle = np.where(device.idle_early, device.idle_s, 0.0)
    if mode == "unprofiled":
        work, own = _unprofiled_s(host, profiling_cost(rank.trace))
        return Times(work, own, busy, gap, idle, shares)
    if mode == "none":
        return Times(np.zeros_like(host.own_s), np.zeros_like(host.own_s), busy, gap, idle, shares)
    gap = np.full_like(gap, GRAPH_GAP_S)
    return Times(host.own_s, host.own_s, busy, gap, idle, shares, graph_launch_s(len(busy)))


def _unprofiled_s(host: HostStep, cost: ProfilingCost) -> tuple[Floats, Floats]:
    """The host's time up to each call, and in its waits, less what recording took.

    Of the steps the median, call by call: a pause in one of them is the machine's, not the step's.
    """
    counts = host.counts
    records = (counts.ops + counts.calls + counts.annotations + counts.python).astype(np.float64)
    work = np.maximum(host.work_s - counts.overhead_s, 0.0)
    own = cost.unprofiled_s(host.own_s, np.ones_like(host.own_s))
    return np.median(cost.unprofiled_s(work, records), axis=0), own


def mode_notes(rank: RankStep, mode: HostMode, where: str | None = None) -> list[Diagnostic]:
    """What a reader should know of a mode."""
    if mode == "unprofiled":
        cost = profiling_cost(rank.trace)
        text = f"without the profiler: host time less {cost.share:.0%}, at most {cost.most_s * 1e6:.0f} us a record"
        if cost.pace != 1.0:
            text += f", and at {1 / cost.pace:.2f} times the pace recorded"
        return [Diagnostic("note", text, where)]
    waits = sum(1 for found in rank.host.targets if found) - int(rank.host.queue.sum())
    if mode == "graphs" and waits > 0:
        text = (
            f"the host waits for the device {waits} times in a step: as it is, the step cannot be captured in one graph"
        )
        return [Diagnostic("warning", f"{text}; the waits are left out", where)]
    return []
