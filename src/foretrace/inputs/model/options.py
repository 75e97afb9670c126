"""Makes the fields of a plan from the texts of options, and the options from a plan."""

from __future__ import annotations

import shlex
from typing import Any, Final

from foretrace.basics.errors import InputError, UsageError, did_you_mean, shortened, usage_errors
from foretrace.basics.files import read_whole
from foretrace.basics.units import parse_factor
from foretrace.inputs.option_texts import (
    INPUT_OPTIONS,
    flag_of,
    read_number_list,
    read_routing,
    read_texts,
    read_whole_number,
)
from foretrace.inputs.option_values import overlap_words
from foretrace.workload.check_plan import MAX_ROUTING
from foretrace.workload.plan import OPEN_WORDS, WORD_LISTS, WORDS, Plan

_MAX_ROUTING_BYTES: Final = 1_000_000
"""The largest file of routing: a line for each of ten thousand layers is a tenth of it."""
_OVERLAPS: Final = ("grad", "param", "tp", "moe", "pp")
_NEXT_TO_LAYERS: Final = {"tp", "moe", "pp"}
_ALL: Final = ("grad", "param", "tp", "moe")
"""Without pp: Megatron's 1F1B waits for its transfers, and interleaved schedules never do."""
_OVERLAP_FIELDS: Final = tuple(f"{word}_overlap" for word in _OVERLAPS)
_NUMBERS: Final = (
    *("gpus", "tp", "pp", "gbs", "mbs", "seq_len", "cp", "vpp", "ep", "etp", "zero", "shard", "prefetch"),
    *("recompute_layers", "offload_layers", "first_stage_layers", "last_stage_layers"),
)


def plan_fields(texts: dict[str, Any]) -> dict[str, Any]:
    """Returns fields of `Plan`; `settle` checks what sizes may be."""
    readers = {
        **{name: read_whole_number(name) for name in _NUMBERS},
        **{name: _word_reader(name, known) for name, known in (WORDS | OPEN_WORDS).items()},
        **{name: _words_reader(name, known) for name, known in WORD_LISTS.items()},
        "documents": read_number_list("documents", least=1),
        "stage_layers": read_number_list("stage_layers", least=0),
        "routing": read_routing,
        "rank_order": lambda text: text.strip().lower(),
    }
    values = read_texts(texts, readers)
    if "overlap" in values:
        values |= _overlaps(values.pop("overlap"))
    return values | _without_modules(values)


