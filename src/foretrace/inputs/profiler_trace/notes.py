"""Notes of a job's ranks: those that say the same, but for their numbers, are one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from foretrace.basics.errors import Diagnostic

_NUMBER: Final = re.compile(r"(?<![\w#.,-])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")
"""Of its own, so that names keep theirs."""


def grouped(notes: Iterable[Diagnostic]) -> list[Diagnostic]:
    """One note for all that differ in numbers alone, with the range of each; it says of whom, and of how many more. A
    note of no one in particular is left as it is."""
    similar: dict[tuple[str, str, str], list[Diagnostic]] = {}
    for note in notes:
        text = _NUMBER.sub("0", note.message) if note.where is not None else note.message
        similar.setdefault((note.level, note.code, text), []).append(note)
    return [_merged(some) for some in similar.values()]


def _merged(notes: list[Diagnostic]) -> Diagnostic:
    first = notes[0]
    if len(notes) == 1 or first.where is None:
        return first
    numbers = [list(texts) for texts in zip(*(_NUMBER.findall(note.message) for note in notes), strict=True)]
    ranges = iter([_range(texts) for texts in numbers])
    message = _NUMBER.sub(lambda _: next(ranges), first.message)
    return Diagnostic(first.level, first.code, message, f"{first.where} and {len(notes) - 1:,} more")


def _range(texts: list[str]) -> str:
    low, high = (pick(texts, key=lambda text: float(text.replace(",", ""))) for pick in (min, max))
    return low if low == high else f"{low}–{high}"
