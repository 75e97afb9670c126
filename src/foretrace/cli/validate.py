"""`foretrace validate`: predictions beside measured runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli import arguments

EXAMPLES = """Examples:

foretrace validate benchmarks/truth/korthikanti.csv

foretrace validate runs.csv --family torchtitan --json --svg errors.svg

foretrace validate runs.csv --calibration my.yaml --prices model"""


EXPLAINED = (
    "Measured runs: a line of JSON per run, or a CSV with id, model, gpu, gpus, mbs, step_time_s and what else is "
    "known; layers, hidden, ffn_hidden and heads too where the model is no preset."
)


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help=EXPLAINED, show_default=False),
    ],
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="Only the runs of one source.")] = None,
    prices: arguments.Prices = arguments.PriceSource.BEST,
    no_silicon: arguments.NoSilicon = False,
    calibration: arguments.Calibration = None,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes.")] = None,
    as_json: arguments.AsJson = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="OUT", help="Plot measured against predicted.")] = None,
    output: arguments.Output = None,
) -> None:
    """Predict measured runs, and show how far off the predictions are; exit code 3 where none can be predicted."""
    import json

    from foretrace.analysis.validate.validate import validate
    from foretrace.cli.options import check_outputs
    from foretrace.cli.progress import Progress
    from foretrace.errors import InputError, did_you_mean
    from foretrace.files import write_text
    from foretrace.formats.training_runs import read_training_runs
    from foretrace.report.json import write_json
    from foretrace.report.validate import MOST_SKIPPED, print_validation, validation_json, validation_svg, why_skipped

    check_outputs(file, [svg, output])
    runs = read_training_runs(file)
    families = sorted({run.config.family for run in runs.runs} | {one.family for one in runs.skipped})
    if family is not None and family not in families:
        problem = f'no run is of family "{family}"{did_you_mean(family, families)}'
        raise InputError(problem, where=str(file), hint=f"there are {', '.join(families)}")
    with Progress(f"predicting {len(runs.runs)} runs") as progress:

        def told(number: int, count: int, name: str) -> None:
            progress.text = f"predicting {name}, {number + 1} of {count}"

        silicon = False if no_silicon else None
        both = None
        if calibration is None:
            found = validate(runs, family=family, prices=prices.value, silicon=silicon, workers=workers, told=told)
        else:
            from foretrace.analysis.validate.calibrated import validate_calibrated

            both = validate_calibrated(
                runs, calibration, family=family, prices=prices.value, silicon=silicon, workers=workers, told=told
            )
            found = both.validation
    if svg is not None:
        write_text(svg, validation_svg(found))
        print(f"{svg}: {len(found.rows)} rows", file=sys.stderr)
    result = validation_json(found)
    if both is not None:
        from foretrace.report.calibration import before_after_json, print_before_after

        result["calibration"] = before_after_json(both)
    if output is not None:
        write_json(result, output)
    nothing = not found.rows and not found.interrupted
    if as_json:
        print(json.dumps(result, allow_nan=False))
    elif not nothing:
        print_validation(found)
        if both is not None:
            print_before_after(both)
    if found.interrupted:
        raise KeyboardInterrupt
    if nothing:
        reasons = "\n       ".join(why_skipped(found)[:MOST_SKIPPED]) or "the table has no rows"
        raise InputError("no row could be predicted", where=str(file), hint=reasons)
