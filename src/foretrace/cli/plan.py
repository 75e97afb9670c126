"""`foretrace plan`: find the plan of a model that is predicted to be best on a cluster."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import typer

from foretrace.api import plan
from foretrace.basics.errors import Diagnostic, InfeasibleError, InputError, UsageError
from foretrace.basics.units import format_count, parse_count, parse_factor, parse_time
from foretrace.cli.emit import emit, fail_after_answer, write_picture
from foretrace.cli.groups import (
    MACHINE,
    OUTPUT,
    MachineOptions,
    Option,
    OptionGroup,
    OutputOptions,
    check_svg,
    given_flags,
    option_parameters,
    takes,
)
from foretrace.cost.machine import Machine
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.model.options import plan_options
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.inputs.registry import open_model
from foretrace.report.plan import plan_json, print_plans
from foretrace.report.plan_words import plan_text
from foretrace.report.views import view_of
from foretrace.search.plan_texts import plan_request
from foretrace.search.planner.request import GIVEN_FIELDS, PlanRequest
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
_DAY_S: Final = 86400.0


class ObjectiveChoice(StrEnum):
    """Names the quantity in which the best plan is best."""

    STEP = "step"
    TOKENS = "tokens"
    COST = "cost"
    MEMORY = "memory"
    PARETO = "pareto"


class LargestChoice(StrEnum):
    """The quantity of which the largest that fits is looked for."""

    GBS = "gbs"
    SEQ = "seq"


_HELP: Final = {
    "gpus": "GPUs of the job; of several sizes (512..8192: its doublings), the best.",
    "vpp": "Model chunks of each stage.",
    "recompute": "What the backward computes again; also parts of a layer (mlp+layernorm), or full:4 layers.",
}
"""Help of options that mean more or less here than in other commands."""


def _axis_option(name: str, option: OptionText) -> Option:
    kind: Any = str if option.metavar else bool
    metavar = "VALUES" if option.metavar == _NUMBERS else option.metavar
    return Option(kind | None, option.flag, metavar, _HELP.get(name, option.help))


_AXES: Final = {
    **{
        name: _axis_option(name, option)
        for name, option in INPUT_OPTIONS.items()
        if name in Plan.__slots__ or name == "overlap"
    },
    "no_offload": Option(bool | None, "--no-offload", "", "Neither optimizer state nor activations go to the host."),
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


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Objective and limits of a search, as `PlanRequest` has them."""

    values: dict[str, Any]


def _read_search(values: dict[str, Any]) -> SearchOptions:
    days = values["days"]
    return SearchOptions(
        {
            "objective": values["objective"].value,
            "gap": _share(values["gap"]),
            "time_s": None if values["time"] is None else _number(parse_time, values["time"], "--time"),
            "workers": values["workers"],
            "top": values["top"],
            "price_per_gpu_hour": values["price"],
            "tokens": None if values["tokens"] is None else _number(parse_count, values["tokens"], "--tokens"),
            "deadline_s": None if days is None else days * _DAY_S,
            "largest": None if values["largest"] is None else values["largest"].value,
        }
    )


def _share(text: str) -> float:
    """Reads `0.5%` or `0.005`; `0` is complete."""
    return 0.0 if text.strip(" %") in ("0", "0.0") else float(_number(parse_factor, text, "--gap"))


def _number(parse: Any, text: str, flag: str) -> Any:
    """Reads a number; a text that is none is a mistake of the command line."""
    try:
        return parse(text, where=flag)
    except InputError as error:
        raise _usage_error(error) from None


def _usage_error(error: InputError) -> UsageError:
    """Returns the error of a text that is not a value of its option."""
    return UsageError.of(error)


_SEARCH_OPTIONS: Final = {
    "objective": Option(
        ObjectiveChoice,
        "--objective",
        "",
        "Shortest step, most tokens/s, least cost per token, most memory to spare, or the front of time and memory.",
        ObjectiveChoice.STEP,
    ),
    "gap": Option(str, "--gap", "0.5%", "Stop once no plan is predicted to be faster than the best by more.", "0"),
    "time": Option(str | None, "--time", "10s", "Simulate no plan after this time, and say what is left."),
    "top": Option(int, "--top", "N", "How many plans are listed.", 10),
    "tokens": Option(str | None, "--tokens", "15T", "With --days: the smallest of --gpus 512..8192 that meets them."),
    "days": Option(float | None, "--days", "60", "Days that the training of --tokens may take."),
    "largest": Option(LargestChoice | None, "--largest", "", "Look for the largest batch or sequence that fits."),
    "price": Option(float | None, "--price", "2.5", "Of a GPU for an hour, in any currency, for --objective cost."),
    "workers": Option(int, "--workers", "N", "Processes that simulate; the result is the same.", 1),
}

SEARCH = OptionGroup("search", option_parameters(_SEARCH_PANEL, _SEARCH_OPTIONS), _read_search)
"""Objective and limits of a search."""


@takes(AXES, SEARCH, NAMED_MACHINE, OUTPUT)
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    texts: dict[str, Any],
    search: SearchOptions,
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
    named = _named_model(model)
    request = plan_request(named, texts, search.values)
    result = _searched(named, machine.options.machine(named), request, launch)
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
        lambda: view_of(result),
    )
    if result.search.stopped_by == "interrupt":
        raise KeyboardInterrupt
    if result.best is None:
        _refuse(result, output)


def _searched(job: ModelInput, machine: Machine, request: PlanRequest, framework: str | None) -> PlanSearch:
    """Searches; a text that is not a value of its axis is a mistake of the command line, as in other commands."""
    try:
        return plan(job.model, machine, request, framework=framework)
    except InputError as error:
        if (error.where or "").startswith("--"):
            raise _usage_error(error) from None
        raise


def _named_model(name: str) -> ModelInput:
    """Opens the model, with the fields of a plan that its file may have."""
    job = open_model(name)
    if not isinstance(job, ModelInput):
        problem = f"{job.title} is {job.noun}, which has no plan to search for"
        raise UsageError("option-not-for-input", problem, hint="name a model: foretrace list models")
    return job


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
