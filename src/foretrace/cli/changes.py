"""Changes a question as options would: `tp=8`, `cluster=h200-dgx`, `nic=2x`, as `--over` and `--with` name them.

A change is the name of an option without its dashes and a value, or anything that `--what-if` takes. So a job with
`tp=8` is the job that the same command line with `--tp 8` describes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from foretrace.basics.errors import UsageError, did_you_mean, shortened, usage_errors
from foretrace.basics.units import parse_count
from foretrace.cli.groups import Question
from foretrace.cost.machine import Machine
from foretrace.cost.machine_texts import MACHINE_OPTIONS
from foretrace.inputs.option_texts import HOST_WHAT_IFS, INPUT_OPTIONS, OptionText

AXES: Final = ("dp", "pp", "ep", "tp", "cp")
"""Axes that an input without an option of the name may have in its mesh."""
_LISTS: Final = (
    *("overlap", "stage_layers", "documents", "mesh", "steps", "nccl_algo", "nccl_proto"),
    *("recompute_modules", "offload_modules", "account_for"),
)
"""Options whose value may be a list, joined by + where commas divide values of a sweep."""
_YES: Final = ("yes", "on", "true")
_NO: Final = ("no", "off", "false")
_FACTOR: Final = re.compile(r"\s*[0-9.]+\s*[x×%]\s*")
_BARE: Final = re.compile(r"\s*-?[0-9][0-9.,_e]*\s*")


def _spellings(name: str, option: OptionText) -> set[str]:
    return {name, name.replace("_", "-"), option.flag.partition("/")[0].removeprefix("--")}


_OPTIONS: Final = {spelling: name for name, option in INPUT_OPTIONS.items() for spelling in _spellings(name, option)}
"""Options of inputs by how they may be spelled."""

_MACHINE: Final[dict[str, Callable[[Machine, str], dict[str, Any]]]] = {
    "cluster": lambda _, text: {"cluster": text},
    "placement": lambda _, text: {"placement": Path(text)},
    "domain-gpus": lambda machine, text: {
        "cluster": replace(machine.needed_cluster(), domain_gpus=parse_count(text)),
    },
    "collectives": lambda _, text: {"collectives": Path(text)},
    "calibration": lambda _, text: {"calibration": Path(text)},
    "prices": lambda machine, text: {"prices": replace(machine.prices, source=text)},  # type: ignore[arg-type]
    "network": lambda _, text: {"network": text},
    "nccl-algo": lambda machine, text: {"nccl": replace(machine.nccl, algorithms=text)},
    "nccl-proto": lambda machine, text: {"nccl": replace(machine.nccl, protocols=text)},
}
"""Options of a machine by name, and how each changes one."""


def names_option(name: str, text: str) -> str | None:
    """Returns the option of inputs that a change sets; None where it changes something else, as `tp=2x` does."""
    known = _OPTIONS.get(name)
    return None if known != "routing" and _FACTOR.fullmatch(text) else known


def read_change(text: str, option: str = "--with") -> tuple[str, str]:
    """Reads `tp=8`: a name, and the text of its value. What-ifs without a value (`cuda-graphs`) have none."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or (not value and (equals or name not in HOST_WHAT_IFS)):
        hint = f"example: {option} tp=8, {option} cluster=h200-dgx, {option} compute=1.5x"
        raise UsageError("bad-value", f"{option} {shortened(text)}: expected NAME=VALUE", hint=hint)
    return name.removeprefix("--"), value


def changed(question: Question, changes: Mapping[str, str], option: str = "--with") -> Question:
    """Returns a question with some options changed.

    Args:
        question: What is asked without the changes.
        changes: Values by the names of options, as a command line spells them.
        option: The option that the changes were given with, for errors.

    Raises:
        UsageError: A name is neither an option nor a what-if, or the input does not have the option.
        InputError: A value cannot be used.
    """
    options: dict[str, Any] = {}
    axes: dict[str, int] = {}
    machine, conditions = question.machine, question.conditions
    if question.job.answer_file is not None and machine.cluster is None:
        machine = question.machines.machine(question.job)  # a saved answer is run again
    for name, text in changes.items():
        where = shortened(f"{option} {name}={text}")
        known = names_option(name, text)
        if not text:
            conditions = conditions.changed(what_if=[name])
        elif name in _MACHINE and not _FACTOR.fullmatch(text):
            machine = _changed_machine(question, machine, (name, text), where)
        elif name in AXES and not question.job.has_option(name) and not _FACTOR.fullmatch(text):
            axes[name] = _count(text, where)
        elif known is not None:
            options[known] = _option_value(known, text, where)
        elif name in ("jitter", "steady"):
            conditions = conditions.changed(**{name: text if name == "jitter" else _flag(text, where)})
        elif name.startswith(("straggler:", "slow-link:")):
            head, _, rest = name.partition(":")
            conditions = conditions.changed(**{head.replace("-", "_"): [f"{rest}={text}"]})
        else:
            _refuse_speed(name, text, where)
            _refuse_bare(name, text, where)
            conditions = conditions.changed(what_if=[f"{name}={text}"])
    job = question.job.read_options({**options, **_new(conditions.options, question.conditions.options)})
    for axis, size in axes.items():
        job = job.with_axis(axis, size)
    return Question(job, machine, conditions, question.machines, question.machine_cache)


def _new(options: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if before.get(name) != value}


def _changed_machine(question: Question, machine: Machine, change: tuple[str, str], where: str) -> Machine:
    """Returns the machine with one option changed; it is made once, so that its prices are found once."""
    name, text = change
    known = MACHINE_OPTIONS[name.replace("-", "_")].choices
    if known and text not in known:
        problem = f"{where}: {name} is one of {', '.join(known)}"
        hint = "communication twice as fast is network=2x" if name == "network" else None
        raise UsageError("unknown-name", problem, hint=hint)
    if (machine, change) not in question.machine_cache:
        question.machine_cache[machine, change] = machine.with_(**_MACHINE[name](machine, text))
    return question.machine_cache[machine, change]


def _option_value(name: str, text: str, where: str) -> Any:
    option = INPUT_OPTIONS[name]
    if option.is_flag:
        return _flag(text, where)
    if name in _LISTS:
        text = text.replace("+", ",")
    return [text] if option.repeated else text


def _flag(text: str, where: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise UsageError("bad-value", f"{where}: expected yes or no")
    return text.lower() in _YES


def _count(text: str, where: str) -> int:
    with usage_errors():
        return parse_count(text, where=where)


def _refuse_speed(name: str, text: str, where: str) -> None:
    """Raises an error where a count has an x; axes may have one: `tp=2x` makes their communication faster."""
    if name in _OPTIONS and name not in (*AXES, "etp") and _FACTOR.fullmatch(text):
        problem = f'{where}: "{shortened(name)}" is not a speed'
        raise UsageError("bad-value", problem, hint=f"a count has no x: {name}={shortened(text.strip().rstrip('x×%'))}")


def _refuse_bare(name: str, text: str, where: str) -> None:
    """Raises an error where a what-if has a number without an x or a unit: it may be meant as a count."""
    if name == "batch" or not _BARE.fullmatch(text):
        return
    near = did_you_mean(name, [word for word in (*_OPTIONS, *AXES) if word[:1] == name[:1]])
    hint = f"{shortened(name)}=2x makes it twice as fast; counts have no x: gpus=8, tp=2, gbs=64, …"
    raise UsageError("bad-value", f'{where}: "{shortened(name)}" is not a count{near}', hint=hint)
