"""Tables of screens as blocks of a page: their numbers sort by size, and what does not fit is counted."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import Diagnostic
from foretrace.report.page.blocks import Cell, Fold, Notes, Table, Text
from foretrace.report.table import TextTable
from foretrace.report.views.text_table import (
    MAX_NOTES,
    MAX_ROWS,
    left_out_text,
    notes_section,
    page_table,
    part_blocks,
    size_of,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2.00 ms", 2e-3),
        ("1.50 s ± 3.0 %", 1.5),
        ("−12.5 %", -12.5),
        ("+1.20 µs", 1.2e-6),
        ("1.00 GiB to 2.00 GiB", 2.0**30),
        ("50.0 GB/s", 5e10),
        ("989 TFLOP/s", 989e12),
        ("1,024", 1024.0),
        ("3 of 17", 3.0),
        ("1.05×", 1.05),
        ("not recorded", None),
        ("", None),
    ],
)
def test_texts_sort_by_the_size_that_they_state(text: str, size: float | None) -> None:
    assert size_of(text) == (None if size is None else pytest.approx(size))


def test_columns_of_numbers_are_aligned_right_and_empty_ones_left_out() -> None:
    given = TextTable(("op", "kind", "time", "", "share"), [("a", "x", "1.00 s", "", ""), ("  b", "y", "2 ms", "", "")])
    table = page_table(given)
    assert list(table.head) == ["op", "kind", "time"]
    assert list(table.right) == [2]
    assert table.rows[1] == ["    b", "y", Cell("2 ms", pytest.approx(2e-3))]


def test_rows_beyond_the_limit_are_counted() -> None:
    table = page_table(TextTable(("op",), [(str(number),) for number in range(MAX_ROWS + 5)], "note", hidden=7))
    assert len(table.rows) == MAX_ROWS
    assert table.caption == f"note; {left_out_text(12)}"
    assert left_out_text(12) and not left_out_text(0)


def test_a_screen_counts_the_rows_that_it_leaves_out() -> None:
    table = TextTable(("op", "time"), [("a", "1"), ("b", "2"), ("c", "3")])
    assert table.first(1).hidden == 2
    assert table.first(2).first(1).hidden == 2
    assert table.first(5).hidden == 0
    assert len(table.first(1).lines()) == 3
    assert len(table.lines()) == 4


def test_a_table_without_rows_is_a_sentence() -> None:
    blocks = part_blocks([TextTable(("copies", "time"), []), "a remark", TextTable(("op",), [("a",)])])
    assert [type(block) for block in blocks] == [Text, Text, Table]


def test_warnings_come_first_and_many_notes_are_folded() -> None:
    notes = [Diagnostic("note", f"code-{number}", "text") for number in range(MAX_NOTES)]
    (section,) = notes_section([*notes, Diagnostic("warning", "odd-input", "text")])
    first, rest = section.blocks
    assert isinstance(first, Notes)
    assert isinstance(rest, Fold)
    assert first.diagnostics[0].code == "odd-input"
    assert len(first.diagnostics) == MAX_NOTES
    assert not list(notes_section([]))
