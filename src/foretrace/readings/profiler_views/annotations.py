"""Measures the ranges that users marked, on the host and on a device, and what was launched within them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.readings.profiler_views.rank import Rank
from foretrace.readings.profiler_views.statistics import tally


@dataclass(frozen=True, slots=True)
class AnnotationTimes:
    """All ranges of one name on one rank."""

    rank: int
    side: Literal["host", "device"]
    """Where the range was recorded: on a thread, or as it fell on a stream."""
    name: str
    count: int
    total_s: float
    mean_s: float
    deviation_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class LaunchedTimes:
    """Work launched within ranges of one name on one rank, whenever it ran."""

    rank: int
    name: str
    count: int
    total_s: float
    """Durations added up."""
    innermost_s: float
    """The part of these that lies in no inner range."""


@dataclass(frozen=True, slots=True)
class AnnotationBreakdown:
    """Users' ranges of every rank; the most time first."""

    annotations: tuple[AnnotationTimes, ...]

    def of(self, side: Literal["host", "device"]) -> tuple[AnnotationTimes, ...]:
        """Returns the ranges recorded on one side."""
        return tuple(annotation for annotation in self.annotations if annotation.side == side)


def ranges(rank: Rank) -> tuple[AnnotationTimes, ...]:
    """Returns the ranges of one rank."""
    events = rank.trace.events
    rows: list[AnnotationTimes] = []
    sides: tuple[tuple[Literal["host", "device"], EventCategory], ...] = (
        ("host", EventCategory.ANNOTATION),
        ("device", EventCategory.DEVICE_ANNOTATION),
    )
    for side, category in sides:
        at = events.of(category)
        at = at[rank.counts(at)]
        times = tally(events.name[at], events.duration_s[at])
        for number, name in enumerate(times.group.tolist()):
            rows.append(
                AnnotationTimes(
                    rank=rank.number,
                    side=side,
                    name=rank.trace.strings[name],
                    count=int(times.count[number]),
                    total_s=float(times.total_s[number]),
                    mean_s=float(times.mean_s[number]),
                    deviation_s=float(times.deviation_s[number]),
                    least_s=float(times.least_s[number]),
                    most_s=float(times.most_s[number]),
                )
            )
    return tuple(rows)


def launched(rank: Rank) -> tuple[LaunchedTimes, ...]:
    """Returns the work launched within the host's ranges of each name, the most time first."""
    events, work = rank.trace.events, rank.work
    count = len(rank.trace.strings)
    around = rank.links.annotation[work.event]
    inside = around >= 0
    innermost_s = np.bincount(events.name[around[inside]], weights=work.duration_s[inside], minlength=count)
    pairs = [np.zeros(0, dtype=np.int64)]
    number = np.arange(len(work), dtype=np.int64)
    while inside.any():
        number, around = number[inside], around[inside]
        pairs.append(number * count + events.name[around])
        around = rank.links.annotation[around]
        inside = around >= 0
    # Work in a range within one of the same name counts once.
    once = np.unique(np.concatenate(pairs))
    tallied = tally(once % count, work.duration_s[once // count])
    return tuple(
        LaunchedTimes(rank.number, rank.trace.strings[name], many, total_s, float(innermost_s[name]))
        for name, many, total_s in zip(
            tallied.group.tolist(), tallied.count.tolist(), tallied.total_s.tolist(), strict=True
        )
    )
