"""Makes a space of what a user asks for: `space_of` reads axes as they are written after an option.

`8`, `1,2,4`            values
`1..16`                 the usual values within a range: divisors of what an axis divides
`all`                   all values that can be simulated; the launcher may not have some of them
`none`                  the axis switched off
`on`, `off`             for options
`mlp`, `moe_act+layernorm`, `full`, `full:4`   for recompute: parts of a layer, or the layers of a stage
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foretrace.basics.errors import InputError, did_you_mean
from foretrace.basics.mesh import DEFAULT_ORDER, Mesh
from foretrace.basics.units import parse_count, parse_tokens
from foretrace.hardware.cluster import Cluster
from foretrace.inputs.option_texts import flag_of
from foretrace.models.model import Model
from foretrace.schedules.registry import names, resolve
from foretrace.search.planner.default_axes import RECOMPUTE_FIELDS, DefaultAxes, schedule_axis
from foretrace.search.planner.space import Space, SpaceAxis
from foretrace.workload.check_plan import MAX_TOKENS, check_plan, check_size
from foretrace.workload.layout import parse_layout
from foretrace.workload.nearest_plans import divisors
from foretrace.workload.plan import WORD_LISTS, WORDS, Plan
from foretrace.workload.rules.sizes import ModelSizes, plan_stack
from foretrace.workload.stack import Stack

_ALIASES: Final = {"sp": "sequence_parallel", "seq": "seq_len"}
_OFFLOADS: Final = ("offload_optimizer", "offload_layers", "offload_modules")
_FLAGS: Final = (
    *("sequence_parallel", "grad_overlap", "param_overlap", "tp_overlap", "moe_overlap", "pp_overlap"),
    "offload_optimizer",
)
_FLAG_WORDS: Final = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_FROM_ZERO: Final = ("zero", "offload_layers", "first_stage_layers", "last_stage_layers")
_RANGE: Final = re.compile(r"\s*([0-9][0-9,]*[kKmM]?)\s*\.\.\s*([0-9][0-9,]*[kKmM]?)\s*")
MAX_BATCH: Final = 100_000_000
"""Sequences of a step: more than a step of any training has tokens. Products of sizes stay far below 64 bits."""
_FORM: Final = "expected values such as 8 or 1,2,4, a range such as 1..16, all, or none"


MAX_VALUES: Final = {"zero": 3, "gbs": MAX_BATCH, "mbs": MAX_BATCH, "seq_len": MAX_TOKENS}
"""The largest value of axes where that depends neither on the model nor on the job."""
_DOUBLED: Final = ("gbs", "seq_len")
"""Axes whose ranges hold a value and its doublings, as those of GPUs do."""


def doublings(low: int, high: int) -> list[int]:
    """Returns a number and its doublings up to another."""
    values = [low]
    while 0 < 2 * values[-1] <= high:
        values.append(2 * values[-1])
    return values


def space_of(
    model: Model,
    base: Plan,
    cluster: Cluster,
    asked: Mapping[str, str] | None = None,
    stack: Stack | None = None,
) -> Space:
    """Returns the space of a search.

    Args:
        model: The model.
        base: The GPUs, the batch and all that is not searched. An axis is pinned to a value of `base` that is not the
            default of `Plan`.
        cluster: The machine; tp is searched within its link domains.
        asked: Values of axes by name, as texts. Those of `base` do not count then.
        stack: The software where it is not one of the plan's by name.

    Raises:
        InputError: An axis or a value is not known, or out of range.
    """
    base = check_plan(base)
    if base.gbs is not None:
        check_size("gbs", base.gbs, MAX_BATCH)
    software = stack or plan_stack(base)
    base = replace(base, stack=base.stack or software.name) if stack is None else base
    reader = _Reader(model, base)
    given = reader.read(asked or {})
    domain = cluster.domain_gpus or cluster.node.island_gpus
    schedules = [choice[0] for choice in given["schedule"].choices] if "schedule" in given else None
    if schedules is None and base.schedule is not None:
        schedules = [base.schedule]
    usual = DefaultAxes(model, base, software, domain, schedules).axes()
    axes = [given.pop(axis.name) if axis.name in given else _pinned(axis, base) or axis for axis in usual]
    return Space(model, base, (*axes, *given.values()), stack)


def _pinned(axis: SpaceAxis, base: Plan) -> SpaceAxis | None:
    """Returns an axis with the only value of the base plan, where that is not the default."""
    values = tuple(getattr(base, name) for name in axis.fields)
    usual = tuple(getattr(Plan(1), name) for name in axis.fields)
    return None if values == usual else SpaceAxis(axis.name, axis.fields, (values,))


class _Reader:
    """Reads the texts of axes for a model and a base plan."""

    def __init__(self, model: Model, base: Plan) -> None:
        self._model = model
        self._base = base
        self._stack = plan_stack(base)
        counts = [experts.count for experts in ModelSizes.of(model).experts]
        self._usual: dict[str, Sequence[int]] = {
            **dict.fromkeys(("tp", "cp", "etp", "shard"), divisors(base.gpus)),
            "pp": [size for size in divisors(base.gpus) if size <= len(model.layers) + 2],
            "ep": divisors(math.gcd(*counts)) if counts else (1,),
            "vpp": range(1, len(model.layers) + 1),
            "mbs": divisors(base.gbs) if base.gbs else [2**power for power in range(11)],
            "zero": range(4),
            **dict.fromkeys(
                ("offload_layers", "first_stage_layers", "last_stage_layers"), range(len(model.layers) + 1)
            ),
        }
        self._words: dict[str, Sequence[str]] = {
            **WORDS,
            "schedule": names(),
            "rank_order": (DEFAULT_ORDER, "tp-cp-ep-pp-dp", "tp-pp-cp-ep-dp"),
        }
        del self._words["recompute"]  # an axis of several fields

    def read(self, asked: Mapping[str, str]) -> dict[str, SpaceAxis]:
        """Returns the axes that are asked for, by name."""
        axes: dict[str, SpaceAxis] = {}
        for given, text in asked.items():
            name = given.strip().removeprefix("--").replace("-", "_")
            name = _ALIASES.get(name, name)
            if name == "offload":
                if text.strip() != "none":
                    hint = "ask for offload_optimizer, offload_layers or offload_modules"
                    raise InputError("bad-value", f'offload "{text}" is not none', hint=hint)
                axes |= {part: SpaceAxis.of(part, (getattr(Plan(1), part),)) for part in _OFFLOADS}
                continue
            axes[name] = self._axis(name, text)
        return axes

    def _axis(self, name: str, text: str) -> SpaceAxis:
        read = self._reader(name)
        if read is None:
            known = (
                *self._usual,
                *self._words,
                *_FLAGS,
                "recompute",
                "account_for",
                "offload_modules",
                "layout",
                "offload",
            )
            raise InputError(
                "unknown-name",
                f'axis "{name}" is not known{did_you_mean(name, known)}',
                hint=f"known: {', '.join(known)}",
            )
        if not text.strip():
            raise InputError("bad-value", f"{name} has no value", hint=_FORM)
        return read(name, text.strip())

    def _reader(self, name: str) -> Callable[[str, str], SpaceAxis] | None:
        if name in self._usual or name in ("gbs", "seq_len"):
            return self._numbers
        if name in self._words:
            return self._chosen
        if name in _FLAGS:
            return self._flags
        others = {"recompute": self._recompute, "layout": self._layouts}
        return self._lists if name in WORD_LISTS and name != "recompute_modules" else others.get(name)

    def _numbers(self, name: str, text: str) -> SpaceAxis:
        parse = parse_tokens if name == "seq_len" else parse_count
        values: list[int | None] = []
        for part in text.split(","):
            within = _RANGE.fullmatch(part)
            if within is not None:
                low, high = parse(within[1]), parse(within[2])
                every = doublings(low, high) if name in _DOUBLED else range(low, high + 1)
                usual = [value for value in self._usual.get(name, every) if low <= value <= high]
                if not usual:
                    raise InputError("out-of-range", f"{name} {part.strip()} holds no usual value", hint=_FORM)
                values += usual
            elif part.strip() == "all" and name in self._usual:
                values += self._usual[name]
            elif part.strip() == "none":
                values.append(getattr(Plan(1), name))
            else:
                values.append(parse(part, where=flag_of(name)))
        for value in values:
            self._check(name, value)
        # None is where an option is left out; it comes first.
        ordered = sorted(dict.fromkeys(values), key=lambda value: (value is not None, value or 0))
        return SpaceAxis.of(name, ordered)

    def _check(self, name: str, value: int | None) -> None:
        """Raises an error for a value that no plan has, whatever the others are."""
        if value is None:
            return
        least = 0 if name in _FROM_ZERO else 1
        most = {**MAX_VALUES, "vpp": len(self._model.layers) + 2}.get(name)
        if name in ("tp", "pp", "cp", "ep", "etp", "shard"):
            most = self._base.gpus
        if value < least or (most is not None and value > most):
            hint = f"expected {least} to {most:,}" if most is not None else f"expected at least {least}"
            raise InputError("out-of-range", f"{name} is {value:,}", hint=hint)

    def _chosen(self, name: str, text: str) -> SpaceAxis:
        known = self._words[name]
        values: list[str] = []
        for part in map(str.strip, text.split(",")):
            if part == "all":
                values += known
            elif part == "none" and part not in known:
                raise InputError("bad-value", f"{name} cannot be none", hint=f"known: {', '.join(known)}")
            elif name == "schedule":
                values.append(resolve(part))
            elif name == "rank_order":
                values.append(Mesh(order=part).order)
            elif part in known:
                values.append(part)
            else:
                near = did_you_mean(part, known)
                raise InputError(
                    "unknown-name", f'{name} "{part}" is not known{near}', hint=f"known: {', '.join(known)}"
                )
        ordered = sorted(dict.fromkeys(values), key=lambda value: known.index(value) if value in known else len(known))
        return schedule_axis(ordered) if name == "schedule" else SpaceAxis.of(name, ordered)

    def _flags(self, name: str, text: str) -> SpaceAxis:
        values: list[bool] = []
        for part in map(str.strip, text.lower().split(",")):
            if part == "all":
                values += (False, True)
            elif part == "none" or part in _FLAG_WORDS:
                values.append(_FLAG_WORDS.get(part, False))
            else:
                raise InputError("bad-value", f'{name} "{part}" is neither on nor off', hint="expected on, off or all")
        return SpaceAxis.of(name, sorted(set(values)))

    def _lists(self, name: str, text: str) -> SpaceAxis:
        known = WORD_LISTS[name]
        empty = getattr(Plan(1), name)
        values: list[Any] = []
        for part in map(str.strip, text.split(",")):
            if part == "all":
                values += [empty, *((word,) for word in known), tuple(known)]
            else:
                values.append(empty if part == "none" else self._modules(name, part))
        return SpaceAxis.of(name, values)

    def _modules(self, name: str, text: str) -> tuple[str, ...]:
        known = WORD_LISTS[name]
        words = [word.strip() for word in text.split("+")]
        for word in words:
            if word not in known:
                near = did_you_mean(word, known)
                raise InputError(
                    "unknown-name", f'{name} "{word}" is not known{near}', hint=f"known: {', '.join(known)}"
                )
        return tuple(word for word in known if word in words)

    def _recompute(self, name: str, text: str) -> SpaceAxis:
        choices: list[tuple[Any, ...]] = []
        for part in map(str.strip, text.split(",")):
            kind, _, layers = part.partition(":")
            if part == "all":
                choices += [("none", None, None), ("selective", None, None)]
                choices += [("selective", (module,), None) for module in self._stack.recompute_modules]
                choices.append(("full", None, None))
            elif kind == "full" and layers:
                choices.append(("full", None, parse_count(layers, where=flag_of(name))))
            elif part in WORDS["recompute"]:
                choices.append((part, None, None))
            else:
                choices.append(("selective", self._modules("recompute_modules", part), None))
        return SpaceAxis(name, RECOMPUTE_FIELDS, tuple(dict.fromkeys(choices)))

    def _layouts(self, name: str, text: str) -> SpaceAxis:
        values = [None if part.strip() == "none" else str(parse_layout(part)) for part in text.split(";")]
        return SpaceAxis.of(name, values)
