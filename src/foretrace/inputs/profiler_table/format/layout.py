"""Finds where a profiler table is in a text, and where its columns are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.inputs.profiler_table.format.headings import looks_like_headings

_WORD: Final = re.compile(r"\w")
_MIN_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True)
class Spans:
    """Columns as a line of dashes has them: what it begins with before the table (a logger's prefix), and the width of
    each column; two spaces part them."""

    before: str
    widths: tuple[int, ...]

    @property
    def offset(self) -> int:
        """Where the first column begins."""
        return len(self.before)

    def fits(self, line: str) -> bool:
        """Whether a line begins as the dashes do, but for letters and digits: a wider or narrower prefix would shift
        its cells."""
        return not self.before or _shape(line[: self.offset]) == _shape(self.before)

    def cells(self, line: str) -> list[str]:
        """The cells of a line, without the blanks around them. One that is longer than its column pushes the others to
        the right, as PyTorch's formatting does; the last one has the rest of the line."""
        cells: list[str] = []
        at = self.offset
        for width in self.widths[:-1]:
            end = at + width
            if line[end : end + 2].strip():
                # Two spaces end a cell; the last of them may be the first of the next cell's padding.
                gap = line.find("  ", end)
                end = gap if gap >= 0 else len(line)
            cells.append(line[at:end].strip())
            at = end + 2
        return [*cells, line[at:].strip()]


def _shape(prefix: str) -> str:
    return _WORD.sub("a", prefix).rstrip()


def read_dashes(line: str) -> Spans | None:
    """Returns the columns that a line of dashes draws; None where it is not such a line."""
    text = line.rstrip(" ")
    if not text.endswith("-"):
        return None
    # From the right, as a pattern that began at every character would take quadratic time.
    widths: list[int] = []
    for part in reversed(text.split("  ")):
        rest = part.rstrip("-")
        if len(rest) < len(part):
            widths.append(len(part) - len(rest))
        if rest or not part:
            break
    end = sum(widths) + 2 * (len(widths) - 1)
    return Spans(text[: len(text) - end], tuple(reversed(widths))) if len(widths) >= _MIN_COLUMNS else None


@dataclass(frozen=True, slots=True)
class TableLines:
    """Where a table is: lines by their position from 0. Rows are from `first` up to but not with `end`."""

    spans: Spans
    headings: int
    first: int
    end: int
    closed: bool
    """Whether a line of dashes ends it."""
    top: int
    """The first line of the table itself: the dashes above the headings, where they are there."""


def find_tables(lines: Sequence[str]) -> list[TableLines]:
    """Every table of a text: headings, a line of dashes below them, rows, and a line of dashes."""
    places: list[TableLines] = []
    at = 1
    while at < len(lines):
        spans = read_dashes(lines[at])
        above = None if spans is None else read_dashes(lines[at - 1])
        if spans is None or above is not None or not looks_like_headings(lines[at - 1][spans.offset :]):
            at += 1
            continue
        end = at + 1
        while end < len(lines) and read_dashes(lines[end]) is None:
            end += 1
        closed = end < len(lines)
        if not closed:
            end = _last_row(lines, at + 1)
        top = at - 2 if at >= 2 and read_dashes(lines[at - 2]) is not None else at - 1
        places.append(TableLines(spans, at - 1, at + 1, end, closed, top))
        at = end + 1
    return places


def _last_row(lines: Sequence[str], first: int) -> int:
    """Where the rows of a table end that no line of dashes ends: before the blank lines at the end of the file."""
    end = len(lines)
    while end > first and not lines[end - 1].strip():
        end -= 1
    return end
