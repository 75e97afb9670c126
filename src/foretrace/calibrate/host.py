"""What a launch takes the host, from a trace: its time of a step without waits and without the profiler's own."""

from __future__ import annotations

from foretrace.errors import InputError
from foretrace.formats.calibration import HostFit
from foretrace.formats.profiler_trace.records import Category, ProfilerTrace
from foretrace.lower.profiler_trace.modes import times
from foretrace.lower.profiler_trace.rank_step import read_step

FEWEST = 100
"""Kernels of a step below which its launches say little about others."""


def host_fit(trace: ProfilerTrace) -> HostFit | None:
    """Seconds per launched kernel; None where the trace has no steps, no launches or too few of them."""
    try:
        rank = read_step(trace)
    except InputError:
        return None
    work_s = float(times(rank, "unprofiled").work_s.sum())
    events = trace.events
    device = rank.alike.device
    kernels = int((events.category[device] == Category.KERNEL).sum()) // max(len(device), 1)
    if kernels < FEWEST or work_s <= 0 or (rank.links.launch[device] < 0).any():
        return None
    compiled = any(name.startswith("triton_") for name in trace.strings)
    return HostFit(work_s / kernels, kernels, "compiled" if compiled else "eager")
