"""What is in tables of the PyTorch profiler."""

from __future__ import annotations

from dataclasses import replace

from foretrace.inputs.profiler_table.format import ProfilerTable, read_tables
from foretrace.inputs.profiler_table.inventory import MAX_ROWS, tables_inventory
from shared_files import ROOT

FAIRSEQ = ROOT / "examples/moe_fairseq_profile.txt"


def fairseq() -> ProfilerTable:
    """The table of the example."""
    (table,) = read_tables(FAIRSEQ)
    return table


def test_every_row_and_column() -> None:
    answer = tables_inventory([fairseq()], "job").to_dict()
    assert (answer["schema"], answer["format"]) == ("foretrace.tables/1", "PyTorch profiler table")
    (table,) = answer["tables"]
    assert (len(table["rows"]), table["device"], len(table["columns"])) == (84, "CUDA", 11)
    assert {"label", "autograd node", "runtime call", "collective", "op"} == {row["kind"] for row in table["rows"]}


def test_the_longest_rows() -> None:
    inventory = tables_inventory([fairseq()], "job")
    (longest,) = inventory.tables
    assert longest.heads == ("longest rows", "kind", "CUDA total", "calls")
    assert longest.rows[0] == ("train_step-0", "label", "46.3 ms", "1")
    assert len(longest.rows) == MAX_ROWS and longest.note.startswith("38 more rows")
    assert "84 rows" in dict(inventory.facts)["table"]


def test_several_tables_are_told_apart() -> None:
    inventory = tables_inventory([fairseq(), replace(fairseq(), line=99, title="the\n second")], "job")
    facts = dict(inventory.facts)
    assert "line 99" in facts["table 2"] and facts["title"] == "the second"
    assert [table.heads[0] for table in inventory.tables] == ["longest rows of table 1", "longest rows of table 2"]
    assert [one["line"] for one in inventory.to_dict()["tables"]] == [fairseq().line, 99]


def test_host_times_are_shown_where_the_device_has_none() -> None:
    rows = tuple(replace(row, device_total_s=None, self_device_s=None) for row in fairseq().rows)
    (longest,) = tables_inventory([replace(fairseq(), rows=rows)], "job").tables
    assert longest.heads[2] == "Self CPU"


def test_a_table_without_times_has_no_longest_rows() -> None:
    rows = tuple(replace(row, device_total_s=None, self_device_s=None, self_cpu_s=0.0) for row in fairseq().rows)
    inventory = tables_inventory([replace(fairseq(), rows=rows)], "job")
    assert not inventory.tables
    assert "times" in dict(inventory.facts)
