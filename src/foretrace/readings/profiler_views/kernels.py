"""Which kernels a device ran: by kind of work and by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.readings.profiler_views.intervals import length_s
from foretrace.readings.profiler_views.rank import Rank, WorkType
from foretrace.readings.profiler_views.statistics import tally


@dataclass(frozen=True, slots=True)
class KernelUse:
    """All runs of one kernel on one rank."""

    rank: int
    name: str
    type: str
    """compute, communication or memory."""
    kind: str
    """gemm, attention, norm, ..."""
    count: int
    total_s: float
    mean_s: float
    deviation_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class KindTimes:
    """All work of one kind on one rank."""

    rank: int
    kind: str
    count: int
    total_s: float
    """Durations added up: what ran side by side counts twice."""
    busy_s: float
    """The time in which any of it ran."""
    share: float
    """The share of all durations."""


@dataclass(frozen=True, slots=True)
class KernelBreakdown:
    """Kernels by kind and by name; the most time first."""

    states_s: tuple[dict[str, float], ...]
    """How long compute, communication and memory of each rank ran, alone and together."""
    kinds: tuple[KindTimes, ...]
    kernels: tuple[KernelUse, ...]

    def top(self, count: int = 10, type: str | None = None) -> tuple[KernelUse, ...]:
        """Returns the kernels that took most, of one type or of all."""
        chosen = [kernel for kernel in self.kernels if type is None or kernel.type == type]
        return tuple(sorted(chosen, key=lambda kernel: -kernel.total_s)[:count])


def kernel_times(rank: Rank) -> tuple[KernelUse, ...]:
    """Returns every kernel, copy and memset of a rank by name."""
    work, kinds = rank.work, tuple(WorkKind)
    key = work.name.astype(np.int64) * len(WorkType) + work.type
    tallied = tally(key, work.duration_s)
    rows = zip(
        tallied.group.tolist(),
        tallied.count.tolist(),
        tallied.total_s.tolist(),
        tallied.mean_s.tolist(),
        tallied.deviation_s.tolist(),
        tallied.least_s.tolist(),
        tallied.most_s.tolist(),
        strict=True,
    )
    return tuple(
        KernelUse(
            rank.number,
            rank.trace.strings[group // len(WorkType)],
            WorkType(group % len(WorkType)).name.lower(),
            str(kinds[rank.kinds[group // len(WorkType)]]),
            *numbers,
        )
        for group, *numbers in rows
    )


def kind_times(rank: Rank) -> tuple[KindTimes, ...]:
    """Returns a rank's work by kind."""
    work = rank.work
    kind = rank.kinds[work.name]
    tallied = tally(kind, work.duration_s)
    whole_s = float(tallied.total_s.sum())
    rows = []
    for number, count, total_s in zip(
        tallied.group.tolist(), tallied.count.tolist(), tallied.total_s.tolist(), strict=True
    ):
        mine = kind == number
        busy_s = length_s(work.start_s[mine], work.end_s[mine])
        share = total_s / whole_s if whole_s > 0 else 0.0
        rows.append(KindTimes(rank.number, str(tuple(WorkKind)[number]), count, total_s, busy_s, share))
    return tuple(rows)
