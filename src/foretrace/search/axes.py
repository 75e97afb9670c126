"""Reads what a sweep varies: `NAME=VALUES`, as it is written after `--over`.

`microbatches=8,16,32`     values written out
`gpus=64:1024:x2`          from 64 to 1,024, multiplied by 2 each time
`pp=1:8`, `vpp=1:8:+1`     from 1 to 8, one more each time; `power=300W:700W:+100W` with a unit
`stage-layers=20+20,18+22` values that are lists themselves are joined by +

Values stay texts: whoever changes the job reads them as the option of this name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from foretrace.basics.errors import InputError, UsageError, shortened
from foretrace.basics.numbers import NumberError, real_number
from foretrace.basics.units import format_count, parse_count, parse_tokens

MAX_POINTS: Final = 1000
"""Points of a sweep; more would take long, and nobody would read them."""

MAX_AXES: Final = 20
"""Options that a sweep varies."""

Value = int | float | str

_FORM: Final = "expected NAME=v1,v2,… or NAME=low:high:x2 or NAME=low:high:+1, as in --over microbatches=8,16,32"
_RANGE_FORM: Final = "a range is low:high, low:high:xFACTOR or low:high:+STEP, as 64:1024:x2 or 1:8:+1"
_NUMBER: Final = r"[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+"
_QUANTITY: Final = re.compile(rf"\s*({_NUMBER})(?:\s*([A-Za-z×%][A-Za-z0-9/×%]*))?\s*")
_STEP: Final = re.compile(rf"\s*([x+])\s*({_NUMBER})(?:\s*([A-Za-z×%][A-Za-z0-9/×%]*))?\s*")
_OF_TOKENS: Final = ("seq", "seq-len", "seq_len")
"""Axes that count tokens, of which 8k are 8,192."""
_FACTORS: Final = ("x", "×")


@dataclass(frozen=True, slots=True)
class AxisValue:
    """A value of an axis: as an option is given it, as a number where it is one, and as people write it."""

    text: str
    value: Value
    label: str

    @property
    def unit(self) -> str:
        """The unit of the value as it was written; empty where it has none."""
        quantity = _QUANTITY.fullmatch(self.text)
        return "" if quantity is None else _unit(quantity[2])

    @property
    def number(self) -> float | None:
        """The value as a number, without its unit; None where it is a name."""
        if not isinstance(self.value, str):
            return float(self.value)
        quantity = _QUANTITY.fullmatch(self.value)
        return _number(quantity[1]) if quantity else None


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """A quantity that is varied, and its values."""

    name: str
    values: tuple[AxisValue, ...]


Point = tuple[AxisValue, ...]
"""A value of each axis."""


def read_axes(texts: Sequence[str]) -> tuple[SweepAxis, ...]:
    """Reads the axes of a sweep, whose points are all combinations of their values.

    Raises:
        UsageError: An axis cannot be read or is given twice, or there are more than `MAX_POINTS` points.
    """
    if len(texts) > MAX_AXES:
        raise UsageError("too-large", f"--over is given more than {MAX_AXES} times", hint="vary fewer options")
    axes = tuple(parse_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError("repeated-option", f"--over {name} is given twice", hint="give all its values at once")
    points = 1
    for axis in axes:
        points *= len(axis.values)
    if points > MAX_POINTS:
        raise UsageError(
            "too-large", f"{points:,} combinations are more than {MAX_POINTS:,}", hint="leave out values of --over"
        )
    return axes


def points_of(axes: Sequence[SweepAxis]) -> list[Point]:
    """Returns all combinations of values; the last axis varies fastest."""
    return list(product(*(axis.values for axis in axes)))


def parse_axis(text: str) -> SweepAxis:
    """Reads an axis as it is written on the command line."""
    name, equals, values = (part.strip() for part in text.partition("="))
    where = f"--over {shortened(text)}"
    if not equals or not name or not values:
        raise UsageError("missing-argument", "a sweep needs a name and values", where=where, hint=_FORM)
    # 1,024 in a list of values is two of them: thousands are not set apart here.
    texts = [
        value
        for part in values.split(",", MAX_POINTS)  # one more is refused with all others
        for value in _expanded(part.strip(), where)
    ]
    points = tuple(read_value(value, parse_tokens if name in _OF_TOKENS else parse_count) for value in texts)
    seen: set[Value] = set()
    for point in points:
        if point.value in seen:
            raise UsageError("repeated-option", f"{shortened(point.label)} is given twice", where=where)
        seen.add(point.value)
    return SweepAxis(name.removeprefix("--"), points)


def read_value(text: str, parse: Callable[[str], int] = parse_count) -> AxisValue:
    """Reads one value: a count (by `parse`), a factor (`1.5x`), a share (`3%`), or any other text."""
    quantity = _QUANTITY.fullmatch(text)
    number = _number(quantity[1]) if quantity is not None else None
    if quantity is None or number is None:
        return _count_or_text(text, parse)
    if quantity[2] in _FACTORS:
        return AxisValue(text, number, f"{number:g}×")
    if quantity[2] == "%":
        return AxisValue(text, number / 100, f"{number:g} %")
    value = _count_or_text(text, parse)
    return AxisValue(text, number, text) if isinstance(value.value, str) and not quantity[2] else value


def _count_or_text(text: str, parse: Callable[[str], int]) -> AxisValue:
    try:
        count = parse(text)
    except InputError:
        return AxisValue(text, text, text)
    return AxisValue(text, count, format_count(count))


def _number(text: str) -> float | None:
    """Returns a number of a value or a range; None where it is too large to be meant."""
    try:
        return real_number(text)
    except NumberError:
        return None


def _expanded(part: str, where: str) -> Iterator[str]:
    """Yields the values that one part of a list stands for: itself, or those of a range."""
    if not part:
        raise UsageError("missing-argument", "a value is missing", where=where, hint=_FORM)
    ends = part.split(":")
    first = _QUANTITY.fullmatch(ends[0])
    if len(ends) == 1 or first is None:
        yield part
        return
    last = _QUANTITY.fullmatch(ends[1])
    step = _STEP.fullmatch(ends[2] if len(ends) > 2 else "+1")
    if len(ends) > 3 or last is None or step is None or _unit(first[2]) != _unit(last[2]):
        raise UsageError("bad-value", f'"{shortened(part)}" is not a range', where=where, hint=_RANGE_FORM)
    if step[3] and _unit(step[3]) != _unit(first[2]):
        raise UsageError("bad-value", f'"{shortened(part)}" steps in another unit', where=where, hint=_RANGE_FORM)
    low, high, size = (_number(text) for text in (first[1], last[1], step[2]))
    if low is None or high is None or size is None:
        problem = f'a number of "{shortened(part)}" cannot be meant'
        raise UsageError("out-of-range", problem, where=where, hint=_RANGE_FORM)
    yield from _range(part, (low, high), (step[1], size), first[2] or "", where)


def _unit(text: str | None) -> str:
    return "x" if text in _FACTORS else text or ""


def _range(part: str, ends: tuple[float, float], step: tuple[str, float], unit: str, where: str) -> Iterator[str]:
    """Yields `low`, and each next value by the factor or the step, up to `high`; counts are rounded."""
    (low, high), (sign, size) = ends, step
    if high < low or (sign == "x" and (low <= 0 or size <= 1)) or size <= 0:
        hint = "high is not below low; low is above 0 and the factor above 1 where values are multiplied"
        raise UsageError("out-of-range", f'"{shortened(part)}" goes nowhere', where=where, hint=hint)
    whole = not unit and low.is_integer() and high.is_integer() and (sign == "x" or size.is_integer())
    before, number, value = "", 0, low
    while value <= high * (1 + 1e-9):
        if number == MAX_POINTS:  # every value counts: x1.0000001 rounds to the same count for ever
            problem = f'"{shortened(part)}" has more than {MAX_POINTS:,} values'
            raise UsageError(
                "too-large", problem, where=where, hint=f"take a larger step: {shortened(part.split(':')[0])}:…:x2"
            )
        text = f"{round(value) if whole else float(f'{value:.12g}'):.15g}{unit}"
        if text != before:
            yield text
        before, number = text, number + 1
        value = low * size**number if sign == "x" else low + number * size
