"""What profilers recorded of a process: PyTorch's traces (Kineto's JSON) and exports of Nsight Systems, as one record.

What is needed to read them is loaded when one is read: any input is sniffed, and most are no profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.formats.profiler_trace.sniff import REPORTS, SQLITE, looks_like_profile
from foretrace.formats.profiler_trace.text import head_of

if TYPE_CHECKING:
    from foretrace.formats.profiler_trace.records import RankProfile

__all__ = ["looks_like_profile", "read_trace", "read_traces"]


def read_trace(path: str | Path) -> RankProfile:
    """The trace in a file: JSON of the PyTorch profiler, plain or gzip, or SQLite of Nsight Systems."""
    # A report of Nsight Systems itself cannot be read: what reads its exports says how to make one.
    if head_of(Path(path), len(SQLITE)) == SQLITE or Path(path).suffix in REPORTS:
        from foretrace.formats.nsys import read_nsys

        return read_nsys(path)
    from foretrace.formats.profiler_trace.kineto import read_kineto

    return read_kineto(path)


def read_traces(paths: Sequence[str | Path]) -> list[RankProfile]:
    """The traces of a job's ranks, in order of ranks: files, folders of them, and patterns."""
    from foretrace.formats.profiler_trace.ranks import read_ranks

    return read_ranks(paths)
