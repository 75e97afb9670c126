"""Describes the options that a question may hold: the fields of the page's form.

`MACHINE`, `SCENARIO` and `SEARCH` are the options of those parts of a question; `input_fields` derives the options of a
kind of input from `INPUT_OPTIONS`. Questions are read, and command lines are written, from the same fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from foretrace.basics.errors import ForetraceError
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.schedules.registry import names as schedule_names
from foretrace.search.planner.request import Objective
from foretrace.workload.stacks import STACKS

FieldKind = Literal["text", "number", "flag", "list"]

_SAMPLES: Final[tuple[Any, ...]] = ("1", "none", True, ["name=1"])
"""Values of options, of which each option can read one or refuses all."""
_NUMBER: Final = "N"
_DOUBLED: Final = frozenset(
    ("gpus", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "gbs", "mbs", "seq_len", "shard", "domain_gpus")
)
"""Counts of which a user usually tries the double and the half."""


@dataclass(frozen=True, slots=True)
class FormField:
    """An option of a question, as a field of the form.

    Attributes:
        name: The key in a question.
        flag: The option of the command line. Of a flag also `--on/--off`, or `/--off` where only turning it off is an
            option.
        label: The name on the page.
        help: The meaning, in a sentence.
        metavar: The placeholder of the value.
        choices: All values; None where other texts are possible.
        kind: The kind of value.
        default: The value that an empty field stands for, where that can be said; `true` or `false` of a flag.
    """

    name: str
    flag: str
    label: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] | None = None
    kind: FieldKind = "text"
    default: str = ""

    @property
    def is_two_way(self) -> bool:
        """Whether the option is a flag that can be turned off as well as on."""
        return self.kind == "flag" and "/" in self.flag

    def to_dict(self) -> dict[str, Any]:
        """Returns the field as JSON has it."""
        on, _, off = self.flag.partition("/")
        return {**asdict(self), "flag": on or off, "two_way": self.is_two_way, "doubled": self.name in _DOUBLED}


def input_fields(kind: type[Input]) -> list[FormField]:
    """Returns the options that a kind of input has."""
    return [_input_field(name, option) for name, option in INPUT_OPTIONS.items() if _takes(kind, name)]


def fields_json(fields: Iterable[FormField]) -> list[dict[str, Any]]:
    """Returns fields as JSON has them."""
    return [field.to_dict() for field in fields]


def _input_field(name: str, option: OptionText) -> FormField:
    kind: FieldKind = "list" if option.repeated else "number" if option.metavar == _NUMBER else "text"
    return FormField(
        name,
        option.flag,
        option.flag.partition("/")[0].removeprefix("--").replace("-", " "),
        option.help,
        option.metavar,
        _choices(name, option.metavar),
        kind if option.metavar else "flag",
    )


def _choices(name: str, metavar: str) -> tuple[str, ...] | None:
    if name == "schedule":
        return tuple(schedule_names())
    if name == "stack":
        return tuple(STACKS)
    words = [] if metavar.startswith("'") else metavar.split("|")
    is_closed = len(words) > 1 and not any(set(word) & set("….,") or word.isupper() for word in words)
    return tuple(words) if is_closed else None


def _takes(kind: type[Input], name: str) -> bool:
    """Returns whether a kind of input has an option. An option that refuses a value is one that it has."""
    if kind.has_option(name):
        return True
    for sample in _SAMPLES:
        try:
            return kind.takes_option(name, sample)
        except ForetraceError:
            continue
    return True


def _by_name(*fields: FormField) -> Mapping[str, FormField]:
    return {field.name: field for field in fields}


MACHINE: Final = _by_name(
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
        "/--no-overlap-cost",
        "overlap cost",
        "Kernels next to a collective take longer than alone.",
        kind="flag",
        default="true",
    ),
)
"""The options of a machine, by name."""

SCENARIO: Final = _by_name(
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
        "Slows the communication of a rank on an axis.",
        "RANK:AXIS=2x",
        kind="list",
    ),
    FormField("jitter", "--jitter", "jitter", "How much computation varies: groups wait longer.", "3%"),
    FormField(
        "steady",
        "--steady/--one-step",
        "steady",
        "The period of repeated steps, or one step from a standstill.",
        kind="flag",
    ),
)
"""The options of a scenario, by name."""

SEARCH: Final = _by_name(
    FormField(
        "objective",
        "--objective",
        "objective",
        "Shortest step, most tokens/s, least cost per token, most memory to spare, or the front of time and memory.",
        choices=get_args(Objective),
        default="step",
    ),
    FormField(
        "time_s",
        "--time",
        "time",
        "Seconds after which no further plan is simulated.",
        "60",
        kind="number",
        default="60",
    ),
)
"""The options of a search apart from its axes, by name."""
