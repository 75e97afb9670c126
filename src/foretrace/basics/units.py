"""Quantities as people write them: "400Gbps", "80GiB", "25us" in; SI floats inside; readable text out.

Every ``parse_*`` takes text or a plain number; a plain number is already in SI units and passes through. Text
needs its unit, except bytes, counts and factors (and a plain 0), where a bare number has only one meaning.
``where`` is the file and line, or the field, that an error names.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real

from foretrace.basics.errors import MAX_NAME, InputError, shortened
from foretrace.basics.numbers import MAX_REAL, MAX_WHOLE, LeadingNumber, NumberError, leading_number, number_error

MINUS = "\N{MINUS SIGN}"

MIN_AMOUNT = 1e-30
"""The smallest quantity in SI units other than 0: the planner's and the engine's sums lose smaller ones."""

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", start=1)}

_MINUTE_S = 60.0
_HOUR_S = 3600.0
_DAY_S = 86400.0

_MIN_TIME_S = 1e-12
"""Shorter times are what is left of sums that cancel: no clock resolves them."""
_MIN_PREFIXED_BYTES = 512
"""Smaller sizes must be whole numbers of bytes: half of the smallest binary unit."""
_ROUNDING = 1e-9
"""Times that differ by a smaller share than this differ by the rounding of their sums."""


@dataclass(frozen=True, slots=True)
class _Quantity:
    """One kind of quantity: what it is called, how it is written, and its units in SI."""

    name: str
    form: str
    scales: Mapping[str, float]
    bare: float | None = None
    """Scale of text without a unit; None where a unit is required."""
    least: float = MIN_AMOUNT
    """The smallest amount in SI units, other than 0."""
    most: float = MAX_REAL


def _byte_scales(suffixes: tuple[str, ...]) -> dict[str, float]:
    """Scales of B with every prefix, each followed by one of the suffixes."""
    return {f"{prefix}B{suffix}": scale for prefix, scale in (_DECIMAL | _BINARY).items() for suffix in suffixes}


def _bit_scales() -> dict[str, float]:
    """Scales, in bytes per second, of every way to write bits per second."""
    names = ("b/s", "bps", "bit/s", "bits/s")
    return {f"{prefix}{name}": scale / 8 for prefix, scale in (_DECIMAL | _BINARY).items() for name in names}


_TIME = _Quantity(
    "time",
    "a number and a unit: 25us, 1.5 ms or 2h (ns us ms s min h d)",
    {
        "ns": 1e-9,
        "us": 1e-6,
        "\N{MICRO SIGN}s": 1e-6,
        "\N{GREEK SMALL LETTER MU}s": 1e-6,
        "ms": 1e-3,
        "s": 1.0,
        "sec": 1.0,
        "min": _MINUTE_S,
        "h": _HOUR_S,
        "d": _DAY_S,
    },
)
_BYTES = _Quantity(
    "size",
    "a number of bytes, or a number and a unit: 80GiB (binary), 16MB (decimal) or 512",
    _byte_scales(("",)),
    bare=1.0,
)
_BANDWIDTH = _Quantity(
    "bandwidth",
    "a number and a unit: 400Gbps or 400 Gb/s (b is bits), 50GB/s (B is bytes)",
    _byte_scales(("/s", "ps")) | _bit_scales(),
)
_FLOPS = _Quantity(
    "compute rate",
    "a number and a unit: 989 TFLOP/s or 989TFLOPS",
    {
        f"{prefix}{name}": scale
        for prefix, scale in _DECIMAL.items()
        for name in ("FLOP/s", "FLOPS", "FLOPs", "FLOPs/s", "Flop/s", "Flops", "flop/s", "flops")
    },
)
_POWER = _Quantity("power", "a number and a unit: 500W or 1.2kW", {"W": 1.0, "kW": 1e3, "MW": 1e6})
_FACTOR = _Quantity(
    "factor",
    "a number above 0: 1.1x or 110%",
    {"x": 1.0, "\N{MULTIPLICATION SIGN}": 1.0, "%": 0.01},
    bare=1.0,
    least=1e-9,
    most=1e9,
)
_COUNT = _Quantity(
    "count",
    "a whole number: 1024, 1,024, 1e6, or 300k, 70B, 15T (decimal)",
    {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12},
    bare=1.0,
)
_WHOLE = _Quantity("count", "a whole number: 1024, 1,024 or 1e6", {}, bare=1.0)
# Models state contexts in powers of two: 128k is 131,072 (Llama 3.1), 10M is 10,485,760 (Llama 4 Scout's config.json).
_TOKENS = _Quantity(
    "number of tokens",
    "a whole number: 8192, 8,192 or 8k (8k = 8,192, 1M = 1,048,576)",
    {"k": 1024.0, "K": 1024.0, "M": 1024.0**2},
    bare=1.0,
)


def parse_time(value: str | float, *, where: str | None = None) -> float:
    """Seconds, from "25us", "1.5 ms", "2h"."""
    return _parse(value, _TIME, where)


def parse_bytes(value: str | float, *, where: str | None = None) -> int:
    """Bytes, to the nearest, from "80GiB" (binary), "16MB" (decimal) or "512"."""
    amount = _exact(value, _BYTES, where)
    # 0.1GiB is not whole, and nobody means a part of a byte by it; "1.5" is a mistake.
    if amount.denominator != 1 and amount < _MIN_PREFIXED_BYTES:
        raise _refusal("bad-value", value, _BYTES, where, "is not whole")
    return round(amount)


def parse_bandwidth(value: str | float, *, where: str | None = None) -> float:
    """Bytes per second, from "400Gbps", "400 Gbit/s" (bits) or "50GB/s", "50GBps" (bytes)."""
    return _parse(value, _BANDWIDTH, where)


def parse_flops(value: str | float, *, where: str | None = None) -> float:
    """Floating-point operations per second, from "989 TFLOP/s" or "989TFLOPS"."""
    return _parse(value, _FLOPS, where)


def parse_power(value: str | float, *, where: str | None = None) -> float:
    """Watts, from "500W" or "1.2kW"."""
    return _parse(value, _POWER, where)


def parse_factor(value: str | float, *, where: str | None = None) -> float:
    """A ratio above 0, from "1.1x", "1.1" or "110%"."""
    factor = _parse(value, _FACTOR, where)
    if factor == 0.0:
        raise _refusal("out-of-range", value, _FACTOR, where, "is zero")
    return factor


def marked_factor(text: str) -> float | None:
    """The factor that a text such as "2x" or "110%" is; None where it is an amount, a count or a name."""
    stripped = text.strip()
    if not stripped[:1].isdigit() or stripped[-1:] not in ("x", "\N{MULTIPLICATION SIGN}", "%"):
        return None
    return parse_factor(stripped)


def parse_marked_factor(text: str, *, where: str | None = None) -> float:
    """A ratio above 0 that is marked as one, from "1.1x" or "110%": a bare number could be a count."""
    factor = parse_factor(text, where=where)
    if not _split(text, _FACTOR, where).rest:
        hint = f"write {shortened(text.strip())}x"
        raise _refusal("bad-value", text.strip(), _FACTOR, where, "has no x", hint)
    return factor


def parse_count(value: str | float, *, where: str | None = None) -> int:
    """A whole number, from "1024", "1,024", "1_024", "1e6", "300k" or "15T" (decimal)."""
    return _parse_whole(value, _COUNT, where)


def parse_whole(value: str | float, *, where: str | None = None) -> int:
    """A whole number of a file of another tool, from "1024", "1,024", "1_024" or "1e6"; such a tool knows no 8k."""
    return _parse_whole(value, _WHOLE, where)


_ROUNDED_CONTEXTS = tuple(1 << exponent for exponent in range(15, 20))
"""Contexts of 32,768 to 524,288 tokens, whose thousands are another number than their multiples of 1,024."""


def parse_tokens(value: str | float, *, where: str | None = None) -> int:
    """Returns the tokens of a sequence, from "8192" or "8k".

    Contexts are powers of two, so 8k is 8,192, and so is the one that a rounded number of thousands means: 131k is
    131,072 and not 134,144.
    """
    tokens = _parse_whole(value, _TOKENS, where)
    if isinstance(value, str) and value.strip().lower().endswith("k") and tokens % 1024 == 0:
        for power in _ROUNDED_CONTEXTS:
            if tokens // 1024 in (power // 1000, round(power / 1000)):
                return power
    return tokens


def _parse_whole(value: str | float, quantity: _Quantity, where: str | None) -> int:
    exact = _exact(value, quantity, where)
    if exact.denominator != 1:
        raise _refusal("bad-value", value, quantity, where, "is not whole")
    return exact.numerator


def _exact(value: str | float, quantity: _Quantity, where: str | None) -> Fraction:
    """Returns a quantity without rounding: 1.005k is 1005, which floats miss by a little."""
    if type(value) is int and 0 <= value <= MAX_WHOLE:
        return Fraction(value)
    amount = _parse(value, quantity, where)
    if amount > MAX_WHOLE:
        raise _refusal("out-of-range", value, quantity, where, "is too large")
    if not isinstance(value, str):
        return Fraction(value)
    number = _split(value, quantity, where)
    return Fraction(number.digits) * int(_scale(value, number, quantity, where))


def _parse(value: str | float, quantity: _Quantity, where: str | None) -> float:
    if isinstance(value, str):
        number = _split(value, quantity, where)
        scale = _scale(value, number, quantity, where)
        # Dividing by 1e6 rounds once where multiplying by 1e-6 rounds twice: "25us" must equal 25e-6.
        amount = float(number.value) * scale if scale >= 1 else float(number.value) / round(1 / scale)
    elif isinstance(value, Real) and not isinstance(value, bool):
        amount = _as_float(value)
    else:
        raise _refusal("bad-value", value, quantity, where, "is neither text nor a number")
    if not math.isfinite(amount):
        raise _refusal("out-of-range", value, quantity, where, "is not a finite number")
    if amount < 0:
        raise _refusal("out-of-range", value, quantity, where, "is negative")
    if amount > quantity.most:
        raise _refusal("out-of-range", value, quantity, where, "is too large")
    if 0 < amount < quantity.least:
        raise _refusal("out-of-range", value, quantity, where, "is too close to zero")
    return amount


def _as_float(value: float) -> float:
    """The number as a float; infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _split(text: str, quantity: _Quantity, where: str | None) -> LeadingNumber:
    """The number that a text begins with, and as its rest the unit."""
    stripped = text.strip()
    if stripped[:1] == MINUS:
        raise _refusal("out-of-range", text, quantity, where, "is negative")
    if stripped[:1] == "+":  # "+10%" as a factor is 1.1, not 0.1
        raise _refusal("bad-value", text, quantity, where, "does not start with a number")
    try:
        number = leading_number(stripped)
    except NumberError as error:
        problem = "does not start with a number" if stripped and error.code == "bad-value" else error.problem
        raise _refusal(error.code, text, quantity, where, problem) from None
    if stripped[0] == "-":
        raise _refusal("out-of-range", text, quantity, where, "is negative")
    return number._replace(rest=number.rest.strip())


