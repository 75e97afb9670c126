"""How fast copies and memsets were, and how much of that ran at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.readings.profiler_views.rank import Rank, WorkType
from foretrace.readings.profiler_views.statistics import Spread

_MIN_S: Final = 1e-6
"""The assumed duration of a copy that was recorded without one; HTA assumes the same."""


@dataclass(frozen=True, slots=True)
class CopyBandwidth:
    """Copies of one direction on one rank: bytes per second of all that run at once, over time."""

    rank: int
    kind: str
    """Memcpy HtoD, Memcpy DtoD, Memset, ..."""
    count: int
    bytes: int
    seconds: float
    """Durations added up."""
    unknown: int
    """How many do not say their bytes; they are left out."""
    time_s: Floats
    bytes_per_s: Floats
    """From this moment on."""
    spread: Spread
    """The spread of the bandwidths above 0, each change counting once."""


@dataclass(frozen=True, slots=True)
class MemoryBandwidth:
    """Copies and memsets of every rank, by direction. It leaves out what kernels read and write."""

    copies: tuple[CopyBandwidth, ...]


def copies(rank: Rank) -> tuple[CopyBandwidth, ...]:
    """Returns the copies of one rank."""
    work, events = rank.work, rank.trace.events
    mine = np.flatnonzero(work.type == WorkType.MEMORY)
    kinds: dict[str, list[int]] = {}
    for name in np.unique(work.name[mine]).tolist():
        kinds.setdefault(copy_kind(rank.trace.strings[name]), []).append(name)
    copies = []
    for kind, names in sorted(kinds.items()):
        at = mine[np.isin(work.name[mine], names)]
        event = work.event[at]
        reported = np.full(len(at), -1.0) if events.bytes_per_s is None else events.bytes_per_s[event]
        copies.append(_copy(rank.number, kind, work.start_s[at], work.duration_s[at], events.bytes[event], reported))
    return tuple(copies)


def copy_kind(name: str) -> str:
    """Returns the name of a copy without its detail: `Memcpy HtoD` of `Memcpy HtoD (Pageable -> Device)`."""
    return name.partition(" (")[0]


def _copy(
    rank: int, kind: str, start_s: Floats, duration_s: Floats, sizes: Longs, reported_bytes_per_s: Floats
) -> CopyBandwidth:
    known = sizes >= 0
    start_s, size = start_s[known], sizes[known].astype(np.float64)
    took_s = np.where(duration_s[known] > 0, duration_s[known], _MIN_S)
    reported = reported_bytes_per_s[known]
    rate = np.where(reported >= 0, reported, size / took_s)
    time_s = np.concatenate([start_s, start_s + took_s])
    order = np.argsort(time_s, kind="stable")
    change = np.concatenate([rate, -rate])[order]
    level = np.cumsum(change)
    # Sums of floats do not come back to 0 by themselves; where nothing runs there is nothing left over.
    running = np.cumsum(np.repeat(np.array([1, -1], dtype=np.int64), len(rate))[order])
    level = np.where(running > 0, level, 0.0)
    seconds = float(duration_s[known].sum())
    return CopyBandwidth(
        rank=rank,
        kind=kind,
        count=len(rate),
        bytes=int(size.sum()),
        seconds=seconds,
        unknown=int(np.count_nonzero(~known)),
        time_s=time_s[order],
        bytes_per_s=level,
        spread=Spread.of(level[level > 0]),
    )
