"""Option groups: one for each noun, used by every command that takes the noun.

A command names its groups with `@takes(JOB, MACHINE, …)`; each reaches it as one argument, read from the texts of its
options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.analysis.scenario import Scenario
from foretrace.cli.factors import read_jitter, read_slow_links, read_stragglers, read_what_ifs
from foretrace.cost.compute.interface import PriceSources
from foretrace.cost.machine import Machine, NetworkMode
from foretrace.cost.network.nccl.settings import NcclSettings
from foretrace.errors import UsageError
from foretrace.hardware.presets import check_gpu
from foretrace.inputs.base import Input
from foretrace.inputs.options import INPUT_OPTIONS, read_numbers, split_what_ifs
from foretrace.inputs.registry import open_input, open_model

Parameter = tuple[str, Any, Any]
"""The name, annotation and default of an option."""


@dataclass(frozen=True, slots=True)
class Group:
    """Options that describe one noun, and how they are read into it."""

    name: str
    title: str
    parameters: tuple[Parameter, ...]
    read: Callable[[dict[str, Any]], Any]


def takes(*groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of these groups; each reaches it as a keyword argument of the group's name."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        names = {group.name for group in groups}
        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name not in names]

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
        parameters = [*(one.replace(kind=keyword) for one in own), *made]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
        return run

    return wrap


def _option(kind: Any, panel: str, *flags: str, **details: Any) -> Any:
    return Annotated[kind, typer.Option(*flags, rich_help_panel=panel, **details)]


_JOB, _MACHINE, _SCENARIO, _OUTPUT = "Job", "Machine", "Scenario", "Output"


def _job_parameters() -> tuple[Parameter, ...]:
    parameters: list[Parameter] = []
    for name, option in INPUT_OPTIONS.items():
        kind: Any = str
        if option.repeated:
            kind = list[str]
        elif not option.metavar:
            kind = bool
        annotation = _option(kind | None, _JOB, option.flag, metavar=option.metavar or None, help=option.help)
        parameters.append((name, annotation, None))
    return tuple(parameters)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


JOB = Group("options", _JOB, _job_parameters(), _given)
"""What inputs leave open, as texts; an input refuses those that it does not have."""


class Prices(StrEnum):
    """Where prices come from."""

    BEST = "best"
    MODEL = "model"
    ROOFLINE = "roofline"


class Network(StrEnum):
    """How communication is run."""

    ANALYTIC = "analytic"
    FLOW = "flow"
    PACKETS = "packets"


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The options of a machine, whose cluster the input may name."""

    cluster: str | None
    details: dict[str, Any]

    def machine(self, job: Input | None = None) -> Machine:
        """Makes the machine; its cluster is the one that was named, else the input's own."""
        named = self.cluster or (None if job is None else job.cluster)
        if named is None:
            self._check_needs_no_cluster()
        return Machine(named, **self.details)

    def machine_of_clusters(self) -> Machine:
        """Makes a machine whose cluster others name, one after the other."""
        return Machine(self.cluster, **self.details)

    def needed_machine(self) -> Machine:
        """Makes the machine; a usage error where no cluster is named."""
        if self.cluster is None:
            hint = "for example --cluster h100-dgx; see foretrace list clusters"
            raise UsageError("needs-cluster", "on what cluster?", hint=hint)
        return self.machine()

    def _check_needs_no_cluster(self) -> None:
        needs = {
            "--collectives prices the network of a cluster": self.details["collectives"],
            "--placement says where ranks sit on a cluster": self.details["placement"],
            "--calibration prices the GPUs of a cluster": self.details["calibration"],
            "--nccl, --nccl-algo and --nccl-proto are of a cluster": self.details["nccl"],
            "--network flow divides the links of a cluster": self.details["network"] != "analytic",
        }
        for text, given in needs.items():
            if given:
                raise UsageError("needs-cluster", text, hint="name it with --cluster")


def _read_machine(values: dict[str, Any]) -> MachineOptions:
    network: NetworkMode = values["network"].value
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
    return MachineOptions(values["cluster"], details)


MACHINE = Group(
    "machine",
    _MACHINE,
    (
        (
            "cluster",
            _option(
                str | None,
                _MACHINE,
                "--cluster",
                metavar="NAME|FILE",
                help="What it runs on: see foretrace list clusters.",
            ),
            None,
        ),
        (
            "placement",
            _option(
                Path | None,
                _MACHINE,
                "--placement",
                metavar="FILE",
                help="Which rank sits where (hostfile, rankfile, YAML).",
            ),
            None,
        ),
        (
            "prices",
            _option(
                Prices,
                _MACHINE,
                "--prices",
                help="Kernels and collectives: best source, fitted model only, or datasheet (kernels).",
            ),
            Prices.BEST,
        ),
        (
            "no_silicon",
            _option(bool, _MACHINE, "--no-silicon", help="Leave NVIDIA's tables out, as where they are not installed."),
            False,
        ),
        (
            "collectives",
            _option(
                Path | None,
                _MACHINE,
                "--collectives",
                metavar="DIR|FILE",
                help="Measured collectives (nccl-tests) to price it with.",
            ),
            None,
        ),
        (
            "calibration",
            _option(
                Path | None,
                _MACHINE,
                "--calibration",
                metavar="FILE",
                help="Your own measurements (foretrace calibrate): the best source.",
            ),
            None,
        ),
        (
            "nccl_algo",
            _option(
                str | None,
                _MACHINE,
                "--nccl-algo",
                metavar="ring,tree|^tree|…",
                help="Algorithms NCCL may use, as NCCL_ALGO has them.",
            ),
            None,
        ),
        (
            "nccl_proto",
            _option(
                str | None,
                _MACHINE,
                "--nccl-proto",
                metavar="LL,Simple|^LL|…",
                help="Protocols, as NCCL_PROTO has them.",
            ),
            None,
        ),
        (
            "nccl",
            _option(
                list[Path] | None,
                _MACHINE,
                "--nccl",
                metavar="FILE",
                help="What NCCL reported on your machine: a debug log, a graph or topology dump.",
            ),
            None,
        ),
        (
            "network",
            _option(
                Network,
                _MACHINE,
                "--network",
                help="Communications run alone, divide the links they meet on, or (foretrace network) as packets.",
            ),
            Network.ANALYTIC,
        ),
        (
            "no_overlap_cost",
            _option(bool, _MACHINE, "--no-overlap-cost", help="Kernels next to a collective take as long as alone."),
            False,
        ),
    ),
    _read_machine,
)
"""What a job runs on."""


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """The scenario, and the what-ifs that are options of the input."""

    scenario: Scenario
    options: dict[str, Any]


