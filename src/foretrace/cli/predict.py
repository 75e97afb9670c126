"""`foretrace predict`: the step of a model under a plan, from its name."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.cli import arguments
from foretrace.cli.plan_options import EXPLAINED, with_plan_options

if TYPE_CHECKING:
    from foretrace.analysis.predict import Prediction
    from foretrace.analysis.scenario import Scenario

EXAMPLES = """Examples:

foretrace predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024

foretrace predict llama3-8b --gpus 8 --cluster h100-dgx --stack fsdp --zero 3 --recompute selective --what-if dp=2x"""


class PriceSource(StrEnum):
    """Where the times of kernels come from."""

    BEST = "best"
    MODEL = "model"
    ROOFLINE = "roofline"


PricesOption = Annotated[
    PriceSource, typer.Option("--prices", help="Kernel times: best source, fitted model only, or datasheet.")
]
NoSilicon = Annotated[
    bool, typer.Option("--no-silicon", help="Leave NVIDIA's tables out, as where they are not installed.")
]
EvenIfOom = Annotated[bool, typer.Option("--even-if-oom", help="Predict the time of a job that does not fit too.")]


@with_plan_options
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    cluster: arguments.Cluster = None,
    prices: PricesOption = PriceSource.BEST,
    no_silicon: NoSilicon = False,
    even_if_oom: EvenIfOom = False,
    placement: arguments.PlacementFile = None,
    jitter: arguments.Jitter = None,
    what_if: arguments.WhatIf = None,
    straggler: arguments.Straggler = None,
    slow_link: arguments.SlowLink = None,
    as_json: arguments.AsJson = False,
    perfetto: arguments.Perfetto = None,
    ranks: arguments.Ranks = None,
    output: arguments.Output = None,
) -> None:
    """Predict the step of a model: its time, utilisation, memory, and where the time goes."""
    from foretrace.analysis.scenario import Scenario
    from foretrace.cli.options import read_jitter, read_ranks, read_slow_links, read_stragglers, read_what_ifs
    from foretrace.cli.run import Outputs

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
        scenario=scenario,
        placement=placement,
    )

    from foretrace.report.predict import prediction_json, print_prediction

    outputs = Outputs(as_json, output, perfetto, None, shown)
    if outputs.write(answer.simulation, prediction_json(answer)):
        print_prediction(answer)


def predicted(
    model: str,
    options: dict[str, Any],
    cluster: str | None,
    prices: Any,
    even_if_oom: bool,
    *,
    silicon: bool | None = None,
    explain: bool = True,
    scenario: Scenario | None = None,
    placement: Any = None,
) -> Prediction:
    """The prediction that a command line asks for."""
    from foretrace.analysis.predict import predict
    from foretrace.cli.plan_options import read_job, read_plan
    from foretrace.cli.progress import Progress
    from foretrace.errors import UsageError
    from foretrace.placement import Placement

    job = read_job(model)
    plan = read_plan(options, job.fields)
    name = cluster or job.cluster
    if name is None:
        raise UsageError("on what cluster?", hint="for example --cluster h100-dgx; see foretrace list clusters")
    where = None if placement is None else Placement.load(placement, plan.gpus)
    with Progress(f"predicting {job.model.name} on {plan.gpus:,} GPUs"):
        return predict(
            job.model,
            plan,
            name,
            prices=prices,
            silicon=silicon,
            explain=explain,
            even_if_oom=even_if_oom,
            placement=where,
            scenario=scenario,
            notes=job.diagnostics,
        )
