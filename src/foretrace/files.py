"""Writing files: what a user keeps in one go, answers as they come, so that a pipe or device may take them too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foretrace.errors import InputError


def write_whole(path: Path, parts: Iterable[bytes], noun: str) -> None:
    """Writes the parts to a file beside `path` and puts it in its place, so that whoever opens it sees the old content
    or all of the new one; `noun` says in errors what it is."""
    import secrets  # only writing needs it, and it takes a while

    beside = path.parent / f".{secrets.token_hex(8)}.foretrace.tmp"
    try:
        try:
            with beside.open("xb") as stream:
                stream.writelines(parts)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"the {noun} cannot be written: {error.strerror}",
            where=str(path),
            hint="give the name of a file in a folder that exists and that you may write to",
        ) from error


def write_text(path: Path, text: str) -> None:
    """Writes an answer to a file."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error
