"""Makes blocks of what screens are made of: tables of text, remarks, and lists of advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import MINUS, difference_s, format_count
from foretrace.report.answer_words import sorted_diagnostics
from foretrace.report.page.blocks import Block, Cell, Fold, Notes, Row, Section, Table, Text, Tone
from foretrace.report.table import TextTable

MAX_ROWS: Final = 400
"""Rows of a table on a page; the JSON has more."""
MAX_NOTES: Final = 12
"""Notes that a page shows before the others are folded away."""

_INDENT: Final = 2
"""Spaces on a page for each space that indents a name on a screen."""

_NUMBER: Final = re.compile(rf"(?:(?P<sign>[-+{MINUS}±–]) ?)?(?P<digits>[0-9][0-9,]*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)")
_UNIT: Final = re.compile(r" ?(?P<unit>[A-Za-zµ%×/]+)")
_SCALES: Final = {
    "ps": 1e-12,
    "ns": 1e-9,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGTPE", 1)},
    **{
        f"{prefix}{unit}": 1000.0**power
        for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))
        for unit in ("B/s", "FLOP/s", "b/s")
    },
}
"""The size of each unit, so that columns sort by size: 2 ms before 1 s."""


def page_table(table: TextTable, *, shown: int = 12, summary: str = "") -> Table:
    """Returns a table of a screen as a block, with all its rows up to `MAX_ROWS`.

    Args:
        table: The table.
        shown: Rows that are not folded away.
        summary: Where it is not empty, the whole table is folded away under these words.
    """
    rows = table.rows[:MAX_ROWS]
    left_out = table.hidden + len(table.rows) - len(rows)
    more = left_out_text(left_out)
    numbers = [column for column in range(len(table.heads)) if _holds_numbers(table, column)]
    cells: list[Row] = [
        [_cell(text, column in numbers, column == 0) for column, text in enumerate(row)] for row in rows
    ]
    caption = "; ".join(text for text in (table.note, more) if text)
    return without_empty(Table(table.heads, cells, caption, right=numbers, shown=shown, summary=summary))


def left_out_text(count: int) -> str:
    """Returns how many rows of a table only the JSON has; empty where it has no more."""
    return f"{format_count(count)} more in the JSON" if count > 0 else ""


def _cell(text: str, is_number: bool, is_name: bool) -> str | Cell:
    if is_number:
        return Cell(text, size_of(text))
    depth = len(text) - len(text.lstrip()) if is_name else 0
    return " " * (_INDENT * depth) + text.strip()


def without_empty(table: Table) -> Table:
    """Returns a table without the columns that are empty in all rows."""
    filled = [
        column
        for column in range(len(table.head))
        if column == 0 or any((cell.text if isinstance(cell, Cell) else cell) for cell in _column(table, column))
    ]
    rows: list[Row] = [[row[column] for column in filled] for row in table.rows]
    right = [place for place, column in enumerate(filled) if column in table.right]
    return replace(table, head=[table.head[column].strip() for column in filled], rows=rows, right=right)


def _column(table: Table, column: int) -> list[str | Cell]:
    return [row[column] for row in table.rows]


def sentence(text: str) -> str:
    """Returns a remark of a screen as a sentence."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _holds_numbers(table: TextTable, column: int) -> bool:
    """Returns whether a column beyond the names has numbers, which are aligned right."""
    texts = [row[column] for row in table.rows if row[column]]
    return column >= table.text_columns and bool(texts) and all(_NUMBER.match(text) or text == "–" for text in texts)


def size_of(text: str) -> float | None:
    """Returns the number at the start of a text, in the base of its unit; None where it does not begin with one."""
    number = _NUMBER.match(text)
    if number is None:
        return None
    unit = _UNIT.match(text, number.end())
    size = float(number["digits"].replace(",", "")) * (1.0 if unit is None else _SCALES.get(unit["unit"], 1.0))
    return -size if number["sign"] in ("-", MINUS) else size


def part_blocks(parts: Sequence[TextTable | str], shown: int = 12) -> list[Block]:
    """Returns the tables and remarks of a screen as blocks; of a table without rows, a sentence."""
    return [
        Text(part, "muted")
        if isinstance(part, str)
        else page_table(part, shown=shown)
        if part.rows
        else Text(part.none_text, "muted")
        for part in parts
    ]


def change_tone(after_s: float, before_s: float) -> Tone:
    """Returns the tone of a change of a time: shorter is good, longer is bad, rounding is neither."""
    change_s = difference_s(after_s, before_s)
    return "good" if change_s < 0 else "bad" if change_s > 0 else ""


def numbered(texts: Sequence[str]) -> list[Block]:
    """Returns a numbered list of sentences, the most important one first."""
    return [Text(f"{number}. {text}") for number, text in enumerate(texts, 1)]


def notes_section(diagnostics: Sequence[Diagnostic], title: str = "Assumptions and warnings") -> Iterator[Section]:
    """Yields the section of warnings and notes, the urgent ones first; nothing where there are none."""
    ordered = sorted_diagnostics(tuple(diagnostics))
    if not ordered:
        return
    first, rest = ordered[:MAX_NOTES], ordered[MAX_NOTES:]
    blocks: list[Block] = [Notes(first)]
    if rest:
        blocks.append(Fold(f"{format_count(len(rest))} more", [Notes(rest)]))
    yield Section("notes", title, blocks)
