"""`foretrace trace`: run a training script with simulated GPUs, and write what it issues as a program."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from foretrace.basics.errors import UsageError
from foretrace.basics.files import given_paths
from foretrace.basics.units import format_time
from foretrace.cli.emit import emit, wrote
from foretrace.cli.groups import OptionGroup, OutputOptions, given_values, option_parameters, takes
from foretrace.inputs.inventory import Inventory
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.inputs.script.checks import CHECKS
from foretrace.inputs.script.input import ScriptInput
from foretrace.program.file import save
from foretrace.report.inventory import print_inventory

EXAMPLES = """Examples:

foretrace trace examples/scripts/ddp_gpt.py --world 1024 -o job.foretrace -- --layers 24 --hidden 1024 --heads 16

foretrace trace examples/scripts/tp_pp.py --world 64 --ranks all --json

foretrace simulate examples/scripts/ddp_gpt.py --world 64 --cluster h100-dgx -- --layers 24"""


class TraceFormat(StrEnum):
    """The kind of file to write."""

    PROGRAM = "program"
    MEGATRON = "megatron"


_SCRIPT: Final = {name: INPUT_OPTIONS[name] for name in ("world", "steps", "routing", "unknown", "arguments")}
_OPTIONS: Final = {
    **_SCRIPT,
    "world": OptionText("--world --gpus", "N", "GPUs of the job, which are its ranks."),
    "trace_ranks": OptionText("--ranks", "0,5,63|all", "The ranks to trace; else those that differ."),
    "steps": OptionText("--steps", "1|2:4", "The steps to record, from 0; else the second."),
    "routing": OptionText("--routing", "POLICY", "How tokens choose experts: balanced, zipf:1.2 or a file."),
    "unknown": OptionText("--unknown", "NUMBER", "What stands for numbers that only a GPU knows, such as a loss."),
    "arguments": OptionText("--args", "'--layers 4'", "Arguments of the script, which may also follow after --."),
    "gpus_per_node": OptionText("--gpus-per-node", "N", "GPUs of a node.", kind=int, default=8),
}


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options of a trace: texts of those of the script, and the GPUs of a node."""

    texts: dict[str, Any]
    gpus_per_node: int


def _read(values: dict[str, Any]) -> TraceOptions:
    gpus = values.pop("gpus_per_node")
    if gpus < 1:
        raise UsageError("out-of-range", f"--gpus-per-node {gpus}: a node has a GPU at least")
    return TraceOptions(given_values(values), gpus)


SCRIPT = OptionGroup("options", option_parameters("Job", _OPTIONS), _read)
"""Options of a trace."""


TRACE_SCHEMA = "foretrace.trace/1"


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What was traced, the codes of the checks that gave warnings, and where the program was written."""

    inventory: Inventory
    warned: tuple[str, ...]
    path: Path | None

    @property
    def passed(self) -> tuple[str, ...]:
        """The codes of the checks that were passed; a check that fails is an error."""
        return tuple(code for code in CHECKS if code not in self.warned)

    def to_dict(self) -> dict[str, Any]:
        """Returns the inventory as JSON has it, with the checks and the file."""
        checks = [{"code": code, "passed": code in self.passed} for code in CHECKS]
        file = None if self.path is None else str(self.path)
        return {**self.inventory.to_dict(), "schema": TRACE_SCHEMA, "checks": checks, "path": file}


def print_trace(report: TraceReport) -> None:
    """Prints the inventory, the checks, and the next command."""
    shown = report.inventory
    facts = [("passed" if code in report.passed else "warned", text) for code, text in CHECKS.items()]
    facts.sort(key=lambda fact: fact[0])
    if report.path is not None:
        facts.append(("file", str(report.path)))
        shown = replace(shown, see=(f"foretrace simulate {report.path} --cluster h100-dgx",))
    print_inventory(replace(shown, facts=(*shown.facts, *facts)))


@takes(SCRIPT)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT [-- ARGUMENTS]",
            help="A script that trains with PyTorch, as torchrun would start it; its own arguments follow after --.",
            show_default=False,
        ),
    ],
    options: TraceOptions,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Write the program, for foretrace simulate.")
    ] = None,
    format_: Annotated[TraceFormat, typer.Option("--format", help="What to write.")] = TraceFormat.PROGRAM,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was traced as JSON.")] = False,
) -> None:
    """Trace a PyTorch training script as if on any number of GPUs; none is needed."""
    given = given_paths(paths)
    script = given[0].text
    if not ScriptInput.recognises(given):
        problem = f"{script} is not a script of Python"
        raise UsageError("wrong-format", problem, hint="foretrace inspect says what a file is")
    if format_ == TraceFormat.MEGATRON:
        problem = "rank traces of Megatron have times, which only a machine tells"
        hint = f"foretrace simulate {script} --world N --cluster h100-dgx --traces {output or 'OUT_DIR'} writes them"
        raise UsageError("needs-cluster", problem, hint=hint)
    job = ScriptInput.open(given).read_options(options.texts).on_nodes(options.gpus_per_node)
    begin = time.monotonic()
    report = TraceReport(job.inventory(), tuple(note.code for note in job.warnings()), output)
    traced_s = time.monotonic() - begin
    if output is not None:
        save(job.program(), output)
        wrote(output, f"a program of {job.program().world:,} ranks, traced in {format_time(traced_s)}")
    emit(report.to_dict, lambda: print_trace(report), OutputOptions(as_json, None))