def _scale(text: str, number: LeadingNumber, quantity: _Quantity, where: str | None) -> float:
    """Returns the size of the unit in SI."""
    unit = number.rest
    if unit in quantity.scales:
        return quantity.scales[unit]
    if not unit and (quantity.bare is not None or not number.value):
        return quantity.bare or 1.0
    if not unit:
        raise _refusal("bad-value", text, quantity, where, "has no unit")
    if not quantity.scales or not unit[0].isalpha():
        raise _refusal("bad-value", text, quantity, where, f'has "{shortened(unit)}" after the number')
    near = _near_units(unit, quantity)
    suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
    raise _refusal("bad-value", text, quantity, where, f'has the unknown unit "{shortened(unit)}"{suggestion}')


def _near_units(unit: str, quantity: _Quantity) -> list[str]:
    """At most two units that were probably meant: the same letters in another case, else a close spelling."""
    same_letters = [name for name in quantity.scales if name.casefold() == unit.casefold()]
    if len(unit) > MAX_NAME:
        return []
    # A single letter is near to anything that contains it.
    longer = [name for name in quantity.scales if len(name) > 1]
    return same_letters[:2] or difflib.get_close_matches(unit, longer, n=2, cutoff=0.4)


def _refusal(
    code: str, value: object, quantity: _Quantity, where: str | None, problem: str, hint: str | None = None
) -> InputError:
    return number_error(NumberError(code, problem), quantity.name, value, where, hint or f"expected {quantity.form}")


