"""Leaves out of a trace what cannot have happened, and says so, before anything reads it.

Every command reads a trace through `plausible`, so that all of them see the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.errors import Diagnostic, InputError, quoted, shown
from foretrace.basics.units import format_percent, format_time
from foretrace.inputs.plausibility import (
    MAX_CLOCKS_APART_S,
    MAX_LAUNCH_CALL_S,
    MAX_QUEUED_GAP_S,
    MAX_TIMES_USUAL,
    MIN_KERNEL_S,
    MIN_LAUNCH_CALL_S,
    RecordedWork,
    check_work,
    contradiction,
    crowding,
    diagnostics,
    duplicates,
    odd_repeats,
    overlap_note,
    overlapped_s,
    queued_gap_s,
)
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.calls import Does, does
from foretrace.inputs.profiler_trace.rank.links import KERNEL_LAUNCH, EventLinks
from foretrace.inputs.profiler_trace.rank.steps import (
    MISSING_MARKS,
    PHASE,
    in_launch_order,
    kernel_period,
    step_numbers,
)
from foretrace.inputs.torch_ops.kinds import communicates
from foretrace.inputs.torch_ops.ranges import PROFILER_STEP

_NUMBERED: Final = (*ON_DEVICE, EventCategory.RUNTIME, EventCategory.SYNC)
"""Events that their correlation tells apart."""

_MIN_LAUNCHED: Final = 0.25
"""The share of a device's time whose launches must be known, if any are."""

_MAX_UNLAUNCHED: Final = 0.02
"""The share of a device's time whose launches may be missing without a word."""

_TWICE_SHARE: Final = 0.8
"""The share of work from which on that is there twice a recording is taken to hold everything twice."""

_ODD_REPEATS: Final = ("over ten times as long as usual", "less than a tenth of the usual time")
_MAX_SHORT: Final = 0.05
"""The share of kernels that may seem to take no time (older traces have whole microseconds), or of odd launches."""

_MIN_LAUNCHES: Final = 8
_MAX_MARK_GAP: Final = 0.05
"""The share of a step by which the next one's mark may begin later; real ones leave less than 0.5 %."""

_MAX_MARKS: Final = 1_000
MIN_MISSING: Final = 0.01
"""The share of launches without a kernel from which on too much is missing for the times to be right."""


def plausible(trace: RankProfile) -> RankProfile:
    """Returns a trace without events that cannot be, with diagnostics on these and on what is odd in the others."""
    notes: list[Diagnostic] = []
    trace = _with_right_marks(_without_duplicates(trace, notes), notes)
    events = trace.events
    device = events.of(*ON_DEVICE)
    if not len(device):
        return replace(trace, diagnostics=(*trace.diagnostics, *notes))
    links = EventLinks(trace)
    work = _work(trace, links, device)
    mended, kept, findings = check_work(work)

    def describe(row: int) -> str:
        return _described(trace, int(device[row]))

    if error := contradiction(findings, describe, "kernels and copies", trace.path):
        raise error
    ratio, first = crowding(mended, kept)
    if ratio:
        text = (
            f"the kernels of a stream take {ratio:,.0f} times the time from the first, {describe(first)}, to the last"
        )
        hint = "durations of this trace are wrong; a unit may be mistaken, such as ns written as µs"
        raise InputError("implausible-time", text, where=trace.path, hint=hint)
    units = (*_odd_durations(trace, device), *_odd_launch_times(trace))
    notes[:0] = _as_recorded(units, trace.path)
    notes += diagnostics(findings, describe, "kernels and copies", trace.path)
    notes += _missing(trace, links)
    notes += _without_launches(trace, links, device)
    overlap_s, count = overlapped_s(mended, kept)
    if count:
        notes.append(overlap_note(overlap_s, count, trace.path))
    for text, rows in zip(_ODD_REPEATS, odd_repeats(mended, kept), strict=True):
        odd = [row for row in rows.tolist() if _is_odd(trace, links, device, row)]
        if odd:
            text = f"{describe(odd[0])} takes {text}"
            text += f", and {len(odd) - 1:,} more do" if len(odd) > 1 else ""
            notes.append(Diagnostic("warning", "implausible-time", f"{text}: kept as recorded", trace.path))
    if not units:  # a mistaken unit explains these
        notes += _as_recorded((*_odd_gaps(mended, kept), *_crossed_launches(trace)), trace.path)
    if mended is not work or not kept.all():
        trace = _mended(trace, device, mended, kept)
    return replace(trace, diagnostics=(*trace.diagnostics, *notes)) if notes else trace


