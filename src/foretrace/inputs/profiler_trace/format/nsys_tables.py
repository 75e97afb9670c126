"""The tables of an Nsight Systems export, as columns of whole numbers.

Which tables and columns there are differs from version to version, and tables are made only where there is something to
write (Nsight Systems documentation, "SQLite Schema Reference"): what is missing reads as -1, and is remembered.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import InputError, shown
from foretrace.basics.files import AnyFile, InputFile, input_file
from foretrace.basics.limits import Deadline, limited, too_large
from foretrace.inputs.profiler_trace.format.arguments import whole
from foretrace.inputs.profiler_trace.format.sniff import SQLITE

_HEADER_BYTES: Final = 100
_ROWS_AT_ONCE: Final = 1 << 16
_WAIT_S: Final = 2.0
"""How long another program that writes to the file is waited for."""

_MAX_CELL_BYTES: Final = 4 << 20
_MAX_TEXT_BYTES: Final = 512 << 20
_MIN_SECONDS: Final = 20.0
_BYTES_PER_S: Final = 5e6
"""Exports are read at 20 million bytes per second or more."""

_STEPS_BETWEEN_CHECKS: Final = 100_000
"""Instructions of SQLite's virtual machine: about a millisecond."""

EXPORT_HINT: Final = "expected the output of: nsys export --type sqlite REPORT.nsys-rep"


class NsysTables:
    """An open export."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.path = path
        self.replaced = False
        """Whether some text is not UTF-8."""
        self._text_bytes = 0
        self._connection = connection
        connection.text_factory = self._text
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.names = frozenset(str(name) for (name,) in names)
        self.missing: list[str] = []
        """Tables and columns asked for that are not there, in the order of asking."""

    def columns(self, table: str) -> frozenset[str]:
        """Returns the names of a table's columns, and that of SQLite's own, `rowid`."""
        columns = self._connection.execute(f"PRAGMA table_info([{table}])")
        return frozenset(("rowid", *(str(row[1]) for row in columns)))

    def numbers(self, table: str, columns: Sequence[str], among: str = "") -> dict[str, Longs]:
        """Returns columns of whole numbers; -1 for those that are missing and for NULL.

        `among` is a condition in SQL.
        """
        if table not in self.names:
            return {name: np.empty(0, dtype=np.int64) for name in columns}
        there = self.columns(table)
        self.missing += [f"{table}.{name}" for name in columns if name not in there]
        fields = ", ".join(f"COALESCE([{name}], -1)" if name in there else "-1" for name in columns)
        where = f" WHERE {among}" if among else ""
        cursor = self._connection.execute(f"SELECT {fields} FROM [{table}]{where}")
        parts = [np.empty((0, len(columns)), dtype=np.int64)]
        try:
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                parts.append(np.array(rows, dtype=np.int64))
        except (ValueError, TypeError, OverflowError):
            text = f"{table} holds a value that is not a whole number"
            raise InputError("bad-value", text, where=self.path, hint=EXPORT_HINT) from None
        values = np.concatenate(parts)
        return {name: values[:, column] for column, name in enumerate(columns)}

    def rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """Returns columns of any type, row by row; nothing where one of them is missing."""
        if table not in self.names or not self.columns(table).issuperset(columns):
            return []
        # Blobs become text, so that what is read is counted in one place.
        fields = ", ".join(f"IIF(typeof([{name}]) = 'blob', CAST([{name}] AS TEXT), [{name}])" for name in columns)
        return self._connection.execute(f"SELECT {fields} FROM [{table}]").fetchall()

    def strings(self) -> dict[int, str]:
        """Returns the names by their numbers."""
        return {whole(number): str(value) for number, value in self.rows("StringIds", "id", "value")}

    def _text(self, data: bytes) -> str:
        self._text_bytes += len(data)
        if self._text_bytes > limited(_MAX_TEXT_BYTES):
            raise too_large(f"the texts of the export take more than {limited(_MAX_TEXT_BYTES) >> 20:,} MiB", self.path)
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.replaced = True
            return data.decode("utf-8", "replace")


@contextmanager
def opened(path: AnyFile) -> Iterator[NsysTables]:
    """Opens an export for reading. Whatever SQLite finds wrong while it is read becomes one error.

    SQLite opens the file by its name; this is the only kind of input that is opened a second time.
    """
    file = input_file(path)
    _check_head(file)
    try:
        seconds = _MIN_SECONDS + file.path.stat().st_size / _BYTES_PER_S
        deadline = Deadline(seconds, "reading the export", str(path))
        address = f"{file.path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limited(_MAX_CELL_BYTES))
            connection.set_progress_handler(lambda: deadline.is_over, _STEPS_BETWEEN_CHECKS)
            connection.execute("PRAGMA trusted_schema = OFF")  # functions of a schema are not run
            yield NsysTables(connection, str(path))
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            deadline.check()
        if "locked" in str(error) or "busy" in str(error):
            raise InputError(
                "unreadable-file",
                "another program is writing to the file",
                where=str(path),
                hint="wait until the export has finished",
            ) from None
        raise _unreadable(path, error) from None
    except sqlite3.DataError:
        raise too_large(
            f"a cell of the export has more than {limited(_MAX_CELL_BYTES) >> 20:,} MiB", str(path)
        ) from None
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: AnyFile, error: Exception) -> InputError:
    return InputError(
        "bad-syntax",
        f"the export cannot be read: {shown(str(error))}",
        where=str(path),
        hint=EXPORT_HINT,
    )


def _check_head(path: InputFile) -> None:
    """Raises an error where a file is no SQLite file, or shorter than its header says; closes it."""
    try:
        with path.take() as stream:
            head, state = stream.read(_HEADER_BYTES), os.fstat(stream.fileno())
    except FileNotFoundError:
        raise InputError("file-not-found", "there is no such file", where=str(path)) from None
    except OSError as error:
        raise InputError("unreadable-file", f"the export cannot be read: {error.strerror}", where=str(path)) from None
    if not head.startswith(SQLITE):
        raise InputError("wrong-format", "this is no SQLite file", where=str(path), hint=EXPORT_HINT)
    if not stat.S_ISREG(state.st_mode):
        hint = "write it to a file, and give that"
        raise InputError("wrong-format", "exports are read from files, not from pipes", where=str(path), hint=hint)
    size = state.st_size
    # sqlite.org/fileformat.html, 1.3: page size at 16 (1 stands for 65536), pages at 28, valid where 24 equals 92.
    page_bytes = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0
    whole = pages * (65536 if page_bytes == 1 else page_bytes)
    if len(head) < _HEADER_BYTES or size < whole:
        raise InputError(
            "truncated-file",
            f"the export is cut short: {size:,} of {max(whole, _HEADER_BYTES):,} bytes",
            where=str(path),
            hint="copy or export it again",
        )
