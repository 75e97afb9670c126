"""`foretrace simulate`: run a job and show the answer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx --schedule zb-h1 --overlap dp --gpus 16384

foretrace simulate scaling_a scaling_b --cluster examples/clusters/a100_2x8.yaml --microbatches 8

foretrace simulate real_run --what-if ep=2x --perfetto real.pftrace

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
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A SimAI/AICB workload; a folder of Megatron rank traces, or several that are campaigns of one job; a "
            "program (.foretrace). With --compat simai, SimAI's own flags follow after --.",
            show_default=False,
        ),
    ],
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME|FILE", help="What it runs on: see foretrace list clusters.")
    ] = None,
    collectives: Annotated[
        Path | None,
        typer.Option("--collectives", metavar="DIR|FILE", help="Measured collectives (nccl-tests) to price it with."),
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="tp=1,pp=2,ep=8,dp=8", help="The mesh of traces, or another.")
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
    routing: Annotated[
        str | None,
        typer.Option("--routing", metavar="balanced|1.5x", help="How uneven tokens go to experts: busiest over mean."),
    ] = None,
    jitter: Annotated[
        str | None, typer.Option("--jitter", metavar="3%", help="How much computation varies: groups wait longer.")
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
    traces: Annotated[
        Path | None, typer.Option("--traces", metavar="DIR", help="Write the timeline as Megatron rank traces.")
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
    from foretrace.cli.job import Job, Scenarios
    from foretrace.cli.options import (
        check_outputs,
        read_jitter,
        read_ranks,
        read_slow_links,
        read_stragglers,
        read_what_ifs,
    )
    from foretrace.cli.run import Outputs, run_job, run_simai
    from foretrace.errors import UsageError

    choices = read_choices(
        gpus=gpus,
        mesh=mesh,
        schedule=schedule,
        vpp=vpp,
        overlap=overlap,
        microbatches=microbatches,
        pp_comm=pp_comm,
        every_stage=every_stage,
        routing=routing,
    )
    shown = read_ranks(ranks)
    if shown is not None and perfetto is None and traces is None:
        raise UsageError("--ranks chooses what --perfetto and --traces show", hint="add --perfetto out.pftrace")
    scenarios = Scenarios(
        read_what_ifs(what_if or []),
        read_stragglers(straggler or []),
        read_slow_links(slow_link or []),
        read_jitter(jitter),
    )
    outputs = Outputs(as_json, output, perfetto, traces, shown)
    files = tuple(Path(path) for path in (paths if compat is None else paths[:1]))
    check_outputs(files[0], [perfetto, output, csv])
    if compat is None:
        flags = " ".join(path for path in paths if path.startswith("-"))
        simai_only = {"--simai-tables": simai_tables, "--csv": csv, "--explain": explain, flags: flags}
        for name, value in simai_only.items():
            if value:
                raise UsageError(f"{name}: only with --compat simai", hint="see foretrace simulate --help")
        job = Job(files, choices, cluster, placement, collectives, scenarios, executor.value, not unfolded)
        run_job(job, outputs)
    else:
        own = [placement, cluster, unfolded, collectives, executor != Executor.AUTO, scenarios.any]
        if any(own):
            raise UsageError(
                "--compat simai runs the job as SimAI's flags have it",
                hint="leave out --cluster, --collectives, --placement, --what-if, --straggler, --slow-link, --jitter, "
                "--unfolded, --executor",
            )
        run_simai(files[0], choices, paths[1:], simai_tables, csv, explain, outputs)
