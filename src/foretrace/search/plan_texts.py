"""Options of a search as a command line and a page spell them, and how texts make a `PlanRequest`.

An option of a plan pins its axis, or gives several values of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from foretrace.basics.errors import InputError, UsageError, usage_errors
from foretrace.basics.units import parse_count, parse_factor, parse_time
from foretrace.inputs.base import Input
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.model.options import plan_fields
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.search.planner.request import GIVEN_FIELDS, Largest, Objective, PlanRequest
from foretrace.workload.plan import Plan

_SEVERAL: Final = re.compile(r",|\.\.")
_WIDENED: Final = ("gbs", "seq_len", "precision", "cuda_graphs")
"""Fields that a search does not vary unless several values are given."""
_OFFLOAD: Final = {"offload_optimizer": "off", "offload_layers": "0", "offload_modules": "none"}


_DAY_S: Final = 86400.0

SEARCH_OPTIONS: Final[dict[str, OptionText]] = {
    "objective": OptionText(
        "--objective",
        "",
        "Shortest step, most tokens/s, least cost per token, most memory to spare, or the front of time and memory.",
        choices=get_args(Objective),
        default="step",
    ),
    "gap": OptionText(
        "--gap", "0.5%", "Stop once no plan is predicted to be faster than the best by more.", default="0"
    ),
    "time": OptionText("--time", "10s", "Simulate no plan after this time, and say what is left."),
    "top": OptionText("--top", "N", "How many plans are listed.", kind=int, default=10),
    "tokens": OptionText("--tokens", "15T", "With --days: the smallest of --gpus 512..8192 that meets them."),
    "days": OptionText("--days", "60", "Days that the training of --tokens may take.", kind=float),
    "largest": OptionText(
        "--largest", "", "Look for the largest batch or sequence that fits.", choices=get_args(Largest)
    ),
    "price": OptionText("--price", "2.5", "Of a GPU for an hour, in any currency, for --objective cost.", kind=float),
    "workers": OptionText("--workers", "N", "Processes that simulate; the result is the same.", kind=int, default=1),
}
"""Objective and limits of a search, by name."""


def read_goals(given: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the options of a search by name into fields of `PlanRequest`; others are at their defaults."""
    values = {name: given.get(name, option.default) for name, option in SEARCH_OPTIONS.items()}
    time, tokens, days = values["time"], values["tokens"], values["days"]
    with usage_errors():
        return {
            "objective": values["objective"],
            "gap": 0.0 if values["gap"].strip(" %") in ("0", "0.0") else parse_factor(values["gap"], where="--gap"),
            "time_s": None if time is None else parse_time(time, where="--time"),
            "workers": values["workers"],
            "top": values["top"],
            "price_per_gpu_hour": values["price"],
            "tokens": None if tokens is None else parse_count(tokens, where="--tokens"),
            "deadline_s": None if days is None else days * _DAY_S,
            "largest": values["largest"],
        }


def searched_model(job: Input) -> ModelInput:
    """Returns an input as the model that it is. Raises UsageError where it has no plan to search for."""
    if isinstance(job, ModelInput):
        return job
    problem = f"{job.title} is {job.noun}, which has no plan to search for"
    raise UsageError("option-not-for-input", problem, hint="name a model: foretrace list models")


def plan_request(named: ModelInput, texts: Mapping[str, Any], goals: Mapping[str, Any]) -> PlanRequest:
    """Returns what a search is asked for.

    Args:
        named: The model, with the fields of a plan that its file may have.
        texts: Options of a plan by name, and `no_offload`: texts, or True and False for flags.
        goals: The other fields of `PlanRequest`: the objective, and when to stop.
    """
    job = named.read_options({name: text for name, text in texts.items() if not _is_axis(name, text)})
    axes = _axes({name: text for name, text in texts.items() if _is_axis(name, text)})
    counts = _gpu_counts(texts["gpus"]) if _is_axis("gpus", texts.get("gpus", "")) else ()
    return PlanRequest(_given_plan(job, axes, counts, goals.get("largest")), axes, counts, **goals)


def _is_axis(name: str, text: Any) -> bool:
    """Says whether an option gives values of an axis; otherwise it is a fixed field of the plan."""
    if name in (*_WIDENED, "gpus"):
        return _SEVERAL.search(text) is not None
    return name not in GIVEN_FIELDS


def _axes(texts: dict[str, Any]) -> dict[str, str]:
    """Returns the values of each axis as text, flags as `on` and `off`."""
    axes: dict[str, str] = {}
    for name, text in texts.items():
        if name == "no_offload":
            values = _OFFLOAD
        elif name == "overlap":
            values = {field: _switch(value) for field, value in plan_fields({"overlap": text}).items()}
        elif name in _RECOMPUTED:
            values = {"recompute": _RECOMPUTED[name](text)}
        elif name == "gpus":
            continue
        else:
            values = {name: _switch(text) if isinstance(text, bool) else text}
        for twice in values.keys() & axes.keys():
            problem = f"two options give values of {twice}, one of them {INPUT_OPTIONS[twice].flag}"
            raise InputError("conflicting-values", problem, hint="leave out one of them")
        axes |= values
    return axes


_RECOMPUTED: Final[dict[str, Callable[[str], str]]] = {
    "recompute_modules": str.strip,
    "recompute_layers": lambda text: ",".join(f"full:{count.strip()}" for count in text.split(",")),
}
"""Options that are values of the axis `recompute`: parts of a layer, or some layers of each stage."""


def _gpu_counts(text: str) -> tuple[int, ...]:
    """Reads sizes of a cluster: `512,768`, or `512..8192` for 512 and its doublings up to 8,192."""
    from foretrace.search.planner.asked_axes import doublings

    counts: set[int] = set()
    for part in text.split(","):
        low, dots, high = part.partition("..")
        first = _gpu_count(low)
        counts.update(doublings(first, _gpu_count(high)) if dots else (first,))
    return tuple(sorted(counts))


def _gpu_count(text: str) -> int:
    with usage_errors():
        return parse_count(text.strip(), where="--gpus")


def _switch(value: bool) -> str:
    return "on" if value else "off"


def _given_plan(job: ModelInput, axes: dict[str, str], gpu_counts: tuple[int, ...], largest: str | None) -> Plan:
    """Returns the plan of the fixed fields; its GPUs are the most that are asked for."""
    fields = {name: job.given(name) for name in GIVEN_FIELDS if job.given(name) is not None and name not in axes}
    if gpu_counts:
        fields["gpus"] = gpu_counts[-1]
    if "gpus" not in fields:
        raise UsageError("missing-argument", "on how many GPUs?", hint="for example --gpus 512")
    if "gbs" not in fields and "gbs" not in axes and largest != "gbs":
        problem = "plans can be compared for one batch only, and --gbs is not given"
        raise UsageError("missing-argument", problem, hint="for example --gbs 1024")
    return Plan(**fields)
