"""A table of text: a heading, and rows of cells."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.report.terminal import Span


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", text_columns: int = 1
) -> list[list[Span]]:
    """Returns the lines of a table: a heading whose first cell is bold, the rows, and a note below.

    Args:
        heads: The heads of the columns.
        rows: The cells of each row, as many as there are heads.
        note: A line below the table; none where it is empty.
        text_columns: How many of the first columns are aligned left; the others are aligned right.
    """
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            f"{cell:<{width}}" if number < text_columns else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded)

    head = line(heads)
    lines: list[list[Span]] = [[(f"  {head[: widths[0]]}", "bold"), (head[widths[0] :], "")]]
    lines += [[(f"  {line(row)}", "")] for row in rows]
    return [*lines, [(f"  {note}", "bright_black")]] if note else lines
