"""One look at a profiler's traces as a screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

from foretrace.basics.units import format_count, format_percent, format_time
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.kernels import KernelUse
from foretrace.readings.profiler_views.summary import TraceSummary
from foretrace.report.answer_words import BOUND_BY
from foretrace.report.profiler_trace.kernel_names import short_kernel
from foretrace.report.table import TextTable
from foretrace.report.terminal import Screen, Span, breakdown_lines, diagnostic_lines, show

MAX_KINDS = 8
MAX_KERNELS = 5
MAX_NOTES = 4
NOTHING_STANDS_OUT = "nothing stands out: the device is busy computing"
SEE = "--view breakdown, idle, kernels, critical-path … · --json · --plot OUT.svg · foretrace simulate TRACE"


def print_summary(trace: ProfilerTrace, stream: TextIO | None = None) -> None:
    """Prints the step, what bounds it, where its time goes, which kernels ran, and what to change."""
    screen = Screen.of(stream or sys.stdout)
    summary = trace.summary()
    lines: list[list[Span]] = [[], *_headline(summary, trace)]
    if summary.bound is not None:
        answer = trace.explanation.answer
        of = f"{trace.median_step}, the median step, {format_time(answer.step_time_s)}; mean over ranks"
        lines += [[], *breakdown_lines(answer.breakdown, answer.step_time_s, screen, of)]
    kinds = kinds_table(summary)
    hidden = len(kinds.rows) - MAX_KINDS
    note = f"{hidden} more in --view kernels" if hidden > 0 else ""
    lines += [[], *replace(kinds, rows=kinds.rows[:MAX_KINDS], note=note).lines()]
    lines += [[], *kernels_table(trace.kernels().top(MAX_KERNELS), summary, trace).lines()]
    lines += [*_advice(summary), []]
    lines += diagnostic_lines((*trace.timeline_diagnostics, *trace.diagnostics), MAX_NOTES)
    lines.append([(f"  see      {SEE}", "bright_black")])
    show(screen, lines)


def _headline(summary: TraceSummary, trace: ProfilerTrace) -> list[list[Span]]:
    return [
        [
            ("  Step   ", ""),
            (format_time(summary.step_s), "bold"),
            (f"  recorded, with the profiler on     {run_text(summary)}", ""),
        ],
        [(f"  Path   {bound_text(summary, trace)}", "")],
        [(f"         {launches_text(summary)}", "")],
    ]


def bound_text(summary: TraceSummary, trace: ProfilerTrace) -> str:
    """Returns what bounds the median step, with the parts of its critical path."""
    bound = "the recorded step cannot be read; see the warning below"
    if summary.bound is not None:
        path = trace.critical_path()
        parts = [f"{part} {format_percent(seconds / path.length_s)}" for part, seconds in path.by_part_s.items()]
        bound = f"{BOUND_BY[path.bound]}: {' · '.join(parts)} (critical path, {format_count(path.ops)} ops)"
    return bound


def run_text(summary: TraceSummary) -> str:
    """Returns the ranks, the devices and the steps of a recorded run."""
    count = len(summary.ranks)
    of = f" of {summary.world}" if summary.world is not None and summary.world > count else ""
    ranks = f"{format_count(count)}{of} rank{'' if count == 1 and not of else 's'}"
    facts = [ranks, *summary.devices, f"{summary.steps:g} step{'' if summary.steps == 1 else 's'} by {summary.how}"]
    return " · ".join(fact for fact in facts if fact)


def launches_text(summary: TraceSummary) -> str:
    """Returns how many kernels a step has, how short they are, and how long they wait after their launch."""
    delayed = "no launches are recorded"
    if summary.median_delay_s is not None:
        delayed = f"half start later than {format_time(summary.median_delay_s)} after their launch"
    launched = (
        f"{summary.kernels:,.0f} kernels and copies a step, half shorter than {format_time(summary.median_kernel_s)}"
    )
    return f"{launched}; {delayed}"


def kinds_table(summary: TraceSummary) -> TextTable:
    """Returns the kinds of work of a step."""
    rows = [
        (kind.kind, format_time(kind.total_s), format_percent(kind.share), f"{kind.count:,.0f}")
        for kind in summary.kinds
    ]
    return TextTable(("kind of work", "time", "share", "a step"), rows)


def kernels_table(kernels: Sequence[KernelUse], summary: TraceSummary, trace: ProfilerTrace) -> TextTable:
    """Returns some kernels with their times in a step."""
    whole_s = sum(kernel.total_s for kernel in trace.kernels().kernels)
    per = summary.steps
    rows = [
        (
            short_kernel(kernel.name) + (f", rank {kernel.rank}" if len(summary.ranks) > 1 else ""),
            kernel.kind,
            format_time(kernel.total_s / per),
            format_percent(kernel.total_s / whole_s) if whole_s > 0 else "",
            f"{kernel.count / per:,.0f}",
            format_time(kernel.mean_s),
        )
        for kernel in kernels
    ]
    return TextTable(("kernels", "kind", "time", "share", "a step", "each"), rows)


def _advice(summary: TraceSummary) -> list[list[Span]]:
    if summary.bound is None:
        return []
    if not summary.advice:
        return [[], [(f"  {NOTHING_STANDS_OUT}", "")]]
    lines: list[list[Span]] = [
        [],
        [("  what to change", "bold"), (" (what each could gain at most; they may overlap)", "")],
    ]
    for number, entry in enumerate(summary.advice, 1):
        lines.append([(f"  {number}. {entry.text}", "")])
    return lines