def _as_recorded(texts: Iterable[str], where: str) -> list[Diagnostic]:
    return [Diagnostic("warning", "implausible-time", f"{text}; kept as recorded", where) for text in texts]


def _mended(trace: RankProfile, device: Longs, work: RecordedWork, kept: Mask) -> RankProfile:
    """Returns a trace with the times of `work` and without what is not kept; it counts from its first event again."""
    events = trace.events
    start_s, duration_s = events.start_s.copy(), events.duration_s.copy()
    start_s[device], duration_s[device] = work.start_s, work.duration_s
    rows = np.ones(len(events), dtype=bool)
    rows[device[~kept]] = False
    at = np.flatnonzero(rows)
    at = at[np.lexsort((-duration_s[at], start_s[at]))]
    first_s = float(start_s[at[0]])
    events = replace(events, start_s=start_s - first_s, duration_s=duration_s).rows(at)
    return replace(trace, events=events, origin_ns=trace.origin_ns + round(first_s * 1e9))


def _is_odd(trace: RankProfile, links: EventLinks, device: Longs, row: int) -> bool:
    """Returns whether a kernel is slow or fast among those of its name and inputs too, where inputs were recorded."""
    events = trace.events
    own = device[events.name[device] == events.name[device[row]]]
    inputs = np.where(links.op[own] >= 0, events.inputs[links.op[own]], -1)
    own = own[inputs == inputs[own == device[row]][0]]
    duration_s, usual_s = float(events.duration_s[device[row]]), float(np.median(events.duration_s[own]))
    return duration_s > MAX_TIMES_USUAL * usual_s or MAX_TIMES_USUAL * duration_s < usual_s


def _odd_durations(trace: RankProfile, device: Longs) -> Iterator[str]:
    """Yields what to say of kernels that are shorter than any kernel."""
    kernels = device[trace.events.category[device] == EventCategory.KERNEL]
    short = kernels[trace.events.duration_s[kernels] < MIN_KERNEL_S]
    if len(short) > _MAX_SHORT * len(kernels):
        least = format_time(MIN_KERNEL_S)
        yield (
            f"{len(short):,} of {len(kernels):,} kernels take less than {least}, which no kernel does, first "
            f"{_described(trace, int(short[0]))}; a unit may be mistaken"
        )


def _odd_gaps(work: RecordedWork, kept: Mask) -> Iterator[str]:
    """Yields what to say of a device that does nothing although work is queued."""
    gap_s = queued_gap_s(work, kept)
    if gap_s > MAX_QUEUED_GAP_S:
        yield (
            f"the device does nothing for {format_time(gap_s)} (median) before kernels that were queued in time: "
            "kernels are missing, or durations are too short"
        )


def _launches(trace: RankProfile) -> Longs:
    """Returns the calls that launch one kernel each, captured ones included."""
    calls = trace.events.of(EventCategory.RUNTIME)
    return calls[trace.named(lambda name: KERNEL_LAUNCH.match(name) is not None)[calls]]


def _odd_launch_times(trace: RankProfile) -> Iterator[str]:
    """Yields what to say of launches that are far shorter or longer on the host than any."""
    launches = _launches(trace)
    if len(launches) < _MIN_LAUNCHES:
        return
    duration_s = trace.events.duration_s[launches]
    shortest_s, median_s = float(duration_s.min()), float(np.median(duration_s))
    if median_s < MIN_LAUNCH_CALL_S or shortest_s > MAX_LAUNCH_CALL_S:
        what = f"half of all launches take less than {format_time(median_s)}"
        if median_s >= MIN_LAUNCH_CALL_S:
            what = f"each launch takes {format_time(shortest_s)} or more"
        yield f"{what} on the host, and a launch takes microseconds; a unit may be mistaken"


def _crossed_launches(trace: RankProfile) -> Iterator[str]:
    """Yields what to say of launches of a thread that overlap."""
    events, launches = trace.events, _launches(trace)
    if len(launches) < _MIN_LAUNCHES:
        return
    launches = launches[np.lexsort((events.start_s[launches], events.thread[launches]))]
    same = events.thread[launches[1:]] == events.thread[launches[:-1]]
    crossed = same & (events.end_s[launches[:-1]] > events.start_s[launches[1:]] + MAX_CLOCKS_APART_S)
    if crossed.sum() > _MAX_SHORT * len(launches):
        yield (
            f"{int(crossed.sum()):,} of {len(launches):,} launches run on while their thread begins the next, first "
            f"at {format_time(float(events.start_s[launches[:-1][crossed][0]]))}"
        )


