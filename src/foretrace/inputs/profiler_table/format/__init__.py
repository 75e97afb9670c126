"""The text of PyTorch profiler tables: what `key_averages().table()` prints, from PyTorch 1.6 to today.

Read `records.py` first: a table as it is written. `read.py` finds and reads every table of a file, with `layout.py`
for its place and columns, `headings.py` for what the columns mean and `values.py` for the cells. `plausible.py`
reports numbers that contradict each other.
"""

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
