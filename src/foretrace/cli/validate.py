"""`foretrace validate`: compare predictions with measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.progress import doing
from foretrace.cli.emit import emit, fail_after_answer, write_picture
from foretrace.cli.groups import MACHINE, OUTPUT, SCENARIO, OutputOptions, check_svg, takes
from foretrace.cost.machine_texts import MachineOptions
from foretrace.inputs.option_texts import flag_of
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.calibration import calibrated_json, print_before_after
from foretrace.report.validate import MAX_SKIPPED, print_validation, validation_json, validation_svg, why_skipped
from foretrace.report.views import view_of
from foretrace.validate.calibrated import CalibratedValidation, validate_calibrated
from foretrace.validate.results import Validation
from foretrace.validate.training_runs import read_training_runs, runs_of_family
from foretrace.validate.validate import validate

EXAMPLES = """Examples:

foretrace validate benchmarks/truth/korthikanti.csv

foretrace validate runs.csv --family torchtitan --json --svg errors.svg

foretrace validate runs.csv --calibration my.yaml --prices model"""

EXPLAINED = (
    "Measured runs: a line of JSON per run, or a CSV with id, model, gpu, gpus, mbs, step_time_s and what else is "
    "known; layers, hidden, ffn_hidden and heads too where the model is not a preset."
)


@takes(MACHINE, SCENARIO, OUTPUT)
def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=EXPLAINED, show_default=False)],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="Only the runs of one source.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="OUT", help="Plot measured against predicted.")] = None,
) -> None:
    """Predict measured runs, and show how far off the predictions are; exit code 3 where none can be predicted."""
    check_svg(svg)
    if machine.cluster is not None or machine.details["placement"] is not None:
        problem = "--cluster, --placement and --domain-gpus: every run names its own GPUs"
        raise UsageError("option-not-for-command", problem, hint="leave them out")
    if scenario.options:
        names = " and ".join(map(flag_of, scenario.options))
        raise UsageError("option-not-for-command", f"{names}: the runs are models, not profiler traces")
    runs = runs_of_family(read_training_runs(file), family, str(file))
    on = machine.machine_of_clusters()
    both: CalibratedValidation | None = None
    with doing(f"predicting {len(runs.runs)} runs") as progress:

        def on_row(number: int, count: int, name: str) -> None:
            progress.text = f"predicting {name}, {number + 1} of {count}"

        if on.calibration is None:
            validation = validate(runs, on, scenario.scenario, workers=workers, on_row=on_row)
        else:
            both = validate_calibrated(runs, on, scenario.scenario, workers=workers, on_row=on_row)
            validation = both.validation
    write_picture(svg, lambda: validation_svg(validation), f"{len(validation.rows)} rows")
    _show(validation, both, output)
    if validation.interrupted:
        raise KeyboardInterrupt
    if not validation.rows:
        reasons = "\n       ".join(why_skipped(validation)[:MAX_SKIPPED]) or "the table has no rows"
        error = InputError("nothing-to-do", "no row could be predicted", where=str(file), hint=reasons)
        fail_after_answer(error, output)


def _show(validation: Validation, both: CalibratedValidation | None, output: OutputOptions) -> None:
    def result() -> dict[str, Any]:
        return validation_json(validation) if both is None else calibrated_json(both)

    def screen() -> None:
        if validation.rows or validation.interrupted:
            print_validation(validation)
            if both is not None:
                print_before_after(both)

    emit(result, screen, output, lambda: view_of(validation if both is None else both))
