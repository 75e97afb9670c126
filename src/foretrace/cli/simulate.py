"""`foretrace simulate`: run a job and show the answer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli import arguments

EXAMPLES = """Examples:

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx --schedule zb-h1 --overlap dp --gpus 16384

foretrace simulate scaling_a scaling_b --cluster examples/clusters/a100_2x8.yaml --microbatches 8

foretrace simulate real_run --what-if ep=2x --perfetto real.pftrace

foretrace simulate trace.json.gz --what-if cuda-graphs

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
            help="A SimAI/AICB workload; Megatron rank traces, or several folders of them that are campaigns of one "
            "job; a PyTorch profiler's table, or its traces of one or many ranks; a program (.foretrace). With "
            "--compat simai, SimAI's own flags follow after --.",
            show_default=False,
        ),
    ],
    cluster: arguments.Cluster = None,
    collectives: arguments.Collectives = None,
    calibration: arguments.Calibration = None,
    mesh: arguments.Mesh = None,
    gpus: arguments.Gpus = None,
    schedule: arguments.Schedule = None,
    vpp: arguments.Vpp = None,
    overlap: arguments.Overlap = None,
    microbatches: arguments.Microbatches = None,
    pp_comm: arguments.PpComm = None,
    every_stage: Annotated[
        bool, typer.Option("--every-stage", help="Embedding, head and loss on every stage, as the file lists them.")
    ] = False,
    placement: arguments.PlacementFile = None,
    network: arguments.Network = arguments.NetworkMode.ANALYTIC,
    no_overlap_cost: arguments.NoOverlapCost = False,
    prices: arguments.Prices = arguments.PriceSource.BEST,
    no_silicon: arguments.NoSilicon = False,
    nccl_algo: arguments.NcclAlgo = None,
    nccl_proto: arguments.NcclProto = None,
    nccl: arguments.NcclFiles = None,
    routing: arguments.Routing = None,
    jitter: arguments.Jitter = None,
    what_if: arguments.TraceWhatIf = None,
    steps: arguments.Steps = None,
    sizes: arguments.Sizes = None,
    straggler: arguments.Straggler = None,
    slow_link: arguments.SlowLink = None,
    as_json: arguments.AsJson = False,
    perfetto: arguments.Perfetto = None,
    heatmap: arguments.Heatmap = None,
    ranks: arguments.Ranks = None,
    traces: Annotated[
        Path | None, typer.Option("--traces", metavar="DIR", help="Write the timeline as Megatron rank traces.")
    ] = None,
    output: arguments.Output = None,
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
    from foretrace.analysis.job import Job
    from foretrace.analysis.scenario import Scenario
    from foretrace.cli.choices import read_choices
    from foretrace.cli.options import (
        check_outputs,
        check_svg,
        read_jitter,
        read_nccl,
        read_ranks,
        read_rebuilds,
        read_slow_links,
        read_stragglers,
        read_what_ifs,
    )
    from foretrace.cli.progress import Progress
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
        what_if=what_if,
        steps=steps,
        sizes=sizes,
    )
    shown = read_ranks(ranks, perfetto=perfetto, traces=traces)
    scenario = Scenario(
        read_what_ifs(read_rebuilds(what_if or [])[1]),
        read_stragglers(straggler or []),
        read_slow_links(slow_link or []),
        read_jitter(jitter),
    )
    said = read_nccl(nccl_algo, nccl_proto, nccl)
    silicon = False if no_silicon else None
    outputs = Outputs(as_json, output, perfetto, traces, shown)
    files = tuple(Path(path) for path in (paths if compat is None else paths[:1]))
    check_svg(heatmap)
    check_outputs(files[0], [perfetto, heatmap, output, csv])
    if compat is None:
        flags = " ".join(path for path in paths if path.startswith("-"))
        _refuse({"--simai-tables": simai_tables, "--csv": csv, "--explain": explain, flags: flags})
        folded = not unfolded
        job = Job(
            files,
            choices,
            cluster,
            placement,
            collectives,
            scenario,
            executor.value,
            folded,
            Progress,
            network=network.value,
            overlap_cost=not no_overlap_cost,
            prices=prices.value,
            silicon=silicon,
            nccl=said,
            calibration=calibration,
        )
        run_job(job, outputs, heatmap)
    else:
        asked = [placement, cluster, unfolded, collectives, executor != Executor.AUTO, scenario, said]
        asked += [heatmap, calibration, no_overlap_cost, network != arguments.NetworkMode.ANALYTIC]
        if any(asked) or prices != arguments.PriceSource.BEST:
            raise UsageError("--compat simai runs the job as SimAI's flags have it", hint=_NOT_WITH_SIMAI)
        run_simai(files[0], choices, paths[1:], simai_tables, csv, explain, outputs, silicon)


_NOT_WITH_SIMAI = (
    "leave out --cluster, --collectives, --calibration, --placement, --what-if, --straggler, --slow-link, --jitter, "
    "--unfolded, --executor, --network, --prices, --nccl, --nccl-algo, --nccl-proto, --heatmap, "
    "--no-overlap-cost"
)


def _refuse(simai_only: dict[str, object]) -> None:
    """Raises an error where something is given that only reproducing SimAI has a use for."""
    from foretrace.errors import UsageError

    for name, value in simai_only.items():
        if value:
            raise UsageError(f"{name}: only with --compat simai", hint="see foretrace simulate --help")
