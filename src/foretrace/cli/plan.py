"""`foretrace plan`: find the plan of a model that is predicted to be best on a cluster."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import typer

from foretrace.api import plan
from foretrace.basics.errors import Diagnostic, InfeasibleError, usage_errors
from foretrace.basics.units import format_count
from foretrace.cli.emit import emit, fail_after_answer, write_picture
from foretrace.cli.groups import (
    MACHINE,
    OUTPUT,
    OptionGroup,
    OutputOptions,
    check_svg,
    given_flags,
    option_parameters,
    takes,
)
from foretrace.cost.machine_texts import MachineOptions
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.model.options import plan_options
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.inputs.registry import open_model
from foretrace.report.plan import plan_json, print_plans
from foretrace.report.plan_words import plan_text
from foretrace.report.views.plan_search import plan_search_view
from foretrace.search.plan_texts import SEARCH_OPTIONS, plan_request, read_goals, searched_model
from foretrace.search.planner.request import GIVEN_FIELDS
from foretrace.search.planner.result import PlanSearch
from foretrace.workload.plan import Plan

EXAMPLES = """Examples:

foretrace plan llama3-8b --gpus 64 --cluster h100-dgx --gbs 256 --seq 8k

foretrace plan llama3-70b --gpus 256 --cluster h100-dgx --gbs 1024 --tp 4,8 --pp 1..8 --no-offload --gap 0.5% --json"""

EXPLAINED: Final = (
    "A model's name (foretrace list models), a Hugging Face config.json, or a job.yaml of foretrace init, whose GPUs, "
    "batch, precision and stack are taken."
)

_PLAN_PANEL: Final = "Plan (an option pins its axis or gives values: 8, or 1,2,4, or 1..16, or all)"
_SEARCH_PANEL: Final = "Search"
_NUMBERS: Final = "N"


_HELP: Final = {
    "gpus": "GPUs of the job; of several sizes (512..8192: its doublings), the best.",
    "vpp": "Model chunks of each stage.",
    "recompute": "What the backward computes again; also parts of a layer (mlp+layernorm), or full:4 layers.",
}
"""Help of options that mean more or less here than in other commands."""


def _axis_option(name: str, option: OptionText) -> OptionText:
    metavar = "VALUES" if option.metavar == _NUMBERS else option.metavar
    return replace(option, metavar=metavar, help=_HELP.get(name, option.help), repeated=False)


_AXES: Final = {
    **{
        name: _axis_option(name, option)
        for name, option in INPUT_OPTIONS.items()
        if name in Plan.__slots__ or name == "overlap"
    },
    "no_offload": OptionText("--no-offload", "", "Neither optimizer state nor activations go to the host."),
}

AXES = OptionGroup(
    "texts",
    option_parameters(_PLAN_PANEL, _AXES),
    lambda values: {name: value for name, value in values.items() if value is not None},
)
"""Options of a plan as texts that pin or widen an axis."""


class NamedMachine(NamedTuple):
    """The options of a machine, and how a command line spells them."""

    options: MachineOptions
    flags: str


NAMED_MACHINE = OptionGroup(
    "machine", MACHINE.parameters, lambda values: NamedMachine(MACHINE.read(values), given_flags(MACHINE, values))
)
"""Options of the machine, which the command that is named at the end repeats."""


SEARCH = OptionGroup("goals", option_parameters(_SEARCH_PANEL, SEARCH_OPTIONS), read_goals)
"""Objective and limits of a search."""


@takes(AXES, SEARCH, NAMED_MACHINE, OUTPUT)
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    texts: dict[str, Any],
    goals: dict[str, Any],
    machine: NamedMachine,
    output: OutputOptions,
    launch: Annotated[
        str | None,
        typer.Option(
            "--launch",
            metavar="FRAMEWORK",
            help="Print the script that starts the best plan: megatron-lm, megatron-bridge, torchtitan, …",
            rich_help_panel="Output",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="OUT.svg", help="Draw the plans by step time and memory.", rich_help_panel="Output"
        ),
    ] = None,
) -> None:
    """Find the plan of a model that is predicted to be fastest, and which plans to measure first."""
    check_svg(picture)
    named = searched_model(open_model(model))
    request = plan_request(named, texts, goals)
    with usage_errors("--"):  # of texts that are not values of their axes
        result = plan(named.model, machine.options.machine(named), request, framework=launch)
    result = replace(result, diagnostics=(*named.diagnostics, *_left_out(named), *result.diagnostics))
    if picture is not None and result.best is not None:
        from foretrace.report.plots.plan_front import plan_front_svg

        title = f"{result.model} on {format_count(result.gpus)} GPUs of {result.cluster}"
        write_picture(picture, lambda: plan_front_svg(result, title), f"{len(result.front)} plans of the front")
    shown = _next_command(model, named, result, texts, machine.flags)
    emit(
        lambda: plan_json(result),
        lambda: print_plans(result, shown, with_launch=launch is not None),
        output,
        lambda: plan_search_view(result, shown),
    )
    if result.search.stopped_by == "interrupt":
        raise KeyboardInterrupt
    if result.best is None:
        _refuse(result, output)


def _left_out(named: ModelInput) -> list[Diagnostic]:
    """Returns a note on what a job file decides and the search decides again."""
    decided = [name for name in Plan.__slots__ if name not in GIVEN_FIELDS and named.given(name) is not None]
    if not decided:
        return []
    text = f"the search decides {', '.join(decided)} again: values of a job file are pinned by options"
    return [Diagnostic("note", "field-ignored", text, named.paths[0])]


def _next_command(name: str, named: ModelInput, result: PlanSearch, texts: dict[str, Any], machine_flags: str) -> str:
    """Returns the command that predicts the best plan."""
    if result.best is None:
        return ""
    of_file = {field: named.given(field) for field in Plan.__slots__ if named.given(field) is not None}
    words = ["foretrace predict", shlex.quote(name), plan_options(result.best.plan, Plan(**{"gpus": 0, **of_file}))]
    if isinstance(result.best.plan.routing, tuple) and "routing" in texts:
        words.append(f"--routing {shlex.quote(texts['routing'])}")
    return " ".join(word for word in (*words, machine_flags) if word)


def _refuse(result: PlanSearch, output: OutputOptions) -> NoReturn:
    """Ends the command with the smallest change by which a plan would fit."""
    if result.feasible:
        problem, hint = (
            f"none of {format_count(result.feasible)} plans that fit is predicted to meet the deadline",
            "allow more --gpus or --days",
        )
        if not result.misses_deadline:
            proof = result.search
            problem = f"none of {format_count(proof.simulations)} simulated plans fits, and others are left"
            hint = "allow more --time, or pin more axes"
        fail_after_answer(InfeasibleError("nothing-fits", problem, hint=hint), output)
    problem = f"none of {format_count(result.distinct)} plans that can be launched fits"
    miss = result.nearest_miss
    hint = "take more GPUs, or leave out options that pin an axis"
    if miss is not None and miss.saved_by:
        hint = f"the smallest change that would fit: {miss.saved_by}, of {plan_text(miss.plan)}"
    fail_after_answer(InfeasibleError("nothing-fits", problem, hint=hint), output)
