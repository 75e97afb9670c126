"""PyTorch profiler tables: what `key_averages().table()` prints, from PyTorch 1.6 to today."""

from foretrace.inputs.profiler_table.format.read import looks_like_table, parse_tables, read_tables
from foretrace.inputs.profiler_table.format.records import Column, Field, ProfilerTable, TableRow

__all__ = [
    "Column",
    "Field",
    "ProfilerTable",
    "TableRow",
    "looks_like_table",
    "parse_tables",
    "read_tables",
]
