"""Traces of several ranks: which files they are in, and which is whose."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from foretrace.errors import Diagnostic, InputError
from foretrace.formats.profiler_trace import looks_like_profile, read_trace
from foretrace.formats.profiler_trace.records import RankProfile
from foretrace.formats.profiler_trace.sniff import ENDINGS, SQLITE
from foretrace.formats.profiler_trace.text import head_of

MOST_NAMED: Final = 5


def read_ranks(paths: Sequence[str | Path]) -> list[RankProfile]:
    """The traces that files, folders and patterns name, in order of ranks."""
    files, others = find_files(paths)
    traces = [trace for file in files for trace in _traces_of(file)]
    if others:
        named = ", ".join(file.name for file in others[:MOST_NAMED])
        more = f" and {len(others) - MOST_NAMED:,} more" if len(others) > MOST_NAMED else ""
        note = Diagnostic(
            "note", "files-skipped", f"no profiler traces, left out: {named}{more}", str(others[0].parent)
        )
        traces[0] = replace(traces[0], diagnostics=(*traces[0].diagnostics, note))
    if len(traces) == 1:
        return traces
    _check(traces)
    return sorted(traces, key=lambda trace: trace.rank or 0)


def _traces_of(file: Path) -> list[RankProfile]:
    """The trace of a file; a report of Nsight Systems may hold several processes."""
    if head_of(file, len(SQLITE)) != SQLITE:
        return [read_trace(file)]
    from foretrace.formats.nsys import read_nsys_processes

    return read_nsys_processes(file)


def find_files(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The files that may be traces, and those found in folders or by patterns that are none."""
    traces: dict[Path, None] = {}
    others: dict[Path, None] = {}
    for path in paths:
        for file in _listed(path):
            # A file that is named is read, and an error says what is wrong with it.
            taken = str(file) == str(path) or _is_trace(file, Path(path).is_dir())
            (traces if taken else others)[file] = None
    if not traces:
        named_all = ", ".join(map(str, paths)) or "nothing"
        raise InputError(
            "nothing-to-do",
            "there is no profiler trace here",
            where=named_all,
            hint=f"traces end in {', '.join(ENDINGS)}",
        )
    return list(traces), list(others)


def _is_trace(file: Path, in_folder: bool) -> bool:
    """Whether a file that was found is a trace; in a folder also by its name."""
    return (not in_folder or file.name.endswith(ENDINGS)) and looks_like_profile(file)


def _listed(path: str | Path) -> Iterable[Path]:
    """The files of a folder, those a pattern matches, or the file itself."""
    given = Path(path)
    if given.is_dir():
        try:
            return sorted(file for file in given.iterdir() if file.is_file() and not file.name.startswith("."))
        except OSError as error:
            raise InputError(
                "unreadable-file", f"the folder cannot be read: {error.strerror}", where=str(path)
            ) from None
    if glob.has_magic(str(path)) and not given.exists():
        matched = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207  # Path.glob takes no absolute pattern
        found = sorted(file for file in matched if file.is_file())
        if not found:
            raise InputError("file-not-found", "no file matches this pattern", where=str(path))
        return found
    return [given]


def _check(traces: Sequence[RankProfile]) -> None:
    """Raises an error unless every trace is of a rank of its own."""
    seen: dict[int, str] = {}
    for trace in traces:
        if trace.rank is None:
            raise InputError(
                "missing-field",
                "the rank of this trace is not known: neither its distributedInfo nor its name says",
                where=trace.path,
                hint="call the files rank0.json, rank1.json, ..., or give one trace",
            )
        if trace.rank in seen:
            raise InputError(
                "duplicate-name",
                f"this and {seen[trace.rank]} are both of rank {trace.rank}",
                where=trace.path,
                hint="give one trace of each rank",
            )
        seen[trace.rank] = trace.path
