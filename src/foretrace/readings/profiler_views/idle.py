"""Why a device did nothing: it waited for its host, for the next kernel to get going, or for something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.readings.profiler_views.intervals import united
from foretrace.readings.profiler_views.rank import Rank

CONSECUTIVE_DELAY_S: Final = 30e-6
"""A shorter gap between kernels that were both launched in time is called a kernel wait. HTA's default is 30 in the
trace's unit, which is microseconds."""

_HALF_NS: Final = 0.5e-9


@dataclass(frozen=True, slots=True)
class IdleTimes:
    """Idle time by cause, in seconds; the three sum to `idle_s`."""

    idle_s: float
    host_wait_s: float
    """The next kernel was not launched yet when the one before it ended: the host was too slow."""
    kernel_wait_s: float
    """It was launched in time, and the gap is short: what starting a kernel takes."""
    other_s: float
    """It was launched in time and started late: it waited for an event of another stream, a copy, a collective."""


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Gaps of one queue of a device, between the end of a kernel and the start of the next."""

    rank: int
    device: int
    stream: int
    times: IdleTimes
    gaps: int


@dataclass(frozen=True, slots=True)
class RankIdle:
    """Idle time of a rank's device: no stream had work; and of each stream by itself."""

    rank: int
    span_s: float
    device: IdleTimes
    streams: tuple[StreamIdle, ...]


@dataclass(frozen=True, slots=True)
class IdleBreakdown:
    """Idle time by cause, rank by rank."""

    consecutive_delay_s: float
    ranks: tuple[RankIdle, ...]


def idle(rank: Rank, consecutive_delay_s: float) -> RankIdle:
    """Returns the idle time of one rank, while the steps that count lasted."""
    work = rank.seen
    streams = []
    for number, (device, stream) in enumerate(rank.streams):
        mine = np.flatnonzero(work.stream == number)
        reached = np.maximum.accumulate(work.end_s[mine])
        times = _by_cause(rank, reached[:-1], mine[1:], consecutive_delay_s)
        streams.append(StreamIdle(rank.number, device, stream, times, len(mine) - 1))
    starts, ends = united(work.start_s, work.end_s)
    # The work that ends a gap is the first of those that begin with the next stretch.
    follows = np.searchsorted(work.start_s, starts)
    low_s, high_s = rank.windows
    before, after = min(float(low_s[0]), float(starts[0])), max(float(high_s[-1]), float(ends[-1]))
    device_wide = _by_cause(rank, np.append(before, ends), follows, consecutive_delay_s, until_s=after)
    return RankIdle(rank.number, rank.span_s, device_wide, tuple(streams))


def _by_cause(
    rank: Rank, ended_s: Floats, follows: Longs, consecutive_delay_s: float, until_s: float | None = None
) -> IdleTimes:
    """Returns gaps by cause: each from the end of what came before to the work that follows.

    With `until_s` there is one more gap up to there, which no work follows: none was launched, unless the gap is short.
    """
    work, events = rank.seen, rank.trace.events
    begun_s, launch = work.start_s[follows], work.launch[follows]
    # Times are whole nanoseconds, and ends are sums of floats: half a nanosecond tells equal from later.
    late = (launch >= 0) & (events.start_s[launch] > ended_s[: len(follows)] + _HALF_NS)
    if until_s is not None:
        begun_s = np.append(begun_s, until_s)
        late = np.append(late, until_s - ended_s[-1] >= consecutive_delay_s - _HALF_NS)
    short = ~late & (begun_s - ended_s < consecutive_delay_s - _HALF_NS)
    gap_s = np.maximum(rank.within_s(ended_s, begun_s), 0.0)
    host, kernel = float(gap_s[late].sum()), float(gap_s[short].sum())
    return IdleTimes(float(gap_s.sum()), host, kernel, float(gap_s[~late & ~short].sum()))
