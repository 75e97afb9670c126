"""The contents of any input as one screen; their JSON is `Inventory.to_dict`."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable
from foretrace.report.table import table
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show

MAX_DIAGNOSTICS: Final = 24
MIN_NAME_WIDTH: Final = 20
"""Columns that the first cell of a row keeps at least, however narrow the screen is."""
_INDENT: Final = 2
_TIE: Final = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line is broken."""
_AFTER_NUMBER: Final = re.compile(r"(?<=[0-9]) (?=\S)")


def print_inventory(inventory: Inventory, stream: TextIO | None = None) -> None:
    """Prints an inventory: what it is, its facts, its tables, what is odd about it, and what to look at next."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[(f"  {inventory.title}", "bold"), (f": {inventory.format}", "")]]
    lines += _facts(inventory.facts, screen.width)
    for inner in inventory.tables:
        lines += [[], *_table(inner, screen.width)]
    diagnostics = diagnostic_lines(inventory.diagnostics, screen, MAX_DIAGNOSTICS)
    lines += [[], *diagnostics] if diagnostics else []
    show(screen, [*lines, [], [(f"  {'see':<8} {SEPARATOR.join((*inventory.see, '--json'))}", "bright_black")]])


def _facts(facts: Sequence[tuple[str, str]], screen_width: int) -> Iterator[list[Span]]:
    """Yields a line for each fact, with the texts below each other; longer ones go on in the next line."""
    width = max((len(label) for label, _ in facts), default=0)
    previous = ""
    for label, text in facts:
        shown = "" if label == previous else label
        for part in _wrap(text, screen_width - _INDENT - width - 2):
            yield [(f"  {shown:<{width}}  {part}", "")]
            shown = ""
        previous = label


def _wrap(text: str, width: int) -> list[str]:
    """Splits a text into lines, between the items of a list where that is possible."""
    lines = [""]
    *items, last = (_AFTER_NUMBER.sub(_TIE, item) for item in " ".join(text.split()).split(SEPARATOR))
    for item in (*(f"{item}{_TIE}{SEPARATOR.strip()}" for item in items), last):
        if lines[-1] and len(item) <= width < len(lines[-1]) + 1 + len(item):
            lines.append("")
        words = f"{lines[-1]} {item}".lstrip()
        lines[-1:] = textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False) or [""]
    return [line.replace(_TIE, " ") for line in lines]


def _table(given: InventoryTable, screen_width: int) -> list[list[Span]]:
    """Returns the lines of a table; names in its first column are shortened where it would not fit."""
    columns = list(zip(given.heads, *given.rows, strict=True))
    others = sum(2 + max(len(cell) for cell in column) for column in columns[1:])
    name_width = max(screen_width - _INDENT - others, len(given.heads[0]), MIN_NAME_WIDTH)
    rows = [(_shorten(row[0], name_width), *row[1:]) for row in given.rows]
    notes = _wrap(given.note, screen_width - _INDENT) if given.note else []
    lines = table(given.heads, rows, text_columns=given.text_columns)
    return [*lines, *([(f"  {note}", "bright_black")] for note in notes)]


def _shorten(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
