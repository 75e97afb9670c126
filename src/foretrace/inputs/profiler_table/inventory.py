"""Counts what is in tables of the PyTorch profiler, for `foretrace inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

from foretrace.basics.units import format_count, format_time
from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable, counted_text
from foretrace.inputs.profiler_table.format import Field, ProfilerTable, TableRow
from foretrace.inputs.profiler_table.rows import sort_rows

SCHEMA: Final = "foretrace.tables/1"
MAX_ROWS: Final = 12
_ROW_KEYS: Final = tuple(field.name for field in fields(TableRow))


def tables_inventory(tables: Sequence[ProfilerTable], title: str) -> Inventory:
    """Counts what the tables of a file hold: rows by kind, columns, totals, and the rows that take longest."""
    kinds = [tuple(str(kind) for kind in sort_rows(table).kinds) for table in tables]
    sorted_tables = list(zip(tables, kinds, strict=True))
    return Inventory(
        SCHEMA,
        kind="profiler-table",
        format="PyTorch profiler table",
        title=title,
        contents={"tables": [_contents(*table) for table in sorted_tables]},
        facts=tuple(
            fact for number, table in enumerate(sorted_tables, 1) for fact in _facts(*table, number, len(tables))
        ),
        tables=tuple(
            _longest_rows(*table, number, len(tables))
            for number, table in enumerate(sorted_tables, 1)
            if _own_time(table[0])
        ),
        diagnostics=tuple(note for table in tables for note in table.diagnostics),
        see=("foretrace explain FILE", "foretrace simulate FILE"),
    )


def _contents(table: ProfilerTable, kinds: Sequence[str]) -> dict[str, Any]:
    """Returns every row and column; times in seconds, sizes in bytes, shares as fractions."""
    return {
        "line": table.line,
        "title": table.title,
        "device": table.device,
        "top_level_only": table.top_level_only,
        "columns": [column.heading for column in table.columns],
        "self_cpu_total_s": table.self_cpu_total_s,
        "self_device_total_s": table.self_device_total_s,
        "rows": [
            {"kind": kind, **{name: getattr(row, name) for name in _ROW_KEYS}}
            for row, kind in zip(table.rows, kinds, strict=True)
        ],
        "diagnostics": table.diagnostics,
    }


def _facts(table: ProfilerTable, kinds: Sequence[str], number: int, tables: int) -> Iterator[tuple[str, str]]:
    times = f"device times of {table.device}" if table.device else "host times only"
    label, line = (f"table {number}", f"{SEPARATOR}line {table.line}") if tables > 1 else ("table", "")
    yield label, f"{counted_text(len(table.rows), 'row')} · {times}{line}"
    if table.title:
        yield "title", " ".join(table.title.split())
    yield "columns", SEPARATOR.join(column.heading for column in table.columns)
    yield "rows", SEPARATOR.join(f"{count:,} {kind}" for kind, count in Counter(kinds).most_common()) or "none"
    totals = [f"Self CPU {format_time(table.self_cpu_total_s)}"] if table.self_cpu_total_s is not None else []
    if table.self_device_total_s is not None:
        totals.append(f"Self {table.device} {format_time(table.self_device_total_s)}")
    yield "totals", SEPARATOR.join(totals) or "none below the table"
    if table.top_level_only:
        yield "shown", "top-level ops only"
    if not _own_time(table):
        yield "times", "no row has a time above 0"


def _own_time(table: ProfilerTable) -> Field | None:
    """Returns the column of times that a row has to itself: of the device where there is any, else of the host."""
    columns = (Field.SELF_DEVICE, Field.DEVICE_TOTAL, Field.SELF_CPU)
    return next((field for field in columns if any(getattr(row, field) for row in table.rows)), None)


def _longest_rows(table: ProfilerTable, kinds: Sequence[str], number: int, tables: int) -> InventoryTable:
    field = _own_time(table) or Field.SELF_CPU
    heading = next((column.heading for column in table.columns if column.field is field), "")
    times = [(getattr(row, field) or 0.0, row, kind) for row, kind in zip(table.rows, kinds, strict=True)]
    longest = sorted((entry for entry in times if entry[0] > 0), key=lambda entry: -entry[0])
    rows = [
        (row.name, kind, format_time(seconds), format_count(row.calls)) for seconds, row, kind in longest[:MAX_ROWS]
    ]
    more = f"{len(longest) - MAX_ROWS:,} more rows with a time; " if len(longest) > MAX_ROWS else ""
    note = f"{more}rows are of several kinds and nest: do not add them (foretrace explain does it right)"
    name = f"longest rows of table {number}" if tables > 1 else "longest rows"
    return InventoryTable((name, "kind", heading, "calls"), rows, note, text_columns=2)
