"""`foretrace validate`: predictions beside measured runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli import arguments
from foretrace.cli.predict import NoSilicon, PricesOption, PriceSource

EXAMPLES = """Examples:

foretrace validate benchmarks/truth/korthikanti.csv

foretrace validate runs.csv --family torchtitan --json --svg errors.svg"""


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Measured runs: a CSV, or a line of JSON per run.", show_default=False),
    ],
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="Only the runs of one source.")] = None,
    prices: PricesOption = PriceSource.BEST,
    no_silicon: NoSilicon = False,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes.")] = None,
    as_json: arguments.AsJson = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="OUT", help="Plot measured against predicted.")] = None,
    output: arguments.Output = None,
) -> None:
    """Predict measured runs, and show how far off the predictions are."""
    import json

    from foretrace.analysis.validate.validate import validate
    from foretrace.cli.options import check_outputs
    from foretrace.cli.progress import Progress
    from foretrace.errors import InputError, did_you_mean
    from foretrace.files import write_text
    from foretrace.formats.training_runs import read_training_runs
    from foretrace.report.json import write_json
    from foretrace.report.validate import print_validation, validation_json, validation_svg

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
        found = validate(runs, family=family, prices=prices.value, silicon=silicon, workers=workers, told=told)
    if svg is not None:
        write_text(svg, validation_svg(found))
        print(f"{svg}: {len(found.rows)} rows", file=sys.stderr)
    result = validation_json(found)
    if output is not None:
        write_json(result, output)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_validation(found)
    if found.interrupted:
        raise KeyboardInterrupt
