"""Errors of the server, and the status and JSON by which HTTP reports any error."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foretrace.basics.errors import DefectError, ForetraceError, InputError, shortened
from foretrace.basics.last_resort import as_defect
from foretrace.basics.processes import say

STATUS_OF: Final[Mapping[str, int]] = {
    "request-refused": 403,
    "unknown-id": 404,
    "too-slow": 408,
    "input-too-large": 413,
    "too-many": 429,
    "internal-error": 500,
    "busy": 503,
    "memory-exhausted": 503,
    "unwritable-file": 503,
    "worker-died": 503,
    "gave-up": 504,
}
"""HTTP status by error code. Other codes are errors in the question and give 400."""

UNREAD: Final = (408, 413)
"""Statuses of requests whose body was not read to its end."""


_DISK_HINT: Final = "is the disk of the state folder full?"
_DAMAGED_HINT: Final = "its database is damaged or of another program; name another folder: --state FOLDER"
_PERMISSION_HINT: Final = "check that it exists and can be written, or name another: --state FOLDER"
_LOCKED_HINT: Final = "end the other program that uses its database"
_HINTS: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_FULL: _DISK_HINT,
    sqlite3.SQLITE_IOERR: _DISK_HINT,
    sqlite3.SQLITE_BUSY: _LOCKED_HINT,
    sqlite3.SQLITE_LOCKED: _LOCKED_HINT,
    sqlite3.SQLITE_CANTOPEN: _PERMISSION_HINT,
    sqlite3.SQLITE_PERM: _PERMISSION_HINT,
    sqlite3.SQLITE_READONLY: _PERMISSION_HINT,
}
"""Hints by the error code of SQLite."""


def reported_defect(failure: BaseException, arguments: Sequence[str], folder: Path) -> DefectError:
    """Reports an unexpected exception on the terminal of the server, and returns it as an error for others.

    Args:
        failure: The exception.
        arguments: What was being done, for the details.
        folder: The folder for the details.
    """
    error = as_defect(failure, arguments, str(folder))
    say(f"error: {error}")
    error.hint = None  # it names a file of the server, which is for who runs it
    return error


def status_of(error: ForetraceError) -> int:
    """Returns the HTTP status of an error."""
    return STATUS_OF.get(error.code, 400)


def error_of(parts: Mapping[str, Any]) -> ForetraceError:
    """Returns the error that `ForetraceError.to_dict` wrote."""
    return ForetraceError(parts["code"], parts["message"], where=parts.get("where"), hint=parts.get("hint"))


def refused(problem: str, hint: str | None = None) -> InputError:
    """Returns the error of a request that the server does not take from its sender."""
    return InputError("request-refused", problem, hint=hint)


def unknown_id(what: str, name: str) -> InputError:
    """Returns the error for an id that does not exist."""
    return InputError("unknown-id", f'there is no {what} "{shortened(name)}"', hint="it may have been removed since")


def unwritable_state(error: OSError | sqlite3.Error, where: Path | None = None) -> InputError:
    """Returns the error of a state folder that cannot be used.

    Args:
        error: The reason. The paths that it may name are left out: they are for who runs the server.
        where: The folder; None in responses, which must not name paths.
    """
    reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
    place = None if where is None else str(where)
    hint = _hint_of(error)
    return InputError("unwritable-file", f"the state folder cannot be used: {reason}", where=place, hint=hint)


def _hint_of(error: OSError | sqlite3.Error) -> str:
    if isinstance(error, OSError):
        return _DISK_HINT if error.errno in (errno.ENOSPC, errno.EDQUOT) else _PERMISSION_HINT
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without what extends it
    return _HINTS.get(code, _DAMAGED_HINT)
