"""The screens of `foretrace explain` for one question about profiler traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.basics.errors import UsageError
from foretrace.cli.emit import emit, write_picture
from foretrace.cli.groups import OutputOptions
from foretrace.inputs.base import Input
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

    def check(self, job: Input) -> None:
        """Raises an error where the question is asked of something else, or is none."""
        if self.op and self.view != "sequences":
            problem = "--op is about sequences of kernels"
            raise UsageError("option-not-for-command", problem, hint="add --view sequences")
        if isinstance(job, ProfilerTraceInput):
            return
        options = {"--view": self.view, "--op": self.op, "--hta-steps": self.hta_steps, "--plot": self.plot}
        names = [name for name, value in options.items() if value]
        if names:
            raise UsageError(
                "option-not-for-input",
                f"{' and '.join(names)}: {job.title} is {job.noun}, not a profiler trace",
                hint="see foretrace explain --help",
            )


def explain_traces(traces: Sequence[ProfilerTrace], question: TraceQuestion, output: OutputOptions) -> None:
    """Answers a question about traces."""
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
