"""One look at a profiler's traces as a screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from foretrace.basics.units import format_count, format_percent, format_time
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.kernels import KernelUse
from foretrace.readings.profiler_views.summary import TraceSummary
from foretrace.report.profiler_trace.kernel_names import short_kernel
from foretrace.report.table import table
from foretrace.report.terminal import BOUND_BY, Screen, Span, breakdown_lines, diagnostic_lines, show

MAX_KINDS = 8
MAX_KERNELS = 5
MAX_NOTES = 4
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
    lines += [[], *_kinds(summary), [], *_kernels(trace.kernels().top(MAX_KERNELS), summary, trace)]
    lines += [*_advice(summary), []]
    lines += diagnostic_lines((*trace.timeline_diagnostics, *trace.diagnostics), MAX_NOTES)
    lines.append([(f"  see      {SEE}", "bright_black")])
    show(screen, lines)


def _headline(summary: TraceSummary, trace: ProfilerTrace) -> list[list[Span]]:
    bound = "the recorded step cannot be read; see the warning below"
    if summary.bound is not None:
        path = trace.critical_path()
        parts = [f"{part} {format_percent(seconds / path.length_s)}" for part, seconds in path.by_part_s.items()]
        bound = f"{BOUND_BY[path.bound]}: {' · '.join(parts)} (critical path, {format_count(path.ops)} ops)"
    count = len(summary.ranks)
    of = f" of {summary.world}" if summary.world is not None and summary.world > count else ""
    ranks = f"{format_count(count)}{of} rank{'' if count == 1 and not of else 's'}"
    facts = [ranks, *summary.devices, f"{summary.steps:g} step{'' if summary.steps == 1 else 's'} by {summary.how}"]
    delayed = "no launches are recorded"
    if summary.median_delay_s is not None:
        delayed = f"half start later than {format_time(summary.median_delay_s)} after their launch"
    launched = (
        f"{summary.kernels:,.0f} kernels and copies a step, half shorter than {format_time(summary.median_kernel_s)}"
    )
    return [
        [
            ("  Step   ", ""),
            (format_time(summary.step_s), "bold"),
            (f"  recorded, with the profiler on     {' · '.join(fact for fact in facts if fact)}", ""),
        ],
        [(f"  Path   {bound}", "")],
        [(f"         {launched}; {delayed}", "")],
    ]


def _kinds(summary: TraceSummary) -> list[list[Span]]:
    rows = [
        (kind.kind, format_time(kind.total_s), format_percent(kind.share), f"{kind.count:,.0f}")
        for kind in summary.kinds[:MAX_KINDS]
    ]
    hidden = len(summary.kinds) - len(rows)
    note = f"{hidden} more in --view kernels" if hidden else ""
    return table(("kind of work", "time", "share", "a step"), rows, note)


def _kernels(kernels: Sequence[KernelUse], summary: TraceSummary, trace: ProfilerTrace) -> list[list[Span]]:
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
    return table(("kernels", "kind", "time", "share", "a step", "each"), rows)


def _advice(summary: TraceSummary) -> list[list[Span]]:
    if summary.bound is None:
        return []
    if not summary.advice:
        return [[], [("  nothing stands out: the device is busy computing", "")]]
    lines: list[list[Span]] = [
        [],
        [("  what to change", "bold"), (" (what each could gain at most; they may overlap)", "")],
    ]
    for number, entry in enumerate(summary.advice, 1):
        lines.append([(f"  {number}. {entry.text}", "")])
    return lines
