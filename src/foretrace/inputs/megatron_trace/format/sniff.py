"""Tells by its first bytes whether a file or folder holds rank traces. Every input is asked, so this loads little."""

from __future__ import annotations

import re
from typing import Final

from foretrace.basics.files import AnyPath, GivenPath, InputFile, given_path, head_bytes

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_SNIFFED_BYTES = 4096
_BEGIN = re.compile(r"rank:[0-9]+:[A-Za-z_][A-Za-z0-9_]*\(")


def looks_like_trace(path: AnyPath) -> bool:
    """Returns whether a file begins like a rank trace, or a folder or pattern has a file that does. Never an error.

    What is given by its name is closed again, and not looked at where it is a pipe.
    """
    given = given_path(path)
    if not given.is_many:
        return _is_head_of_trace(head_bytes(given.files[0] if isinstance(path, GivenPath) else path, _SNIFFED_BYTES))
    is_trace = any(is_trace_in_folder(file) for file in given.first_files)
    if given is not path:
        given.close()
    return is_trace


def is_rank_trace(file: InputFile) -> bool:
    """Returns whether a file begins like a rank trace; it stays open to be read."""
    return _is_head_of_trace(file.head(_SNIFFED_BYTES))


def is_trace_in_folder(file: InputFile) -> bool:
    """Returns whether a file that was found in a folder is a rank trace; closes it where it is not."""
    is_trace = file.path.suffix == ".txt" and is_rank_trace(file)
    if not is_trace:
        file.close()
    return is_trace


def begins_like_trace(text: str) -> bool:
    """Whether a text begins as a rank trace does."""
    return _BEGIN.match(text) is not None


def _is_head_of_trace(head: bytes) -> bool:
    return begins_like_trace(head.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").lstrip())
