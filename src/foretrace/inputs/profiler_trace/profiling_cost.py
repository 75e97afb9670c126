"""Estimates what profiling costs a step and what a CUDA graph saves, from constants measured on H200 machines.

Measured by `benchmarks/gpu/profiled.py` with PyTorch 2.11, CUDA 13.0, driver 580, Xeon hosts in virtual machines; the
numbers are in `benchmarks/truth/profiles/profiled_steps.json`, the reading in docs/profiling-cost.md.
`benchmarks/fit_profiling.py` fits the constants of the host below on 110 traces of five sessions; a session left out of
the fit is predicted with an error of 8 % in the median, 11 % in the mean.

**The host.** A callback before and after each op writes a record (outside the op's own interval: its parent is the one
that grows), CUPTI's run around each runtime call, recorded or not. In tight loops an op costs 0.9 µs more (1.4 with
shapes) and a launch 3 µs; in a real step, where the records also push the step's own data out of the caches, half of
the host's time is the profiler's. Differences of two noisy times would double their noise, so a share is taken off;
but where the host did something long and little was recorded, no more than `most_s` for each record.

**Its pace.** Hosts that share cores with neighbours run up to 1.9 times slower for a while: recorded steps differ by
a fifth between runs, unprofiled ones too, and independently. The launches recorded tell how fast the host was just
then. One part of that was the moment, which the unprofiled step does not share; the other was the machine, which it
does. So a part of the distance from the usual launch is undone, for kinds of hosts that were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile

PROFILED_SHARE: Final = 0.44
"""The share of the host's time under Kineto, with ops and runtime calls recorded."""

SHAPES_SHARE: Final = 0.49
"""With shapes of inputs; with memory recorded also, the same within a hundredth."""

STACK_SHARE: Final = 0.53
"""With Python's functions."""

CUPTI_SHARE: Final = 0.25
"""Runtime calls alone (Nsight Systems without ops, or Kineto of the device alone): a process that CUPTI is attached to
and records nothing takes 1.29 times as long (1 - 1/1.29 = 0.22), and calls are recorded too."""

MAX_S: Final = 15e-6
"""Taken off for one recorded op, call or function at most: three times what it costs in the mean."""

USUAL_LAUNCH_S: Final = {"H200": 5.9e-6}
"""The launch call of which a tenth are shorter, under Kineto, by what a GPU's name holds: the mean over the hosts these
GPUs were met with."""

PACE_EXPONENT: Final = 0.4
"""The part of a launch's distance from the usual, in logarithms, that goes away with the profiler."""

PACE_SPREAD: Final = 0.2
"""Standard deviation of the logarithm of such launches on one kind of host, with a margin (88 traces: 0.15)."""

OTHER_HOST: Final = 0.06
"""Odds, at the usual launch, that a trace is from another kind of host altogether; they grow with the distance, so that
a host far from the usual is taken as recorded."""

HOST_SPREAD: Final = 0.2
"""How far the host's time without the profiler may be off, as a share: nine in ten traces of a session that was not
fitted on lie within."""

PROFILED_GAP_S: Final = 0.15e-6
"""Between kernels launched ahead the profiler adds so much (chains of 300 kernels of 1 to 130 µs: 0.09 to 0.21)."""

GRAPH_GAP_S: Final = 0.38e-6
"""From the end of a kernel's recorded time to the start of the next inside a CUDA graph (steps of 182 to 1,395 kernels:
0.2 to 0.7, median 0.40; chains of equal kernels: 0.3 to 0.5)."""

GRAPH_LAUNCH_S: Final = 5.7e-6
GRAPH_NODE_S: Final = 0.28e-6
"""Host time to launch a graph, and for each of its kernels (a graph of 1; graphs of 300: 85 to 92 µs)."""


@dataclass(frozen=True, slots=True)
class ProfilingCost:
    """The cost of recording to the host of a trace: a share of its time, at most `most_s` for each record.

    `pace` is the ratio of the host's usual times to those while it was recorded.
    """

    share: float
    most_s: float
    pace: float
    launch_s: float
    """The recorded launch of which a tenth are shorter; 0 where none was."""

    def unprofiled_s(self, work_s: Floats, records: Floats) -> Floats:
        """Returns host times without the profiler.

        Args:
            work_s: The recorded host times, in seconds.
            records: The number of ops, calls and functions recorded in each.
        """
        cost_s = np.minimum(self.share * work_s, self.most_s * records)
        return np.asarray((work_s - cost_s) * self.pace)


def profiling_cost(trace: RankProfile) -> ProfilingCost:
    """Returns the cost of profiling to the host, by what was recorded and how long launches took."""
    launches = launches_s(trace)
    launch_s = float(np.percentile(launches, 10)) if len(launches) else 0.0
    usual_s = [usual for name, usual in USUAL_LAUNCH_S.items() if any(name in device.name for device in trace.devices)]
    comparable = trace.producer == "kineto" and usual_s and launch_s > 0
    return ProfilingCost(_share(trace), MAX_S, pace(launch_s, usual_s[0]) if comparable else 1.0, launch_s)


def _share(trace: RankProfile) -> float:
    categories = trace.events.category
    if trace.producer == "nsys" or not (categories == EventCategory.CPU_OP).any():
        return CUPTI_SHARE
    if (categories == EventCategory.PYTHON).any() or trace.facts.get("with_stack") == "1":
        return STACK_SHARE
    return SHAPES_SHARE if trace.facts.get("record_shapes") == "1" else PROFILED_SHARE


def launches_s(trace: RankProfile) -> Floats:
    """Returns the seconds of each call that launches a kernel."""
    events = trace.events
    launches = (events.category == EventCategory.RUNTIME) & trace.named(lambda name: "LaunchKernel" in name)
    return np.asarray(events.duration_s[launches])


def pace(launch_s: float, usual_s: float, exponent: float = PACE_EXPONENT) -> float:
    """Returns the factor from recorded host times to usual ones, by what a launch took then and usually takes.

    It nears 1 where the two are far apart: the host is then of another kind.
    """
    away = log(usual_s / launch_s)
    odds = OTHER_HOST * exp(min(away**2 / (2 * PACE_SPREAD**2), 100.0))
    return exp(exponent * away / (1 + odds))


def unprofiled_gap_s(gap_s: Floats) -> Floats:
    """Returns gaps between kernels without the profiler, given those under it."""
    return np.maximum(gap_s - PROFILED_GAP_S, 0.0)


def graph_launch_s(works: int) -> float:
    """Returns the host time to launch a graph of `works` kernels and copies."""
    return GRAPH_LAUNCH_S + works * GRAPH_NODE_S
