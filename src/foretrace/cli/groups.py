"""Option groups: one for each noun, used by every command that takes the noun.

A command names its groups with `@takes(JOB, MACHINE, …)`; each reaches it as one argument, read from the texts of its
options.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from foretrace.basics.errors import UsageError, did_you_mean
from foretrace.basics.outputs import PAGE_ENDINGS
from foretrace.cost.machine import Machine
from foretrace.cost.machine_texts import MACHINE_DEFAULTS, MACHINE_OPTIONS, MachineOptions, read_machine
from foretrace.hardware.changes import Change
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText, read_numbers
from foretrace.inputs.registry import open_input, open_model
from foretrace.readings.scenario import Scenario
from foretrace.readings.scenario_texts import SCENARIO_OPTIONS, ScenarioOptions, read_scenario, read_what_ifs

Parameter = tuple[str, Any, Any]
"""The name, annotation and default of an option."""


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options that describe one noun, and how they are read into it."""

    name: str
    parameters: tuple[Parameter, ...]
    read: Callable[[dict[str, Any]], Any]


def takes(*groups: OptionGroup) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of these groups; each reaches it as a keyword argument of the group's name."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        names = {group.name for group in groups}
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name not in names
        ]

        def run(**given: Any) -> None:
            nouns = {}
            for group in groups:
                nouns[group.name] = group.read({name: _plain(given.pop(name)) for name, _, _ in group.parameters})
            command(**given, **nouns)

        keyword = inspect.Parameter.KEYWORD_ONLY
        of_groups = [
            inspect.Parameter(name, keyword, default=default, annotation=annotation)
            for group in groups
            for name, annotation, default in group.parameters
        ]
        # typer reads a command's options off its signature and its annotations.
        parameters = [*(parameter.replace(kind=keyword) for parameter in own), *of_groups]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
        return run

    return wrap


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def given_flags(group: OptionGroup, values: Mapping[str, Any]) -> str:
    """Returns the options of a group that are not at their defaults, as a shell reads them."""
    words = []
    for name, annotation, default in group.parameters:
        value = values[name]
        if value == default or value in (None, []):
            continue
        flag = get_args(annotation)[1].default  # typer takes the first flag of an annotation for a default
        values_given = value if isinstance(value, list) else [value]
        words += [flag if each is True else f"{flag} {shlex.quote(str(each))}" for each in values_given]
    return " ".join(words)


def value_type(option: OptionText) -> Any:
    """Returns the type of an option's value, as typer reads it; an option without a default may be None."""
    kind: Any = bool if option.is_flag else option.kind
    if option.choices:
        make_enum: Any = StrEnum  # whose members typer lists
        kind = make_enum("Choice", list(option.choices))
    kind = list[kind] if option.repeated else kind
    return kind if option.default is not None else kind | None


def option_parameters(panel: str, options: Mapping[str, OptionText]) -> tuple[Parameter, ...]:
    """Returns the options of a group as typer reads them; help lists them under the heading `panel`."""
    return tuple(
        (
            name,
            Annotated[
                value_type(option),
                typer.Option(
                    *option.flag.split(), metavar=option.metavar or None, help=option.help, rich_help_panel=panel
                ),
            ],
            option.default,
        )
        for name, option in options.items()
    )


_JOB, _MACHINE, _SCENARIO, _OUTPUT = "Job", "Machine", "Scenario", "Output"


def given_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a group that were given, by name."""
    return {name: value for name, value in values.items() if value is not None and value != []}


JOB = OptionGroup("options", option_parameters(_JOB, INPUT_OPTIONS), given_values)
"""Options that inputs leave open, as texts; an input refuses those that it does not have."""


MACHINE = OptionGroup("machine", option_parameters(_MACHINE, MACHINE_OPTIONS), read_machine)
"""Options of the machine that a job runs on."""


def _read_changes(values: dict[str, Any]) -> dict[str, Change]:
    changes = read_what_ifs(values["what_if"] or [])
    for what in changes.keys() - set(NETWORK_CHANGES):
        problem = f"--what-if {what} does not concern the network{did_you_mean(what, NETWORK_CHANGES)}"
        raise UsageError("unknown-name", problem, hint=f"known: {', '.join(NETWORK_CHANGES)}")
    return changes


NETWORK_CHANGES = ("nic", "nvlink", "pcie", "gpu", "cluster")
"""Changes of a machine that can change what a collective takes."""


CHANGED_MACHINE = OptionGroup(
    "changes",
    option_parameters(
        _MACHINE,
        {
            "what_if": OptionText(
                "--what-if", "nic=2x", "Change the machine: nic, nvlink, pcie, gpu=NAME, cluster=NAME.", repeated=True
            )
        },
    ),
    _read_changes,
)
"""Changes of the machine, for commands without a job."""


SCENARIO = OptionGroup("scenario", option_parameters(_SCENARIO, SCENARIO_OPTIONS), read_scenario)
"""Options for what is different from normal."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where an answer goes: JSON to the screen, JSON to a file, a page to a file."""

    as_json: bool
    file: Path | None
    html: Path | None = None


