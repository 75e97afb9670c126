"""`foretrace explain`: what happened in a run, and why it took so long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli import arguments

if TYPE_CHECKING:
    from foretrace.analysis.explain import Explanation
    from foretrace.analysis.job import Job

EXAMPLES = """Examples:

foretrace explain real_traces/ --perfetto run.pftrace

foretrace explain examples/moe_128gpu.txt --cluster h100-dgx --json"""


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…",
            help="Traces of a real run's ranks, or anything foretrace simulates, which is then predicted first.",
            show_default=False,
        ),
    ],
    cluster: arguments.Cluster = None,
    microbatches: arguments.Microbatches = None,
    mesh: arguments.Mesh = None,
    collectives: arguments.Collectives = None,
    as_json: arguments.AsJson = False,
    perfetto: arguments.Perfetto = None,
    ranks: arguments.Ranks = None,
    output: arguments.Output = None,
) -> None:
    """Explain a run: what it waited for, for whom, and what to change."""
    from foretrace.analysis.job import Job
    from foretrace.cli.choices import read_choices
    from foretrace.cli.options import check_outputs, read_ranks
    from foretrace.cli.progress import Progress

    shown = read_ranks(ranks, perfetto=perfetto)
    for path in paths:
        check_outputs(path, [perfetto, output])
    choices = read_choices(mesh=mesh, microbatches=microbatches)
    job = Job(tuple(paths), choices, cluster=cluster, collectives=collectives, watch=Progress)
    _show(_explanation(job), as_json, perfetto, shown, output)


def _explanation(job: Job) -> Explanation:
    """What is to be said of a job; a recorded run is also run again from its ops."""
    from dataclasses import replace

    from foretrace.analysis.explain import explain
    from foretrace.analysis.remedies import remedies
    from foretrace.errors import UsageError
    from foretrace.lower.choices import Choices

    explanation = explain(job.measured())
    if not explanation.recorded:
        return replace(explanation, remedies=remedies(job, recorded=False))
    given = {"--cluster": job.cluster, "--collectives": job.collectives, "--microbatches": job.choices.microbatches}
    useless = [name for name, value in given.items() if value is not None]
    if useless:
        raise UsageError(
            f"{' and '.join(useless)}: {job.name} was recorded, and is explained as it was",
            hint="what else it could be: foretrace simulate",
        )
    again = replace(job, choices=Choices(mesh=job.choices.mesh)).simulate(explain=False)
    return replace(explanation, replay_step_s=again.step_time_s, remedies=remedies(job, recorded=True))


def _show(
    explanation: Explanation, as_json: bool, perfetto: Path | None, ranks: list[int] | None, output: Path | None
) -> None:
    import json
    import sys

    from foretrace.report.explain import explanation_json, print_explanation
    from foretrace.report.json import write_json

    run = explanation.simulation
    if perfetto is not None:
        from foretrace.report.perfetto import write_perfetto

        summary = write_perfetto(run.timeline, perfetto, ranks=ranks, memory=run.memory_by_rank())
        print(f"{perfetto}: {summary}", file=sys.stderr)
    if output is not None:
        write_json(explanation_json(explanation), output)
    if as_json:
        print(json.dumps(explanation_json(explanation), allow_nan=False))
    else:
        print_explanation(explanation)
