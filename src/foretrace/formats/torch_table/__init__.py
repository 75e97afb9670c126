"""PyTorch profiler tables: what `key_averages().table()` prints, from PyTorch 1.6 to today."""

from foretrace.formats.torch_table.read import looks_like_table, parse_tables, read_tables
from foretrace.formats.torch_table.records import Column, Field, Row, Table
from foretrace.formats.torch_table.write import write_table

__all__ = [
    "Column",
    "Field",
    "Row",
    "Table",
    "looks_like_table",
    "parse_tables",
    "read_tables",
    "write_table",
]
