"""`foretrace calibration`: what a calibration holds, and what it covers of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.cli import arguments
from foretrace.cli.plan_options import EXPLAINED, with_plan_options

if TYPE_CHECKING:
    from foretrace.program.program import Program

EXAMPLES = """Examples:

foretrace calibration show my.yaml

foretrace calibration show my.yaml llama3-8b --gpus 8 --stack torch-eager --json"""


@with_plan_options
def command(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="show.", show_default=False)],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The calibration.", show_default=False)],
    options: dict[str, Any],
    job: Annotated[
        str | None, typer.Argument(metavar="[MODEL|FILE]", help=f"A job: {EXPLAINED}", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="The same, as an option.")] = None,
    no_silicon: arguments.NoSilicon = False,
    as_json: arguments.AsJson = False,
    output: arguments.Output = None,
) -> None:
    """Show what a calibration covers, how well it fits, and which kernels of a job it does not know."""
    import json

    from foretrace.analysis.calibration.coverage import job_coverage
    from foretrace.cli.options import check_outputs
    from foretrace.errors import UsageError, did_you_mean
    from foretrace.formats.calibration import read_calibration
    from foretrace.hardware.presets import gpu
    from foretrace.report.calibration import calibration_json, print_calibration
    from foretrace.report.json import write_json

    if what.lower() != "show":
        raise UsageError(f'"{what}" is not known{did_you_mean(what, ["show"])}', hint="foretrace calibration show FILE")
    if job is not None and model is not None:
        raise UsageError(f"{job} and --model {model}: one job at a time")
    named = job or model
    if named is None and options:
        raise UsageError("of which model is this the plan?", hint="foretrace calibration show FILE llama3-8b --gpus 8")
    check_outputs(file, [output])
    calibration = read_calibration(file)
    gpu(calibration.gpu, where=str(file))
    coverage = None
    if named is not None:
        coverage = job_coverage(calibration, _program(named, options), silicon=False if no_silicon else None)
    result = calibration_json(calibration, coverage)
    if output is not None:
        write_json(result, output)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_calibration(calibration, coverage)


def _program(named: str, options: dict[str, Any]) -> Program:
    """The program of a file that is one, or of a model under a plan."""
    from foretrace.cli.plan_options import read_job, read_plan
    from foretrace.lower.load import file_kind, load
    from foretrace.workload.assemble import program_of
    from foretrace.workload.settle import settle

    if Path(named).is_file() and file_kind(named) == "program":
        return load(named)
    found = read_job(named)
    return program_of(settle(found.model, read_plan(options, found.fields)))
