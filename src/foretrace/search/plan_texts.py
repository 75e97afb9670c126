"""Reads the texts of options into a request for a search: an option pins its axis, or gives several values of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.units import parse_count
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.model.options import plan_fields
from foretrace.inputs.option_texts import INPUT_OPTIONS
from foretrace.search.planner.request import GIVEN_FIELDS, PlanRequest
from foretrace.workload.plan import Plan

_SEVERAL: Final = re.compile(r",|\.\.")
_WIDENED: Final = ("gbs", "seq_len", "precision", "cuda_graphs")
"""Fields that a search does not vary unless several values are given."""
_OFFLOAD: Final = {"offload_optimizer": "off", "offload_layers": "0", "offload_modules": "none"}


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
    try:
        return int(parse_count(text.strip(), where="--gpus"))
    except InputError as error:
        raise UsageError.of(error) from None


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
