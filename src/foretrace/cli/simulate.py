"""`foretrace simulate`: run a job and show the answer."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

foretrace simulate job.foretrace --what-if compute=1.1x --what-if dp=2x

foretrace simulate job.foretrace --straggler 3=1.2x --json -o result.json"""


class Executor(StrEnum):
    """Which executor runs the job."""

    AUTO = "auto"
    FIXED = "fixed"
    SHARED = "shared"


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A program file (.foretrace).", show_default=False)],
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="WHAT=1.1x", help="Make ops or a resource so many times as fast."),
    ] = None,
    straggler: Annotated[
        list[str] | None,
        typer.Option("--straggler", metavar="RANK=1.2x", help="Make a rank compute so many times as slowly."),
    ] = None,
    slow_link: Annotated[
        list[str] | None,
        typer.Option(
            "--slow-link", metavar="RANK:AXIS=2x", help="Make what a rank communicates so many times as slow."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="OUT", help="Write the timeline for ui.perfetto.dev.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="0,7,16-19", help="Which ranks the Perfetto file shows.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Also write the JSON to a file.")
    ] = None,
    executor: Annotated[
        Executor, typer.Option("--executor", help="Whether ops divide what they share.")
    ] = Executor.AUTO,
    unfolded: Annotated[
        bool, typer.Option("--unfolded", help="Simulate every rank on its own (slower, same answer).")
    ] = False,
) -> None:
    """Run a job and show its step time, where the time goes and what would help."""
    from foretrace.analysis.simulate import simulate
    from foretrace.cli.options import check_outputs, read_ranks, read_slow_links, read_stragglers, read_what_ifs
    from foretrace.cli.progress import Progress
    from foretrace.errors import UsageError
    from foretrace.program.file import load
    from foretrace.report.json import simulation_json, write_json
    from foretrace.report.terminal import print_simulation

    changes, slow = read_what_ifs(what_if or []), read_stragglers(straggler or [])
    links, shown = read_slow_links(slow_link or []), read_ranks(ranks)
    check_outputs(file, [perfetto, output])
    if shown is not None and perfetto is None:
        raise UsageError("--ranks chooses what --perfetto shows", hint="add --perfetto out.pftrace")
    program = load(file)
    with Progress(f"simulating {program.op_count:,} ops on {program.world:,} ranks"):
        answer = simulate(
            program,
            what_if=changes,
            stragglers=slow,
            slow_links=links,
            executor=executor.value,
            folded=not unfolded,
        )
    if perfetto is not None:
        from foretrace.report.perfetto import write_perfetto

        summary = write_perfetto(answer.timeline, perfetto, ranks=shown, memory=answer.memory_by_rank())
        print(f"{perfetto}: {summary}", file=sys.stderr)
    result = simulation_json(answer)
    if output is not None:
        write_json(result, output)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_simulation(answer)
