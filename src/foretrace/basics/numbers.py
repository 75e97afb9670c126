"""Reads the numbers of files and options: the one place where text or a JSON value becomes a number.

Python's `int` and `float` accept more than a file may say: digits of other scripts, `nan`, `1e400`, numbers of millions
of digits, `True`. Both functions here refuse what is not a finite number within its range. A `NumberError` completes a
sentence that begins with the value: `"-3" is negative`.
"""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any, Final, NamedTuple

from foretrace.basics.errors import InputError, shown, shown_value

MAX_WHOLE: Final = 2**63 - 1
"""The largest whole number: 292 years in nanoseconds, 8 EiB in bytes."""

MAX_REAL: Final = 1e30
"""The largest other number: no rate, time or count of a training run comes near it."""

_TEXT: Final = (str, bytes)
_PLAIN_TYPES: Final = frozenset((int, float, bool, str, type(None)))
_MAX_CHARACTERS: Final = 400
_NUMBER: Final = re.compile(
    r"[+-]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
)
_PLAIN: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?(?:e[+-]?[0-9]{1,2})?")
_NOT_FINITE: Final = re.compile(r"[+-]?(?:nan|inf)", re.IGNORECASE)


class NumberError(ValueError):
    """A value that is not a number, or not one within its range; `code` is the code that an error should have."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code
        self.problem = problem


def python_number(value: Any) -> Any:
    """Returns a number or flag of NumPy as Python's own, also within a list or tuple; any other value as it is."""
    if isinstance(value, list | tuple):
        return type(value)(map(python_number, value)) if type(value) in (list, tuple) else value
    if type(value) in _PLAIN_TYPES or getattr(value, "ndim", None) != 0:
        return value
    return value.item() if isinstance(value, Real) or type(value).__name__ in ("bool", "bool_") else value


def whole_number(value: object, *, least: int = 0, most: int = MAX_WHOLE) -> int:
    """Returns a whole number from its text ("8192", "8,192", "1e6") or from a JSON value.

    Args:
        value: Text, bytes, or a value that JSON can hold.
        least: The smallest number that is accepted.
        most: The largest number that is accepted.

    Raises:
        NumberError: The value is not a whole number, or outside the range.
    """
    if isinstance(value, _TEXT) and len(value) < 19 and value.isdigit() and value.isascii():
        whole = int(value)  # nearly every number of a file
        if least <= whole <= most:
            return whole
    number = any_number(value, least=least, most=most)
    if isinstance(number, float):
        raise NumberError("bad-value", "is not a whole number")
    return number


def any_number(value: object, *, least: float = 0, most: float = MAX_WHOLE) -> int | float:
    """Returns a finite number from its text or from a JSON value, as an `int` where it is whole ("8192", "1e6", "2.0").

    Args:
        value: Text, bytes, or a value that JSON can hold.
        least: The smallest number that is accepted.
        most: The largest number that is accepted.

    Raises:
        NumberError: The value is not a finite number, or outside the range.
    """
    number = _number(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    _check_range(number, least, most)
    return number


def real_number(value: object, *, least: float = 0.0, most: float = MAX_REAL) -> float:
    """Returns a finite number from its text ("1.5", "1e-3", "1,024.5") or from a JSON value.

    Args:
        value: Text, bytes, or a value that JSON can hold.
        least: The smallest number that is accepted.
        most: The largest number that is accepted.

    Raises:
        NumberError: The value is not a finite number, or outside the range.
    """
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        number: int | float = float(value)  # nearly every time of a file
        if least <= number <= most:
            return number
    number = _number(value)
    _check_range(number, least, most)
    return float(number)


def number_error(
    error: NumberError, name: str, value: object, where: str | None, hint: str | None = None
) -> InputError:
    """Returns the error that a user sees for the value of a field called `name`."""
    return InputError(error.code, f"{shown(name)} {shown_value(value)} {error.problem}", where=where, hint=hint)


def whole_field(
    name: str, value: object, where: str | None, *, least: int = 0, most: int = MAX_WHOLE, hint: str | None = None
) -> int:
    """Returns the whole number of a field called `name`; raises the error of `number_error` where it is not one."""
    try:
        return whole_number(value, least=least, most=most)
    except NumberError as error:
        raise number_error(error, name, value, where, hint) from None


def real_field(
    name: str, value: object, where: str | None, *, least: float = 0.0, most: float = MAX_REAL, hint: str | None = None
) -> float:
    """Returns the finite number of a field called `name`; raises the error of `number_error` where it is not one."""
    try:
        return real_number(value, least=least, most=most)
    except NumberError as error:
        raise number_error(error, name, value, where, hint) from None


def _number(value: object) -> int | float:
    """Returns the finite number that a value is, whole where it is written without a fraction or an exponent."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return _number_of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NumberError("bad-value", "is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise NumberError("out-of-range", "is not a finite number")
    return value


def _number_of_text(text: str) -> int | float:
    leading = leading_number(text)
    if leading.rest or "_" in text:
        raise NumberError("bad-value", "is not a number")
    return leading.value


class LeadingNumber(NamedTuple):
    """The number that a text begins with, and the text after it: 400 and "Gbps" of "400Gbps"."""

    value: int | float
    digits: str
    """The number as it is written, for exact arithmetic: thousands are not set apart, and its exponent is small."""
    rest: str


def leading_number(text: str) -> LeadingNumber:
    """Returns the number that a text begins with.

    Thousands may be set apart by commas or, as programmers do, by `_`. A number is whole where it is written without a
    fraction or an exponent.

    Raises:
        NumberError: The text does not begin with a finite number, or with one of more than 400 characters.
    """
    match = _NUMBER.match(text)
    if match is None:
        if _NOT_FINITE.match(text):
            raise NumberError("out-of-range", "is not a finite number")
        raise NumberError("bad-value", "is not a number" if text else "is empty")
    if match.end() > _MAX_CHARACTERS:
        raise NumberError("out-of-range", f"is too long for a number: {match.end():,} characters")
    digits = match[0].replace(",", "").replace("_", "")
    number = float(digits)
    if digits.lstrip("+-").isdigit() and math.isfinite(number):
        return LeadingNumber(int(digits), digits, text[match.end() :])
    if not math.isfinite(number):
        raise NumberError("out-of-range", "is too large")
    if not number and re.search("[1-9]", re.split("[eE]", digits)[0]):
        raise NumberError("out-of-range", "is too close to zero")
    return LeadingNumber(number, digits if number else "0", text[match.end() :])


def _check_range(number: int | float, least: float, most: float) -> None:
    if number < least:
        problem = "is negative" if least == 0 else f"is less than {_shown(least)}"
        raise NumberError("out-of-range", problem)
    if number > most:
        raise NumberError("out-of-range", f"is too large: at most {_shown(most)}")


def _shown(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) and abs(bound) < 10**12 else f"{bound:.3g}"
