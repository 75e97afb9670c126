"""The views of profiler traces: everything about a recorded run, one question about it, and the change between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from foretrace.basics.errors import ForetraceError
from foretrace.basics.units import format_count, format_difference, format_percent, format_time
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.diff import TraceDiff
from foretrace.readings.profiler_views.summary import TraceSummary
from foretrace.report.design import change_colour
from foretrace.report.page.blocks import Bar, Bars, Block, Fold, KeyFigure, KeyFigures, Picture, Section, Text, View
from foretrace.report.profiler_trace.kernel_names import short_kernel
from foretrace.report.profiler_trace.plot import has_drawing, profiler_trace_svg, streams_table
from foretrace.report.profiler_trace.screens import (
    MAX_KERNELS_OF_SEQUENCE,
    VIEWS,
    both_steps_text,
    diff_parts,
    sequences_of,
    summed_steps_text,
)
from foretrace.report.profiler_trace.summary import (
    NOTHING_STANDS_OUT,
    bound_text,
    kernels_table,
    kinds_table,
    launches_text,
    run_text,
)
from foretrace.report.profiler_trace.views_json import diff_json, profiler_trace_json
from foretrace.report.table import TextTable
from foretrace.report.views import AnswerKind
from foretrace.report.views.answer import answer_view
from foretrace.report.views.text_table import change_tone, notes_section, numbered, page_table, part_blocks, sentence

MAX_CHANGES: Final = 12
"""Kernels whose change is drawn as a bar."""

_TITLES: Final = {
    "breakdown": "What the device does",
    "overlap": "Communication next to computation",
    "idle": "Why the device idles",
    "kernels": "Kernels",
    "launches": "Launches",
    "queue": "Launched work that waits",
    "bandwidth": "Copies",
    "annotations": "Ranges that users marked",
    "sequences": "Sequences of kernels",
    "stragglers": "Ranks that others wait for",
    "critical-path": "Critical path",
    "steps": "Steps one by one",
}
_DRAWN_LANES: Final = "the median step of the first rank: ranges on the host, streams by kind of work, critical path"
_PICTURES: Final = {
    "steps": _DRAWN_LANES,
    "critical-path": _DRAWN_LANES,
    "breakdown": "what the device of each rank does, as shares of its span",
    "overlap": "what the device of each rank does, as shares of its span",
    "queue": "how much launched work waits over time",
    "bandwidth": "how fast copies are over time",
}
"""Descriptions of the pictures of each view."""
_DRAWN_ELSEWHERE: Final = ("steps", "critical-path", "overlap")
"""Views whose picture is that of another one, or of the page."""
_OF_THE_TIMELINE: Final = ("stragglers", "critical-path")
"""Views that need a step that can be read as a timeline."""


def profiler_trace_view(trace: ProfilerTrace, question: str | None = None, op: str = "") -> View:
    """Makes the view of the traces of a run.

    Args:
        trace: The traces.
        question: One of the names of `foretrace explain --view`; None: all of them.
        op: With the question `sequences`: of ops with this name.
    """
    title = " · ".join(dict.fromkeys(Path(rank.trace.path).name for rank in trace.ranks[:3]))
    title += f" and {len(trace.ranks) - 3} more" if len(trace.ranks) > 3 else ""
    summary, notes = trace.summary(), (*trace.timeline_diagnostics, *trace.diagnostics)
    if question is not None:
        answered = _question(trace, question, list(_picture(trace, question)), op)
        sections = [_step(trace, summary), answered, *notes_section(notes)]
        return View(title, "profiler trace", sections, run_text(summary))
    readable = summary.bound is not None
    recorded = answer_view(trace.explanation.answer) if readable else None
    asked = [name for name in _TITLES if readable or name not in _OF_THE_TIMELINE]
    sections = [
        _step(trace, summary),
        *_advice(summary),
        *(recorded.chosen("breakdown") if recorded else ()),
        _work(summary),
        *_drawing(trace),
        *(recorded.chosen("pipeline") if recorded else ()),
        *(_kernels(trace, summary) if name == "kernels" else _section(trace, name) for name in asked),
        *notes_section(notes),
    ]
    return View(title, "profiler trace", sections, run_text(summary))


def _step(trace: ProfilerTrace, summary: TraceSummary) -> Section:
    figures = [KeyFigure("Step", format_time(summary.step_s), "recorded, with the profiler on")]
    whole_s = sum(summary.states_s.values())
    if whole_s > 0:
        idle_s = summary.states_s.get("idle", 0.0)
        remark = f"{format_time(idle_s)} of {format_time(whole_s)}"
        figures.append(KeyFigure("Device idles", format_percent(idle_s / whole_s), remark, share=idle_s / whole_s))
    if summary.communication_s > 0:
        remark = f"of {format_time(summary.communication_s)} of communication"
        figures.append(KeyFigure("Exposed communication", format_time(summary.exposed_communication_s), remark))
    texts: list[Block] = [Text(sentence(bound_text(summary, trace))), Text(sentence(launches_text(summary)), "muted")]
    return Section("step", "The answer", (KeyFigures(figures), *texts))


def _advice(summary: TraceSummary) -> Iterator[Section]:
    if summary.bound is None:
        return
    blocks = numbered([entry.text for entry in summary.advice]) or [Text(sentence(NOTHING_STANDS_OUT))]
    yield Section("advice", "What to change", blocks, "what each could gain at most; they may overlap")


def _work(summary: TraceSummary) -> Section:
    """Returns which kinds of work a step consists of."""
    return Section("work", "What runs in a step", (page_table(kinds_table(summary), shown=8),), wide=False)


def _kernels(trace: ProfilerTrace, summary: TraceSummary) -> Section:
    """Returns the kernels of a step, and folded away their sums over all recorded steps."""
    kernels = trace.kernels()
    of_step = page_table(kernels_table(kernels.top(len(kernels.kernels)), summary, trace))
    counted = _question(trace, "kernels")
    summed = Fold(f"kernels {counted.remark}" if counted.remark else "all kernels", counted.blocks)
    return Section("kernels", "Kernels", (of_step, summed), "of a step")


def _drawing(trace: ProfilerTrace) -> Iterator[Section]:
    picture = list(_picture(trace, "steps"))
    if picture:
        yield Section("drawing", "The median step", picture, "streams by kind of work")


def _picture(trace: ProfilerTrace, name: str) -> Iterator[Block]:
    """Yields the picture of a view, where there is one and the traces have something to draw."""
    if not has_drawing(name):
        return
    try:
        svg = profiler_trace_svg(trace, name)
    except ForetraceError:  # nothing of this was recorded, or no step can be read
        return
    yield Picture(svg, _PICTURES[name])
    if _PICTURES[name] == _DRAWN_LANES:
        yield page_table(streams_table(trace), summary="the streams in numbers")


def _section(trace: ProfilerTrace, name: str) -> Section:
    """Returns the answer to one of all questions; a picture that several of them have is on the page once."""
    return _question(trace, name, [] if name in _DRAWN_ELSEWHERE else list(_picture(trace, name)))


def _question(trace: ProfilerTrace, name: str, pictures: Sequence[Block] = (), op: str = "") -> Section:
    parts = _sequence_parts(trace, op) if name == "sequences" else VIEWS[name](trace)
    key = "device" if name == "breakdown" else name  # the page has the breakdown of the step too
    return Section(key, _TITLES[name], [*pictures, *part_blocks(parts, shown=8)], summed_steps_text(trace, name))


def _joined(kernels: Sequence[str]) -> str:
    """Returns the first kernels of a sequence, and how many follow."""
    shown = kernels[:MAX_KERNELS_OF_SEQUENCE]
    more = [f"{len(kernels) - len(shown)} more"] if len(kernels) > len(shown) else []
    return " → ".join([*(short_kernel(kernel, 80) for kernel in shown), *more])


def _sequence_parts(trace: ProfilerTrace, op: str) -> list[TextTable | str]:
    """Returns the sequences of kernels that repeat as a table."""
    rows = [
        (
            _joined(sequence.kernels),
            sequence.op,
            format_count(sequence.count),
            format_time(sequence.device_s),
            format_time(sequence.host_s),
        )
        for sequence in trace.sequences(op).sequences
    ]
    return [TextTable(("kernels", "op", "times", "on the device", "on the host"), rows, sequences_of(op), 2)]


def trace_diff_view(difference: TraceDiff) -> View:
    """Makes the view of what changed between two traces."""
    step, steps = both_steps_text(difference)
    by = format_difference(difference.after_step_s, difference.before_step_s)
    figures = [
        KeyFigure("Step", step, steps),
        KeyFigure("Change", by, tone=change_tone(difference.after_step_s, difference.before_step_s)),
    ]
    changes = sorted(difference.of("device"), key=lambda change: -abs(change.change_s))[:MAX_CHANGES]
    bars = [
        Bar(
            short_kernel(change.name, 56),
            change.change_s,
            format_difference(change.after_s, change.before_s),
            change_colour(change.change_s),
            change.what,
        )
        for change in changes
        if change.change_s
    ]
    kernels, ops = (part_blocks([part]) for part in diff_parts(difference))
    sections = [
        Section("step", "The answer", (KeyFigures(figures),)),
        *([Section("changes", "The largest changes", (Bars(bars, ("kernel", "change", "runs")),))] if bars else []),
        Section("kernels", "Kernels of a step", kernels),
        Section("ops", "Ops of a step", ops, "they nest: do not add up their times"),
        *notes_section(difference.diagnostics),
    ]
    return View("What changed between two traces", "difference of profiler traces", sections)


KINDS: Final = (
    AnswerKind(
        ProfilerTrace,
        profiler_trace_view,
        profiler_trace_json,
        main_table="kernels.kernels",
        notebook_sections=("step", "advice", "breakdown", "work", "notes"),
    ),
    AnswerKind(
        TraceDiff,
        trace_diff_view,
        diff_json,
        main_table="changes",
        notebook_sections=("step", "changes", "notes"),
        records=(TraceDiff,),
    ),
)
