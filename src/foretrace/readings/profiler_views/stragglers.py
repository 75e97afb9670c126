"""Which ranks the others wait for.

A collective ends on all its ranks at about the same time, and its kernel runs from when a rank arrives: who has the
shortest kernel came last, and the others waited for it as long as their kernels are longer. So clocks of different
hosts need not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.readings.profiler_views.rank import Rank, WorkType

_PAIRS: Final = ("send", "recv", "isend", "irecv")
MIN_SHARE: Final = 0.01
"""Of a step: shorter kernels are not looked at by HTA's rule."""


@dataclass(frozen=True, slots=True)
class RankArrival:
    """How a rank came to the collectives that it shares with other traced ranks."""

    rank: int
    calls: int
    last: int
    """How often it came last."""
    caused_s: float
    """What others waited for it, in sum."""
    lost_s: float
    """What it waited for others."""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Whom the others wait for."""

    arrivals: tuple[RankArrival, ...]
    """The rank that others waited for most comes first."""
    calls: int
    """Collectives found on more than one traced rank."""
    candidates: tuple[int, ...]
    """By HTA's rule: who is late most often at the one kernel whose duration differs most between ranks."""
    kernel: str
    """That kernel; empty where no long one is on several ranks."""


@dataclass(slots=True)
class _Group:
    """Calls that n-th by n-th are the same on all ranks that have them."""

    ranks: list[int] = field(default_factory=list)
    duration_s: list[Floats] = field(default_factory=list)


def stragglers(ranks: Sequence[Rank], count: int) -> Stragglers:
    """Whom to look at: `count` candidates by HTA's rule, and everyone's arrivals."""
    calls = {rank.number: 0 for rank in ranks}
    last, caused, lost = dict(calls), dict.fromkeys(calls, 0.0), dict.fromkeys(calls, 0.0)
    shared = 0
    for group in _groups(ranks):
        waits_s = _waits_s(group)
        latest = waits_s.argmin(axis=0)
        shared += waits_s.shape[1]
        for row, number in enumerate(group.ranks):
            calls[number] += waits_s.shape[1]
            last[number] += int(np.count_nonzero(latest == row))
            caused[number] += float(waits_s[:, latest == row].sum())
            lost[number] += float(waits_s[row].sum())
    arrivals = [RankArrival(call, calls[call], last[call], caused[call], lost[call]) for call in calls]
    candidates, kernel = _candidates(ranks, count)
    return Stragglers(
        tuple(sorted(arrivals, key=lambda arrival: (-arrival.caused_s, arrival.rank))), shared, candidates, kernel
    )


def _groups(ranks: Sequence[Rank]) -> list[_Group]:
    """The collectives of all ranks by communicator, kind and step; only those that several traced ranks share."""
    groups: dict[tuple[object, ...], _Group] = {}
    for rank in ranks:
        mine = np.flatnonzero(rank.work.type == WorkType.COMMUNICATION)
        keys: dict[tuple[object, ...], list[int]] = {}
        for at, key in zip(mine.tolist(), _keys(rank, mine), strict=True):
            if key is not None:
                keys.setdefault(key, []).append(at)
        for key, found in keys.items():
            group = groups.setdefault(key, _Group())
            group.ranks.append(rank.number)
            group.duration_s.append(rank.work.duration_s[np.array(found)])
    return [group for group in groups.values() if len(group.ranks) > 1]


def _keys(rank: Rank, mine: Longs) -> list[tuple[object, ...] | None]:
    """What the same call is called on every rank; None for transfers of a pair, which the others do not see."""
    trace, work = rank.trace, rank.work
    steps = rank.steps
    named = steps.how == "ProfilerStep"
    keys: list[tuple[object, ...] | None] = []
    for at in mine.tolist():
        event = int(work.event[at])
        step = int(steps.of_event[event])
        where = steps.names[step] if named and step >= 0 else step
        number = int(trace.events.call[event])
        if number < 0:
            keys.append((where, trace.strings[work.name[at]], rank.streams[work.stream[at]][1]))
            continue
        call = trace.calls[number]
        members = call.ranks or trace.groups.get(call.group, ())
        if call.name.lower() in _PAIRS:
            keys.append(None)
        else:
            keys.append((where, call.name.lower(), members or call.group, call.group))
    return keys


def _waits_s(group: _Group) -> Floats:
    """[ranks, calls]: how long each rank waited at each call for the last to come."""
    common = min(len(one) for one in group.duration_s)
    durations = np.stack([one[:common] for one in group.duration_s])
    waits_s: Floats = durations - durations.min(axis=0)
    return waits_s


def _candidates(ranks: Sequence[Rank], count: int) -> tuple[tuple[int, ...], str]:
    """HTA's rule, with the start of a kernel read as its end less its duration: of kernels longer than 1 % of a step
    the last of each name, stream and step; of these the name and stream whose duration differs most between ranks;
    and of this one the ranks that are latest most often."""
    found: dict[tuple[str, int], dict[object, dict[int, float]]] = {}
    for rank in ranks:
        work, steps = rank.work, rank.steps
        least_s = MIN_SHARE * rank.span_s / max(len(np.unique(steps.of_event[work.event])), 1)
        long = np.flatnonzero((work.type == WorkType.COMMUNICATION) & (work.duration_s >= least_s))
        for at in long.tolist():
            step = int(steps.of_event[work.event[at]])
            name, stream = rank.trace.strings[work.name[at]], rank.streams[work.stream[at]][1]
            last = found.setdefault((name, stream), {}).setdefault(steps.names[step] if step >= 0 else -1, {})
            last[rank.number] = float(work.duration_s[at])
    spread = {key: _mean_deviation(steps) for key, steps in found.items()}
    known = {key: one for key, one in spread.items() if one is not None}
    if not known:
        return (), ""
    best = max(known, key=lambda key: known[key])
    late = dict.fromkeys((rank.number for rank in ranks), 0)
    for durations in found[best].values():
        for number in sorted(durations, key=lambda duration: (durations[duration], duration))[:count]:
            late[number] += 1
    order = sorted(late, key=lambda one: (-late[one], one))
    return tuple(one for one in order[:count] if late[one]), best[0]


def _mean_deviation(steps: dict[object, dict[int, float]]) -> float | None:
    several = [np.std(list(step.values()), ddof=1) for step in steps.values() if len(step) > 1]
    return float(np.mean(several)) if several else None
