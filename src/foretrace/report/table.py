"""A table of text: a heading, and rows of cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretrace.report.wrap import Line, TableLayout, TableLine


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of an answer as text: a screen prints its first rows, a page has all of them."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    """A line below the table."""
    text_columns: int = 1
    """How many of the first columns are aligned left; the others are aligned right."""
    max_rows: int | None = None
    """Rows that a screen has room for, where that is not as usual."""
    hidden: int = 0
    """Rows that are left out."""

    @property
    def none_text(self) -> str:
        """What stands for a table without rows."""
        return f"{self.heads[0]}: none{f'; {self.note}' if self.note else ''}"

    def first(self, count: int) -> TextTable:
        """Returns the table with its first `count` rows; the others are counted."""
        left_out = max(len(self.rows) - count, 0)
        return replace(self, rows=self.rows[:count], hidden=self.hidden + left_out)

    def lines(self) -> list[Line]:
        """Returns the table as lines of a screen; its note says how many rows are left out."""
        more = f"{self.hidden:,} more in --json" if self.hidden > 0 else ""
        note = "; ".join(text for text in (self.note, more) if text)
        return table(self.heads, self.rows, note, self.text_columns)

    def spaced_lines(self) -> list[Line]:
        """Returns a blank line and the table; nothing without rows."""
        return [[], *self.lines()] if self.rows else []


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", text_columns: int = 1) -> list[Line]:
    """Returns the lines of a table: a heading whose first cell is bold, the rows, and a note below.

    Args:
        heads: The heads of the columns.
        rows: The cells of each row, as many as there are heads.
        note: A line below the table; none where it is empty.
        text_columns: How many of the first columns are aligned left; the others are aligned right.
    """
    layout = TableLayout(tuple(heads), tuple(tuple(row) for row in rows), text_columns)
    lines: list[Line] = [TableLine(line, layout) for line in layout.lines(None)]
    return [*lines, [(f"  {note}", "bright_black")]] if note else lines
