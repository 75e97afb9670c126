"""The contents of any input as one screen; their JSON is `Inventory.to_dict`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable
from foretrace.report.table import TextTable
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
    lines += _facts(inventory.facts)
    for inner in inventory.tables:
        lines += [[], *inventory_table(inner).lines()]
    diagnostics = diagnostic_lines(inventory.diagnostics, MAX_DIAGNOSTICS)
    lines += [[], *diagnostics] if diagnostics else []
    show(screen, [*lines, [], [(f"  {'see':<8} {SEPARATOR.join((*inventory.see, '--json'))}", "bright_black")]])


def _facts(facts: Sequence[tuple[str, str]]) -> Iterator[list[Span]]:
    """Yields a line for each fact, with the texts below each other."""
    width = max((len(label) for label, _ in facts), default=0)
    previous = ""
    for label, text in facts:
        yield [(f"  {'' if label == previous else label:<{width}}  {' '.join(text.split())}", "")]
        previous = label


def inventory_table(given: InventoryTable) -> TextTable:
    """Returns a table of an inventory; its note becomes one line."""
    return TextTable(given.heads, given.rows, " ".join(given.note.split()), given.text_columns)
