"""Describes to a page what can be asked: models, clusters, examples, and the fields of its form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final, Literal

from foretrace import __version__
from foretrace.basics.errors import ForetraceError
from foretrace.hardware import presets as hardware_presets
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.inputs.registry import kinds
from foretrace.models import presets as model_presets
from foretrace.schedules.registry import names as schedule_names
from foretrace.server.examples import examples
from foretrace.workload.plan import Plan
from foretrace.workload.stacks import STACKS

FieldKind = Literal["text", "number", "flag", "list"]

_SAMPLES: Final[tuple[Any, ...]] = ("1", "none", True, ["name=1"])
"""Values of options, of which each option can read one or refuses all."""
_NUMBER: Final = "N"


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of the form.

    Attributes:
        name: The key in a question.
        flag: The option of the command line.
        label: What it is called on the page.
        help: What it means, in a sentence.
        metavar: What stands for the value.
        choices: All values there are; None where any text may be meant.
        kind: What kind of value it has.
        default: What an empty field means, where that can be said.
    """

    name: str
    flag: str
    label: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] | None = None
    kind: FieldKind = "text"
    default: str = ""


def _field(name: str, option: OptionText) -> FormField:
    kind: FieldKind = "list" if option.repeated else "number" if option.metavar == _NUMBER else "text"
    return FormField(
        name,
        option.flag.partition("/")[0],
        _label(option.flag),
        option.help,
        option.metavar,
        _choices(name, option.metavar),
        kind if option.metavar else "flag",
    )


def _label(flag: str) -> str:
    return flag.partition("/")[0].removeprefix("--").replace("-", " ")


def _choices(name: str, metavar: str) -> tuple[str, ...] | None:
    if name == "schedule":
        return tuple(schedule_names())
    if name == "stack":
        return tuple(STACKS)
    words = [] if metavar.startswith("'") else metavar.split("|")
    return (
        tuple(words) if len(words) > 1 and not any(set(word) & set("….,") or word.isupper() for word in words) else None
    )


def _fields_of(kind: type[Input]) -> list[FormField]:
    return [_field(name, option) for name, option in INPUT_OPTIONS.items() if _takes(kind, name)]


def _takes(kind: type[Input], name: str) -> bool:
    """Returns whether a kind of input has an option. An option that refuses a value is one that it has."""
    if kind.has_option(name):
        return True
    for sample in _SAMPLES:
        try:
            return kind.takes_option(name, sample)
        except (ForetraceError, AttributeError, TypeError):
            continue
    return True


_MACHINE: Final = (
    FormField("cluster", "--cluster", "cluster", "What it runs on.", "NAME"),
    FormField(
        "network",
        "--network",
        "network",
        "Communications run alone, or divide the links they meet on.",
        choices=("analytic", "flow"),
        default="analytic",
    ),
    FormField(
        "prices",
        "--prices",
        "prices",
        "Kernels and collectives: best source, fitted model only, or datasheet (kernels).",
        choices=("best", "model", "roofline"),
        default="best",
    ),
    FormField(
        "domain_gpus",
        "--domain-gpus",
        "domain GPUs",
        "GPUs of each NVLink domain that the job uses, where it spans nodes (NVL72).",
        _NUMBER,
        kind="number",
    ),
    FormField(
        "overlap_cost",
        "--no-overlap-cost",
        "overlap cost",
        "Kernels next to a collective take longer than alone.",
        kind="flag",
        default="true",
    ),
)

_SCENARIO: Final = (
    FormField(
        "what_if",
        "--what-if",
        "what if",
        "Ops, kernels or a resource this many times as fast, or another machine: compute=1.1x, nic=2x, gpu=h200-sxm.",
        "WHAT=1.1x",
        kind="list",
    ),
    FormField(
        "straggler",
        "--straggler",
        "straggler",
        "A rank that computes this many times as slowly.",
        "RANK=1.2x",
        kind="list",
    ),
    FormField(
        "slow_link",
        "--slow-link",
        "slow link",
        "What a rank communicates takes this many times as long.",
        "RANK:AXIS=2x",
        kind="list",
    ),
    FormField("jitter", "--jitter", "jitter", "How much computation varies: groups wait longer.", "3%"),
    FormField(
        "steady", "--steady", "steady", "The period of repeated steps, or one step from a standstill.", kind="flag"
    ),
)

_SEARCH: Final = (
    FormField(
        "objective",
        "--objective",
        "objective",
        "Shortest step, most tokens/s, least cost per token, most memory to spare, or the front of time and memory.",
        choices=("step", "tokens", "cost", "memory", "pareto"),
        default="step",
    ),
    FormField("time_s", "--time", "time", "Seconds after which no further plan is simulated.", "60", kind="number"),
)


@cache
def start_page(upload_bytes: int, files: int) -> dict[str, Any]:
    """Returns what a page needs to begin, as JSON has it.

    Args:
        upload_bytes: The size of an uploaded file at most.
        files: Files of an upload at most.
    """
    models, clusters = model_presets.names(), hardware_presets.names("cluster")
    axes = [_field(name, option) for name, option in INPUT_OPTIONS.items() if name in (*Plan.__slots__, "overlap")]
    return {
        "version": __version__,
        "models": [{"name": name, "title": model_presets.model(name).title or name} for name in models],
        "clusters": [{"name": name, "title": hardware_presets.cluster(name).title or name} for name in clusters],
        "gpus": list(hardware_presets.names("gpu")),
        "examples": [
            {"id": each.id, "title": each.title, "noun": each.noun, "question": dict(each.question)}
            for each in examples().values()
        ],
        "fields": {kind.kind: _plain(_fields_of(kind)) for kind in kinds()},
        "machine": _plain(_MACHINE),
        "scenario": _plain(_SCENARIO),
        "search": _plain(_SEARCH),
        "axes": _plain(axes),
        "limits": {"upload_bytes": upload_bytes, "files": files},
    }


def _plain(fields: Iterable[FormField]) -> list[dict[str, Any]]:
    return [asdict(field) for field in fields]


def fields_of_kind(name: str) -> list[dict[str, Any]]:
    """Returns the fields of a kind of input, by the name of the kind."""
    return next((_plain(_fields_of(kind)) for kind in kinds() if kind.kind == name), [])