def format_time(seconds: float, *, unit: str | None = None) -> str:
    """A time in the unit that suits it: "12.84 s", "3.20 ms", "25.0 µs", "2.3 h"; less than a picosecond is "0 s".

    With ``unit`` (as ``parse_time`` reads it) two decimals of that unit, for columns that share one.
    """
    if unit is not None:
        return _signed(seconds, lambda size: f"{size / _TIME.scales[unit]:.2f} {unit}")
    return "0 s" if abs(seconds) < _MIN_TIME_S else _signed(seconds, _format_positive_time)


def difference_s(after_s: float, before_s: float) -> float:
    """The difference of two times; 0 where both are equal but for rounding."""
    change_s = after_s - before_s
    is_rounding = abs(change_s) <= _ROUNDING * max(abs(after_s), abs(before_s)) or abs(change_s) < _MIN_TIME_S
    return 0.0 if is_rounding else change_s


def format_difference(after_s: float, before_s: float) -> str:
    """The difference of two times with its sign: "+1.20 ms"; "0 s" where both are equal but for rounding."""
    change_s = difference_s(after_s, before_s)
    if change_s == 0:
        return "0 s"
    return f"{'+' if change_s > 0 else MINUS}{format_time(abs(change_s))}"


def format_bytes(size_bytes: float) -> str:
    """A size in binary units: "61.3 GiB"."""
    if abs(size_bytes) < 1024 and float(size_bytes).is_integer():
        return _signed(size_bytes, lambda size: f"{size:.0f} B")
    return _signed(size_bytes, lambda size: _with_prefix(size, 1024.0, ("", *_BINARY), "B"))