def _read_scenario(values: dict[str, Any]) -> ScenarioOptions:
    options, what_ifs = split_what_ifs(values["what_if"] or [])
    if "gpu" in options:
        check_gpu(options["gpu"], f"--what-if gpu={options['gpu']}")
    scenario = Scenario(
        read_what_ifs(what_ifs),
        read_stragglers(values["straggler"] or []),
        read_slow_links(values["slow_link"] or []),
        read_jitter(values["jitter"]),
    )
    return ScenarioOptions(scenario, options)


SCENARIO = Group(
    "scenario",
    _SCENARIO,
    (
        (
            "what_if",
            _option(
                list[str] | None,
                _SCENARIO,
                "--what-if",
                metavar="WHAT=1.1x",
                help="Make ops or a resource this many times as fast. Of a profiler trace also: cuda-graphs, "
                "no-host-gaps, unprofiled, batch=2x, gpu=h100-sxm.",
            ),
            None,
        ),
        (
            "straggler",
            _option(
                list[str] | None,
                _SCENARIO,
                "--straggler",
                metavar="RANK=1.2x",
                help="Make a rank compute this many times as slowly.",
            ),
            None,
        ),
        (
            "slow_link",
            _option(
                list[str] | None,
                _SCENARIO,
                "--slow-link",
                metavar="RANK:AXIS=2x",
                help="Make what a rank communicates this many times as slow.",
            ),
            None,
        ),
        (
            "jitter",
            _option(
                str | None,
                _SCENARIO,
                "--jitter",
                metavar="3%",
                help="How much computation varies: groups wait longer.",
            ),
            None,
        ),
    ),
    _read_scenario,
)
"""What is different from normal."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where an answer goes: JSON to the screen, JSON to a file."""

    as_json: bool
    file: Path | None


OUTPUT = Group(
    "output",
    _OUTPUT,
    (
        ("as_json", _option(bool, _OUTPUT, "--json", help="Print the whole answer as JSON."), False),
        (
            "output_file",
            _option(Path | None, _OUTPUT, "-o", "--output", metavar="OUT", help="Also write the JSON to a file."),
            None,
        ),
    ),
    lambda values: OutputOptions(values["as_json"], values["output_file"]),
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

    @property
    def files(self) -> list[Path | None]:
        """The files to be written."""
        return [self.perfetto, self.heatmap, self.save]


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


TIMELINE = Group(
    "files",
    _OUTPUT,
    (
        (
            "perfetto",
            _option(Path | None, _OUTPUT, "--perfetto", metavar="OUT", help="Write the timeline for ui.perfetto.dev."),
            None,
        ),
        (
            "ranks",
            _option(
                str | None,
                _OUTPUT,
                "--ranks",
                metavar="0,7,16-19",
                help="Which ranks the Perfetto file and traces show.",
            ),
            None,
        ),
        (
            "traces",
            _option(
                Path | None, _OUTPUT, "--traces", metavar="DIR", help="Write the timeline as Megatron rank traces."
            ),
            None,
        ),
        (
            "heatmap",
            _option(
                Path | None, _OUTPUT, "--heatmap", metavar="OUT.svg", help="Draw how busy every link of the network is."
            ),
            None,
        ),
        (
            "save",
            _option(
                Path | None,
                _OUTPUT,
                "--save",
                metavar="OUT.answer",
                help="Save the answer with its timeline, for compare and foretrace.open.",
            ),
            None,
        ),
    ),
    _read_timeline,
)
"""The files that a timeline can be written to."""


@dataclass(frozen=True, slots=True)
class Question:
    """An input on a machine under a scenario, as a command line asks it."""

    job: Input
    machine: Machine
    scenario: Scenario


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
    return Question(job, machine.machine(job), scenario.scenario)


def check_svg(*paths: Path | None) -> None:
    """Refuses to write a picture under a name that says it is something else than SVG."""
    for path in paths:
        if path is not None and path.suffix.lower() != ".svg":
            raise UsageError("bad-value", f"{path}: pictures are written as SVG", hint=f"for example {path}.svg")


def check_outputs(inputs: list[str], outputs: list[Path | None]) -> None:
    """Refuses to write over what is read, or twice to one file."""
    seen = {Path(path).resolve() for path in inputs}
    for path in outputs:
        if path is not None and path.resolve() in seen:
            hint = "give every output a name of its own"
            raise UsageError("output-overwrites-input", f"{path} would be written over", hint=hint)
        if path is not None:
            seen.add(path.resolve())