def _described(trace: RankProfile, event: int) -> str:
    events = trace.events
    stream, correlation = int(events.stream[event]), int(events.correlation[event])
    places = [f"stream {stream}"] * (stream >= 0) + [f"correlation {correlation}"] * (correlation >= 0)
    place = ", ".join([*places, f"at {format_time(float(events.start_s[event]))}"])
    return f"{quoted(trace.strings[events.name[event]])} ({place})"


def _without_duplicates(trace: RankProfile, notes: list[Diagnostic]) -> RankProfile:
    """Returns a trace without events that it holds twice.

    Work and calls are told apart by their correlation. Where most of them are there twice, whatever else is equal in
    all that was recorded is a duplicate too; otherwise only an annotation is that takes a while.
    """
    events = trace.events
    # Events are in order of start and duration: only those with an equal neighbour can be there twice.
    equal = (np.diff(events.start_s) == 0) & (np.diff(events.duration_s) == 0)
    asked = np.flatnonzero(np.concatenate([equal, [False]]) | np.concatenate([[False], equal]))
    columns = [getattr(events, field.name) for field in fields(events)]
    again = np.zeros(len(events), dtype=bool)
    again[asked] = duplicates([column[asked] for column in columns if column is not None])
    numbered = np.isin(events.category, _NUMBERED) & (events.correlation >= 0)
    doubled = again & numbered
    doubled |= _on_two_streams(trace, asked, numbered)
    if doubled.sum() < _TWICE_SHARE / 2 * numbered.sum() or not numbered.any():
        ops = (events.category == EventCategory.CPU_OP) & (events.external > 0)
        ranges = (events.category == EventCategory.ANNOTATION) & (events.duration_s > 10e-6)
        doubled |= again & (ops | ranges)
    else:
        doubled = again
    doubled |= _launched_once(trace)
    if not doubled.any():
        return trace
    first = int(np.flatnonzero(doubled)[0])
    text = f"{int(doubled.sum()):,} events are in the trace twice: left out once; first {_described(trace, first)}"
    notes.append(Diagnostic("warning", "duplicate-event", text, trace.path))
    return replace(trace, events=events.rows(~doubled))


def _on_two_streams(trace: RankProfile, asked: Longs, numbered: Mask) -> Mask:
    """Returns work that is there again on another stream, if most work is: one launch runs on one stream."""
    events = trace.events
    again = np.zeros(len(events), dtype=bool)
    work = asked[numbered[asked] & (events.thread[asked] < 0)]
    if len(work):
        again[work] = duplicates(
            [column[work] for column in (events.start_s, events.duration_s, events.name, events.correlation)]
        )
    return again if 2 * again.sum() > _TWICE_SHARE * (numbered & (events.thread < 0)).sum() else np.zeros_like(again)


def _launched_once(trace: RankProfile) -> Mask:
    """Returns kernels that are there again at another time or on another stream: a launch that is not of a graph runs
    one kernel."""
    events = trace.events
    again = np.zeros(len(events), dtype=bool)
    launches = _launches(trace)
    kernels = events.of(EventCategory.KERNEL)
    kernels = kernels[(events.correlation[kernels] >= 0)]
    kernels = kernels[np.isin(events.correlation[kernels], events.correlation[launches])]
    again[kernels] = duplicates([column[kernels] for column in (events.correlation, events.name, events.duration_s)])
    return again


def _work(trace: RankProfile, links: EventLinks, device: Longs) -> RecordedWork:
    """Returns what ran on devices as the checks read it."""
    events = trace.events
    launch = links.launch[device]
    known = launch >= 0
    issued_s = np.where(known, events.start_s[launch], np.nan)
    # The kernels of one launch, a graph's, may run at once.
    counts = np.bincount(launch[known], minlength=1)
    alone = ~known | (counts[np.maximum(launch, 0)] == 1)
    queue = np.where(alone, np.maximum(events.device[device], 0).astype(np.int64) << 32 | events.stream[device], -1)
    return RecordedWork(
        start_s=events.start_s[device],
        duration_s=events.duration_s[device],
        queue=np.where(events.stream[device] >= 0, queue, -1),
        issued_s=issued_s,
        issuer=np.where(known, events.thread[launch], -1).astype(np.int64),
        done_s=_done_s(trace, device, launch),
        repeats=_repeats(trace, device),
    )


