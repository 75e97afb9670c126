"""`foretrace calibrate`: make a calibration of what was measured on a user's machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.basics.errors import UsageError
from foretrace.basics.progress import doing
from foretrace.calibrate.calibrate import make_calibration
from foretrace.cli.emit import emit
from foretrace.cli.groups import OutputOptions, check_html
from foretrace.report.calibration import calibration_json, print_calibration
from foretrace.report.wrap import fit_text

if TYPE_CHECKING:
    from foretrace.report.page.blocks import View

EXAMPLES = """Examples:

foretrace calibrate step.json.gz -o my.yaml

foretrace calibrate step.json.gz all_reduce_16gpu_2node.log --cluster h200-dgx -o my.yaml

foretrace predict llama3-8b --gpus 8 --cluster h200-dgx --calibration my.yaml"""


def command(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="Profiler traces and tables with shapes, kernel tables, logs and tables of nccl-tests, whole steps "
            "(CSV or JSON lines).",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT.yaml", help="The calibration to write.")
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
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT.html", help="Also write what it holds as a page.")
    ] = None,
) -> None:
    """Fit prices to your machine, from traces, tables, logs and whole steps; --calibration uses it anywhere."""
    if out is None:
        hint = "foretrace calibrate INPUT... -o my.yaml"
        raise UsageError("missing-argument", "where is the calibration to go?", hint=hint)
    if out.suffix not in (".yaml", ".yml"):
        name = out.with_suffix(".yaml") if out.name and not out.name.startswith(".") else "my.yaml"
        raise UsageError("bad-value", f"{out}: a calibration is written as YAML", hint=f"for example {name}")
    check_html(html)
    with doing(f"calibrating with {', '.join(path.name for path in inputs)}"):
        calibration, notes = make_calibration(inputs, out, gpu=gpu, cluster=cluster, step_factor=step_factor)

    def screen() -> None:
        print_calibration(calibration, notes=notes)
        print(fit_text(f"{out} written", sys.stderr), file=sys.stderr)

    def view() -> View:
        from foretrace.report.views.calibration import calibration_view

        return calibration_view(calibration, notes=notes)

    emit(lambda: calibration_json(calibration, notes=notes), screen, OutputOptions(as_json, None, html), view)
