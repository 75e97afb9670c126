"""The screens of `foretrace explain` for profiles: one question about traces, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.basics.errors import InputError, UsageError
from foretrace.cli.emit import emit, write_picture
from foretrace.cli.groups import OutputOptions
from foretrace.inputs.base import Input
from foretrace.inputs.profiler_table.input import ProfilerTableInput
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.report.views import view_of

if TYPE_CHECKING:
    from foretrace.report.page.blocks import View


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """One question about profiler traces, and where its picture goes."""

    view: str | None
    op: str
    hta_steps: bool
    plot: Path | None

    def refuse(self, job: Input) -> None:
        """Raises an error where the question is asked of something else."""
        options = {"--view": self.view, "--op": self.op, "--hta-steps": self.hta_steps, "--plot": self.plot}
        names = [name for name, value in options.items() if value]
        if names:
            raise UsageError(
                "option-not-for-input",
                f"{' and '.join(names)}: {job.title} is {job.noun}, not a profiler trace",
                hint="see foretrace explain --help",
            )


def explain_traces(jobs: Sequence[Input], question: TraceQuestion, output: OutputOptions) -> None:
    """Answers a question about traces."""
    if question.op and question.view != "sequences":
        problem = "--op is about sequences of kernels"
        raise UsageError("option-not-for-command", problem, hint="add --view sequences")
    traces = [_read(job, question) for job in jobs]
    if question.view == "diff":
        _explain_diff(traces, question, output)
        return
    from foretrace.report.profiler_trace.plot import profiler_trace_svg
    from foretrace.report.profiler_trace.screens import print_view
    from foretrace.report.profiler_trace.summary import print_summary
    from foretrace.report.profiler_trace.views_json import profiler_trace_json

    (trace,) = traces
    write_picture(question.plot, lambda: profiler_trace_svg(trace, question.view), question.view or "the step")

    def screen() -> None:
        if question.view is None:
            print_summary(trace)
        else:
            print_view(trace, question.view, question.op)

    def view() -> View:
        from foretrace.report.views.profiler_trace import profiler_trace_view

        return profiler_trace_view(trace, question.view, question.op)

    emit(lambda: profiler_trace_json(trace, question.view, question.op), screen, output, view)


def _read(job: Input, question: TraceQuestion) -> ProfilerTrace:
    if not isinstance(job, ProfilerTraceInput):
        question.refuse(job)
    assert isinstance(job, ProfilerTraceInput)
    if not job.traces:
        hint = "give the profiler's trace of the same run with it"
        raise InputError("missing-argument", "an execution trace has no times", where=job.title, hint=hint)
    return ProfilerTrace(job.traces, hta_steps=question.hta_steps)


def _explain_diff(traces: Sequence[ProfilerTrace], question: TraceQuestion, output: OutputOptions) -> None:
    if len(traces) != 2 or question.plot is not None:
        count = f"{len(traces)} path{'' if len(traces) == 1 else 's'}"
        problem = f"{'--plot' if question.plot is not None else count}: --view diff compares two traces"
        raise UsageError("option-not-for-command", problem, hint="foretrace explain BEFORE AFTER --view diff")
    from foretrace.report.profiler_trace.screens import print_diff
    from foretrace.report.profiler_trace.views_json import diff_json

    before, after = traces
    difference = before.diff(after)
    emit(lambda: diff_json(difference), lambda: print_diff(difference), output, lambda: view_of(difference))


def explain_table(job: ProfilerTableInput, output: OutputOptions) -> None:
    """Explains a profiler table."""
    from foretrace.readings.profiler_table import explain_tables
    from foretrace.report.profiler_table import explanations_json, print_explanations

    explanations = explain_tables(job.tables)

    def view() -> View:
        from foretrace.report.views.profiler_table import profiler_tables_view

        return profiler_tables_view(explanations, Path(job.title).name)

    emit(
        lambda: explanations_json(explanations),
        lambda: print_explanations(explanations, Path(job.title)),
        output,
        view,
    )