def format_bandwidth(bytes_per_s: float) -> str:
    """A bandwidth in decimal units: "50.0 GB/s"."""
    return _signed(bytes_per_s, lambda size: _with_prefix(size, 1000.0, ("", *"kMGTPE"), "B/s"))


def format_flops(flops: float) -> str:
    """A compute rate: "989 TFLOP/s"."""
    return _signed(flops, lambda size: _with_prefix(size, 1000.0, ("", *"kMGTPE"), "FLOP/s"))


def format_count(count: int) -> str:
    """A whole number with its thousands apart: "1,024"."""
    return f"{count:,}".replace("-", MINUS)


def format_number(number: float) -> str:
    """A number without a unit: three digits, or all of the whole number from 100 on ("1,741")."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def format_percent(fraction: float) -> str:
    """A fraction of one in percent: 0.412 is "41.2 %"."""
    return _signed(fraction, lambda size: f"{100 * size:.1f} %")


def _signed(value: float, show: Callable[[float], str]) -> str:
    """The value shown by its size, with a true minus unless it rounds to zero."""
    text = show(abs(value))
    return f"{MINUS}{text}" if value < 0 and text != show(0.0) else text


def _format_positive_time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return f"{seconds} s"
    for unit, scale in (("ns", 1e-9), ("\N{MICRO SIGN}s", 1e-6), ("ms", 1e-3)):
        figures = _three_figures(seconds / scale)
        if float(figures) < 1000:
            return f"{figures} {unit}"
    # The longer units begin late enough that one decimal still tells a few percent apart.
    if seconds < 10 * _MINUTE_S:
        return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.1f} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / _HOUR_S:.1f} h"
    days = seconds / _DAY_S
    return f"{days:,.1f} d" if days < 1e6 else f"{days:.3g} d"


def _with_prefix(size: float, base: float, prefixes: tuple[str, ...], unit: str) -> str:
    """Three figures with the largest prefix that leaves at least one, so 1023.9 KiB is 1.00 MiB."""
    *smaller, largest = prefixes
    for prefix in smaller:
        figures = _three_figures(size)
        if not float(figures) >= base:
            return f"{figures} {prefix}{unit}"
        size /= base
    return f"{_three_figures(size)} {largest}{unit}"


def _three_figures(size: float) -> str:
    """At least three significant figures of a positive number, plain where that is short."""
    if size == 0:
        return "0"
    if not 0.01 <= size < 1e6:
        return f"{size:.3g}"
    rounded = float(f"{size:.2e}")
    return f"{size:.{max(0, 2 - math.floor(math.log10(rounded)))}f}"
