"""Option groups: one for each noun, used by every command that takes the noun.

A command names its groups with `@takes(JOB, MACHINE, …)`; each reaches it as one argument, read from the texts of its
options.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args

import typer

from foretrace.basics.errors import InputError, UsageError, did_you_mean
from foretrace.basics.outputs import PAGE_ENDINGS
from foretrace.cost.kernels.interface import PriceSources
from foretrace.cost.machine import Machine, NetworkMode
from foretrace.cost.network.nccl.settings import NcclSettings
from foretrace.hardware.changes import Change
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText, read_numbers, split_what_ifs
from foretrace.inputs.registry import open_input, open_model
from foretrace.readings.scenario import Scenario
from foretrace.readings.scenario_texts import read_jitter, read_slow_links, read_stragglers, read_what_ifs

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
                nouns[group.name] = group.read({name: given.pop(name) for name, _, _ in group.parameters})
            command(**given, **nouns)

        keyword = inspect.Parameter.KEYWORD_ONLY
        made = [
            inspect.Parameter(name, keyword, default=default, annotation=annotation)
            for group in groups
            for name, annotation, default in group.parameters
        ]
        # typer reads a command's options off its signature and its annotations.
        parameters = [*(parameter.replace(kind=keyword) for parameter in own), *made]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
        return run

    return wrap


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


class Option(NamedTuple):
    """An option of a group: the type of its value, its flags, what stands for the value, and what it means."""

    kind: Any
    flags: str
    metavar: str
    help: str
    default: Any = None


def option_parameters(panel: str, options: dict[str, Option]) -> tuple[Parameter, ...]:
    """Returns the options of a group as typer reads them; help lists them under the heading `panel`."""
    return tuple(
        (
            name,
            Annotated[
                option.kind,
                typer.Option(
                    *option.flags.split(), metavar=option.metavar or None, help=option.help, rich_help_panel=panel
                ),
            ],
            option.default,
        )
        for name, option in options.items()
    )


_JOB, _MACHINE, _SCENARIO, _OUTPUT = "Job", "Machine", "Scenario", "Output"


def _job_option(option: OptionText) -> Option:
    kind: Any = list[str] if option.repeated else str if option.metavar else bool
    return Option(kind | None, option.flag, option.metavar, option.help)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


_JOB_OPTIONS = {name: _job_option(option) for name, option in INPUT_OPTIONS.items()}

JOB = OptionGroup("options", option_parameters(_JOB, _JOB_OPTIONS), _given)
"""Options that inputs leave open, as texts; an input refuses those that it does not have."""


class PricesChoice(StrEnum):
    """Where prices come from."""

    BEST = "best"
    MODEL = "model"
    ROOFLINE = "roofline"


class NetworkChoice(StrEnum):
    """How communication is run."""

    ANALYTIC = "analytic"
    FLOW = "flow"
    PACKETS = "packets"


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The options of a machine, whose cluster the input may name."""

    cluster: str | None
    details: dict[str, Any]
    domain_gpus: int | None = None

    def machine(self, job: Input | None = None) -> Machine:
        """Makes the machine; its cluster is the one that was named, else the input's own."""
        named = self.cluster or (None if job is None else job.cluster)
        if named is None:
            self._check_needs_no_cluster()
        try:
            return self._made(named)
        except InputError as error:  # of the input, where that names the cluster
            raise error.at(None if self.cluster or job is None else ", ".join(job.paths)) from None

    def machine_of_clusters(self) -> Machine:
        """Makes a machine whose cluster others name, one after the other."""
        return self._made(self.cluster)

    def needed_machine(self) -> Machine:
        """Makes the machine; raises a usage error where no cluster is named."""
        machine = self._made(self.cluster)
        machine.needed_cluster()
        return machine

    def _made(self, named: str | None) -> Machine:
        if named is None or self.domain_gpus is None:
            return Machine(named, **self.details)
        return Machine(replace(load_cluster(named), domain_gpus=self.domain_gpus), **self.details)

    def _check_needs_no_cluster(self) -> None:
        needs = {
            "--collectives prices the network of a cluster": self.details["collectives"],
            "--placement says where ranks sit on a cluster": self.details["placement"],
            "--domain-gpus says which GPUs of a cluster are used": self.domain_gpus,
            "--calibration prices the GPUs of a cluster": self.details["calibration"],
            "--nccl, --nccl-algo and --nccl-proto are of a cluster": self.details["nccl"],
            "--network flow divides the links of a cluster": self.details["network"] != "analytic",
        }
        for text, given in needs.items():
            if given:
                raise UsageError("needs-cluster", text, hint="name it with --cluster")


def _read_machine(values: dict[str, Any]) -> MachineOptions:
    network: NetworkMode = values["network"].value
    domain_gpus = values["domain_gpus"]
    if domain_gpus is not None and values["placement"] is not None:
        problem = "--placement says which GPUs of a domain are used"
        raise UsageError("conflicting-options", problem, hint="leave out --domain-gpus")
    nccl = NcclSettings(values["nccl_algo"], values["nccl_proto"], tuple(values["nccl"] or ()))
    details = {
        "placement": values["placement"],
        "prices": PriceSources(values["prices"].value, False if values["no_silicon"] else None),
        "collectives": values["collectives"],
        "calibration": values["calibration"],
        "nccl": nccl or None,
        "network": network,
        "overlap_cost": not values["no_overlap_cost"],
    }
    return MachineOptions(values["cluster"], details, domain_gpus)


