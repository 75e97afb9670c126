"""`foretrace compare`: a prediction beside a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli import arguments

if TYPE_CHECKING:
    from foretrace.analysis.job import Job
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
    cluster: arguments.Cluster = None,
    microbatches: arguments.Microbatches = None,
    mesh: arguments.Mesh = None,
    collectives: arguments.Collectives = None,
    calibration: arguments.Calibration = None,
    network: arguments.Network = arguments.NetworkMode.ANALYTIC,
    as_json: arguments.AsJson = False,
    perfetto: arguments.Perfetto = None,
    ranks: arguments.Ranks = None,
    output: arguments.Output = None,
) -> None:
    """Compare a prediction with a measured step: the error, and where it comes from."""
    from dataclasses import replace

    from foretrace.cli.options import check_outputs, read_ranks
    from foretrace.errors import UsageError

    if len(paths) < 2:
        raise UsageError("what is to be compared with what?", hint="foretrace compare PREDICTED… MEASURED")
    shown = read_ranks(ranks, perfetto=perfetto)
    for path in paths:
        check_outputs(path, [perfetto, output])
    predicted, measured = _jobs(paths, cluster, microbatches, mesh, collectives)
    predicted = replace(predicted, network=network.value, calibration=calibration)
    _run(predicted, measured, microbatches is not None, as_json, perfetto, shown, output)


def _jobs(
    paths: list[Path], cluster: str | None, microbatches: int | None, mesh: str | None, collectives: Path | None
) -> tuple[Job, Job]:
    """The job to predict and the one that was measured; neither knows the other's files."""
    from dataclasses import replace

    from foretrace.analysis.job import Job
    from foretrace.cli.choices import read_choices
    from foretrace.cli.progress import Progress
    from foretrace.lower.choices import Choices
    from foretrace.lower.load import file_kind

    *read, last = paths
    is_trace = file_kind(last) == "traces"
    if microbatches is None and is_trace and file_kind(read[0]) == "traces":
        microbatches = _microbatches(last, mesh)
    choices = read_choices(mesh=mesh, microbatches=microbatches)
    recorded = Choices(mesh=mesh) if is_trace else Choices()
    predicted = Job(tuple(read), choices, cluster=cluster, collectives=collectives, watch=Progress)
    return predicted, replace(predicted, paths=(last,), choices=recorded)


def _microbatches(measured: Path, mesh: str | None) -> int:
    """How many microbatches the measured run had: of what to predict, not how long it took."""
    from foretrace.errors import UsageError
    from foretrace.lower.megatron_trace.inventory import take_inventory

    found = take_inventory([measured], mesh)
    if found.kind == "ex situ":
        raise UsageError(
            f"{measured} was traced ex situ: nothing was measured", hint="the last path is the real run to compare with"
        )
    return max(found.microbatches, 1)


def _run(
    predicted: Job,
    measured: Job,
    asked: bool,
    as_json: bool,
    perfetto: Path | None,
    ranks: list[int] | None,
    output: Path | None,
) -> None:
    import json
    import sys
    from dataclasses import replace

    from foretrace.analysis.compare import compare
    from foretrace.errors import Diagnostic
    from foretrace.report.compare import comparison_json, print_comparison, write_comparison_perfetto
    from foretrace.report.json import write_json

    comparison = compare(predicted.simulate(), measured.measured())
    seen = _seen_before(predicted.paths, *measured.paths)
    count = predicted.choices.microbatches
    text = f"{count} microbatches predicted, as many as the measured run has (choose with --microbatches)"
    counted = [Diagnostic("note", text)] if count is not None and not asked else []
    comparison = replace(comparison, diagnostics=(*seen, *counted, *comparison.diagnostics))
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

    theirs = _files(measured)
    for path in paths:
        if theirs & _files(path):
            message = "the prediction reads what was measured: this shows how well it is repeated, not foreseen"
            return [Diagnostic("warning", message, str(path))]
    return []


def _files(path: Path) -> set[Path]:
    """The files that a path names: those of a folder, those that a pattern fits, or itself."""
    import glob

    found = [path] if path.exists() else [Path(one) for one in glob.glob(str(path))]  # noqa: PTH207 - may be absolute
    inside = (inner for one in found for inner in (one.iterdir() if one.is_dir() else [one]))
    return {one.resolve() for one in inside}
