"""The recorded training steps, one by one: how long each took, and what its device did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.readings.profiler_views.intervals import occupancy_s
from foretrace.readings.profiler_views.rank import Rank, WorkType
from foretrace.readings.profiler_views.statistics import Spread


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of one rank, in seconds. Work belongs to the step in which it was launched."""

    rank: int
    name: str
    whole: bool
    """False where the trace begins or ends within it."""
    counted: bool
    """Whether it counts in the recorded step and in the other analyses."""
    step_s: float
    """How long it took, measured where it is bound."""
    host_s: float
    """From its start on the host to the start of the next."""
    device_s: float
    """From the start of its first work on a device to the end of its last; steps may overlap there."""
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    idle_s: float
    kernels: int


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """The steps of every rank."""

    how: str
    """How they were told apart."""
    step_s: float
    """The recorded step, as `foretrace simulate` has it: the mean of the steps that count, and over ranks."""
    steps: tuple[StepTimes, ...]
    host: Spread
    """Seconds of the whole steps on the host."""


def steps(rank: Rank) -> tuple[StepTimes, ...]:
    """Returns the steps of one rank."""
    cut, each_s = rank.steps, rank.counted_steps.each_s
    work = (Rank(rank.trace, rank.number) if rank.hta_steps else rank).ran
    step = cut.of_event[work.event]
    counted = set(rank.counted.tolist())
    rows: list[StepTimes] = []
    for number, name in enumerate(cut.names):
        mine = np.flatnonzero(step == number)
        start_s, end_s = work.start_s[mine], work.end_s[mine]
        low_s, high_s = (float(start_s.min()), float(end_s.max())) if len(mine) else (0.0, 0.0)
        sets = [(start_s[work.type[mine] == type_], end_s[work.type[mine] == type_]) for type_ in WorkType]
        states = occupancy_s(sets, low_s, high_s)
        bits = np.arange(len(states))
        compute, communication = (bits >> type_ & 1 == 1 for type_ in (WorkType.COMPUTE, WorkType.COMMUNICATION))
        rows.append(
            StepTimes(
                rank=rank.number,
                name=name,
                whole=bool(cut.whole[number]),
                counted=number in counted,
                step_s=float(each_s[number]),
                host_s=float(cut.end_s[number] - cut.start_s[number]),
                device_s=high_s - low_s,
                compute_s=float(states[compute].sum()),
                communication_s=float(states[communication].sum()),
                exposed_communication_s=float(states[communication & ~compute].sum()),
                idle_s=float(states[0]),
                kernels=len(mine),
            )
        )
    return tuple(rows)
