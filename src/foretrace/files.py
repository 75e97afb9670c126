"""Reading and writing files: what a user keeps in one go, answers as they come, so that a pipe or device may take them
too."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from foretrace.errors import InputError, nearest

LARGEST_FILE_BYTES: Final = 512 << 20


def open_binary(path: str | Path, noun: str) -> io.BufferedReader:
    """A file to read bytes from; `noun` says in errors what it should be."""
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        near = _near_file(Path(path))
        raise InputError(
            "file-not-found", "there is no such file", where=str(path), hint=near and f"did you mean {near}?"
        ) from None
    except IsADirectoryError:
        raise InputError(
            "folder-instead-of-file", "this is a folder", where=str(path), hint=f"give the name of a {noun}"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError("unreadable-file", f"the {noun} cannot be read: {reason}", where=str(path)) from None


def read_whole(path: str | Path, noun: str, hint: str) -> bytes:
    """The bytes of a file; `noun` says in errors what it should be, `hint` what one looks like."""
    try:
        with open_binary(path, noun) as stream:
            # A pipe has no size; what comes out of it is cut off where it is too long.
            too_long = os.fstat(stream.fileno()).st_size > LARGEST_FILE_BYTES
            data = b"" if too_long else stream.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(unreadable(error), f"the {noun} cannot be read: {error.strerror}", where=str(path)) from None
    if too_long or len(data) > LARGEST_FILE_BYTES:
        raise InputError("file-too-large", "the file has more than 512 MiB", where=str(path), hint=hint)
    return data


def unreadable(error: OSError | ValueError) -> str:
    """The code for a file that could not be opened or read."""
    if isinstance(error, FileNotFoundError):
        return "file-not-found"
    return "folder-instead-of-file" if isinstance(error, IsADirectoryError) else "unreadable-file"


def _near_file(path: Path) -> str | None:
    """A file beside a missing one that was probably meant."""
    try:
        near = nearest(path.name, [one.name for one in islice(path.parent.iterdir(), 1000)], 0.75)
    except (OSError, ValueError):
        return None
    return str(path.parent / near) if near else None


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
            "unwritable-file",
            f"the {noun} cannot be written: {error.strerror}",
            where=str(path),
            hint="give the name of a file in a folder that exists and that you may write to",
        ) from error


def write_text(path: Path, text: str) -> None:
    """Writes an answer to a file."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("unwritable-file", f"cannot be written: {error.strerror}", where=str(path)) from error
