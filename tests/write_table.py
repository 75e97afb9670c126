"""Writes profiler tables as PyTorch does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from foretrace.inputs.profiler_table.format.records import Column, Field, ProfilerTable, TableRow

_WIDTH: Final = {"right": 12, "left": 15}
_TIMES: Final = (
    Field.SELF_CPU,
    Field.CPU_TOTAL,
    Field.CPU_AVERAGE,
    Field.SELF_DEVICE,
    Field.DEVICE_TOTAL,
    Field.DEVICE_AVERAGE,
)
_SHARES: Final = (Field.SELF_CPU_SHARE, Field.SELF_DEVICE_SHARE, Field.DEVICE_TOTAL_SHARE)
_WIDEST_NAME: Final = 55
"""Names have at most so much room: PyTorch cuts them (`max_name_column_width`)."""
_WIDE: Final = (Field.NAME, Field.OVERLOAD, Field.SHAPES, Field.STACK)


def write_table(
    table: ProfilerTable,
    *,
    align: Literal["right", "left"] = "right",
    time_unit: str | None = None,
    capital: bool = True,
) -> str:
    """The text of a table, which `parse_tables` reads back: with its columns in their order, numbers to the right or,
    as up to PyTorch 1.6, to the left; times in one unit where it is given; sizes as KB or as Kb. Stacks take a line for
    each entry."""
    cells = [_cells(table, row, time_unit, capital) for row in table.rows]
    widths = [_width(table, number, cells, align) for number in range(len(table.columns))]
    dashes = "".join("-" * width + "  " for width in widths)
    lines = []
    if table.title:
        lines += ["=" * (len(dashes) - 2), table.title]
    if table.top_level_only:
        lines += ["=" * (len(dashes) - 2), "This report only display top-level ops statistics"]
    lines += [dashes, _line([column.heading for column in table.columns], table, widths, align), dashes]
    for row, texts in zip(table.rows, cells, strict=True):
        lines.append(_line(texts, table, widths, align))
        if table.has(Field.STACK):
            lines += [_line(more, table, widths, align) for more in _continued(table, row)]
    lines.append(dashes)
    if table.self_cpu_total_s is not None:
        lines.append(f"Self CPU time total: {_write_time(table.self_cpu_total_s, time_unit)}")
    if table.self_device_total_s is not None:
        lines.append(f"Self {table.device} time total: {_write_time(table.self_device_total_s, time_unit)}")
    return "\n".join(lines) + "\n"


def _line(cells: list[str], table: ProfilerTable, widths: list[int], align: Literal["right", "left"]) -> str:
    parts = []
    for column, cell, width in zip(table.columns, cells, widths, strict=True):
        left = align == "left" or column.field is Field.STACK
        parts.append(f"{cell:<{width}}  " if left else f"{cell:>{width}}  ")
    return "".join(parts)


def _continued(table: ProfilerTable, row: TableRow) -> Iterator[list[str]]:
    """The lines below a row: the rest of its stack, and an empty one."""
    for entry in (*row.stack[1:], ""):
        yield [entry if column.field is Field.STACK else "" for column in table.columns]


def _width(table: ProfilerTable, number: int, cells: list[list[str]], align: Literal["right", "left"]) -> int:
    column = table.columns[number]
    if column.field not in _WIDE:
        return _WIDTH[align]
    longest = max([len(row[number]) for row in cells] + [len(entry) for row in table.rows for entry in row.stack[1:]])
    return min(longest + 4, max(longest, _WIDEST_NAME)) if column.field is Field.NAME else longest + 4


def _cells(table: ProfilerTable, row: TableRow, time_unit: str | None, capital: bool) -> list[str]:
    return [_cell(column, row, time_unit, capital) for column in table.columns]


def _cell(column: Column, row: TableRow, time_unit: str | None, capital: bool) -> str:
    field = column.field
    value = getattr(row, field)
    if field in _TIMES:
        return _write_time(value, time_unit)
    if field is Field.CPU_TOTAL_SHARE:
        return _write_share(value, row.asynchronous)
    if field in _SHARES:
        return _write_share(value)
    if field in (Field.FLOPS, Field.FLOPS_RATE):
        return "--" if value is None else f"{value / column.scale:8.3f}"
    if field is Field.STACK:
        return row.stack[0] if row.stack else ""
    if field in (Field.NAME, Field.OVERLOAD, Field.SHAPES, Field.CALLS, Field.NODE):
        return str(value)
    return _write_memory(value, capital)


def _write_time(seconds: float | None, unit: str | None = None) -> str:
    """As PyTorch writes it: the largest of us, ms and s that leaves at least one, or the unit asked for."""
    if seconds is None:
        return "NaN"
    us = seconds * 1e6
    chosen = unit or ("s" if us >= 1e6 else "ms" if us >= 1e3 else "us")
    return f"{us / {'s': 1e6, 'ms': 1e3, 'us': 1.0}[chosen]:.3f}{chosen}"


def _write_share(share: float | None, bare: bool = False) -> str:
    """A percentage, or a bare 0."""
    return "0" if bare else "NaN" if share is None else f"{share * 100:.2f}%"


def _write_memory(size_bytes: int | None, capital: bool = True) -> str:
    """In units of 1024, spelled KB or, as before PyTorch 2.5, Kb."""
    if size_bytes is None:
        return "NaN"
    power = next((exponent for exponent in (3, 2, 1) if abs(size_bytes) >= 1024**exponent), 0)
    text = f"{size_bytes / 1024**power:.2f} {'KMG'[power - 1]}B" if power else f"{size_bytes} B"
    return text if capital else text[:-1] + "b"
