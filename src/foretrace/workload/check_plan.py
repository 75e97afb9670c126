"""Checks what a plan holds before a model is known: the kinds of its values, and their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from foretrace.basics.errors import InputError, did_you_mean
from foretrace.basics.limits import check_gpus
from foretrace.basics.mesh import DEFAULT_ORDER, Mesh
from foretrace.basics.numbers import NumberError, number_error, python_number, real_number
from foretrace.models.compose import MAX_LAYERS
from foretrace.schedules.registry import resolve
from foretrace.workload.layout import parse_layout
from foretrace.workload.plan import OPEN_WORDS, WORD_LISTS, WORDS, Plan

MAX_ROUTING: Final = 1e6
"""The busiest rank over the mean: no job has as many ranks that share experts."""
MAX_TOKENS: Final = 100_000_000
"""Tokens of a sequence: ten times the longest context that any model offers."""

_SIZES: Final = ("gpus", "mbs", "tp", "cp", "pp", "vpp", "ep", "etp")
_OPEN_SIZES: Final = ("gbs", "seq_len", "shard")
_LAYERS: Final = ("offload_layers", "prefetch")
_OPEN_LAYERS: Final = ("recompute_layers", "first_stage_layers", "last_stage_layers")
_FLAGS: Final = (
    *("reshard", "tp_overlap", "moe_overlap", "pp_overlap", "offload_optimizer"),
    *("fp8_params", "fp8_activation_input"),
)
_OPEN_FLAGS: Final = ("sequence_parallel", "grad_overlap", "param_overlap")
_NAMES: Final = ("schedule", "stack", "layout")
NUMBER_FIELDS: Final = frozenset((*_SIZES, *_OPEN_SIZES, *_LAYERS, *_OPEN_LAYERS, *_FLAGS, *_OPEN_FLAGS, "zero"))
"""The fields of a plan that are whole numbers or flags; those that are open may be None."""


def check_plan(plan: Plan) -> Plan:
    """The plan, its lists as tuples; an error names the field that cannot be meant."""
    if not isinstance(plan, Plan):
        raise InputError(
            "bad-value", f"a plan is no {type(plan).__name__}", hint="for example Plan(gpus=512, tp=4, pp=4, gbs=1024)"
        )
    numbers = {field.name: python_number(getattr(plan, field.name)) for field in fields(plan)}
    plan = replace(plan, **numbers)
    _check_sizes(plan)
    _check_flags_and_words(plan)
    if plan.zero is not None and (isinstance(plan.zero, bool) or plan.zero not in (0, 1, 2, 3)):
        raise InputError("bad-value", f"zero is {plan.zero}", hint="expected 0, 1, 2 or 3")
    routing = tuple(plan.routing) if isinstance(plan.routing, tuple | list) else plan.routing
    if routing == ():
        raise InputError("bad-value", "routing is an empty list", hint="give a number, or one for each layer")
    factors = routing if isinstance(routing, tuple) else (1.0 if routing is None else routing,)
    for factor in factors:
        hint = "expected how many times the mean the busiest rank receives, 1 or more"
        if isinstance(factor, str | bytes):
            raise InputError("bad-value", f"routing is a text, {factor!r}", hint=hint)
        try:
            real_number(factor, least=1.0, most=MAX_ROUTING)
        except NumberError as error:
            raise number_error(error, "routing", factor, None, hint) from None
    stage_layers = _numbers("stage_layers", plan.stage_layers, 0)
    documents = _numbers("documents", plan.documents)
    lists: dict[str, Any] = {name: _words(name, getattr(plan, name), known) for name, known in WORD_LISTS.items()}
    return replace(plan, routing=routing, stage_layers=stage_layers, documents=documents, **lists)


def check_size(name: str, value: object, most: int | None = None) -> None:
    """Raises an error unless a value is a whole number from 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError("bad-value", f"{name} is {value}", hint="expected a whole number of at least 1")
    if most is not None and value > most:
        raise InputError("out-of-range", f"{name} {value:,} cannot be meant", hint=f"at most {most:,}")


def _check_sizes(plan: Plan) -> None:
    for name in _SIZES:
        check_size(name, getattr(plan, name))
    for name in _OPEN_SIZES:
        if getattr(plan, name) is not None:
            check_size(name, getattr(plan, name), MAX_TOKENS if name == "seq_len" else None)
    check_gpus(plan.gpus, "gpus")
    counts = [(name, getattr(plan, name)) for name in _LAYERS]
    counts += [(name, getattr(plan, name)) for name in _OPEN_LAYERS if getattr(plan, name) is not None]
    for name, value in counts:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError("bad-value", f"{name} is {value}", hint="expected a whole number of layers, 0 or more")
        if value > MAX_LAYERS:
            raise InputError("out-of-range", f"{name} {value:,} cannot be meant", hint=f"at most {MAX_LAYERS:,}")


def _check_flags_and_words(plan: Plan) -> None:
    for name in (*_FLAGS, *_OPEN_FLAGS):
        value = getattr(plan, name)
        if not isinstance(value, bool) and (value is not None or name in _FLAGS):
            raise InputError("bad-value", f'{name} is "{value}"', hint="expected True or False")
    for name, known in (WORDS | OPEN_WORDS).items():
        value = getattr(plan, name)
        if value is not None or name in WORDS:
            _check_word(name, value, known)
    if not isinstance(plan.rank_order, str):
        raise InputError("bad-value", f"rank_order is {plan.rank_order}", hint=f"for example {DEFAULT_ORDER}")
    Mesh(order=plan.rank_order)
    for name in _NAMES:
        value = getattr(plan, name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise InputError("bad-value", f'{name} is "{value}"', hint="expected a name, or leave it out")
    if plan.schedule is not None:
        resolve(plan.schedule)
    if plan.layout is not None:
        parse_layout(plan.layout)


def _check_word(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        near = did_you_mean(str(value), known)
        raise InputError("unknown-name", f'{name} "{value}" is not known{near}', hint=f"known: {', '.join(known)}")


def _words(name: str, values: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the words of a list, each once and in the order in which they are known."""
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, list | tuple):
        raise InputError("bad-value", f"{name} is {values}", hint=f"expected a list of: {', '.join(known)}")
    for value in values:
        _check_word(name, value, known)
    return tuple(word for word in known if word in values)


def _numbers(name: str, values: Sequence[int] | None, least: int = 1) -> tuple[int, ...] | None:
    if values is None:
        return None
    whole = isinstance(values, list | tuple) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= least for value in values
    )
    if not whole:
        raise InputError("bad-value", f"{name} is {values}", hint=f"expected whole numbers from {least} on")
    return tuple(values)
