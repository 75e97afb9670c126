"""`foretrace generate`: write a job's file for other tools, or our own, from a model's name and a plan."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.basics.errors import UsageError
from foretrace.cli.emit import emit, write_traces
from foretrace.cli.groups import JOB, MACHINE, MachineOptions, OutputOptions, check_outputs, takes
from foretrace.cli.predict import EXPLAINED
from foretrace.export.generate import generate_aicb, generate_answer, generate_program
from foretrace.inputs.registry import open_model
from foretrace.report.generate import generated_json, print_generated

EXAMPLES = """Examples:

foretrace generate llama3-70b --gpus 512 --tp 8 --pp 4 --gbs 1024 --cluster h100-dgx -o llama3-70b.txt

foretrace generate llama3-8b --gpus 8 --tp 2 --format program -o llama3-8b.foretrace"""


class Format(StrEnum):
    """The kind of file to write."""

    AICB = "aicb"
    TRACE = "megatron-trace"
    PROGRAM = "program"


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
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Where: a file, or a folder of traces.")
    ] = None,
    detail: Annotated[Detail, typer.Option("--detail", help="program: what is one op.")] = Detail.SEGMENT,
    exposed_only: Annotated[
        bool, typer.Option("--exposed-only", help="aicb: leave out collectives that run next to gradients.")
    ] = False,
    even_if_oom: Annotated[
        bool, typer.Option("--even-if-oom", help="megatron-trace: of a job that does not fit too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a job as a SimAI/AICB workload, as Megatron rank traces, or as a program of Foretrace."""
    if output is None:
        raise UsageError("missing-argument", "where to?", hint="for example -o job.txt")
    check_outputs([model], [output])
    job = open_model(model, options)
    on = machine.machine(job)
    if format_ == Format.AICB:
        generated = generate_aicb(job, on, output, exposed_only=exposed_only)
    elif format_ == Format.PROGRAM:
        generated = generate_program(job, output, detail.value)
    else:
        answer, generated = generate_answer(job, on, even_if_oom=even_if_oom)
        write_traces(answer, output, None)
    emit(
        lambda: generated_json(format_.value, output, generated),
        lambda: print_generated(output, generated),
        OutputOptions(as_json, None),
    )