def plan_options(plan: Plan, base: Plan | None = None) -> str:
    """Returns the options of a command line that make a plan, as a shell reads them.

    A routing for each layer comes from a file and is left out. Whether gradients and parameters are overlapped is
    stated for both where it is for one; what is open is then not overlapped.

    Args:
        plan: The plan.
        base: The plan that a command line without options has; None: one of default values.
    """
    usual = base or Plan(gpus=0)
    words = []
    for name in Plan.__slots__:
        value = getattr(plan, name)
        if value == getattr(usual, name) or value is None or name in _OVERLAP_FIELDS:
            continue
        flag, _, negated = INPUT_OPTIONS[name].flag.partition("/")
        if isinstance(value, bool):
            words += [flag] if value else [negated] if negated else []
        elif name == "routing":
            words += [] if isinstance(value, tuple) else [f"{flag} {value!r}x"]
        else:
            text = (",".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
            words.append(f"{flag} {shlex.quote(text)}")
    return " ".join([*words, *_overlap_option(plan, usual)])


def options_between(before: Plan, after: Plan) -> str:
    """Returns the options that make one plan of another; those to leave out come after `without`."""
    dropped = [
        INPUT_OPTIONS[name].flag
        for name in Plan.__slots__
        if name not in _OVERLAP_FIELDS
        and getattr(before, name) != getattr(after, name)
        and not _can_be_said(name, getattr(after, name))
    ]
    stated = plan_options(after, before)
    is_open = after.grad_overlap is None and after.param_overlap is None
    if is_open and not any(getattr(after, name) for name in _OVERLAP_FIELDS):
        option = INPUT_OPTIONS["overlap"].flag
        stated = stated.partition(f"{option} ")[0].strip()  # which is last, and says more than that nothing is named
        dropped += [option] if any(getattr(before, name) for name in _OVERLAP_FIELDS) else []
    return " ".join([*([stated] if stated else []), *([f"without {' and '.join(dropped)}"] if dropped else [])])


def _can_be_said(name: str, value: object) -> bool:
    """Returns whether an option gives a field this value; None, and a flag that cannot be negated, is no option."""
    return value is not None and (value is not False or "/" in INPUT_OPTIONS[name].flag)


def _overlap_option(plan: Plan, base: Plan) -> list[str]:
    if all(getattr(plan, name) in (getattr(base, name), None) for name in _OVERLAP_FIELDS):
        return []
    named = [word for word in _OVERLAPS if getattr(plan, f"{word}_overlap")]
    is_open = plan.grad_overlap is None and plan.param_overlap is None
    if not (is_open and named) and set(named) <= _NEXT_TO_LAYERS:
        named = ["none", *named]  # which says of gradients and parameters too that they are not overlapped
    return [f"{INPUT_OPTIONS['overlap'].flag} {','.join(named)}"]


def _without_modules(values: dict[str, Any]) -> dict[str, Any]:
    """Returns that no part of a layer is recomputed, where none and not selective is asked for.

    A job file may name parts; who asks for no recomputation, or for whole layers, does not mean them.
    """
    if values.get("recompute") == "selective" and values.get("recompute_modules") == ():
        problem = "--recompute selective recomputes parts of a layer, --recompute-modules none does not"
        raise UsageError("conflicting-options", problem, hint="leave out one of the two")
    if values.get("recompute") not in ("none", "full"):
        return {}
    if values["recompute"] == "none" and values.get("recompute_modules"):
        problem = "--recompute none recomputes nothing, --recompute-modules parts of a layer"
        raise UsageError("conflicting-options", problem, hint="leave out one of the two")
    return {} if "recompute_modules" in values else {"recompute_modules": None}


def _words_reader(name: str, known: tuple[str, ...]) -> Any:
    """Returns a reader of words divided by commas; `none` stands for no word."""
    read = _word_reader(name, known)

    def words(text: str) -> tuple[str, ...]:
        parts = [part.strip() for part in text.split(",")]
        return () if parts == ["none"] else tuple(read(part) for part in parts if part)

    return words


def _word_reader(name: str, known: tuple[str, ...]) -> Any:
    def read(text: str) -> str:
        plain = text.lower().replace("-", "_")
        if plain not in known:
            problem = f'{flag_of(name)} "{text}" is not known{did_you_mean(text, known)}'
            raise UsageError("unknown-name", problem, hint=f"known: {', '.join(known)}")
        return plain

    return read


def _overlaps(text: str) -> dict[str, bool]:
    with usage_errors():
        words = overlap_words(text, _OVERLAPS, _ALL, where="--overlap")
    # Stacks have a habit for gradients and parameters; who names only others does not mean to change it.
    named = {word.strip().lower() for word in text.split(",")}
    decided = _NEXT_TO_LAYERS if named <= _NEXT_TO_LAYERS else set(_OVERLAPS)
    return {f"{word}_overlap": word in words for word in _OVERLAPS if word in decided}


def read_routing_file(text: str, layers: int) -> tuple[float, ...]:
    """Reads a file with a factor on a line for each layer; `#` begins a comment."""
    lines = read_whole(text, "routing", "a number a layer", _MAX_ROUTING_BYTES).decode("utf-8", "replace").splitlines()
    numbered = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    factors = tuple(_factor(value, f"{text}:{number}") for number, value in numbered if value)
    if len(factors) != layers:
        problem = f"the file has factors of {len(factors):,} layers, the model has {layers:,}"
        raise InputError("bad-plan", problem, where=text, hint="expected a number for each layer")
    return factors


def _factor(text: str, where: str) -> float:
    factor = parse_factor(text, where=where)
    if not 1 <= factor <= MAX_ROUTING:
        raise InputError(
            "out-of-range",
            f"routing {shortened(text)} cannot be meant",
            where=where,
            hint=f"the busiest rank over the mean: 1 to {MAX_ROUTING:,.0f}",
        )
    return factor
