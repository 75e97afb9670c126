"""A table of text: a heading, and rows of cells."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.report.terminal import Span


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> list[list[Span]]:
    """The first cell of each row to the left, the others to the right; the heading bold, and a remark below."""
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        rest = "".join(f"  {cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"{cells[0]:<{widths[0]}}{rest}"

    head = line(heads)
    lines: list[list[Span]] = [[(f"  {head[: widths[0]]}", "bold"), (head[widths[0] :], "")]]
    lines += [[(f"  {line(row)}", "")] for row in rows]
    return [*lines, [(f"  {note}", "bright_black")]] if note else lines
