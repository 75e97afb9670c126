"""The recorded training steps, one by one: how long each took, and what its device did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.analysis.trace.intervals import occupancy_s
from foretrace.analysis.trace.rank import Rank, WorkType
from foretrace.analysis.trace.statistics import Spread


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of one rank, in seconds. Work belongs to the step in which it was launched."""

    rank: int
    name: str
    first: bool
    """Whether it is the first that was recorded of its rank."""
    whole: bool
    """False where the trace begins or ends within it."""
    counted: bool
    """Whether the other analyses see its work: of several ProfilerSteps they leave the last out."""
    host_s: float
    """From its start on the host to the start of the next."""
    device_s: float
    """From the start of its first work on a device to the end of its last; steps may overlap there."""
    device_period_s: float
    """From the end of the last work of the step before to the end of its own; of the first step `device_s`."""
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
    steps: tuple[StepTimes, ...]
    host: Spread
    """Seconds of the whole steps on the host."""

    @property
    def step_s(self) -> float:
        """What a step takes: the median on the host, or from end to end on the device, whichever is longer; of the
        whole steps where there are any, and on the device less the first of a rank where there are more."""
        some = [one for one in self.steps if one.whole] or list(self.steps)
        later = [one for one in some if not one.first] or some
        if not some:
            return 0.0
        return max(
            float(np.median([one.host_s for one in some])), float(np.median([one.device_period_s for one in later]))
        )


def steps(rank: Rank) -> tuple[StepTimes, ...]:
    """The steps of one rank."""
    found = rank.steps
    seen = Rank(rank.trace, rank.number, last_step=True) if np.isfinite(rank.cut_s) else rank
    work = seen.work
    step = found.of_event[work.event]
    rows: list[StepTimes] = []
    ended_s = None
    for number, name in enumerate(found.names):
        mine = np.flatnonzero(step == number)
        start_s, end_s = work.start_s[mine], work.end_s[mine]
        low_s, high_s = (float(start_s.min()), float(end_s.max())) if len(mine) else (0.0, 0.0)
        sets = [(start_s[work.type[mine] == one], end_s[work.type[mine] == one]) for one in WorkType]
        states = occupancy_s(sets, low_s, high_s)
        bits = np.arange(len(states))
        compute, communication = (bits >> one & 1 == 1 for one in (WorkType.COMPUTE, WorkType.COMMUNICATION))
        rows.append(
            StepTimes(
                rank=rank.number,
                name=name,
                first=not rows,
                whole=bool(found.whole[number]),
                counted=bool(found.start_s[number] < rank.cut_s),
                host_s=float(found.end_s[number] - found.start_s[number]),
                device_s=high_s - low_s,
                device_period_s=high_s - (low_s if ended_s is None else min(ended_s, high_s)),
                compute_s=float(states[compute].sum()),
                communication_s=float(states[communication].sum()),
                exposed_communication_s=float(states[communication & ~compute].sum()),
                idle_s=float(states[0]),
                kernels=len(mine),
            )
        )
        ended_s = high_s if len(mine) else ended_s
    return tuple(rows)
