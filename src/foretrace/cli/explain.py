"""`foretrace explain`: what happened in a run, and why it took so long."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli import arguments

if TYPE_CHECKING:
    from foretrace.analysis.explain import Explanation
    from foretrace.analysis.job import Job

EXAMPLES = """Examples:

foretrace explain real_traces/ --perfetto run.pftrace

foretrace explain trace.json.gz --view idle

foretrace explain examples/moe_fairseq_profile.txt

foretrace explain examples/moe_128gpu.txt --cluster h100-dgx --json"""


class View(StrEnum):
    """One question about a profiler's traces."""

    BREAKDOWN = "breakdown"
    OVERLAP = "overlap"
    IDLE = "idle"
    KERNELS = "kernels"
    LAUNCHES = "launches"
    QUEUE = "queue"
    BANDWIDTH = "bandwidth"
    ANNOTATIONS = "annotations"
    SEQUENCES = "sequences"
    STRAGGLERS = "stragglers"
    CRITICAL_PATH = "critical-path"
    STEPS = "steps"
    DIFF = "diff"


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
    calibration: arguments.Calibration = None,
    as_json: arguments.AsJson = False,
    perfetto: arguments.Perfetto = None,
    ranks: arguments.Ranks = None,
    output: arguments.Output = None,
    view: Annotated[
        View | None, typer.Option("--view", help="Of a profiler's traces, one question; diff compares two of them.")
    ] = None,
    op: Annotated[str, typer.Option("--op", metavar="WORD", help="With --view sequences: of ops with this name.")] = "",
    hta_steps: Annotated[
        bool,
        typer.Option("--hta-steps", help="Of a profiler's traces, count what Holistic Trace Analysis does."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="OUT.svg", help="Of a profiler's traces, draw the step, ranks or queues."),
    ] = None,
) -> None:
    """Explain a run: what it waited for, for whom, and what to change."""
    from foretrace.analysis.job import Job
    from foretrace.cli.choices import read_choices
    from foretrace.cli.options import check_outputs, read_ranks
    from foretrace.cli.progress import Progress
    from foretrace.lower.load import file_kind

    shown = read_ranks(ranks, perfetto=perfetto)
    for path in paths:
        check_outputs(path, [perfetto, output, plot])
    given = {"--cluster": cluster, "--mesh": mesh, "--collectives": collectives, "--microbatches": microbatches}
    given |= {"--calibration": calibration, "--perfetto": perfetto}
    kind = file_kind(paths[0])
    if kind == "profile":
        from foretrace.cli.explain_trace import Wanted, explain_traces

        explain_traces(paths, Wanted(view, op, hta_steps, as_json, output, plot), given)
        return
    _refuse_questions(paths[0], {"--view": view, "--op": op, "--hta-steps": hta_steps, "--plot": plot})
    if kind == "table":
        _table(paths, given, as_json, output)
        return
    choices = read_choices(mesh=mesh, microbatches=microbatches)
    job = Job(tuple(paths), choices, cluster=cluster, collectives=collectives, watch=Progress, calibration=calibration)
    _show(_explanation(job), as_json, perfetto, shown, output)


def _refuse_questions(path: Path, given: Mapping[str, object]) -> None:
    """Raises an error where a question about a profiler's traces is asked of something else."""
    from foretrace.errors import UsageError

    asked = [name for name, value in given.items() if value]
    if asked:
        raise UsageError(f"{' and '.join(asked)}: {path} is no profiler's trace", hint="see foretrace explain --help")


def _table(paths: list[Path], useless: Mapping[str, object], as_json: bool, output: Path | None) -> None:
    """A profiler's table, which is explained as it is."""
    import json

    from foretrace.analysis.torch_table import explain_tables
    from foretrace.errors import UsageError
    from foretrace.report.json import write_json
    from foretrace.report.torch_table import explanations_json, print_explanations

    given = [name for name, value in useless.items() if value is not None]
    if given or len(paths) > 1:
        what = " and ".join(given) or f"{len(paths)} files"
        raise UsageError(
            f"{what}: a profiler's table is explained as it is, one at a time",
            hint=f"on another mesh or cluster: foretrace simulate {paths[0]}",
        )
    explanations = explain_tables(paths[0])
    if output is not None:
        write_json(explanations_json(explanations), output)
    if as_json:
        print(json.dumps(explanations_json(explanations), allow_nan=False))
    else:
        print_explanations(explanations, paths[0])


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
    given |= {"--calibration": job.calibration}
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
