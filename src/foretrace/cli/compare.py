"""`foretrace compare`: a prediction next to a measurement, or two predictions next to each other."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrace.api import compare, simulate
from foretrace.basics.errors import ForetraceError, UsageError
from foretrace.cli.changes import changed, read_change
from foretrace.cli.emit import emit, wrote
from foretrace.cli.groups import (
    JOB,
    MACHINE,
    OUTPUT,
    SCENARIO,
    TIMELINE,
    OutputOptions,
    Question,
    TimelineOptions,
    check_machine_of_saved,
    question_about,
    takes,
)
from foretrace.cost.machine_texts import MACHINE_DEFAULTS, MachineOptions
from foretrace.inputs.base import Input
from foretrace.inputs.registry import open_input
from foretrace.readings.answer.answer import Answer
from foretrace.readings.compare import Comparison
from foretrace.readings.compare import compare as compare_answers
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.compare import comparison_json, print_comparison, write_comparison_perfetto
from foretrace.report.views import view_of

EXAMPLES = """Examples:

foretrace compare llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024 --with tp=8 --with vpp=5

foretrace compare job.yaml --with cluster=h200-dgx

foretrace compare before.answer after.answer

foretrace compare llama3-8b qwen3-8b --gpus 64 --tp 2 --gbs 64 --cluster h100-dgx

foretrace compare scaling_a scaling_b real --cluster a100-dgx --microbatches 8 --perfetto both.pftrace"""


@takes(JOB, MACHINE, SCENARIO, OUTPUT, TIMELINE)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="A... [B]",
            help="Two jobs: models, job files, saved answers, workloads, traces. Or one, and --with. Where B is a "
            "measured run, A is predicted (several trace folders are campaigns of one job).",
            show_default=False,
        ),
    ],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    files: TimelineOptions,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=VALUE",
            help="Change an option of B alone: tp=8, cluster=h200-dgx, compute=1.5x. Without a second job, B is A "
            "with these changes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare a prediction with a measured step, or two predictions: the difference and its causes."""
    texts = [read_change(text) for text in changes or []]
    if len({name for name, _ in texts}) < len(texts):
        raise UsageError("repeated-option", "--with names the same option twice")
    if len(paths) < 2 and not texts:
        problem = "what is to be compared with what?"
        raise UsageError("missing-argument", problem, hint="foretrace compare A B, or foretrace compare A --with tp=8")
    if files.traces or files.heatmap or files.save:
        problem = "--traces, --heatmap and --save are of one run"
        raise UsageError("option-not-for-command", problem, hint="use foretrace simulate")
    first, second = _opened(paths, {**options, **scenario.options}, bool(texts))
    if all(job is None or job.answer_file is not None for job in (first, second)):
        if not texts and (scenario.scenario or machine != MACHINE_DEFAULTS):
            problem = "saved answers are compared as they were saved"
            raise UsageError("option-not-for-input", problem, hint="foretrace simulate FILE.answer runs one again")
        check_machine_of_saved(first, machine, scenario)
    question = question_about(first, machine, scenario)
    other = question if second is None else question_about(second, machine, scenario)
    if texts:
        comparison = compare_answers(_simulated("B", changed(other, dict(texts))), _simulated("A", question))
    else:
        comparison = compare(first, other.job, question.machine, scenario.scenario, other.machine)
    _emit(comparison, output, files)


def _opened(paths: list[str], options: dict[str, Any], changed: bool) -> tuple[Input, Input | None]:
    """Opens both jobs, each with those of the options that it has; saved answers have none.

    A measured run keeps its own, except for what its mesh is.
    """
    if len(paths) == 1:
        return open_input(paths, options), None
    *before, last = paths
    jobs = open_input(before), open_input([last])
    measured = None if changed else next((job for job in reversed(jobs) if job.is_measured), None)
    for name, text in options.items():
        if not any(job.takes_option(name, text) for job in jobs if job is not measured or name == "mesh"):
            raise next(job for job in jobs if job is not measured).refuse_option(name)
    first, second = (
        job.read_options(
            {
                name: text
                for name, text in options.items()
                if job.takes_option(name, text) and (job is not measured or name == "mesh")
            }
        )
        for job in jobs
    )
    return first, second


def _simulated(label: str, question: Question) -> Answer:
    try:
        return simulate(question.job, question.machine, question.scenario, explain="band")
    except ForetraceError as error:
        error.where = label if error.where is None else f"{label}: {error.where}"
        raise


def _emit(comparison: Comparison, output: OutputOptions, files: TimelineOptions) -> None:
    if files.perfetto is not None:
        wrote(files.perfetto, write_comparison_perfetto(comparison, files.perfetto, ranks=files.ranks))
    emit(lambda: comparison_json(comparison), lambda: print_comparison(comparison), output, lambda: view_of(comparison))
