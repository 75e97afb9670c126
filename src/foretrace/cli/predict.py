"""`foretrace predict`: the step of a model under a plan, from its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.cli import arguments
from foretrace.cli.plan_options import EXPLAINED, with_plan_options

if TYPE_CHECKING:
    from foretrace.analysis.predict import Prediction
    from foretrace.analysis.scenario import Scenario
    from foretrace.analysis.sharing import NetworkMode
    from foretrace.cost.network import NcclSettings

EXAMPLES = """Examples:

foretrace predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024

foretrace predict llama3-8b --gpus 8 --cluster h100-dgx --stack fsdp --zero 3 --recompute selective --what-if dp=2x"""


EvenIfOom = Annotated[bool, typer.Option("--even-if-oom", help="Predict the time of a job that does not fit too.")]


@with_plan_options
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    cluster: arguments.Cluster = None,
    prices: arguments.Prices = arguments.PriceSource.BEST,
    no_silicon: arguments.NoSilicon = False,
    calibration: arguments.Calibration = None,
    even_if_oom: EvenIfOom = False,
    placement: arguments.PlacementFile = None,
    network: arguments.Network = arguments.NetworkMode.ANALYTIC,
    no_overlap_cost: arguments.NoOverlapCost = False,
    nccl_algo: arguments.NcclAlgo = None,
    nccl_proto: arguments.NcclProto = None,
    nccl: arguments.NcclFiles = None,
    jitter: arguments.Jitter = None,
    what_if: arguments.WhatIf = None,
    straggler: arguments.Straggler = None,
    slow_link: arguments.SlowLink = None,
    as_json: arguments.AsJson = False,
    perfetto: arguments.Perfetto = None,
    heatmap: arguments.Heatmap = None,
    ranks: arguments.Ranks = None,
    output: arguments.Output = None,
) -> None:
    """Predict the step of a model: its time, utilisation, memory, and where the time goes."""
    from foretrace.analysis.scenario import Scenario
    from foretrace.cli.options import (
        check_outputs,
        check_svg,
        read_jitter,
        read_nccl,
        read_ranks,
        read_slow_links,
        read_stragglers,
        read_what_ifs,
    )
    from foretrace.cli.run import Outputs, map_links

    check_svg(heatmap)
    check_outputs(Path(model), [perfetto, heatmap, output])
    shown = read_ranks(ranks, perfetto=perfetto)
    scenario = Scenario(
        read_what_ifs(what_if or []),
        read_stragglers(straggler or []),
        read_slow_links(slow_link or []),
        read_jitter(jitter),
    )
    answer = predicted(
        model,
        options,
        cluster,
        prices.value,
        even_if_oom,
        silicon=False if no_silicon else None,
        calibration=calibration,
        scenario=scenario,
        placement=placement,
        network=network.value,
        overlap_cost=not no_overlap_cost,
        nccl=read_nccl(nccl_algo, nccl_proto, nccl),
    )

    from foretrace.report.predict import prediction_json, print_prediction

    outputs = Outputs(as_json, output, perfetto, None, shown)
    loads = map_links(answer.simulation, heatmap, placement)
    if outputs.write(answer.simulation, prediction_json(answer)):
        print_prediction(answer)
        if loads is not None:
            from foretrace.report.heatmap import print_heatmap

            print_heatmap(loads)


def predicted(
    model: str,
    options: dict[str, Any],
    cluster: str | None,
    prices: Any,
    even_if_oom: bool,
    *,
    silicon: bool | None = None,
    calibration: Path | None = None,
    explain: bool = True,
    scenario: Scenario | None = None,
    placement: Any = None,
    network: NetworkMode = "analytic",
    overlap_cost: bool = True,
    nccl: NcclSettings | None = None,
) -> Prediction:
    """The prediction that a command line asks for."""
    from foretrace.analysis.predict import predict
    from foretrace.cli.options import needed_cluster
    from foretrace.cli.plan_options import read_job, read_plan
    from foretrace.cli.progress import Progress
    from foretrace.placement import Placement

    job = read_job(model)
    plan = read_plan(options, job.fields)
    name = needed_cluster(cluster or job.cluster)
    where = None if placement is None else Placement.load(placement, plan.gpus)
    with Progress(f"predicting {job.model.name} on {plan.gpus:,} GPUs"):
        return predict(
            job.model,
            plan,
            name,
            prices=prices,
            silicon=silicon,
            calibration=calibration,
            explain=explain,
            even_if_oom=even_if_oom,
            placement=where,
            network=network,
            overlap_cost=overlap_cost,
            nccl=nccl,
            scenario=scenario,
            notes=job.diagnostics,
        )
