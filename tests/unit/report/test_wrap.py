"""Lines that fit the screen: folded after their label, between columns and items; tables in blocks; pipes untouched."""

from __future__ import annotations

import io

import pytest

from foretrace.report.table import table
from foretrace.report.wrap import Line, fit, fit_text, line_width

NOTE = "  note     " + "; ".join(f"choice {number} is taken" for number in range(12))


def texts(lines: list[Line], width: int | None) -> list[str]:
    return ["".join(text for text, _ in line) for line in fit(lines, width)]


def test_a_note_goes_on_below_its_text() -> None:
    first, *others = texts([[(NOTE, "")]], 80)
    assert others and all(len(line) <= 80 for line in (first, *others))
    assert all(line.startswith(" " * 11) and line[11] != " " for line in others)
    assert " ".join([first, *(line.strip() for line in others)]) == NOTE


def test_a_pipe_keeps_every_fact_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert line_width(io.StringIO()) is None
    assert fit_text(NOTE, io.StringIO()) == NOTE
    for nonsense in ("0", "-1", "many"):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert line_width(io.StringIO()) is None
    monkeypatch.setenv("COLUMNS", "80")
    assert len(fit_text(NOTE, io.StringIO()).split("\n")) > 1


def test_styles_survive_folding() -> None:
    lines = fit([[("  with     ", "bold"), ("word " * 40, "red"), ("end", "green")]], 60)
    assert len(lines) > 3
    assert {style for line in lines[1:-1] for text, style in line if text.strip()} == {"red"}
    assert lines[-1][-1] == ("end", "green")


def test_a_number_stays_with_its_unit_and_a_long_word_whole() -> None:
    line = "  path     " + "takes 12 ms then " * 10 + "https://" + "a" * 90
    parts = texts([[(line, "")]], 61)
    assert not any(part.rstrip().endswith(("12", "%")) for part in parts)
    assert parts[-1].strip() == "https://" + "a" * 90


class TestTables:
    def test_one_that_fits_is_left_alone(self) -> None:
        lines = table(("name", "a"), [("x", "1")])
        assert texts(lines, 80) == texts(lines, None)

    def test_long_names_are_shortened_first(self) -> None:
        head, row = texts(table(("name", "a"), [("n" * 100, "1")]), 80)
        assert len(row) <= 80 and row.endswith("1") and "…" in row and head.endswith("a")

    def test_columns_that_do_not_fit_follow_in_a_block_with_the_names(self) -> None:
        heads = ("name", *(f"column {number}" for number in range(12)))
        rows = [("first", *(f"{number}" for number in range(12))), ("second", "a", *[""] * 11)]
        lines = texts(table(heads, rows), 60)
        assert all(len(line) <= 60 for line in lines)
        assert sum(line.startswith("  name") for line in lines) > 1
        words = " ".join(lines).split()
        assert all(f"{number}" in words for number in range(12))
        assert sum(line.startswith("  second") for line in lines) == 1, "it has nothing in the other columns"
