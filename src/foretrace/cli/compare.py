"""`foretrace compare`: a prediction beside a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretrace.cli.job import Job
    from foretrace.errors import Diagnostic

EXAMPLES = """Examples:

foretrace compare predicted.foretrace measured.foretrace

foretrace compare scaling_a scaling_b real --cluster a100-dgx --microbatches 8 --perfetto both.pftrace"""


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PREDICTED… MEASURED",
            help="What to predict from (several trace folders are campaigns of one job); last, what was measured.",
            show_default=False,
        ),
    ],
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME|FILE", help="What it runs on: see foretrace list clusters.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", metavar="N", help="How many microbatches to predict.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="tp=2,pp=4,dp=8", help="The mesh, where traces leave it open.")
    ] = None,
    collectives: Annotated[
        Path | None, typer.Option("--collectives", metavar="PATH", help="Measured collectives, to price the network.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole comparison as JSON.")] = False,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="OUT", help="Write both timelines for ui.perfetto.dev.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="0,7,16-19", help="Which ranks the Perfetto file shows.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Also write the JSON to a file.")
    ] = None,
) -> None:
    """Compare a prediction with a measured step: the error, and where it comes from."""
    from foretrace.cli.options import check_outputs, read_ranks
    from foretrace.errors import UsageError

    if len(paths) < 2:
        raise UsageError("what is to be compared with what?", hint="foretrace compare PREDICTED… MEASURED")
    shown = read_ranks(ranks)
    if shown is not None and perfetto is None:
        raise UsageError("--ranks chooses what --perfetto shows", hint="add --perfetto out.pftrace")
    for path in paths:
        check_outputs(path, [perfetto, output])
    predicted, measured = _jobs(paths, cluster, microbatches, mesh, collectives)
    _run(predicted, measured, as_json, perfetto, shown, output)


def _jobs(
    paths: list[Path], cluster: str | None, microbatches: int | None, mesh: str | None, collectives: Path | None
) -> tuple[Job, Job]:
    """The job to predict and the one that was measured; neither knows the other's files."""
    from foretrace.cli.job import Job
    from foretrace.errors import InputError, UsageError
    from foretrace.lower.choices import Choices
    from foretrace.lower.load import file_kind
    from foretrace.mesh import Mesh

    *read, last = paths
    try:
        known = None if mesh is None else Mesh.parse(mesh, where="--mesh")
        choices = Choices(mesh=known, microbatches=microbatches)
    except InputError as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from None
    recorded = Choices(mesh=known) if file_kind(last) == "traces" else Choices()
    predicted = Job(tuple(read), choices, cluster=cluster, collectives=collectives)
    return predicted, Job((last,), recorded, cluster=cluster, collectives=collectives)


def _run(
    predicted: Job, measured: Job, as_json: bool, perfetto: Path | None, ranks: list[int] | None, output: Path | None
) -> None:
    import json
    import sys
    from dataclasses import replace

    from foretrace.analysis.compare import compare
    from foretrace.report.compare import comparison_json, print_comparison, write_comparison_perfetto
    from foretrace.report.json import write_json

    comparison = compare(predicted.simulate(), measured.measured())
    seen = _seen_before(predicted.paths, *measured.paths)
    comparison = replace(comparison, diagnostics=(*seen, *comparison.diagnostics))
    if perfetto is not None:
        summary = write_comparison_perfetto(comparison, perfetto, ranks=ranks)
        print(f"{perfetto}: {summary}", file=sys.stderr)
    if output is not None:
        write_json(comparison_json(comparison), output)
    if as_json:
        print(json.dumps(comparison_json(comparison), allow_nan=False))
    else:
        print_comparison(comparison)


def _seen_before(paths: tuple[Path, ...], measured: Path) -> list[Diagnostic]:
    """A warning where the prediction reads what it is compared with."""
    from foretrace.errors import Diagnostic

    target = measured.resolve()
    for path in paths:
        source = path.resolve()
        holds = source == target.parent and target.is_file()
        if source == target or target in source.parents or holds:
            message = "the prediction reads what was measured: this shows how well it is repeated, not foreseen"
            return [Diagnostic("warning", message, str(path))]
    return []
