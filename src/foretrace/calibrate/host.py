"""What a launch takes the host, from a trace: its time of a step without waits and without the profiler's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from foretrace.basics.errors import InputError
from foretrace.cost.calibration import HostFit
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile
from foretrace.inputs.profiler_trace.host_modes import times
from foretrace.inputs.profiler_trace.profiling_cost import profiling_cost
from foretrace.inputs.profiler_trace.rank.rank_step import read_step

MIN_KERNELS: Final = 100
"""Kernels of a step below which its launches say little about others."""

MAX_MEDIANS: Final = 10.0
"""So many times the median, and no more, counts of what the host does before a call: what is longer is no launch but a
user's own code, such as loading data."""


def profiled_host(facts: Mapping[str, str]) -> HostFit | None:
    """What the header of a kernel profile says of launches, forward and backward; None where it says nothing."""
    try:
        parts = [
            (float(facts[f"host_{way}_us"]), int(facts[f"host_{way}_launches"])) for way in ("forward", "backward")
        ]
    except (KeyError, ValueError):
        return None
    launches = sum(count for _, count in parts)
    spent_us = sum(us * count for us, count in parts)
    return HostFit(1e-6 * spent_us / launches, launches) if launches > 0 and spent_us > 0 else None


def host_fit(trace: RankProfile) -> HostFit | None:
    """Seconds per launched kernel; None where the trace has no steps, no launches or too few of them."""
    try:
        rank = read_step(trace)
    except InputError:
        return None
    # At the pace recorded: bringing it to that of hosts met elsewhere would take away what is this machine's own.
    work_s = times(rank, "unprofiled").work_s / profiling_cost(trace).pace
    device = rank.alike.device
    kernels = int((trace.events.category[device] == EventCategory.KERNEL).sum()) // max(len(device), 1)
    if kernels < MIN_KERNELS or not len(work_s) or (rank.links.launch[device] < 0).any():
        return None
    spent_s = float(np.minimum(work_s, MAX_MEDIANS * np.median(work_s)).sum())
    if spent_s <= 0:
        return None
    compiled = any(name.startswith("triton_") for name in trace.strings)
    return HostFit(spent_s / kernels, kernels, "compiled" if compiled else "eager")
