"""`foretrace simulate`: run a job and show the answer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx --schedule zb-h1 --overlap dp --gpus 16384

foretrace simulate job.foretrace --straggler 3=1.2x --json -o result.json

foretrace simulate FILE --compat simai --simai-tables SIMAI_DIR -- -g 128 -g_p_s 8 -n_p_s 8 -g_type H100 -nic_t cx7"""


class Executor(StrEnum):
    """Which executor runs the job."""

    AUTO = "auto"
    FIXED = "fixed"
    SHARED = "shared"


class Compat(StrEnum):
    """Whose figures to reproduce."""

    SIMAI = "simai"


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A SimAI/AICB workload or a program (.foretrace).", show_default=False),
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- SIMAI FLAGS]", help="SimAI's own flags, for --compat simai.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME|FILE", help="What it runs on: see foretrace list clusters.")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="N", help="Another number of GPUs: dp follows.")] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="NAME", help="1f1b, interleaved-1f1b, zb-h1, zb-v, …")
    ] = None,
    vpp: Annotated[
        str | None,
        typer.Option("--vpp", metavar="layers|chunks|N", help="What the file's vpp means, or chunks per stage."),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option("--overlap", metavar="grad,param,tp,pp", help="What overlaps; dp = grad,param; all; none."),
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", metavar="N", help="Another number of microbatches.")
    ] = None,
    pp_comm: Annotated[
        str | None, typer.Option("--pp-comm", metavar="16MiB", help="What crosses a stage boundary per microbatch.")
    ] = None,
    every_stage: Annotated[
        bool, typer.Option("--every-stage", help="Embedding, head and loss on every stage, as the file lists them.")
    ] = False,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", metavar="FILE", help="Which rank sits where (hostfile, rankfile, YAML)."),
    ] = None,
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
        bool, typer.Option("--unfolded", help="Simulate every rank on its own (slower, same times).")
    ] = False,
    compat: Annotated[
        Compat | None, typer.Option("--compat", help="Also reproduce another simulator's figures.")
    ] = None,
    simai_tables: Annotated[
        Path | None, typer.Option("--simai-tables", metavar="DIR", help="Where SimAI's *_ratio.csv tables are.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="OUT", help="Write what SimAI would: its EndToEnd.csv.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="List SimAI's defects that touch this file, with their effect.")
    ] = False,
) -> None:
    """Run a job and show its step time, where the time goes and what would help."""
    from foretrace.cli.choices import read_choices
    from foretrace.cli.options import check_outputs, read_ranks, read_slow_links, read_stragglers, read_what_ifs
    from foretrace.cli.run import Outputs, Scenarios, run_job, run_simai
    from foretrace.errors import UsageError

    choices = read_choices(
        gpus=gpus,
        schedule=schedule,
        vpp=vpp,
        overlap=overlap,
        microbatches=microbatches,
        pp_comm=pp_comm,
        every_stage=every_stage,
    )
    shown = read_ranks(ranks)
    if shown is not None and perfetto is None:
        raise UsageError("--ranks chooses what --perfetto shows", hint="add --perfetto out.pftrace")
    scenarios = Scenarios(
        read_what_ifs(what_if or []), read_stragglers(straggler or []), read_slow_links(slow_link or [])
    )
    outputs = Outputs(as_json, output, perfetto, shown)
    check_outputs(file, [perfetto, output, csv])
    if compat is None:
        simai_only = {"--simai-tables": simai_tables, "--csv": csv, "--explain": explain, " ".join(flags or []): flags}
        for name, value in simai_only.items():
            if value:
                raise UsageError(f"{name}: only with --compat simai", hint="see foretrace simulate --help")
        run_job(file, choices, cluster, placement, scenarios, outputs, executor=executor.value, folded=not unfolded)
    else:
        if scenarios.any or placement or cluster or unfolded or executor != Executor.AUTO:
            raise UsageError(
                "--compat simai runs the job as SimAI's flags have it",
                hint="leave out --cluster, --placement, --what-if, --straggler, --slow-link, --unfolded, --executor",
            )
        run_simai(file, choices, flags or [], simai_tables, csv, explain, outputs)