def _done_s(trace: RankProfile, device: Longs, launch: Longs) -> Floats:
    """Returns the end of the first wait of the host for the device after the launch of each piece of work."""
    events = trace.events
    done_s = np.full(len(device), np.inf)
    waits = np.flatnonzero(does(trace) == Does.WAITS_DEVICE)
    if not len(waits) or len(np.unique(events.device[device])) > 1:
        return done_s  # a wait is for one device, which is not recorded
    waits = waits[np.argsort(events.start_s[waits], kind="stable")]
    over_s = np.minimum.accumulate(events.end_s[waits][::-1])[::-1]
    launched_s = np.where(launch >= 0, events.end_s[launch], -np.inf)
    return np.append(over_s, np.inf)[np.searchsorted(events.start_s[waits], launched_s)]


def _repeats(trace: RankProfile, device: Longs) -> Longs:
    """Returns a number for each kernel that all kernels of its name and size share; -1 for communication.

    A collective takes as long as it waits for its partners.
    """
    events = trace.events
    blocks = np.zeros(len(device)) if events.blocks_per_sm is None else events.blocks_per_sm[device]
    sizes, size = np.unique(blocks, return_inverse=True)
    computes = ~trace.named(communicates)[device] & (events.category[device] == EventCategory.KERNEL)
    return np.where(computes, events.name[device].astype(np.int64) * len(sizes) + size, -1)


def _with_right_marks(trace: RankProfile, notes: list[Diagnostic]) -> RankProfile:
    """Returns a trace without marks of steps that cannot be right.

    Marks of one thread follow each other in the order of their numbers: of those that do not, the fewest are left out.
    If the kernels repeat and most of the remaining marks do not follow them, all marks are left out.
    """
    events = trace.events
    marks = np.flatnonzero(trace.named(lambda name: name.startswith(PROFILER_STEP)))
    marks = marks[np.isin(events.category[marks], (EventCategory.ANNOTATION, EventCategory.CPU_OP))]
    marks = marks[events.thread[marks] >= 0]
    if len(marks) < 2 or len(marks) > _MAX_MARKS or len(np.unique(events.thread[marks])) > 1:
        return trace
    numbers = step_numbers(trace, marks)
    wrong = _conflicting(numbers, events.start_s[marks], events.end_s[marks])
    right = marks[~wrong]
    gaps = np.maximum(np.diff(numbers[~wrong]), 1)  # marks without numbers follow each other
    text = ""
    if 2 * len(right) < len(marks) or not _follow_kernels(trace, right, gaps):
        text = "the marks of steps do not follow the kernels, which repeat: left out, steps are found without them"
        wrong[:] = True
    elif wrong.any():
        names = ", ".join(shown(name) for name in trace.names(marks[wrong][:3]))
        text = f"{names}: overlap other marks of steps, or are in the wrong order: {MISSING_MARKS}"
    elif (gaps > 1).any():
        first = shown(trace.names(right)[int(np.argmax(gaps > 1))])
        text = f"marks of steps are missing, first after {first}: {MISSING_MARKS}"
    elif len(late := _late_marks(trace, right)):
        first = shown(trace.names(late[:1])[0])
        text = f"marks of steps do not follow each other, first {first} begins late: each step ends with the next mark"
    if text:
        notes.append(Diagnostic("warning", "overlapping-steps", text, trace.path))
    rows = np.ones(len(events), dtype=bool)
    rows[marks[wrong]] = False
    return trace if rows.all() else replace(trace, events=events.rows(rows))


def _late_marks(trace: RankProfile, marks: Longs) -> Longs:
    """Returns the marks that do not begin where the one before them ended, as the profiler writes them."""
    start_s, end_s = trace.events.start_s[marks], trace.events.end_s[marks]
    return marks[1:][start_s[1:] - end_s[:-1] > MAX_CLOCKS_APART_S + _MAX_MARK_GAP * (start_s[1:] - start_s[:-1])]


