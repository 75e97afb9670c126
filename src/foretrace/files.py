"""Files written in one go: whoever opens one sees the old content or all of the new one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foretrace.errors import InputError


def write_whole(path: Path, parts: Iterable[bytes], noun: str) -> None:
    """Writes the parts to a file beside `path` and puts it in its place; `noun` says in errors what it is."""
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
