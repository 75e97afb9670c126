"""Measures what communication took and waited for, by axis and collective, and finds the worst single calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.program.columns import Collective, Kind, label
from foretrace.readings.explain.rows import ROUNDING, OpPlace, OpRows, weighted_median

WORST_PER_AXIS = 5


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Seconds of single calls."""

    mean_s: float
    median_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class CallKind:
    """All calls of one collective over one axis.

    `calls` counts every rank's part in a call, `bytes` adds up the sizes of those parts. `transfer_s`, `wait_s` and
    `held_s` are per step, means over all ranks of the job: from start to end, from ready to start, and the part of
    that wait which held the rank up. `transfer` and `held` are of single calls. `bytes_per_s` is bytes over the
    time of the calls that carry bytes and have recorded partners (the time of a lone rank includes waiting); None
    without such calls or time.
    """

    axis: str
    collective: str
    calls: int
    bytes: int
    transfer_s: float
    wait_s: float
    held_s: float
    transfer: CallTimes
    held: CallTimes
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class WorstCall:
    """A call that held a rank up for long: of all members of its rendezvous the one that was held up longest.

    `waited_for` is the member that came last: the op named is the one it was busy with until then. It is None where
    nobody came later: recorded clocks are only so exact.
    """

    axis: str
    collective: str
    place: OpPlace
    start_s: float
    bytes: int
    transfer_s: float
    wait_s: float
    held_s: float
    waited_for: OpPlace | None


def call_kinds(rows: OpRows) -> tuple[CallKind, ...]:
    """Returns the calls by axis and collective, the greatest sum of transfer and held-up time first."""
    meets = np.flatnonzero(rows.communicator >= 0)
    axis = rows.axis
    kinds: dict[tuple[str, int], list[int]] = {}
    for row, name, what in zip(meets.tolist(), axis[meets].tolist(), rows.collective[meets].tolist(), strict=True):
        kinds.setdefault((name, what), []).append(row)
    calls = [_kind(rows, *key, np.array(members, dtype=np.int64)) for key, members in kinds.items()]
    return tuple(sorted(calls, key=lambda kind: -(kind.transfer_s + kind.held_s)))


def _kind(rows: OpRows, axis: str, collective: int, mine: Longs) -> CallKind:
    weight = rows.ranks[mine]
    sized = mine[(rows.bytes[mine] > 0) & (rows.members[mine] > 1)]
    carried = float((rows.bytes * rows.ranks)[sized].sum())
    running = float((rows.running_s * rows.ranks)[sized].sum())
    return CallKind(
        axis=axis,
        collective=label(Collective(collective)),
        calls=round(float(weight.sum())),
        bytes=round(float((rows.bytes[mine] * weight).sum())),
        transfer_s=rows.mean_over_ranks(rows.running_s, mine),
        wait_s=rows.mean_over_ranks(rows.wait_s, mine),
        held_s=rows.mean_over_ranks(rows.held_s, mine),
        transfer=_spread(rows.running_s[mine], weight),
        held=_spread(rows.held_s[mine], weight),
        bytes_per_s=carried / running if carried > 0 and running > 0 else None,
    )


def _spread(seconds: Floats, weight: Floats) -> CallTimes:
    return CallTimes(float(np.average(seconds, weights=weight)), weighted_median(seconds, weight), float(seconds.max()))


def worst_calls(rows: OpRows) -> tuple[WorstCall, ...]:
    """Returns the calls of each axis that held a rank up longest, one of each rendezvous, the worst first."""
    held = np.flatnonzero((rows.held_s > ROUNDING * rows.step_s) & (rows.communicator >= 0))
    held = held[np.argsort(-rows.held_s[held], kind="stable")]
    axis = rows.axis
    per_axis: dict[str, int] = {}
    units: set[int] = set()
    calls = []
    for row in held.tolist():
        name, unit = str(axis[row]), int(rows.unit[row])
        if unit in units or per_axis.get(name, 0) >= WORST_PER_AXIS:
            continue
        units.add(unit)
        per_axis[name] = per_axis.get(name, 0) + 1
        calls.append(_worst(rows, name, row))
    return tuple(calls)


def _worst(rows: OpRows, axis: str, row: int) -> WorstCall:
    last = int(rows.last[row])
    return WorstCall(
        axis=axis,
        collective=label(Collective(int(rows.collective[row]))),
        place=rows.place(row),
        start_s=float(rows.start_s[row]),
        bytes=int(rows.bytes[row]),
        transfer_s=float(rows.running_s[row]),
        wait_s=float(rows.wait_s[row]),
        held_s=float(rows.held_s[row]),
        waited_for=None if last == row else rows.place(_busy_with(rows, last)),
    )


def _busy_with(rows: OpRows, row: int) -> int:
    """Returns the op that a rank was busy with until it came to a call, ignoring the host; the call itself if none.

    Where steps repeat, the host's ops may lead back to themselves, one step earlier.
    """
    before = int(rows.before[row])
    passed: set[int] = set()
    while before >= 0 and rows.kind[before] == Kind.HOST and before not in passed:
        passed.add(before)
        before = int(rows.before[before])
    return row if before < 0 or before in passed else before
