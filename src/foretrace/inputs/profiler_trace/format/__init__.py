"""Reads Kineto's JSON, Nsight Systems' exports and PyTorch's execution traces into records.

Read `records.py` first: a `RankProfile` is the same for every profiler. `kineto.py` reads Kineto's JSON with
`kineto_json.py`, `columns.py` and `arguments.py`. `nsys.py` reads exports of Nsight Systems with
`nsys_tables.py`. `execution_trace.py` reads execution traces. `ranks.py` and `names.py` find the files of all ranks;
`text.py` and `sniff.py` open and recognise them. The readers are imported only when a file is read, because every
input is sniffed and most are not profiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from foretrace.basics.files import AnyFile, AnyPath, input_file
from foretrace.inputs.profiler_trace.format.sniff import REPORTS, SQLITE, looks_like_profile
from foretrace.inputs.profiler_trace.format.text import head_of

if TYPE_CHECKING:
    from foretrace.inputs.profiler_trace.format.records import RankProfile

__all__ = ["looks_like_profile", "read_trace", "read_traces"]


def read_trace(path: AnyFile) -> RankProfile:
    """Reads the trace in a file: JSON of the PyTorch profiler, plain or gzip, or SQLite of Nsight Systems.

    Events that cannot have happened are left out.
    """
    from foretrace.inputs.profiler_trace.plausible import plausible

    # A report of Nsight Systems itself cannot be read: what reads its exports says how to make one.
    file = input_file(path)
    if head_of(file, len(SQLITE)) == SQLITE or file.path.suffix in REPORTS:
        from foretrace.inputs.profiler_trace.format.nsys import read_nsys

        return plausible(read_nsys(file))
    from foretrace.inputs.profiler_trace.format.kineto import read_kineto

    return plausible(read_kineto(file))


def read_traces(paths: Iterable[AnyPath]) -> list[RankProfile]:
    """Reads the traces of a job's ranks, in order of ranks: files, folders of them, and patterns."""
    from foretrace.inputs.profiler_trace.format.ranks import read_ranks

    return read_ranks(paths)
