"""`foretrace calibrate`: a calibration of what was measured on a user's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

foretrace calibrate step.json.gz -o my.yaml

foretrace calibrate step.json.gz all_reduce_16gpu_2node.log --cluster h200-dgx -o my.yaml

foretrace predict llama3-8b --gpus 8 --cluster h200-dgx --calibration my.yaml"""


def command(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="Profiler traces and tables with shapes, kernel profiles, logs and tables of nccl-tests, whole steps "
            "(CSV or JSON lines).",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The calibration to write; tables go beside it.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, where inputs do not say.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME|FILE", help="Where it was measured: its GPU, and GPUs of a node."),
    ] = None,
    step_factor: Annotated[
        bool | None,
        typer.Option("--step-factor/--no-step-factor", help="Whether whole steps set a factor (default: from two on)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what it holds as JSON.")] = False,
) -> None:
    """Fit prices to your machine, from traces, tables, logs and whole steps; --calibration uses it anywhere."""
    import json
    import sys

    from foretrace.analysis.calibration.make import make_calibration
    from foretrace.cli.options import check_outputs
    from foretrace.cli.progress import Progress
    from foretrace.errors import UsageError
    from foretrace.formats.calibration import beside
    from foretrace.report.calibration import calibration_json, print_calibration

    if out is None:
        raise UsageError("where is the calibration to go?", hint="foretrace calibrate INPUT... -o my.yaml")
    if out.suffix not in (".yaml", ".yml"):
        name = out.with_suffix(".yaml") if out.name and not out.name.startswith(".") else "my.yaml"
        raise UsageError(f"{out}: a calibration is written as YAML", hint=f"for example {name}")
    for path in inputs:
        check_outputs(path, [out, *beside(out)])
    with Progress(f"calibrating with {', '.join(one.name for one in inputs)}"):
        made, notes = make_calibration(inputs, out, gpu=gpu, cluster=cluster, step_factor=step_factor)
    if as_json:
        print(json.dumps(calibration_json(made, notes=notes), allow_nan=False))
        return
    print_calibration(made, notes=notes)
    print(f"{out} written", file=sys.stderr)
