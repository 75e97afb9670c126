"""`foretrace explain`: what happened in a run, and why it took so long."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.api import explain, measured_or_simulated
from foretrace.basics.errors import UsageError
from foretrace.basics.viewable import Viewable
from foretrace.cli.emit import emit, write_files
from foretrace.cli.groups import (
    JOB,
    MACHINE,
    OUTPUT,
    SCENARIO,
    TIMELINE,
    OutputOptions,
    TimelineOptions,
    ask,
    check_svg,
    takes,
)
from foretrace.cli.views import TraceQuestion, explain_traces
from foretrace.cost.machine_texts import MachineOptions
from foretrace.inputs.base import Input
from foretrace.readings.explain import Explanation
from foretrace.readings.profiler_table import ExplainedTables
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.explain import print_explanation
from foretrace.report.views import view_of

EXAMPLES = """Examples:

foretrace explain real_traces/ --perfetto run.pftrace

foretrace explain trace.json.gz --view idle

foretrace explain examples/moe_fairseq_profile.txt

foretrace explain examples/moe_128gpu.txt --cluster h100-dgx --json"""


class TraceView(StrEnum):
    """One question about profiler traces."""

    BREAKDOWN = "breakdown"
    OVERLAP = "overlap"
    IDLE = "idle"
    KERNELS = "kernels"
    LAUNCHES = "launches"
    QUEUE = "queue"
    BANDWIDTH = "bandwidth"
    ANNOTATIONS = "annotations"
    SEQUENCES = "sequences"
    STRAGGLERS = "stragglers"
    CRITICAL_PATH = "critical-path"
    STEPS = "steps"
    DIFF = "diff"


@takes(JOB, MACHINE, SCENARIO, OUTPUT, TIMELINE)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH…",
            help="Traces of a real run's ranks, or anything foretrace simulates, which is then predicted first.",
            show_default=False,
        ),
    ],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    files: TimelineOptions,
    view: Annotated[
        TraceView | None,
        typer.Option(
            "--view",
            metavar="NAME",
            help=f"Of profiler traces, one question: {', '.join(TraceView)}. diff compares two of them.",
        ),
    ] = None,
    op: Annotated[str, typer.Option("--op", metavar="WORD", help="With --view sequences: of ops with this name.")] = "",
    hta_steps: Annotated[
        bool, typer.Option("--hta-steps", help="Of profiler traces, count what Holistic Trace Analysis does.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="OUT.svg", help="Of profiler traces, draw the step, ranks or queues."),
    ] = None,
) -> None:
    """Explain a run: what it waited for, for whom, and what to change."""
    check_svg(plot)
    about_traces = TraceQuestion(None if view is None else view.value, op, hta_steps, plot)
    jobs = [[path] for path in paths] if view == TraceView.DIFF else [paths]
    questions = [ask(job, options, machine, scenario) for job in jobs]
    for question in questions:
        about_traces.check(question.job)
        _refuse_files(question.job, files, about_traces)
    explained = [
        explain(question.job, question.machine, question.scenario, hta_steps=hta_steps) for question in questions
    ]
    traces = [trace for trace in explained if isinstance(trace, ProfilerTrace)]
    if traces:
        if files.perfetto is not None or files.save is not None:
            write_files(measured_or_simulated(questions[0].job, questions[0].machine), files)
        explain_traces(traces, about_traces, output)
        return
    (explanation,) = explained
    if isinstance(explanation, Explanation):
        write_files(explanation.answer, files)
    emit(explanation.to_dict, lambda: _print(explanation), output, lambda: view_of(explanation))


def _print(explanation: Viewable) -> None:
    if isinstance(explanation, Explanation):
        print_explanation(explanation)
    elif isinstance(explanation, ExplainedTables):
        from foretrace.report.profiler_table import print_explanations

        print_explanations(explanation)


def _refuse_files(job: Input, files: TimelineOptions, about_traces: TraceQuestion) -> None:
    """Raises an error where a timeline would be written that a profile does not have."""
    if not job.is_profile:
        return
    has_timeline = job.is_measured and about_traces.view != TraceView.DIFF
    if files.heatmap or files.traces or (not has_timeline and (files.perfetto or files.save)):
        raise UsageError(
            "option-not-for-command",
            f"{job.title} is {job.noun}, whose explanation has no such file",
            hint="leave out the files of a timeline; foretrace simulate writes them",
        )
