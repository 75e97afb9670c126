"""One look at a profiler's traces as a screen."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from foretrace.basics.units import format_count, format_percent, format_time
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.kernels import KernelUse
from foretrace.readings.profiler_views.summary import TraceSummary
from foretrace.report.profiler_trace.kernel_names import short_kernel
from foretrace.report.table import table
from foretrace.report.terminal import Screen, Span, diagnostic_lines, share_bar, show

MAX_KINDS = 8
MAX_KERNELS = 5
MAX_NOTES = 4
SEE = "--view breakdown, idle, kernels, critical-path … · --json · --plot OUT.svg · foretrace simulate TRACE"
_BOUND = {
    "host": "the host: the device waits for launches",
    "device": "the device: launches come in time",
    "waits": "waits: the device idles though work is launched",
    "mixed": "host and device: the device waits at times",
}
_MIN_SHARE = 0.0005
"""Of the step: what is shorter would be shown as 0.0 %."""
_STYLES = {"idle": "bright_black", "compute": "green", "memory": "yellow", "communication": "red"}


def print_summary(trace: ProfilerTrace, stream: TextIO | None = None) -> None:
    """The screen of a trace: the step, where the device's time goes, why it idles, what to change."""
    screen = Screen.of(stream or sys.stdout)
    found = trace.summary()
    lines: list[list[Span]] = [[], *_headline(found), [], *_states(found, screen), *_idle(found)]
    lines += [[], *_kinds(found), [], *_kernels(trace.kernels().top(MAX_KERNELS), found, trace)]
    lines += [*_advice(found, screen), []]
    lines += diagnostic_lines(trace.diagnostics, screen, MAX_NOTES)
    lines.append([(f"  see      {SEE}", "bright_black")])
    show(screen, lines)


def _headline(found: TraceSummary) -> list[list[Span]]:
    count = len(found.ranks)
    of = f" of {found.world}" if found.world is not None and found.world > count else ""
    ranks = f"{format_count(count)}{of} rank{'' if count == 1 and not of else 's'}"
    facts = [ranks, *found.devices, f"{found.steps:g} step{'' if found.steps == 1 else 's'} by {found.how}"]
    delayed = "no launches are recorded"
    if found.median_delay_s is not None:
        delayed = f"half start later than {format_time(found.median_delay_s)} after their launch"
    launched = f"{found.kernels:,.0f} kernels and copies a step, half shorter than {format_time(found.median_kernel_s)}"
    return [
        [
            ("  Step   ", ""),
            (format_time(found.step_s), "bold"),
            (f"  recorded, with the profiler on     {' · '.join(fact for fact in facts if fact)}", ""),
        ],
        [("  Bound  ", ""), (f"by {_BOUND[found.bound]}", "")],
        [(f"         {launched}; {delayed}", "")],
    ]


def _states(found: TraceSummary, screen: Screen) -> list[list[Span]]:
    span_s = sum(found.states_s.values())
    lines: list[list[Span]] = [[("  where the device's time goes", "bold"), (" (a step, mean over ranks)", "")]]
    shown = {state: seconds for state, seconds in found.states_s.items() if seconds >= _MIN_SHARE * span_s}
    width = max(len(state) for state in shown)
    for state, seconds in sorted(shown.items(), key=lambda one: -one[1]):
        share = seconds / span_s if span_s > 0 else 0.0
        drawn = f"{share_bar(share):<28}  " if screen.rich else ""
        style = _STYLES.get(state.split(" + ")[0], "blue")
        lines.append(
            [
                (f"  {state:<{width}}  {format_time(seconds):>9}  ", ""),
                (drawn, style),
                (f"{format_percent(share):>7}", ""),
            ]
        )
    if found.communication_s > 0:
        hidden = 1 - found.exposed_communication_s / found.communication_s
        lines.append(
            [
                (
                    f"  communication {format_time(found.communication_s)}: {format_percent(hidden)} beside "
                    f"computation, {format_time(found.exposed_communication_s)} exposed",
                    "",
                )
            ]
        )
    return lines


def _idle(found: TraceSummary) -> list[list[Span]]:
    idle = found.idle
    if idle.idle_s <= 0:
        return []
    parts = (("host wait", idle.host_wait_s), ("between kernels", idle.kernel_wait_s), ("other", idle.other_s))
    text = " · ".join(f"{name} {format_time(seconds)}" for name, seconds in parts if seconds > 0)
    return [[(f"  idle because of: {text}", "")]]


def _kinds(found: TraceSummary) -> list[list[Span]]:
    rows = [
        (kind.kind, format_time(kind.total_s), format_percent(kind.share), f"{kind.count:,.0f}")
        for kind in found.kinds[:MAX_KINDS]
    ]
    hidden = len(found.kinds) - len(rows)
    note = f"{hidden} more in --view kernels" if hidden else ""
    return table(("kind of work", "time", "share", "a step"), rows, note)


def _kernels(kernels: Sequence[KernelUse], found: TraceSummary, trace: ProfilerTrace) -> list[list[Span]]:
    whole_s = sum(kernel.total_s for kernel in trace.kernels().kernels)
    per = found.steps
    rows = [
        (
            short_kernel(kernel.name) + (f", rank {kernel.rank}" if len(found.ranks) > 1 else ""),
            kernel.kind,
            format_time(kernel.total_s / per),
            format_percent(kernel.total_s / whole_s) if whole_s > 0 else "",
            f"{kernel.count / per:,.0f}",
            format_time(kernel.mean_s),
        )
        for kernel in kernels
    ]
    return table(("kernels", "kind", "time", "share", "a step", "each"), rows)


def _advice(found: TraceSummary, screen: Screen) -> list[list[Span]]:
    if not found.advice:
        return [[], [("  nothing stands out: the device is busy computing", "")]]
    lines: list[list[Span]] = [
        [],
        [("  what to change", "bold"), (" (what each could gain at most; they may overlap)", "")],
    ]
    for number, one in enumerate(found.advice, 1):
        parts = textwrap.wrap(one.text, max(screen.width - 6, 40)) if screen.rich else [one.text]
        lines.append([(f"  {number}. {parts[0]}", "")])
        lines += [[(f"     {part}", "")] for part in parts[1:]]
    return lines
