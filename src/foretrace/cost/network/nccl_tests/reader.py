"""Reads measured collectives from a file, or from all files of a folder and of the folders in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, listed
from foretrace.basics.files import given_path, read_whole
from foretrace.basics.limits import check_limit, limited
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.logs import is_log, parse_log
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements
from foretrace.cost.network.nccl_tests.tables import is_table, parse_table

SUFFIXES: Final = frozenset({".csv", ".log", ".txt", ".out"})
"""The suffixes of the files that are read in a folder."""

MAX_BYTES: Final = 16 << 20
"""Bytes of a file: a log of 1,024 ranks has 200 kB."""
MAX_LINES: Final = 200_000
MAX_FILES: Final = 10_000
_EXPECTED: Final = "expected logs of nccl-tests, or CSV with columns collective,gpus,nodes,bytes,time_us"


def read_measurements(path: str | Path) -> Measurements:
    """The measured collectives in a log or CSV, or in those of a folder and of the folders in it, no deeper.

    Times that fall where the message grows are taken down to those of larger ones; files that repeat each other give
    their median. Both are said in the diagnostics.
    """
    start, given = Path(path), given_path(path)
    rows: list[Measurement] = []
    notes: list[Diagnostic] = []
    if given.is_folder:
        skipped = []
        for file in _files(start):
            parsed = _read(file) if file.stat().st_size <= limited(MAX_BYTES) else None
            if parsed is None:
                skipped.append(file.name)
            else:
                rows += parsed[0]
                notes += parsed[1]
        if skipped:
            text = f"files without measurements are not used: {listed(skipped)}"
            notes.append(Diagnostic("note", "files-skipped", text, str(start)))
    else:
        parsed = _read(start)
        if parsed is None:
            raise InputError("wrong-format", "these are no measured collectives", where=str(start), hint=_EXPECTED)
        rows, notes = parsed
    if not any(row.gpus > 1 and row.size_bytes > 0 for row in rows):
        raise InputError("nothing-to-do", "there is no measured collective in it", where=str(start), hint=_EXPECTED)
    return measurements_of(rows, notes, str(start))


def _files(folder: Path) -> list[Path]:
    """The files of a folder and of those in it that may hold measurements, in the order of their names."""
    try:
        inside = sorted(folder.iterdir())
        below = [file for part in inside if part.is_dir() for file in sorted(part.iterdir())]
        files = [file for file in (*inside, *below) if file.suffix.lower() in SUFFIXES and file.is_file()]
    except OSError as error:
        text = f"the folder cannot be read: {error.strerror}"
        raise InputError("unreadable-file", text, where=str(folder)) from None
    check_limit(len(files), MAX_FILES, "files", str(folder))
    return files


def _read(path: Path) -> tuple[list[Measurement], list[Diagnostic]] | None:
    """The rows of a file and what is odd about it; None where it is neither a log nor a table."""
    text = read_whole(path, "file of measured collectives", _EXPECTED, MAX_BYTES).decode("utf-8", "replace")
    return parse_measurements(text, str(path))


def parse_measurements(text: str, name: str) -> tuple[list[Measurement], list[Diagnostic]] | None:
    """Returns the rows of a text that messages call `name`, and what is odd about it; None where it is neither kind."""
    if is_log(text):
        parse = parse_log
    elif is_table(text):
        parse = parse_table
    else:
        return None
    check_limit(text.count("\n"), MAX_LINES, "lines", name)
    return parse(text, name)
