"""`foretrace generate`: write a job's file for other tools, or our own, from a model's name and a plan."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.basics.errors import UsageError
from foretrace.basics.outputs import claim_output
from foretrace.cli.emit import emit, write_traces
from foretrace.cli.groups import JOB, MACHINE, OutputOptions, takes
from foretrace.cli.predict import EXPLAINED
from foretrace.cost.machine_texts import MachineOptions
from foretrace.export.generate import (
    GeneratedFile,
    generate_aicb,
    generate_answer,
    generate_launch,
    generate_program,
)
from foretrace.inputs.registry import open_model
from foretrace.report.generate import generated_json, print_generated, print_launch

EXAMPLES = """Examples:

foretrace generate llama3-70b --gpus 512 --tp 8 --pp 4 --gbs 1024 --cluster h100-dgx -o llama3-70b.txt

foretrace generate llama3-8b --gpus 8 --tp 2 --format program -o llama3-8b.foretrace

foretrace generate llama3-70b --gpus 512 --tp 4 --pp 4 --gbs 1024 --cluster h100-dgx --format launch"""


class Format(StrEnum):
    """The kind of file to write."""

    AICB = "aicb"
    TRACE = "megatron-trace"
    PROGRAM = "program"
    LAUNCH = "launch"


class Detail(StrEnum):
    """The size of one op of a program."""

    SEGMENT = "segment"
    KERNEL = "kernel"


@takes(JOB, MACHINE)
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    machine: MachineOptions,
    format_: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.AICB,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT|OUT_DIR", help="Where: a file, or a folder of traces.")
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            metavar="NAME",
            help="launch: megatron-lm, megatron-bridge, torchtitan, torchtitan-toml or deepspeed; else the stack's.",
        ),
    ] = None,
    detail: Annotated[Detail, typer.Option("--detail", help="program: what is one op.")] = Detail.SEGMENT,
    exposed_only: Annotated[
        bool, typer.Option("--exposed-only", help="aicb: leave out collectives that run next to gradients.")
    ] = False,
    even_if_oom: Annotated[
        bool, typer.Option("--even-if-oom", help="megatron-trace: of a job that does not fit too.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="launch: write over files next to OUT that another program wrote.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a job as a SimAI/AICB workload, as Megatron rank traces, as a program, or as a launch script."""
    if framework is not None and format_ != Format.LAUNCH:
        problem = f"--framework has no effect with --format {format_.value}"
        raise UsageError("option-not-for-command", problem, hint="add --format launch")
    if output is None and format_ != Format.LAUNCH:
        raise UsageError("missing-argument", "where to?", hint="for example -o job.txt")
    if output is not None:
        claim_output(output, folder=format_ == Format.TRACE)
    job = open_model(model, options)
    on = machine.machine(job)
    if output is None or format_ == Format.LAUNCH:
        _launch(generate_launch(job, on, output, framework, force=force), output, as_json)
        return
    if format_ == Format.AICB:
        generated = generate_aicb(job, on, output, exposed_only=exposed_only)
    elif format_ == Format.PROGRAM:
        generated = generate_program(job, on, output, detail.value)
    else:
        answer, generated = generate_answer(job, on, even_if_oom=even_if_oom)
        write_traces(answer, output, None)
    emit(
        lambda: generated_json(format_.value, output, generated),
        lambda: print_generated(output, generated),
        OutputOptions(as_json, None),
    )


def _launch(generated: GeneratedFile, output: Path | None, as_json: bool) -> None:
    """Prints the script, or that it was written; what it cannot say is in its comments too."""
    place = output or Path(next(iter(generated.facts["files"])))
    show = print_launch if output is None else lambda file: print_generated(place, file)
    emit(
        lambda: generated_json(Format.LAUNCH.value, place, generated),
        lambda: show(generated),
        OutputOptions(as_json, None),
    )
