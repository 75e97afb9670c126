"""`foretrace explain`: what happened in a run, and why it took so long."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.api import explain, measured_or_simulated
from foretrace.basics.errors import UsageError
from foretrace.cli.emit import emit, write_files
from foretrace.cli.groups import (
    JOB,
    MACHINE,
    OUTPUT,
    SCENARIO,
    TIMELINE,
    OutputOptions,
    Question,
    TimelineOptions,
    ask,
    check_svg,
    takes,
)
from foretrace.cli.views import TraceQuestion, explain_table, explain_traces
from foretrace.cost.machine_texts import MachineOptions
from foretrace.inputs.profiler_table.input import ProfilerTableInput
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.explain import explanation_json, print_explanation
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
    changes = bool(options or scenario.options or files.heatmap or files.traces)
    writes = files.perfetto is not None or files.save is not None
    if view == TraceView.DIFF:
        questions = [ask([path], options, machine, scenario) for path in paths]
        for question in questions:
            _refuse_changes(question, changes or writes)
        explain_traces([question.job for question in questions], about_traces, output)
        return
    question = ask(paths, options, machine, scenario)
    _refuse_changes(question, changes or (writes and isinstance(question.job, ProfilerTableInput)))
    if isinstance(question.job, ProfilerTraceInput):
        if writes:
            write_files(measured_or_simulated(question.job, question.machine), files)
        explain_traces([question.job], about_traces, output)
        return
    about_traces.refuse(question.job)
    if isinstance(question.job, ProfilerTableInput):
        explain_table(question.job, output)
        return
    explanation = explain(question.job, question.machine, question.scenario)
    write_files(explanation.answer, files)
    emit(
        lambda: explanation_json(explanation),
        lambda: print_explanation(explanation),
        output,
        lambda: view_of(explanation),
    )


def _refuse_changes(question: Question, changes: bool) -> None:
    """Raises an error where a profiler trace or table, which is explained as recorded, would be changed or written."""
    if not isinstance(question.job, ProfilerTraceInput | ProfilerTableInput):
        return
    if changes or question.scenario or question.machine.cluster is not None:
        raise UsageError(
            "option-not-for-command",
            f"{question.job.title} is {question.job.noun}, which is explained as it was recorded",
            hint="leave out what changes it; what else it could be: foretrace simulate",
        )
