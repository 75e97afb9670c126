"""The screen that shows any inventory."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.aicb.format import read_workload
from foretrace.inputs.aicb.inventory import workload_inventory
from foretrace.inputs.inventory import Inventory, InventoryTable
from foretrace.report.inventory import MAX_DIAGNOSTICS, print_inventory
from shared_files import ROOT

SMALL = Inventory("schema/1", "kind", "a format", "job.txt", facts=[("ranks", "8"), ("ops", "12")])


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def screen_of(inventory: Inventory) -> list[str]:
    """The lines of a screen that is piped."""
    stream = io.StringIO()
    print_inventory(inventory, stream)
    return stream.getvalue().splitlines()


def test_facts_are_below_each_other() -> None:
    assert screen_of(SMALL) == ["  job.txt: a format", "  ranks  8", "  ops    12", "", "  see      --json"]


def test_a_label_is_shown_once() -> None:
    lines = screen_of(replace(SMALL, facts=[("note", "one"), ("note", "two"), ("ops", "1")]))
    assert lines[1:4] == ["  note  one", "        two", "  ops   1"]


def test_long_facts_are_broken_between_items() -> None:
    items = [f"{number} rows of a kind" for number in range(10, 22)]
    lines = screen_of(replace(SMALL, facts=[("rows", " · ".join(items))]))[1:-2]
    assert len(lines) > 1 and max(map(len, lines)) <= 80
    assert all(line.endswith("of a kind ·") for line in lines[:-1])
    assert " ".join(line.removeprefix("  rows").strip() for line in lines) == " · ".join(items)


def test_long_sentences_are_broken_between_words_but_not_within_a_quantity() -> None:
    text = "times of communication include waiting for partners, which takes " + "12 ms and " * 12 + "more"
    lines = screen_of(replace(SMALL, facts=[("kind", text)]))[1:-2]
    assert len(lines) > 1 and max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("12") or line.strip().startswith("ms")]


def test_a_word_longer_than_the_screen_is_kept() -> None:
    (line,) = screen_of(replace(SMALL, facts=[("file", "x" * 100)]))[1:-2]
    assert line.endswith("x" * 100)


def test_tables_are_aligned() -> None:
    table = InventoryTable(
        ("axis", "collective", "calls"), [("dp", "all_gather", "1"), ("tp", "all_reduce", "1,024")], "of one rank", 2
    )
    assert screen_of(replace(SMALL, tables=[table]))[3:-2] == [
        "",
        "  axis  collective  calls",
        "  dp    all_gather      1",
        "  tp    all_reduce  1,024",
        "  of one rank",
    ]


def test_names_are_shortened_where_a_table_would_not_fit() -> None:
    table = InventoryTable(("longest rows", "time"), [("kernel_" * 20, "1.00 ms"), ("short", "2.00 ms")])
    lines = screen_of(replace(SMALL, tables=[table]))[4:-2]
    assert max(map(len, lines)) <= 80
    assert "…" in lines[1] and lines[1].endswith("  1.00 ms") and lines[2].endswith("  2.00 ms")


def test_the_worst_diagnostics_are_shown() -> None:
    notes = tuple(Diagnostic("note", "odd-input", f"note {number}") for number in range(MAX_DIAGNOSTICS))
    lines = screen_of(replace(SMALL, diagnostics=(*notes, Diagnostic("warning", "odd-input", "a warning"))))
    assert lines[4] == "  warning  a warning"
    assert lines[-3].strip() == "1 more in --json"


def test_names_of_an_input_cannot_move_the_cursor() -> None:
    lines = screen_of(replace(SMALL, title="job\x1b[2J", facts=[("name", "a\x1b[31mb")]))
    assert not any("\x1b" in line for line in lines)


def test_a_workload_fits_80_columns_but_for_its_diagnostics() -> None:
    inventory = workload_inventory(read_workload(ROOT / "examples/llama405b_1024gpu.txt"), "llama405b_1024gpu.txt")
    assert max(map(len, screen_of(replace(inventory, diagnostics=())))) <= 80