_MACHINE_OPTIONS = {
    "cluster": Option(str | None, "--cluster", "NAME|FILE", "What it runs on: see foretrace list clusters."),
    "placement": Option(Path | None, "--placement", "FILE", "Which rank sits where (hostfile, rankfile, YAML)."),
    "domain_gpus": Option(
        int | None, "--domain-gpus", "N", "GPUs of each NVLink domain that the job uses, where it spans nodes (NVL72)."
    ),
    "prices": Option(
        PricesChoice,
        "--prices",
        "",
        "Kernels and collectives: best source, fitted model only, or datasheet (kernels).",
        PricesChoice.BEST,
    ),
    "no_silicon": Option(
        bool, "--no-silicon", "", "Leave NVIDIA's tables out, as where they are not installed.", False
    ),
    "collectives": Option(
        Path | None, "--collectives", "DIR|FILE", "Measured collectives (nccl-tests) to price it with."
    ),
    "calibration": Option(
        Path | None, "--calibration", "FILE", "Your own measurements (foretrace calibrate): the best source."
    ),
    "nccl_algo": Option(
        str | None, "--nccl-algo", "ring,tree|^tree|…", "Algorithms NCCL may use, as NCCL_ALGO has them."
    ),
    "nccl_proto": Option(str | None, "--nccl-proto", "LL,Simple|^LL|…", "Protocols, as NCCL_PROTO has them."),
    "nccl": Option(
        list[Path] | None,
        "--nccl",
        "FILE",
        "What NCCL reported on your machine: a debug log, a graph or topology dump.",
    ),
    "network": Option(
        NetworkChoice,
        "--network",
        "",
        "Communications run alone, divide the links they meet on, or (foretrace network) as packets.",
        NetworkChoice.ANALYTIC,
    ),
    "no_overlap_cost": Option(
        bool, "--no-overlap-cost", "", "Kernels next to a collective take as long as alone.", False
    ),
}

MACHINE_DEFAULTS: Final = _read_machine({name: option.default for name, option in _MACHINE_OPTIONS.items()})
"""The options of a machine where none is given."""

MACHINE = OptionGroup("machine", option_parameters(_MACHINE, _MACHINE_OPTIONS), _read_machine)
"""Options of the machine that a job runs on."""


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """The scenario, the what-ifs that are options of the input, and the texts that both were read from."""

    scenario: Scenario
    options: dict[str, Any]
    texts: dict[str, Any]

    def changed(self, **texts: Any) -> ScenarioOptions:
        """Reads the same options again with others in their place; what can be repeated is added to what is given."""
        added = {name: [*(self.texts[name] or []), *text] for name, text in texts.items() if isinstance(text, list)}
        return _read_scenario({**self.texts, **texts, **added})


def _read_scenario(values: dict[str, Any]) -> ScenarioOptions:
    options, what_ifs = split_what_ifs(values["what_if"] or [])
    scenario = Scenario(
        read_what_ifs(what_ifs),
        read_stragglers(values["straggler"] or []),
        read_slow_links(values["slow_link"] or []),
        read_jitter(values["jitter"]),
        values["steady"],
    )
    return ScenarioOptions(scenario, options, values)


_SCENARIO_OPTIONS = {
    "what_if": Option(
        list[str] | None,
        "--what-if",
        "WHAT=1.1x",
        "Make ops (compute, tp, …), kernels (gemm, attention) or a resource this many times as fast; or change the "
        "machine: nic=2x, nvlink=, hbm=, pcie=, flops=, memory=, power=500W, gpu=NAME, cluster=NAME. Of a profiler "
        "trace also: cuda-graphs, no-host-gaps, unprofiled, batch=2x.",
    ),
    "straggler": Option(list[str] | None, "--straggler", "RANK=1.2x", "Make a rank compute this many times as slowly."),
    "slow_link": Option(
        list[str] | None, "--slow-link", "RANK:AXIS=2x", "Make what a rank communicates this many times as slow."
    ),
    "jitter": Option(str | None, "--jitter", "3%", "How much computation varies: groups wait longer."),
    "steady": Option(
        bool | None,
        "--steady/--one-step",
        "",
        "The period of repeated steps, or one step from a standstill; else as the input has it.",
    ),
}


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
            "what_if": Option(
                list[str] | None,
                "--what-if",
                "nic=2x",
                "Change the machine: nic, nvlink, pcie, gpu=NAME, cluster=NAME.",
            )
        },
    ),
    _read_changes,
)
"""Changes of the machine, for commands without a job."""


SCENARIO = OptionGroup("scenario", option_parameters(_SCENARIO, _SCENARIO_OPTIONS), _read_scenario)
"""Options for what is different from normal."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where an answer goes: JSON to the screen, JSON to a file, a page to a file."""

    as_json: bool
    file: Path | None
    html: Path | None = None


_OUTPUT_OPTIONS = {
    "as_json": Option(bool, "--json", "", "Print the whole answer as JSON.", False),
    "output_file": Option(Path | None, "-o --output", "OUT", "Also write the JSON to a file."),
    "html": Option(Path | None, "--html", "OUT.html", "Also write the answer as a page: one file, read offline."),
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
    "perfetto": Option(Path | None, "--perfetto", "OUT", "Write the timeline for ui.perfetto.dev."),
    "ranks": Option(str | None, "--ranks", "0,7,16-19", "Which ranks the Perfetto file and traces show."),
    "traces": Option(Path | None, "--traces", "OUT_DIR", "Write the timeline as Megatron rank traces."),
    "heatmap": Option(Path | None, "--heatmap", "OUT.svg", "Draw how busy every link of the network is."),
    "save": Option(
        Path | None, "--save", "OUT.answer", "Save the answer with its timeline, for compare and foretrace.open."
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
