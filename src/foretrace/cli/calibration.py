"""`foretrace calibration`: show what a calibration holds, and what it covers of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.basics.errors import UsageError, did_you_mean
from foretrace.calibrate.coverage import job_coverage
from foretrace.cli.emit import emit
from foretrace.cli.groups import JOB, OUTPUT, OutputOptions, takes
from foretrace.cli.predict import EXPLAINED
from foretrace.cost.calibration import read_calibration
from foretrace.hardware.presets import gpu
from foretrace.inputs.registry import open_model
from foretrace.report.calibration import calibration_json, print_calibration

if TYPE_CHECKING:
    from foretrace.basics.errors import Diagnostic
    from foretrace.calibrate.coverage import JobCoverage
    from foretrace.cost.calibration import Calibration
    from foretrace.report.page.blocks import View

EXAMPLES = """Examples:

foretrace calibration show my.yaml

foretrace calibration show my.yaml llama3-8b --gpus 8 --stack torch-eager --json"""


@takes(JOB, OUTPUT)
def command(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="show.", show_default=False)],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The calibration.", show_default=False)],
    options: dict[str, Any],
    output: OutputOptions,
    job: Annotated[
        str | None, typer.Argument(metavar="[MODEL|FILE]", help=f"A job: {EXPLAINED}", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="The same, as an option.")] = None,
    no_silicon: Annotated[bool, typer.Option("--no-silicon", help="Leave NVIDIA's tables out.")] = False,
) -> None:
    """Show what a calibration covers, how well it fits, and which kernels of a job it does not know."""
    if what.lower() != "show":
        problem = f'"{what}" is not known{did_you_mean(what, ["show"])}'
        raise UsageError("unknown-name", problem, hint="foretrace calibration show FILE")
    if job is not None and model is not None:
        raise UsageError("conflicting-options", f"{job} and --model {model}: one job at a time")
    named = job or model
    if named is None and options:
        hint = "foretrace calibration show FILE llama3-8b --gpus 8"
        raise UsageError("missing-argument", "of which model is this the plan?", hint=hint)
    calibration = read_calibration(file)
    gpu(calibration.gpu, where=str(file))
    coverage = None
    if named is not None:
        program = open_model(named, options).program()
        coverage = job_coverage(calibration, program, silicon=False if no_silicon else None)
    notes = calibration.notes
    emit(
        lambda: calibration_json(calibration, coverage, notes),
        lambda: print_calibration(calibration, coverage, notes),
        output,
        lambda: _page(calibration, coverage, notes),
    )


def _page(calibration: Calibration, coverage: JobCoverage | None, notes: tuple[Diagnostic, ...]) -> View:
    from foretrace.report.views.calibration import calibration_view

    return calibration_view(calibration, coverage, notes)
