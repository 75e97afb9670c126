"""What profilers recorded of a process: PyTorch's traces (Kineto's JSON) and exports of Nsight Systems, as one record.

What is needed to read them is loaded when one is read: any input is sniffed, and most are no profiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from foretrace.files import AnyFile, AnyPath, input_file
from foretrace.formats.profiler_trace.sniff import REPORTS, SQLITE, looks_like_profile
from foretrace.formats.profiler_trace.text import head_of

if TYPE_CHECKING:
    from foretrace.formats.profiler_trace.records import RankProfile

__all__ = ["looks_like_profile", "read_trace", "read_traces"]


def read_trace(path: AnyFile) -> RankProfile:
    """The trace in a file: JSON of the PyTorch profiler, plain or gzip, or SQLite of Nsight Systems."""
    # A report of Nsight Systems itself cannot be read: what reads its exports says how to make one.
    file = input_file(path)
    if head_of(file, len(SQLITE)) == SQLITE or file.path.suffix in REPORTS:
        from foretrace.formats.nsys import read_nsys

        return read_nsys(file)
    from foretrace.formats.profiler_trace.kineto import read_kineto

    return read_kineto(file)


def read_traces(paths: Iterable[AnyPath]) -> list[RankProfile]:
    """Reads the traces of a job's ranks, in order of ranks: files, folders of them, and patterns."""
    from foretrace.formats.profiler_trace.ranks import read_ranks

    return read_ranks(paths)
