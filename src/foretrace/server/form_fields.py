"""Describes the options that a question may hold: the fields of the page's form.

`MACHINE`, `SCENARIO` and `SEARCH` are the options of those parts of a question, and `input_fields` returns those of a
kind of input. All are options of the command line; fields state what is different on the page. Questions are read, and
command lines are written, from the same fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from foretrace.basics.errors import ForetraceError
from foretrace.cost.machine_texts import MACHINE_OPTIONS
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.readings.scenario_texts import SCENARIO_OPTIONS
from foretrace.schedules.registry import names as schedule_names
from foretrace.search.plan_texts import SEARCH_OPTIONS
from foretrace.workload.stacks import STACKS

FieldKind = Literal["text", "number", "flag", "list"]

_SAMPLES: Final[tuple[Any, ...]] = ("1", "none", True, ["name=1"])
"""Sample values: every option accepts one of them or refuses all."""
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
        flag: The option of the command line. Flags are written `--on/--off`, or `/--off` if they can only be turned
            off.
        label: The name on the page.
        help: The meaning, in a sentence.
        metavar: The placeholder of the value.
        choices: All values; None where other texts are possible.
        kind: The kind of value.
        default: The value that an empty field stands for, where that can be said; `true` or `false` of a flag.
        omitted: The value that the command uses without the option; None if it has none. If it equals the value on
            the page, the option is left out of the command.
    """

    name: str
    flag: str
    label: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] | None = None
    kind: FieldKind = "text"
    default: str = ""
    omitted: str | bool | None = None

    @property
    def is_two_way(self) -> bool:
        """Whether the option is a flag that can be turned off as well as on."""
        return self.kind == "flag" and "/" in self.flag

    def to_dict(self) -> dict[str, Any]:
        """Returns the field as JSON has it."""
        values = asdict(self)
        del values["omitted"]
        on, _, off = self.flag.partition("/")
        return {**values, "flag": on or off, "two_way": self.is_two_way, "doubled": self.name in _DOUBLED}


def input_fields(kind: type[Input]) -> list[FormField]:
    """Returns the options that a kind of input has."""
    return [_field(name, option) for name, option in INPUT_OPTIONS.items() if _takes(kind, name)]


def fields_json(fields: Iterable[FormField]) -> list[dict[str, Any]]:
    """Returns fields as JSON has them."""
    return [field.to_dict() for field in fields]


def _field(name: str, option: OptionText, **differences: Any) -> FormField:
    """Returns an option of the command line as a field of the form.

    Args:
        name: The key in a question.
        option: The option.
        differences: Attributes that are others on the page.
    """
    kind: FieldKind = "list" if option.repeated else "number" if option.metavar == _NUMBER else "text"
    field = FormField(
        name,
        option.flag,
        option.flag.partition("/")[0].removeprefix("--").replace("-", " "),
        option.help,
        option.metavar,
        option.choices or _choices(name, option.metavar),
        "flag" if option.is_flag else kind,
        "" if option.default is None or option.is_flag else str(option.default),
        option.default,
    )
    return replace(field, **differences)


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
    _field("cluster", MACHINE_OPTIONS["cluster"], metavar="NAME", help="What it runs on."),
    _field(
        "network",
        MACHINE_OPTIONS["network"],
        choices=("analytic", "flow"),
        help="Communications run alone, or divide the links they meet on.",
    ),
    _field("prices", MACHINE_OPTIONS["prices"]),
    _field("domain_gpus", MACHINE_OPTIONS["domain_gpus"], label="domain GPUs"),
    _field(
        "overlap_cost",
        MACHINE_OPTIONS["no_overlap_cost"],
        flag="/--no-overlap-cost",
        label="overlap cost",
        help="Kernels next to a collective take longer than alone.",
        default="true",
        omitted=True,
    ),
)
"""The options of a machine, by name."""

SCENARIO: Final = _by_name(
    _field(
        "what_if",
        SCENARIO_OPTIONS["what_if"],
        help="Ops, kernels or a resource this many times as fast, or another machine: compute=1.1x, nic=2x, "
        "gpu=h200-sxm.",
    ),
    _field("straggler", SCENARIO_OPTIONS["straggler"], help="A rank that computes this many times as slowly."),
    _field("slow_link", SCENARIO_OPTIONS["slow_link"], help="Slows the communication of a rank on an axis."),
    _field("jitter", SCENARIO_OPTIONS["jitter"]),
    _field("steady", SCENARIO_OPTIONS["steady"], help="The period of repeated steps, or one step from a standstill."),
)
"""The options of a scenario, by name."""

SEARCH: Final = _by_name(
    _field("objective", SEARCH_OPTIONS["objective"]),
    _field(
        "time_s",
        SEARCH_OPTIONS["time"],
        metavar="60",
        kind="number",
        help="Seconds after which no further plan is simulated.",
        default="60",  # of the page only: a command has no limit, so that it has to be told this one too
    ),
)
"""The options of a search apart from its axes, by name."""
