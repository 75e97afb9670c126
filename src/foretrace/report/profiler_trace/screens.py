"""Screens of profiler traces, one for each question."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TextIO

from foretrace.basics.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_difference,
    format_percent,
    format_time,
)
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.diff import TraceDiff
from foretrace.readings.profiler_views.queues import FULL
from foretrace.report.answer_words import BOUND_BY
from foretrace.report.profiler_trace.kernel_names import short_kernel
from foretrace.report.table import TextTable
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show

MAX_ROWS: Final = 20
MAX_SEQUENCES: Final = 8
MAX_KERNELS_OF_SEQUENCE: Final = 6
MAX_NOTES: Final = 4
_ONE_BY_ONE: Final = ("steps", "critical-path", "stragglers")
"""Views that show steps by themselves."""
_Parts = list[TextTable | str]
"""Tables and remarks that answer a question, in the order in which they are read."""


def print_view(trace: ProfilerTrace, view: str, op: str = "", stream: TextIO | None = None) -> None:
    """Prints the answer to one question."""
    screen = Screen.of(stream or sys.stdout)
    answered = _sequences(trace, op) if view == "sequences" else _lines(VIEWS[view](trace))
    lines = [*([[]] if view == "sequences" else []), *answered, *_counted_lines(trace, view)]
    notes = diagnostic_lines(trace.diagnostics, MAX_NOTES)
    show(screen, [*lines, [], *notes] if notes else lines)


def _counted_lines(trace: ProfilerTrace, view: str) -> list[list[Span]]:
    text = summed_steps_text(trace, view)
    return [[(f"  {text}", "bright_black")]] if text else []


def summed_steps_text(trace: ProfilerTrace, view: str) -> str:
    """Returns how many steps the times of a view are summed over; nothing where it shows steps by themselves."""
    most = max(len(rank.counted) for rank in trace.ranks)
    steps = "1 recorded step" if most == 1 else f"{most:,} recorded steps together"
    return f"of {steps}" if most and view not in _ONE_BY_ONE else ""


def _lines(parts: _Parts) -> list[list[Span]]:
    """Returns tables, each after a blank line and with its first rows, and remarks."""
    lines: list[list[Span]] = []
    for part in parts:
        if isinstance(part, str):
            lines += [[(f"  {part}", "bright_black")]] if lines else [[], [(f"  {part}", "")]]
        elif part.rows:
            lines += [[], *part.first(part.max_rows or MAX_ROWS).lines()]
        else:
            lines += [[], [(f"  {part.none_text}", "")]]
    return lines


def print_diff(difference: TraceDiff, stream: TextIO | None = None) -> None:
    """Prints what changed between two profiler traces."""
    notes = diagnostic_lines(difference.diagnostics, MAX_NOTES)
    step, steps = both_steps_text(difference)
    head: list[list[Span]] = [[], [("  Step   ", ""), (step, "bold"), (f"  {steps}", "")]]
    show(Screen.of(stream or sys.stdout), [*head, *_lines(diff_parts(difference)), *([[], *notes] if notes else [])])


def _cut(name: str, width: int = 56) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _share(part_s: float, whole_s: float) -> str:
    return format_percent(part_s / whole_s) if whole_s > 0 else ""


def _breakdown(trace: ProfilerTrace) -> _Parts:
    answer = trace.temporal_breakdown()
    shown = [(f"rank {rank.rank}", rank) for rank in answer.ranks]
    if len(shown) > 1:
        shown = [("mean", answer.mean), (f"worst: rank {answer.worst.rank}", answer.worst), *shown]
    rows = [
        (
            name,
            format_time(rank.span_s),
            *(
                cell
                for seconds in (rank.compute_s, rank.non_compute_s, rank.idle_s)
                for cell in (format_time(seconds), _share(seconds, rank.span_s))
            ),
        )
        for name, rank in shown
    ]
    heads = ("the device", "span", "computes", "", "else", "", "idles", "")
    return [TextTable(heads, rows, "else: only communication or copies run. The three sum to the span")]


def _overlap(trace: ProfilerTrace) -> _Parts:
    answer = trace.overlap()
    rows = [
        (
            f"rank {rank.rank}",
            format_time(rank.communication_s),
            format_time(rank.overlapped_s),
            "" if rank.overlap is None else format_percent(rank.overlap),
            format_time(rank.exposed_s),
            _share(rank.exposed_s, rank.span_s),
        )
        for rank in sorted(answer.ranks, key=lambda rank: -rank.exposed_s)
        if rank.communication_s > 0
    ]
    heads = ("communication", "in all", "beside compute", "", "exposed", "of the span")
    return [TextTable(heads, rows, "" if rows else "nothing was communicated")]


def _idle(trace: ProfilerTrace) -> _Parts:
    answer = trace.idle()
    rows = []
    for rank in answer.ranks:
        places = [("device", rank.device), *((f"stream {stream.stream}", stream.times) for stream in rank.streams)]
        for place, times in places:
            causes = (times.host_wait_s, times.kernel_wait_s, times.other_s)
            shares = [cell for cause in causes for cell in (format_time(cause), _share(cause, times.idle_s))]
            rows.append((f"rank {rank.rank} {place}", format_time(times.idle_s), *shares))
    heads = ("idle", "in all", "host wait", "", "kernel wait", "", "other", "")
    limit = format_time(answer.consecutive_delay_s)
    return [
        TextTable(
            heads, rows, f"device: no stream has work. kernel wait: launched in time, gap below {limit}", max_rows=40
        )
    ]


def _kernels(trace: ProfilerTrace) -> _Parts:
    answer = trace.kernels()
    kinds = [
        (
            f"{kind.kind}, rank {kind.rank}" if len(trace.ranks) > 1 else kind.kind,
            format_time(kind.total_s),
            format_percent(kind.share),
            format_time(kind.busy_s),
            format_count(kind.count),
        )
        for kind in answer.kinds
    ]
    whole_s = sum(kernel.total_s for kernel in answer.kernels)
    rows = [
        (
            short_kernel(kernel.name, 56),
            kernel.kind,
            str(kernel.rank),
            format_time(kernel.total_s),
            _share(kernel.total_s, whole_s),
            format_count(kernel.count),
            format_time(kernel.mean_s),
            format_time(kernel.least_s),
            format_time(kernel.most_s),
        )
        for kernel in answer.top(len(answer.kernels))
    ]
    heads = ("kernels", "kind", "rank", "time", "of all", "runs", "mean", "least", "most")
    return [TextTable(("kind of work", "time", "of all", "busy", "runs"), kinds), TextTable(heads, rows)]


def _launches(trace: ProfilerTrace) -> _Parts:
    answer = trace.launches()
    parts: _Parts = []
    for rank in answer.ranks:
        spreads = (
            ("call on the host", rank.call),
            ("delay until it starts", rank.delay),
            ("run on the device", rank.device),
        )
        rows = [
            (name, *(format_time(value) for value in (s.mean, s.median, s.three_quarters, s.most)))
            for name, s in spreads
        ]
        words = [
            f"{rank.call.count:,} launches",
            f"{rank.short:,} run for less than their call takes",
            f"{rank.long_calls:,} calls longer than {format_time(answer.long_call_s)}",
            f"{rank.long_delays:,} delays longer than {format_time(answer.long_delay_s)}",
        ]
        words += [f"{rank.unlaunched:,} without a recorded call"] if rank.unlaunched else []
        heads = (f"launches, rank {rank.rank}", "mean", "median", "3/4 below", "most")
        parts.append(TextTable(heads, rows, " · ".join(words)))
    return parts


def _queue(trace: ProfilerTrace) -> _Parts:
    rows = [
        (
            f"rank {queue.rank} stream {queue.stream}",
            f"{queue.mean_over_time:.1f}",
            f"{queue.spread.median:g}",
            f"{queue.spread.three_quarters:g}",
            f"{queue.spread.most:g}",
            format_percent(queue.empty_share),
            format_time(queue.full_s) if queue.full_s else "",
            format_count(queue.early) if queue.early else "",
        )
        for queue in trace.queues().queues
    ]
    heads = ("launched work that waits", "mean", "median", "3/4 below", "most", "empty", "full", "early")
    note = (
        f"mean: over time. full: {FULL:,} wait, launches block. early: started before its call, by the recorded clocks"
    )
    return [TextTable(heads, rows, note)]


def _bandwidth(trace: ProfilerTrace) -> _Parts:
    rows = [
        (
            copy.kind,
            str(copy.rank),
            format_count(copy.count),
            format_bytes(copy.bytes),
            format_time(copy.seconds),
            format_bandwidth(copy.bytes / copy.seconds) if copy.seconds > 0 else "",
            format_bandwidth(copy.spread.median) if copy.spread.count else "",
            format_bandwidth(copy.spread.most) if copy.spread.count else "",
            format_count(copy.unknown) if copy.unknown else "",
        )
        for copy in trace.memory_bandwidth().copies
    ]
    heads = ("copies and memsets", "rank", "runs", "bytes", "time", "bytes / time", "median", "most", "bytes unknown")
    return [TextTable(heads, rows)]


def _annotations(trace: ProfilerTrace) -> _Parts:
    launched = {(work.rank, work.name): work for work in trace.launched()}
    parts: _Parts = []
    for side, title in (("host", "ranges on the host"), ("device", "ranges on the device")):
        rows = []
        for ranges in trace.annotations().of("host" if side == "host" else "device"):
            work = launched.get((ranges.rank, ranges.name)) if side == "host" else None
            rows.append(
                (
                    _cut(ranges.name),
                    str(ranges.rank),
                    format_count(ranges.count),
                    format_time(ranges.total_s),
                    format_time(ranges.mean_s),
                    format_time(ranges.most_s),
                    format_time(work.total_s) if work else "",
                    format_count(work.count) if work else "",
                )
            )
        heads = (title, "rank", "runs", "time", "mean", "most", "work launched", "pieces")
        parts.append(TextTable(heads, rows))
    return [*parts, "ranges nest: their times must not be added up"]


def _sequences(trace: ProfilerTrace, op: str) -> list[list[Span]]:
    answer = trace.sequences(op)
    lines: list[list[Span]] = []
    for sequence in answer.sequences[:MAX_SEQUENCES]:
        times = f"{format_time(sequence.device_s)} on the device, {format_time(sequence.host_s)} on the host"
        lines.append([(f"  {sequence.count:,} times  {times}  ", ""), (sequence.op, "bold")])
        shown = sequence.kernels[:MAX_KERNELS_OF_SEQUENCE]
        lines += [[(f"      {short_kernel(kernel, 80)}", "")] for kernel in shown]
        if len(sequence.kernels) > len(shown):
            lines.append([(f"      … {len(sequence.kernels) - len(shown)} more", "bright_black")])
    if not lines:
        return [[(f"  no {sequences_of(op)}", "")]]
    hidden = len(answer.sequences) - MAX_SEQUENCES
    note = f"  {sequences_of(op)}" + (f"; {hidden} more in --json" if hidden > 0 else "")
    return [*lines, [(note, "bright_black")]]


def sequences_of(op: str) -> str:
    """Returns which ops a table of sequences is about."""
    under = f'ops named like "{op}"' if op else "outermost ops"
    return f"sequences of three or more kernels of {under}"


def _stragglers(trace: ProfilerTrace) -> _Parts:
    ranks = trace.stragglers()
    if not any(rank.meetings for rank in ranks):
        return ["no collective was recorded on several of these ranks: give the traces of more ranks"]
    rows = [
        (
            f"rank {rank.rank}",
            f"{rank.times_last:,} of {rank.meetings:,}",
            format_time(rank.held_others_s),
            format_time(rank.held_up_s),
            ", ".join(rank.flags),
        )
        for rank in ranks
    ]
    heads = ("ranks that others wait for", "came last", "others lost, in sum", "lost itself", "")
    note = f"in {trace.median_step}, the median step; waits behind computation are not lost"
    parts: _Parts = [TextTable(heads, rows, note)]
    world = max(rank.trace.world or 0 for rank in trace.ranks)
    if world > len(trace.ranks):
        parts.append(
            f"{len(trace.ranks):,} of {world:,} ranks have traces: whom they wait for of the others is not seen"
        )
    return parts


def _critical(trace: ProfilerTrace) -> _Parts:
    path, step_s = trace.critical_path(), trace.explanation.step_s
    gaps = {"gaps": path.gaps_s} if path.gaps_s > 1e-9 * step_s else {}
    rows = [(part, format_time(seconds), _share(seconds, step_s)) for part, seconds in (path.by_part_s | gaps).items()]
    ops = [
        (
            short_kernel(op.name, 64),
            format_time(op.total_s),
            _share(op.total_s, step_s),
            format_count(op.count),
        )
        for op in path.by_name
    ]
    head = f"critical path of {trace.median_step}, the median step"
    note = f"sums to the step, {format_time(step_s)}: {BOUND_BY[path.bound]}"
    return [
        TextTable((head, "time", "of step"), rows, note),
        TextTable(("ops on it", "time", "of step", "count"), ops, max_rows=10),
    ]


def _steps(trace: ProfilerTrace) -> _Parts:
    answer = trace.steps()
    rows = [
        (
            step.name,
            str(step.rank),
            format_time(step.step_s),
            format_time(step.host_s),
            format_time(step.device_s),
            format_time(step.compute_s),
            format_time(step.communication_s),
            format_time(step.exposed_communication_s),
            format_time(step.idle_s),
            format_count(step.kernels),
            "" if step.counted else "left out" if step.whole else "cut off",
        )
        for step in answer.steps
    ]
    heads = ("step", "rank", "takes", "host", "device", "compute", "comm", "exposed", "idle", "kernels", "")
    mean = f"the recorded step takes {format_time(answer.step_s)}, the mean of those that count"
    note = f"told apart by {answer.how}; {mean}"
    return [TextTable(heads, rows, note, max_rows=40)]


def both_steps_text(difference: TraceDiff) -> tuple[str, str]:
    """Returns the step before and after, and how many recorded steps that is."""
    steps = f"{difference.before_steps} of the first, {difference.after_steps} of the second"
    change = f"{format_time(difference.before_step_s)} → {format_time(difference.after_step_s)}"
    return change, f"recorded: {steps}, in the mean"


def diff_parts(difference: TraceDiff) -> _Parts:
    """Returns the kernels and the ops whose times or counts changed."""
    parts: _Parts = []
    for side, title in (("device", "kernels, a step"), ("host", "ops, a step (they nest)")):
        rows = [
            (
                short_kernel(change.name, 56) if side == "device" else _cut(change.name),
                format_time(change.before_s),
                format_time(change.after_s),
                format_difference(change.after_s, change.before_s),
                f"{change.before_count:g}",
                f"{change.after_count:g}",
                change.what,
            )
            for change in difference.of("device" if side == "device" else "host")
            if change.change_s or change.before_count != change.after_count
        ]
        heads = (title, "before", "after", "change", "runs", "then", "")
        parts.append(TextTable(heads, rows, "" if rows else "no change", max_rows=12))
    return parts


VIEWS: Final[dict[str, Callable[[ProfilerTrace], _Parts]]] = {
    "breakdown": _breakdown,
    "overlap": _overlap,
    "idle": _idle,
    "kernels": _kernels,
    "launches": _launches,
    "queue": _queue,
    "bandwidth": _bandwidth,
    "annotations": _annotations,
    "stragglers": _stragglers,
    "critical-path": _critical,
    "steps": _steps,
}
