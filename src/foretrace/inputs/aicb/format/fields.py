"""Single words of a workload file: numbers in, words quoted and corrected in messages."""

from __future__ import annotations

import re
from typing import Final

LARGEST: Final = 2**63 - 1
"""What a number may be at most: 292 years in nanoseconds, 8 EiB in bytes."""

_MAX_DIGITS = 400
_SHOWN = 60
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_NOT_FINITE = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


def number(word: bytes, *, negative: bool = False) -> int | float:
    """The number a word says, whole where it is whole; ValueError says what the word is instead."""
    if word.isdigit() and len(word) < 19:
        return int(word)
    if len(word) > _MAX_DIGITS:
        raise ValueError(f"is too long for a number: {len(word):,} characters")
    if not _NUMBER.fullmatch(word):
        raise ValueError("is not a finite number" if _NOT_FINITE.fullmatch(word) else "is not a number")
    value = int(word) if _WHOLE.fullmatch(word) else float(word)
    if not -LARGEST <= value <= LARGEST:
        raise ValueError("is too large: 2^63 is more than any time or size here")
    if value < 0 and not negative:
        raise ValueError("is negative")
    return int(value) if value == int(value) else value


def whole(word: bytes, *, negative: bool = False) -> int:
    """The whole number a word says; ValueError says what the word is instead."""
    value = number(word, negative=negative)
    if value != int(value):
        raise ValueError("is not a whole number")
    return int(value)


def shown(word: str | bytes) -> str:
    """A word as messages show it: printable and of bearable length."""
    text = word.decode("utf-8", "replace") if isinstance(word, bytes) else word
    part = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in part)


def quoted(word: str | bytes) -> str:
    """A word in quotes, as messages show it."""
    return f'"{shown(word)}"'
