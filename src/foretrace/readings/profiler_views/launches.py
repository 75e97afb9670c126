"""How work gets from the host to a device: what a launch takes, and how long what was launched waits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.readings.profiler_views.rank import Rank
from foretrace.readings.profiler_views.statistics import Spread

LONG_CALL_S: Final = 50e-6
LONG_DELAY_S: Final = 100e-6
"""HTA's cutoffs of what it draws as outliers."""


@dataclass(frozen=True, slots=True)
class RankLaunches:
    """Every launch of a rank, in order of the calls, and what they are like; times in seconds."""

    rank: int
    correlation: Longs
    call_s: Floats
    """How long the runtime call took on the host."""
    device_s: Floats
    """How long what it launched ran."""
    delay_s: Floats
    """From the end of the call to the start on the device; 0 where that came first."""
    call: Spread
    device: Spread
    delay: Spread
    short: int
    """Work that ran for less than its call took."""
    long_calls: int
    long_delays: int
    unlaunched: int
    """Work whose call was not recorded, in the whole trace: it belongs to no step."""


@dataclass(frozen=True, slots=True)
class LaunchStatistics:
    """Launches, rank by rank."""

    long_call_s: float
    long_delay_s: float
    ranks: tuple[RankLaunches, ...]


def launched(rank: Rank, calls: Collection[str] | None = None) -> Longs:
    """Returns which of a rank's work has its call recorded, or one of these calls."""
    work, trace = rank.work, rank.trace
    known = work.launch >= 0
    if calls is not None:
        chosen = np.array([name in calls for name in trace.strings], dtype=bool)
        known &= chosen[trace.events.name[work.launch]]
    return np.flatnonzero(known)


def launches(
    rank: Rank,
    long_call_s: float = LONG_CALL_S,
    long_delay_s: float = LONG_DELAY_S,
    calls: Collection[str] | None = None,
) -> RankLaunches:
    """Returns the launches of one rank; `calls` counts only these runtime calls."""
    work, events = rank.work, rank.trace.events
    at = launched(rank, calls)
    at = at[np.argsort(events.start_s[work.launch[at]], kind="stable")]
    launch = work.launch[at]
    call_s, device_s = events.duration_s[launch], work.duration_s[at]
    delay_s = np.maximum(work.start_s[at] - events.start_s[launch] - call_s, 0.0)
    return RankLaunches(
        rank=rank.number,
        correlation=events.correlation[launch],
        call_s=call_s,
        device_s=device_s,
        delay_s=delay_s,
        call=Spread.of(call_s),
        device=Spread.of(device_s),
        delay=Spread.of(delay_s),
        short=int(np.count_nonzero((device_s < call_s) & (call_s <= long_call_s))),
        long_calls=int(np.count_nonzero(call_s > long_call_s)),
        long_delays=int(np.count_nonzero(delay_s > long_delay_s)),
        unlaunched=int(np.count_nonzero(rank.ran.launch < 0)),
    )
