"""Errors of the server, and the status and JSON by which HTTP reports any error."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from foretrace.basics.errors import ForetraceError, InputError, shortened

STATUS_OF: Final[Mapping[str, int]] = {
    "request-refused": 403,
    "unknown-id": 404,
    "input-too-large": 413,
    "too-many": 429,
    "busy": 503,
    "unwritable-file": 503,
    "internal-error": 500,
}
"""The HTTP status of errors by their code; all others are mistakes in what was asked, and have 400."""


def status_of(error: ForetraceError) -> int:
    """Returns the HTTP status of an error."""
    return STATUS_OF.get(error.code, 400)


def error_dict(error: ForetraceError) -> dict[str, str | None]:
    """Returns an error as JSON has it."""
    return {"code": error.code, "message": error.message, "where": error.where, "hint": error.hint}


def error_of(parts: Mapping[str, Any]) -> ForetraceError:
    """Returns the error that `error_dict` wrote."""
    return ForetraceError(parts["code"], parts["message"], where=parts.get("where"), hint=parts.get("hint"))


def refused(problem: str, hint: str | None = None) -> InputError:
    """Returns the error of a request that the server does not take from whoever sent it."""
    return InputError("request-refused", problem, hint=hint)


def unknown_id(what: str, name: str) -> InputError:
    """Returns the error of an id that nothing has."""
    return InputError("unknown-id", f'there is no {what} "{shortened(name)}"', hint="it may have been removed since")


def unwritable_state(error: OSError | sqlite3.Error) -> InputError:
    """Returns the error of a state folder that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(
        "unwritable-file", f"the server cannot write to its state folder: {reason}", hint="is its disk full?"
    )