_OUTPUT_OPTIONS = {
    "as_json": OptionText("--json", "", "Print the whole answer as JSON.", default=False),
    "output_file": OptionText("-o --output", "OUT", "Also write the JSON to a file.", kind=Path),
    "html": OptionText("--html", "OUT.html", "Also write the answer as a page: one file, read offline.", kind=Path),
}


def _read_output(values: dict[str, Any]) -> OutputOptions:
    check_html(values["html"])
    return OutputOptions(values["as_json"], values["output_file"], values["html"])


OUTPUT = OptionGroup(
    "output",
    option_parameters(_OUTPUT, _OUTPUT_OPTIONS),
    _read_output,
)
"""How an answer is printed."""


@dataclass(frozen=True, slots=True)
class TimelineOptions:
    """Where a timeline goes: a Perfetto file of some ranks, rank traces, a picture of links, a saved answer."""

    perfetto: Path | None = None
    ranks: list[int] | None = None
    traces: Path | None = None
    heatmap: Path | None = None
    save: Path | None = None


def _read_timeline(values: dict[str, Any]) -> TimelineOptions:
    perfetto, traces, heatmap = values["perfetto"], values["traces"], values["heatmap"]
    ranks = None
    if values["ranks"] is not None:
        ranks = read_numbers(values["ranks"], "--ranks", "rank", "0,7,16-19")
        if perfetto is None and traces is None:
            problem = "--ranks chooses what --perfetto and --traces show"
            raise UsageError("option-not-for-command", problem, hint="add --perfetto out.pftrace")
    check_svg(heatmap)
    return TimelineOptions(perfetto, ranks, traces, heatmap, values["save"])


_TIMELINE_OPTIONS = {
    "perfetto": OptionText("--perfetto", "OUT", "Write the timeline for ui.perfetto.dev.", kind=Path),
    "ranks": OptionText("--ranks", "0,7,16-19", "Which ranks the Perfetto file and traces show."),
    "traces": OptionText("--traces", "OUT_DIR", "Write the timeline as Megatron rank traces.", kind=Path),
    "heatmap": OptionText("--heatmap", "OUT.svg", "Draw how busy every link of the network is.", kind=Path),
    "save": OptionText(
        "--save", "OUT.answer", "Save the answer with its timeline, for compare and foretrace.open.", kind=Path
    ),
}

TIMELINE = OptionGroup("files", option_parameters(_OUTPUT, _TIMELINE_OPTIONS), _read_timeline)
"""The files that a timeline can be written to."""


@dataclass(frozen=True, slots=True)
class Question:
    """An input on a machine under a scenario, as a command line asks it."""

    job: Input
    machine: Machine
    conditions: ScenarioOptions
    machines: MachineOptions
    machine_cache: dict[tuple[Machine, tuple[str, str]], Machine] = field(default_factory=dict)
    """Changed machines of this question, each by the machine before and the change."""

    @property
    def scenario(self) -> Scenario:
        """The differences from normal."""
        return self.conditions.scenario


def ask(
    paths: list[str],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    *,
    model: bool = False,
) -> Question:
    """Opens the input and makes the machine; `model` says that a name is a model's unless a file has it."""
    texts = {**options, **scenario.options}
    job = open_model(paths[0], texts) if model else open_input(paths, texts)
    check_machine_of_saved(job, machine, scenario)
    return question_about(job, machine, scenario)


def check_machine_of_saved(job: Input, machine: MachineOptions, scenario: ScenarioOptions) -> None:
    """Raises an error where options of a machine would have no effect on an answer that is taken as it was saved."""
    if _is_kept(job, machine, scenario) and machine != MACHINE_DEFAULTS:
        problem = f"{job.title} is {job.noun}, which is taken as it was saved: options of the machine do not change it"
        hint = "--cluster NAME, next to these options, runs it again"
        raise UsageError("option-not-for-input", problem, hint=hint)


def question_about(job: Input, machine: MachineOptions, scenario: ScenarioOptions) -> Question:
    """Makes the machine that a job runs on; a saved answer that is taken as it was saved needs none."""
    kept = _is_kept(job, machine, scenario)
    return Question(job, Machine() if kept else machine.machine(job), scenario, machine)


def _is_kept(job: Input, machine: MachineOptions, scenario: ScenarioOptions) -> bool:
    return job.answer_file is not None and machine.cluster is None and not scenario.scenario


def check_html(path: Path | None) -> None:
    """Refuses to write a page under a name that says it is something else than HTML."""
    if path is not None and path.suffix.lower() not in PAGE_ENDINGS:
        raise UsageError("bad-value", f"{path}: pages are written as HTML", hint=f"for example {path}.html")


def check_svg(*paths: Path | None) -> None:
    """Refuses to write a picture under a name that says it is something else than SVG."""
    for path in paths:
        if path is not None and path.suffix.lower() != ".svg":
            raise UsageError("bad-value", f"{path}: pictures are written as SVG", hint=f"for example {path}.svg")
