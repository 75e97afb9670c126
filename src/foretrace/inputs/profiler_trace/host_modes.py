"""How the host of a recorded step runs: as recorded, without the profiler, not at all, or as one CUDA graph."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic
from foretrace.inputs.option_values import HostMode
from foretrace.inputs.profiler_trace.profiling_cost import (
    GRAPH_GAP_S,
    ProfilingCost,
    graph_launch_s,
    profiling_cost,
    unprofiled_gap_s,
)
from foretrace.inputs.profiler_trace.rank.concurrency import alone_s, gpu_share
from foretrace.inputs.profiler_trace.rank.host import HostStep
from foretrace.inputs.profiler_trace.rank.rank_step import MIN_NOTED_SHARE, RankStep
from foretrace.inputs.profiler_trace.write_step import Times


def times(rank: RankStep, mode: HostMode) -> Times:
    """Returns the durations of a step's ops with its host in a mode."""
    host, device = rank.host, rank.device
    if mode == "profiled":
        return Times(host.work_s.mean(axis=0), host.own_s, device.busy_s, device.gap_s, device.idle_s)
    shares, busy = _sharing(rank)
    gap = _gaps_s(rank, unprofiled_gap_s(device.gap_s), shares)
    # Idle after a late launch, or because steps vary, goes with the host that caused it.
    idle = np.where(device.idle_early, device.idle_s, 0.0)
    if mode == "unprofiled":
        work, own = _unprofiled_s(host, profiling_cost(rank.trace))
        return Times(work, own, busy, gap, np.where(device.call < 0, device.idle_s, idle), shares)
    if mode == "none":
        return Times(np.zeros_like(host.own_s), np.zeros_like(host.own_s), busy, gap, idle, shares)
    gap = _gaps_s(rank, np.full_like(gap, GRAPH_GAP_S), shares)
    return Times(host.own_s, host.own_s, busy, gap, idle, shares, graph_launch_s(len(busy)))


def _sharing(rank: RankStep) -> tuple[Floats, Floats]:
    """Returns the part of the GPU that work draws once its host no longer keeps it apart, and the duration of all work.

    No work draws any where the host did not keep kernels apart, because kernels that can overlap then did. Nor does any
    where the recorded step is shorter than its kernels in a row, as a single step may be that goes on after its host.
    """
    shares, busy = gpu_share(rank.streams, rank.steady.device), rank.device.busy_s
    if rank.recorded.bound == "host" and shares.any():
        alone = alone_s(rank.streams, rank.steady.device)
        if float((alone * shares).sum()) <= rank.recorded_s:
            return shares, alone
    return np.zeros_like(shares), busy


def _gaps_s(rank: RankStep, gap_s: Floats, shares: Floats) -> Floats:
    """Returns these gaps, except that work which overlapped the next on its stream still does.

    That overlap is already off the time that work takes alone.
    """
    recorded = rank.device.gap_s
    return np.where(recorded < 0, np.where(shares > 0, 0.0, recorded), gap_s)


def _unprofiled_s(host: HostStep, cost: ProfilingCost) -> tuple[Floats, Floats]:
    """Returns the host's time up to each call, and in its waits, less what recording took.

    It is the median over the steps, call by call: a pause in one step is the machine's, not the step's.
    """
    counts = host.counts
    records = (counts.ops + counts.calls + counts.annotations + counts.python).astype(np.float64)
    work = np.maximum(host.work_s - counts.overhead_s, 0.0)
    own = cost.unprofiled_s(host.own_s, np.ones_like(host.own_s))
    return np.median(cost.unprofiled_s(work, records), axis=0), own


def mode_notes(rank: RankStep, mode: HostMode, where: str | None = None) -> list[Diagnostic]:
    """Returns notes on what a mode of the host means."""
    notes = [Diagnostic("note", code, text, where) for code, text in _host_notes(rank, mode)]
    waits = sum(1 for targets in rank.host.targets if targets) - int(rank.host.queue.sum())
    if mode == "graphs" and waits > 0:
        text = (
            f"the host waits for the device {waits} time{'s' * (waits > 1)} in a step: as it is, the step cannot be "
            "captured in one graph; the waits are left out"
        )
        notes.append(Diagnostic("warning", "not-modelled", text, where))
    return notes


def _host_notes(rank: RankStep, mode: HostMode) -> list[tuple[str, str]]:
    """Returns codes and texts of notes on time taken off the host, and on time that nothing recorded explains."""
    notes: list[tuple[str, str]] = []
    if mode == "unprofiled":
        cost = profiling_cost(rank.trace)
        text = f"without the profiler: host time less {cost.share:.0%}, at most {cost.most_s * 1e6:.0f} us a record"
        text += f", and at {1 / cost.pace:.2f} times the pace recorded" if cost.pace != 1.0 else ""
        notes.append(("changed-as-asked", text))
    lost_s = rank.host.unexplained_s
    if lost_s > MIN_NOTED_SHARE * rank.recorded_s:
        kept = "kept as it was" if mode in ("profiled", "unprofiled") else "left out with the host"
        text = f"the host waits {lost_s * 1e3:.2f} ms of a step for what is not in the trace; {kept}"
        notes.append(("not-recorded", text))
    return notes
