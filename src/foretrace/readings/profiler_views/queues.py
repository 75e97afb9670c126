"""How much launched work waits on each stream."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.readings.profiler_views.launches import launched
from foretrace.readings.profiler_views.rank import Rank
from foretrace.readings.profiler_views.statistics import Spread

FULL: Final = 1024
"""From about so many waiting launches on, the CUDA runtime blocks; not documented, but seen
(forums.developer.nvidia.com/t/255260)."""


@dataclass(frozen=True, slots=True)
class StreamQueue:
    """One stream's queue over time: a step function that changes when work is launched and when it starts."""

    rank: int
    device: int
    stream: int
    time_s: Floats
    length: Longs
    """From this moment on."""
    spread: Spread
    """Over the changes, each counting once."""
    mean_over_time: float
    empty_share: float
    """Which part of the time nothing waited."""
    full_s: float
    """How long so much waited that launching blocks."""
    early: int
    """Work that started before its call, by the recorded clocks: it is queued at its start, so no length is below 0."""


@dataclass(frozen=True, slots=True)
class QueueLengths:
    """The queues of every rank and stream."""

    queues: tuple[StreamQueue, ...]


def queues(rank: Rank, calls: Collection[str] | None = None) -> tuple[StreamQueue, ...]:
    """Returns the queues of one rank; `calls` counts only what these runtime calls launched."""
    work, events = rank.work, rank.trace.events
    known = launched(rank, calls)
    called_s = events.start_s[work.launch[known]]
    queues = []
    for number, (device, stream) in enumerate(rank.streams):
        mine = work.stream[known] == number
        if mine.any():
            queues.append(_queue(rank.number, device, stream, called_s[mine], work.start_s[known[mine]]))
    return tuple(queues)


def _queue(rank: int, device: int, stream: int, called_s: Floats, started_s: Floats) -> StreamQueue:
    early = called_s > started_s
    time_s = np.concatenate([np.minimum(called_s, started_s), started_s])
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(called_s))
    order = np.argsort(time_s, kind="stable")  # at one moment launches come first
    time_s, length = time_s[order], np.cumsum(change[order])
    lasts_s = np.diff(time_s)
    whole_s = float(lasts_s.sum())
    return StreamQueue(
        rank=rank,
        device=device,
        stream=stream,
        time_s=time_s,
        length=length,
        spread=Spread.of(length),
        mean_over_time=float((length[:-1] * lasts_s).sum()) / whole_s if whole_s > 0 else 0.0,
        empty_share=float(lasts_s[length[:-1] == 0].sum()) / whole_s if whole_s > 0 else 0.0,
        full_s=float(lasts_s[length[:-1] >= FULL].sum()),
        early=int(np.count_nonzero(early)),
    )
