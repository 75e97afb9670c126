"""`foretrace sweep`: run a job over ranges of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.api import simulate
from foretrace.basics.errors import Diagnostic, ForetraceError, InfeasibleError, UsageError
from foretrace.basics.outputs import write_text
from foretrace.cli.changes import changed, names_option
from foretrace.cli.emit import emit, fail_after_answer, write_picture, wrote
from foretrace.cli.groups import JOB, MACHINE, OUTPUT, SCENARIO, OutputOptions, Question, ask, check_svg, takes
from foretrace.cost.machine_texts import MachineOptions
from foretrace.inputs.option_texts import flag_of
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.sweep import print_sweep, sweep_csv, sweep_json, sweep_svg
from foretrace.report.views import view_of
from foretrace.search.axes import SweepAxis, read_axes
from foretrace.search.scaling import Scaling, find_scaling
from foretrace.search.sweep import OUT_OF_MEMORY, Run, Sweep, sweep

EXAMPLES = """Examples:

foretrace sweep llama3-8b --over gpus=64:1024:x2 --cluster h100-dgx --tp 2 --gbs 1024

foretrace sweep job.yaml --over tp=2,4,8 --over recompute=none,full --csv plans.csv

foretrace sweep llama3-70b --gpus 512 --tp 4 --pp 4 --gbs 1024 --over cluster=h100-dgx,b200-dgx

foretrace sweep examples/llama405b_1024gpu.txt --over microbatches=16:128:x2 --cluster h100-dgx --plot curve.svg

foretrace sweep job.foretrace --over compute=1x,1.5x,2x"""


class ScaleChoice(StrEnum):
    """The quantity that stays when GPUs vary: the batch, or the batch of each GPU."""

    STRONG = "strong"
    WEAK = "weak"


@takes(JOB, MACHINE, SCENARIO, OUTPUT)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Anything that foretrace simulate runs: a model's name, a job file, a workload, a program, traces.",
            show_default=False,
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="NAME=VALUES",
            help="What to vary: any option of the job by its name (gpus, tp, recompute, …), cluster, jitter, "
            "straggler:RANK, or anything of --what-if. Values are v1,v2,… or low:high:x2 or low:high:+1; lists are "
            "joined by + (overlap=none,grad+param). Repeated: all combinations.",
            show_default=False,
        ),
    ],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    scale: Annotated[
        ScaleChoice | None,
        typer.Option(
            "--scale",
            help="Over gpus: gbs stays (strong), or grows with them (weak).",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="OUT", help="Write the table as CSV.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.svg", help="Plot the rate over the first thing varied.")
    ] = None,
) -> None:
    """Run a job over ranges of values: GPUs, plans, clusters, what-ifs."""
    axes = read_axes(over)
    check_svg(plot)
    machine = _without_conflicts(axes, options, machine)
    question = ask(paths, options, machine, scenario)
    scaling = find_scaling(question.job, axes, None if scale is None else scale.value)
    result = sweep(axes, partial(_run, question, scaling), scaling)
    result = replace(result, warnings=(*result.warnings, *_notes(question)))
    if csv is not None:
        write_text(csv, sweep_csv(result), "CSV file")
        wrote(csv, f"{len(result.outcomes)} rows")
    write_picture(plot, lambda: sweep_svg(result), f"{len(result.ran)} points")
    emit(lambda: sweep_json(result), lambda: print_sweep(result), output, lambda: view_of(result))
    if result.interrupted:
        raise KeyboardInterrupt
    if not result.ran:
        fail_after_answer(_nothing_runs(result, question, scaling), output)


def _without_conflicts(axes: tuple[SweepAxis, ...], options: dict[str, Any], machine: MachineOptions) -> MachineOptions:
    """Refuses an option that an axis names the values of; returns the machine, with a cluster where these vary."""
    for axis in axes:
        option = names_option(axis.name, axis.values[0].text)
        if option in options or (axis.name == "cluster" and machine.cluster is not None):
            problem = f"--over {axis.name} names the values"
            raise UsageError("conflicting-options", problem, hint=f"leave out {flag_of(option or axis.name)}")
        if axis.name == "cluster":
            machine = replace(machine, cluster=axis.values[0].text)
    return machine


def _run(question: Question, scaling: Scaling | None, texts: Mapping[str, str]) -> Run:
    """Returns what simulates one point, whether it fits into memory or not."""
    point = _at(question, scaling, texts)
    return partial(simulate, point.job, point.machine, point.scenario, even_if_oom=True)


def _at(question: Question, scaling: Scaling | None, texts: Mapping[str, str]) -> Question:
    point = changed(question, texts, "--over")
    return point if scaling is None else replace(point, job=scaling.applied_to(point.job))


def _notes(question: Question) -> tuple[Diagnostic, ...]:
    if question.job.kind != "profiler-trace" or question.job.options.host != "profiled":
        return ()
    text = "steps as recorded, slowed by the profiler; without it: --what-if unprofiled"
    return (Diagnostic("note", "profiled-steps", text),)


def _nothing_runs(result: Sweep, question: Question, scaling: Scaling | None) -> ForetraceError:
    """Returns the error of a sweep without any result, with what makes the point fit that needs least memory."""
    names = " and ".join(result.names)
    last = result.outcomes[-1]
    hint = None if last.error is None else last.error.hint
    too_large = [each for each in result.outcomes if each.error is not None and each.error.code == OUT_OF_MEMORY]
    if too_large:
        from foretrace.api import memory

        nearest = min(too_large, key=lambda outcome: outcome.peak_memory_bytes or 0)
        texts = {name: value.text for name, value in zip(result.names, nearest.point, strict=True)}
        point = _at(question, scaling, texts)
        _, relief = memory(point.job, point.machine, point.scenario)
        hint = f"{relief[0].options} would fit at {names} {nearest.label}" if relief else None
    return InfeasibleError("nothing-to-do", f"no value of {names} can be run", hint=hint)
