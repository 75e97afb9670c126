"""The text of rank traces of Megatron: what each rank did, op by op, as a tracer in its schedule wrote it.

Read `records.py` first: a trace as it is written. Several tracers and versions of them write this form. `read.py`
reads the file of a rank with `lines.py`, `fields.py`, `values.py` and `states.py`; `runs.py`, `nodes.py`, `names.py`
and `ex_situ.py` find which files are one run; `sniff.py` recognises them, and `write.py` writes them.

Names are loaded when they are asked for: any input is sniffed, and most are not traces.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.inputs.megatron_trace.format.ex_situ import is_ex_situ
    from foretrace.inputs.megatron_trace.format.lines import BUCKET_OP, line_text, parse_line
    from foretrace.inputs.megatron_trace.format.read import parse_trace, read_trace
    from foretrace.inputs.megatron_trace.format.records import Facts, RankTrace, Run, SubOp, TraceOp
    from foretrace.inputs.megatron_trace.format.runs import read_runs
    from foretrace.inputs.megatron_trace.format.sniff import is_rank_trace, looks_like_trace
    from foretrace.inputs.megatron_trace.format.values import dtype_bytes, known_comm
    from foretrace.inputs.megatron_trace.format.write import Written, make_op, make_sub, trace_text, write_runs

_HOMES = {
    "BUCKET_OP": "lines",
    "Facts": "records",
    "RankTrace": "records",
    "Run": "records",
    "SubOp": "records",
    "TraceOp": "records",
    "Written": "write",
    "dtype_bytes": "values",
    "known_comm": "values",
    "line_text": "lines",
    "is_ex_situ": "ex_situ",
    "is_rank_trace": "sniff",
    "looks_like_trace": "sniff",
    "make_op": "write",
    "make_sub": "write",
    "parse_line": "lines",
    "parse_trace": "read",
    "read_runs": "runs",
    "read_trace": "read",
    "trace_text": "write",
    "write_runs": "write",
}

__all__ = [
    "BUCKET_OP",
    "Facts",
    "RankTrace",
    "Run",
    "SubOp",
    "TraceOp",
    "Written",
    "dtype_bytes",
    "is_ex_situ",
    "is_rank_trace",
    "known_comm",
    "line_text",
    "looks_like_trace",
    "make_op",
    "make_sub",
    "parse_line",
    "parse_trace",
    "read_runs",
    "read_trace",
    "trace_text",
    "write_runs",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