def _conflicting(numbers: Longs, start_s: Floats, end_s: Floats) -> Mask:
    """Returns the fewest marks that must go so that the others follow each other in the order of their numbers."""
    first = np.arange(len(numbers))
    # Equal numbers are in the order of time.
    before = (numbers[:, None] < numbers) | ((numbers[:, None] == numbers) & (first[:, None] < first))
    conflict = before & (end_s[:, None] > start_s + MAX_CLOCKS_APART_S)
    conflict |= conflict.T
    wrong = np.zeros(len(numbers), dtype=bool)
    while conflict.any():
        count = conflict.sum(axis=0)
        worst = np.flatnonzero(count == count.max())
        # A mark that was moved also leaves a gap to the mark on its other side; the first and last have no other side.
        left = np.flatnonzero(~wrong)
        left = left[np.lexsort((left, numbers[left]))]
        gap_s = np.abs(start_s[left[1:]] - end_s[left[:-1]])
        apart_s = np.zeros(len(numbers))
        apart_s[left[1:]] += gap_s
        apart_s[left[:-1]] += gap_s
        apart_s[left[[0, -1]]] *= 1.5
        row = worst[apart_s[worst].argmax()]
        wrong[row] = True
        conflict[row] = conflict[:, row] = False
    return wrong


def _follow_kernels(trace: RankProfile, marks: Longs, gaps: Longs) -> bool:
    """Returns whether most marks are as many periods of the kernels apart as their numbers, where kernels repeat."""
    links = EventLinks(trace)
    device = in_launch_order(trace, links)
    apart = np.diff(np.searchsorted(links.issued_s[device], trace.events.start_s[marks]))
    if not len(device) or not len(apart) or ((gaps == 1).all() and np.ptp(apart) <= PHASE * np.median(apart)):
        return True
    period, _ = kernel_period(trace.events.name[device])
    near = np.abs(apart - gaps.astype(np.float64) * period) <= PHASE * period
    return not period or float(near.mean()) >= 0.5


def _missing(trace: RankProfile, links: EventLinks) -> list[Diagnostic]:
    """Reports launches whose kernels were not recorded."""
    launches, lost = links.kernel_launches, links.lost_launches
    if not len(lost):
        return []
    share = len(lost) / len(launches)
    first = int(lost[0])
    text = f"{len(lost):,} of {len(launches):,} launches ({format_percent(share)}) have no kernel in the trace, first "
    text += _described(trace, first)
    stream = _next_stream(trace, links, first)
    text += f" next to launches on stream {stream}" if stream >= 0 else ""
    if share < MIN_MISSING:
        return [Diagnostic("note", "launch-without-kernel", text, trace.path)]
    text += ": what the device did in their time is not known; record again, the profiler's buffer may have overflowed"
    return [Diagnostic("warning", "launch-without-kernel", text, trace.path)]


def _next_stream(trace: RankProfile, links: EventLinks, launch: int) -> int:
    """Returns the stream of the work launched next by the thread of a launch, or last; -1 where it launched none."""
    events = trace.events
    work = trace.events.of(*ON_DEVICE)
    work = work[links.launch[work] >= 0]
    work = work[events.thread[links.launch[work]] == events.thread[launch]]
    work = work[np.argsort(links.launch[work], kind="stable")]
    at = min(int(np.searchsorted(links.launch[work], launch)), len(work) - 1)
    return int(events.stream[work[at]]) if len(work) else -1


def _without_launches(trace: RankProfile, links: EventLinks, device: Longs) -> list[Diagnostic]:
    """Returns what to say of work whose launches were not recorded, if other launches were.

    Raises:
        InputError: Most of the time on devices is of such work.
    """
    events = trace.events
    known = links.launch[device] >= 0
    duration_s = events.duration_s[device]
    total_s = max(float(duration_s.sum()), 1e-12)
    text = f"of {len(device):,} kernels and copies belong to no launch of the trace, and to no step"
    recorded = known.any() or len(_launches(trace)) > 0
    if recorded and float(duration_s[~known].sum()) > (1 - _MIN_LAUNCHED) * total_s:
        hint = "correlations of this trace are wrong or launches are missing; record whole steps"
        raise InputError("not-recorded", f"{int((~known).sum()):,} {text}", where=trace.path, hint=hint)
    # Work that was launched before the recording began precedes all other work of its stream.
    queues, queue = np.unique(np.stack([events.device[device], events.stream[device]]), axis=1, return_inverse=True)
    first_s = np.full(queues.shape[1], np.inf)
    np.minimum.at(first_s, queue.ravel()[known], events.start_s[device][known])
    lost = ~known & (events.start_s[device] > first_s[queue.ravel()])
    share = float(duration_s[lost].sum()) / total_s
    if share <= _MAX_UNLAUNCHED:
        return []
    text += f", first {_described(trace, int(device[lost][0]))}: "
    text += f"{format_percent(share)} of the time on devices is left out"
    return [Diagnostic("warning", "not-recorded", f"{int(lost.sum()):,} {text}", trace.path)]
