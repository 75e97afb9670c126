"""A table of text: a heading, and rows of cells."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.report.wrap import Line, TableLayout, TableLine


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", text_columns: int = 1) -> list[Line]:
    """Returns the lines of a table: a heading whose first cell is bold, the rows, and a note below.

    Args:
        heads: The heads of the columns.
        rows: The cells of each row, as many as there are heads.
        note: A line below the table; none where it is empty.
        text_columns: How many of the first columns are aligned left; the others are aligned right.
    """
    made = TableLayout(tuple(heads), tuple(tuple(row) for row in rows), text_columns)
    lines: list[Line] = [TableLine(line, made) for line in made.lines(None)]
    return [*lines, [(f"  {note}", "bright_black")]] if note else lines
