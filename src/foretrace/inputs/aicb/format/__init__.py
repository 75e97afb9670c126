"""The text of SimAI/AICB workload files: a header, a row count, and one row per layer with its three passes.

Read `records.py` first: a file as it is written. `read.py` reads every version with `header.py` and `rows.py`,
`notes.py` reports what is odd, and `write.py` writes files as AICB does.
"""

from foretrace.inputs.aicb.format.read import parse_workload, read_workload
from foretrace.inputs.aicb.format.records import Header, Pass, Workload, WorkloadRow, base_name, split_collective
from foretrace.inputs.aicb.format.write import workload_text, write_workload

__all__ = [
    "Header",
    "Pass",
    "Workload",
    "WorkloadRow",
    "base_name",
    "parse_workload",
    "read_workload",
    "split_collective",
    "workload_text",
    "write_workload",
]
