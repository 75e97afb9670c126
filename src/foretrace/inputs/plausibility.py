"""Checks the times of a recording for what cannot have happened, whatever recorded it.

Clocks jump, buffers overflow, files are put together from others. One piece of work with a wrong time makes a step
negative, or many times too long. The checks know how devices work: nothing runs before it was issued, nor after
someone has waited for it, and a queue runs its work one after another in the order of issue.

An impossible row is put where its queue would have run it, or left out where the queue is not known. Many are kept
as they are, because then it is not one time that is wrong: a clock may be off, which changes no duration. If no clock
explains them, no time of such a recording can be trusted (`contradiction`). All of it is reported.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.units import format_time

MAX_CLOCKS_APART_S: Final = 50e-6
"""The time by which clocks of a host and its device may differ: profilers align them to a few microseconds."""

MAX_DISORDER_S: Final = 10e-6
"""The time by which starts on one queue may be out of order; older traces round to whole microseconds."""

MIN_STALL_S: Final = 5e-3
"""The time from which on an idle device with issued work is reported. Real recordings have less than 1 ms."""

GAP_S: Final = 1.5e-6
"""The time between two kernels of a stream, where one is put after the other (traces have medians of 1.2 to 1.6 µs)."""

MIN_KERNEL_S: Final = 0.3e-6
"""The time of the shortest kernels: 0.67 µs in traces of an H200, 1.3 µs of an A100."""

MIN_LAUNCH_CALL_S: Final = 0.2e-6
MAX_LAUNCH_CALL_S: Final = 0.3e-3
"""The time of a launch on the host. Real recordings have medians of 4 to 10 µs. A launch takes longer while the queue
of its stream is full, so the shortest launch is compared with the maximum."""

MAX_QUEUED_GAP_S: Final = 25e-6
"""The median time between two kernels of a device of which the second was queued in time: 1 to 3 µs in recordings, 4
to 11 µs in those that lost part of their kernels."""

_QUEUED_S: Final = 20e-6
"""How long before the device is free a kernel must have been issued to be queued in time."""
_MIN_QUEUED: Final = 20

MAX_LINK_BYTES_PER_S: Final = 4e12
"""NVLink 6 has 3.6 TB/s for each GPU, both ways together (NVIDIA, Vera Rubin NVL72)."""

MAX_CROWDING: Final = 10.0
"""The time of all work of a stream in relation to the time that the stream was recorded over: at most 1 where work runs
one after another. Programmatic dependent launch adds a few per cent. Kernels of graphs overlap: for them
`MAX_CONCURRENT` holds."""

MAX_CONCURRENT: Final = 128.0
"""The kernels that a GPU runs at once (CUDA C++ Programming Guide, technical specifications, resident grids)."""

_MIN_CROWD: Final = 20

_MAX_MENDED: Final = 0.05
"""The share of all work up to which rows that cannot be are mended or left out."""

_MIN_CONTRADICTION: Final = 0.01
"""The part of all recorded time that many rows must be out of order by for the recording to contradict itself."""

MAX_TIMES_USUAL: Final = 10.0
"""The ratio to the median of the same work beyond which a duration is reported, in both directions."""
_MIN_REPEATS: Final = 5
_MIN_REPORTED: Final = 0.01
"""The part of all recorded time from which on an overlap or a slow repetition is reported."""

MAX_GPU_FLOPS: Final = 2e16
"""FLOP/s of a GPU: NVIDIA's B300 has 1.5e16 in fp4."""


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """Work as it was recorded, a row for each piece; times in seconds on one clock."""

    start_s: Floats
    duration_s: Floats
    queue: Longs
    """Work of one queue runs one after another; -1 where the queue is not known, or runs several at once."""
    issued_s: Floats
    """When each was issued; NaN where that is not known."""
    issuer: Longs
    """The thread that issued it: the order of issue is certain within a thread."""
    done_s: Floats
    """When someone had waited for its end; infinite where nobody did."""
    repeats: Longs
    """Rows of equal number do the same and should take the same time; -1 where that is not known."""

    @property
    def end_s(self) -> Floats:
        """When each ended."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Implausible:
    """Rows that are impossible or unlikely; `text` completes "kernel X …" and `outcome` says what became of them."""

    code: str
    rows: Longs
    text: str
    outcome: str
    contradicts: bool = False
    """Whether so much of a recording is wrong that none of its times can be trusted."""


_KEPT: Final = "kept, for they are many: times of this recording may be wrong"


def _placed(work: RecordedWork, kept: Mask, rows: Longs, *, in_place: bool) -> tuple[RecordedWork, Longs]:
    """Returns work with `rows` after what was issued before them on their queues, and which rows could be placed so.

    Args:
        work: All work.
        kept: The rows with right times.
        rows: The rows to place.
        in_place: Whether the starts are right and only the durations are too long.
    """
    start_s, duration_s, right = work.start_s.copy(), work.duration_s.copy(), kept.copy()
    placed: list[int] = []
    for row in rows[np.argsort(work.issued_s[rows], kind="stable")].tolist():
        issued_s = float(work.issued_s[row])
        if work.queue[row] < 0 or not (in_place or np.isfinite(issued_s)):
            continue
        others = np.flatnonzero(right & (work.queue == work.queue[row]) & (np.isfinite(work.issued_s) | in_place))
        if in_place:
            following = others[start_s[others] > start_s[row]]
        else:
            before = others[work.issued_s[others] < issued_s]
            following = others[work.issued_s[others] >= issued_s]
            if not len(before):
                continue
            start_s[row] = max(float((start_s[before] + duration_s[before]).max()) + GAP_S, issued_s)
        if len(following):
            # It ends before the next on its queue begins, however long its recorded time is.
            room_s = float(start_s[following].min()) - float(start_s[row])
            duration_s[row] = min(float(duration_s[row]), max(room_s, 0.0))
        if start_s[row] < work.done_s[row] < start_s[row] + duration_s[row]:
            duration_s[row] = work.done_s[row] - start_s[row]
        right[row] = True
        placed.append(row)
    return replace(work, start_s=start_s, duration_s=duration_s), np.array(placed, dtype=np.int64)


def _before_issue(work: RecordedWork, kept: Mask) -> Mask:
    """Finds work that began before it was issued; if all of it did, the clocks of issuer and device are apart."""
    delay_s = np.where(np.isfinite(work.issued_s), work.start_s - work.issued_s, 0.0)
    return kept & (delay_s < -MAX_CLOCKS_APART_S)


def _far_away(work: RecordedWork, kept: Mask) -> Mask:
    """Finds work with more time between it and the bulk than the bulk, or its issue, takes."""
    far = np.zeros_like(kept)
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(work.start_s[rows], kind="stable")]
    if len(rows) < 3:
        return far
    start_s, end_s = work.start_s[rows], work.end_s[rows]
    idle_s = start_s[1:] - np.maximum.accumulate(end_s)[:-1]
    issued_s = work.issued_s[rows]
    issuing_s = float(np.nanmax(issued_s) - np.nanmin(issued_s)) if np.isfinite(issued_s).any() else 0.0
    longest_s = max(issuing_s, float(np.median(work.duration_s[rows])) * len(rows), 1e-3)
    part = np.concatenate([[0], np.cumsum(idle_s > longest_s)])
    bulk = np.bincount(part).argmax()
    far[rows[part != bulk]] = True
    return far


def _after_wait(work: RecordedWork, kept: Mask) -> Mask:
    """Finds work that ended after someone had waited for its end."""
    return kept & (work.end_s > work.done_s + MAX_CLOCKS_APART_S)


def _out_of_order(work: RecordedWork, kept: Mask) -> Mask:
    """Finds work that began in another order than one issuer gave it to its queue: the fewest rows that explain it."""
    moved = np.zeros_like(kept)
    rows = np.flatnonzero(kept & (work.queue >= 0) & np.isfinite(work.issued_s))
    rows = rows[np.lexsort((work.start_s[rows], work.issued_s[rows], work.issuer[rows], work.queue[rows]))]
    if not len(rows):
        return moved
    begins = (np.diff(work.queue[rows], prepend=-2) != 0) | (np.diff(work.issuer[rows], prepend=-2) != 0)
    back = (np.diff(work.start_s[rows], prepend=-np.inf) < -MAX_DISORDER_S) & ~begins
    group = np.cumsum(begins)
    for number in np.unique(group[back]).tolist():
        own = rows[group == number]
        moved[own[_not_rising(work.start_s[own])]] = True
    return moved


def _not_rising(values: Floats) -> Longs:
    """Returns the fewest positions whose values must go so that the others never fall by more than `MAX_DISORDER_S`."""
    # The longest rising subsequence, by patience sorting: `last[n]` ends the best one of n + 1 values.
    tops: list[float] = []
    last: list[int] = []
    before = np.full(len(values), -1, dtype=np.int64)
    for at, value in enumerate(values.tolist()):
        length = bisect_right(tops, value)
        before[at] = last[length - 1] if length else -1
        tops[length : length + 1] = [value]
        last[length : length + 1] = [at]
    rising = np.zeros(len(values), dtype=bool)
    at = last[-1]
    while at >= 0:
        rising[at] = True
        at = int(before[at])
    highest = np.maximum.accumulate(np.where(rising, values, -np.inf))
    lowest = np.minimum.accumulate(np.where(rising, values, np.inf)[::-1])[::-1]
    return np.flatnonzero(~rising & ((values < highest - MAX_DISORDER_S) | (values > lowest + MAX_DISORDER_S)))


def _across_others(work: RecordedWork, kept: Mask) -> Mask:
    """Finds work that ran on past the start of the second after it on its queue.

    The first after it may begin early: programmatic dependent launch lets a kernel begin while the last one ends.
    """
    across = np.zeros_like(kept)
    rows = _by_queue(work, kept)
    if len(rows) > 2:
        second_s = work.start_s[rows[2:]]
        same = work.queue[rows[2:]] == work.queue[rows[:-2]]
        across[rows[:-2][same & (work.end_s[rows[:-2]] > second_s + MAX_CLOCKS_APART_S)]] = True
    return across


def _stalled(work: RecordedWork, kept: Mask) -> Mask:
    """Finds work that nothing held up: the device was idle for long although the work had been issued.

    Only a stall far longer than all others of the recording counts: some jobs wait for other processes.
    """
    stalled = np.zeros_like(kept)
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(work.start_s[rows], kind="stable")]
    if len(rows) < 3:
        return stalled
    free_s = np.concatenate([[np.inf], np.maximum.accumulate(work.end_s[rows])[:-1]])
    idle_s = work.start_s[rows] - np.fmax(free_s, work.issued_s[rows])
    idle_s = np.where(np.isfinite(work.issued_s[rows]) & np.isfinite(free_s), idle_s, 0.0)
    longest, next_s = int(idle_s.argmax()), float(np.partition(idle_s, -2)[-2])
    row = rows[longest]
    # The first kernel of a kind may wait for its code to be loaded.
    loaded = work.repeats[row] >= 0 and (work.repeats[rows[:longest]] == work.repeats[row]).any()
    if loaded and idle_s[longest] > max(MIN_STALL_S, MAX_TIMES_USUAL * next_s):
        stalled[row] = True
    return stalled


_CHECKS: Final[tuple[tuple[str, str, Callable[[RecordedWork, Mask], Mask]], ...]] = (
    ("kernel-before-launch", "begins before its launch", _before_issue),
    ("outside-step", "lies far from all other work", _far_away),
    ("kernel-out-of-order", "runs after the host had waited for its end", _after_wait),
    ("kernel-out-of-order", "is not in the order in which its stream was given work", _out_of_order),
    ("overlapping-kernels", "runs at the same time as several others of its stream", _across_others),
)
"""The code of each check, the words that complete "kernel X …", and the rows that it finds."""


def check_work(work: RecordedWork) -> tuple[RecordedWork, Mask, list[Implausible]]:
    """Returns the work with mended times, which rows are kept, and the findings."""
    kept = np.ones(len(work.start_s), dtype=bool)
    findings: list[Implausible] = []
    for code, text, check in _CHECKS:
        rows = np.flatnonzero(check(work, kept) & kept)
        if not len(rows):
            continue
        if len(rows) > max(2, _MAX_MENDED * len(kept)) or len(rows) == kept.sum():
            findings.append(
                Implausible(code, rows, text, _KEPT, check in _CONTRADICTS and _CONTRADICTS[check](work, rows))
            )
            continue
        kept[rows] = False
        work, placed = _placed(work, kept, rows, in_place=check is _across_others)
        kept[placed] = True
        left = np.setdiff1d(rows, placed)
        outcomes = ((placed, "put where its stream would have run it"), (left, "left out"))
        findings += [Implausible(code, some, text, outcome) for some, outcome in outcomes if len(some)]
    rows = np.flatnonzero(_stalled(work, kept))
    if len(rows):
        text = "begins long after its launch, on an idle device"
        findings.append(Implausible("outside-step", rows, text, "kept as recorded"))
    return work, kept, findings


def _far_though_issued(work: RecordedWork, rows: Longs) -> bool:
    """Returns whether rows far from all others were issued together with them."""
    return bool(np.isfinite(work.issued_s[rows]).mean() > 0.5)


def _far_out_of_order(work: RecordedWork, rows: Longs) -> bool:
    """Returns whether the distance of rows to their place in the order of issue counts in relation to all time."""
    known = np.isfinite(work.issued_s) & (work.queue >= 0)
    right = known.copy()
    right[rows] = False
    off_s: list[Floats] = []
    for queue in np.unique(work.queue[rows]).tolist():
        own, others = rows[work.queue[rows] == queue], np.flatnonzero(right & (work.queue == queue))
        if len(others):
            others = others[np.argsort(work.issued_s[others], kind="stable")]
            latest_s = np.maximum.accumulate(work.start_s[others])
            at = np.searchsorted(work.issued_s[others], work.issued_s[own])
            off_s.append(np.abs(work.start_s[own] - latest_s[np.clip(at - 1, 0, len(others) - 1)]))
    span_s = float(work.end_s.max() - work.start_s.min())
    return bool(off_s) and float(np.median(np.concatenate(off_s))) > _MIN_CONTRADICTION * span_s


_CONTRADICTS: Final[dict[Callable[[RecordedWork, Mask], Mask], Callable[[RecordedWork, Longs], bool]]] = {
    _far_away: _far_though_issued,
    _out_of_order: _far_out_of_order,
}
"""The checks whose rows, where they are many, may leave no time to trust, and which of them do."""


def _by_queue(work: RecordedWork, kept: Mask) -> Longs:
    """Returns the rows of known queues, queue by queue in the order of their starts."""
    rows = np.flatnonzero(kept & (work.queue >= 0))
    return rows[np.lexsort((work.start_s[rows], work.queue[rows]))]


def overlapped_s(work: RecordedWork, kept: Mask) -> tuple[float, int]:
    """Returns for how long work ran at the same time as other work of its queue, and how many rows did so.

    Overlaps that are short in relation to the work are those of programmatic dependent launch.
    """
    rows = _by_queue(work, kept)
    if len(rows) < 2:
        return 0.0, 0
    first = np.flatnonzero(np.diff(work.queue[rows], prepend=-2))
    overlap_s = np.zeros(len(rows))
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(rows)], strict=True):
        own = rows[low:high]
        until_s = np.maximum.accumulate(work.end_s[own])[:-1]
        overlap_s[low + 1 : high] = np.minimum(until_s, work.end_s[own[1:]]) - work.start_s[own[1:]]
    long = overlap_s > MAX_CLOCKS_APART_S
    total_s = float(overlap_s[long].sum())
    return (total_s, int(long.sum())) if total_s > _MIN_REPORTED * float(work.duration_s[rows].sum()) else (0.0, 0)


def crowding(work: RecordedWork, kept: Mask) -> tuple[float, int]:
    """Returns the ratio of a queue's total duration to its recorded span, and the queue's first row.

    The queue is the most crowded of those with more work than any device runs. Without such a queue the ratio is 0.
    """
    rows = np.flatnonzero(kept)
    if not len(rows):
        return 0.0, -1
    rows = rows[np.lexsort((work.start_s[rows], work.queue[rows]))]
    first = np.flatnonzero(np.diff(work.queue[rows], prepend=-2))
    last = np.append(first[1:], len(rows)) - 1
    # The end of the last one is as wrong as its duration, so that the time from start to start counts.
    total_s = np.add.reduceat(work.duration_s[rows], first) - work.duration_s[rows[last]]
    span_s = np.maximum(work.start_s[rows[last]] - work.start_s[rows[first]], MIN_KERNEL_S)
    allowed = np.where(work.queue[rows[first]] >= 0, MAX_CROWDING, MAX_CONCURRENT)
    ratio = np.where(last - first + 1 >= _MIN_CROWD, total_s / span_s, 0.0)
    ratio[ratio <= allowed] = 0.0
    worst = int(ratio.argmax())
    return float(ratio[worst]), int(rows[first[worst]])


def odd_repeats(work: RecordedWork, kept: Mask) -> tuple[Longs, Longs]:
    """Returns rows that took over ten times the median of the same work, and rows that took less than a tenth.

    A slow row counts if it takes more than `_MIN_REPORTED` of all recorded time. Fast rows count if the time that they
    lack together exceeds the same share.
    """
    rows = np.flatnonzero(kept & (work.repeats >= 0))
    if len(rows) < _MIN_REPEATS:
        return rows[:0], rows[:0]
    order = rows[np.lexsort((work.duration_s[rows], work.repeats[rows]))]
    _, first, counts = np.unique(work.repeats[order], return_index=True, return_counts=True)
    middle_s = np.repeat(work.duration_s[order[first + (counts - 1) // 2]], counts)
    enough = np.repeat(counts, counts) >= _MIN_REPEATS
    duration_s = work.duration_s[order]
    min_reported_s = _MIN_REPORTED * float(work.duration_s[kept].sum())
    slow = enough & (middle_s > 0) & (duration_s > MAX_TIMES_USUAL * middle_s) & (duration_s > min_reported_s)
    fast = enough & (MAX_TIMES_USUAL * duration_s < middle_s)
    lacks_s = float((middle_s - duration_s)[fast].sum())
    return order[slow], order[fast & (lacks_s > min_reported_s)]


def queued_gap_s(work: RecordedWork, kept: Mask) -> float:
    """Returns the median time for which a device did nothing before work that was queued in time; 0 without such."""
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(work.start_s[rows], kind="stable")]
    free_s = np.maximum.accumulate(work.end_s[rows])[:-1]
    rows = rows[1:]
    queued = work.issued_s[rows] < free_s - _QUEUED_S  # False where it is not known when a row was issued
    gap_s = np.maximum(work.start_s[rows] - free_s, 0.0)[queued]
    return float(np.median(gap_s)) if len(gap_s) >= _MIN_QUEUED else 0.0


def duplicates(columns: Sequence[NDArray[Any]]) -> Mask:
    """Returns which rows are equal to an earlier one in all columns; equal rows need not follow each other."""
    again = np.zeros(len(columns[0]), dtype=bool)
    if not len(again):
        return again
    order = np.lexsort(tuple(reversed(columns)))  # stable, so that the first of equal rows stays
    same = np.ones(len(order) - 1, dtype=bool)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    again[order[1:][same]] = True
    return again


def contradiction(
    findings: Sequence[Implausible], describe: Callable[[int], str], noun: str, where: str
) -> InputError | None:
    """Returns the error for a recording whose times contradict each other; arguments are those of `diagnostics`."""
    for finding in findings:
        if finding.contradicts:
            text = f"{len(finding.rows):,} {noun}, first {describe(int(finding.rows[0]))}: each {finding.text}"
            hint = "times of this recording are wrong, record it again"
            return InputError(finding.code, text, where=where, hint=hint)
    return None


def diagnostics(
    findings: Sequence[Implausible], describe: Callable[[int], str], noun: str, where: str
) -> list[Diagnostic]:
    """Returns findings as warnings; `describe` names a row with its place, `noun` is what several are called."""
    notes = []
    for finding in findings:
        first = describe(int(finding.rows[0]))
        count = len(finding.rows)
        text = f"{first} {finding.text}" if count == 1 else f"{count:,} {noun}, first {first}: each {finding.text}"
        notes.append(Diagnostic("warning", finding.code, f"{text}; {finding.outcome}", where))
    return notes


def overlap_note(seconds: float, count: int, where: str) -> Diagnostic:
    """Returns the warning on work that overlaps other work of its queue."""
    text = f"{count:,} kernels overlap others on their stream, by {format_time(seconds)} in all: kept as recorded"
    return Diagnostic("warning", "overlapping-kernels", text, where)
