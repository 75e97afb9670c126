"""Reading and writing files: what a user keeps in one go, answers as they come, so that a pipe or device may take them
too."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

from foretrace.errors import InputError, nearest

LARGEST_FILE_BYTES: Final = 512 << 20


MAX_LISTED: Final = 1000
"""Files of a folder, or matches of a pattern, that are looked at to recognise what they are."""

_HEAD_BYTES: Final = 1 << 20


class InputFile(os.PathLike[str]):
    """A file of an input, opened once: first its beginning is looked at, then the same handle is read to its end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stream: io.BufferedReader | None = None
        self._head: bytes | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The name of the file, without its folder."""
        return self.path.name

    def head(self, size: int = 1 << 16) -> bytes:
        """Returns the first bytes, at most 1 MiB; nothing where the file cannot be read."""
        if self._head is None:
            self._head = self._read_head()
        return self._head[:size]

    def _read_head(self) -> bytes:
        try:
            if not self.path.exists() or self.path.is_dir():
                return b""
            self._stream = self.path.open("rb", buffering=1 << 16)
            if not self._stream.seekable():
                return self._stream.peek()
            head = self._stream.read(_HEAD_BYTES)
            self._stream.seek(0)
        except (OSError, ValueError):
            self.close()
            return b""
        return head

    def open(self, noun: str) -> io.BufferedReader:
        """Returns the file opened at its beginning; who takes it closes it. `noun` is what errors call it."""
        stream, self._stream = self._stream, None
        return stream if stream is not None else open_binary(self.path, noun)

    def close(self) -> None:
        """Closes the file, where it was looked at and not read."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None


@dataclass(frozen=True)
class GivenPath:
    """A path as the user gave it: a file, a folder, or a pattern such as `run/*.txt`."""

    text: str

    @cached_property
    def path(self) -> Path:
        """The path itself."""
        return Path(self.text)

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        try:
            return self.path.is_dir()
        except (OSError, ValueError):
            return False

    @cached_property
    def is_pattern(self) -> bool:
        """Whether it is a pattern, and not the name of a file."""
        try:
            return glob.has_magic(self.text) and not self.path.exists()
        except (OSError, ValueError):
            return False

    @cached_property
    def is_file(self) -> bool:
        """Whether it is a file or a pipe."""
        try:
            return self.path.exists() and not self.path.is_dir()
        except (OSError, ValueError):
            return False

    @cached_property
    def files(self) -> tuple[InputFile, ...]:
        """The files that it names: itself, those of a folder, or those that a pattern matches, in order of names.

        A folder that a pattern matches counts with its files.
        """
        if not self.is_folder and not self.is_pattern:
            return (InputFile(self.path),)
        matches = [self.path]
        if self.is_pattern:
            matches = sorted(Path(match) for match in glob.glob(self.text, recursive=True))  # noqa: PTH207 - absolute
        files = [path for path in matches if path.is_file()]
        for folder in (path for path in matches if path.is_dir()):
            try:
                files += sorted(path for path in folder.iterdir() if path.is_file())
            except OSError as error:
                text = f"the folder cannot be read: {error.strerror}"
                raise InputError("unreadable-file", text, where=str(folder)) from None
        return tuple(map(InputFile, dict.fromkeys(files)))

    def close(self) -> None:
        """Closes the files that were looked at and not read."""
        for file in self.__dict__.get("files", ()):
            file.close()

    @property
    def first_files(self) -> tuple[InputFile, ...]:
        """The files by which a folder or pattern is recognised; none where it cannot be read."""
        try:
            return self.files[:MAX_LISTED]
        except InputError:
            return ()


def given_paths(paths: Sequence[str | Path | GivenPath]) -> tuple[GivenPath, ...]:
    """Returns paths as `GivenPath`s."""
    return tuple(path if isinstance(path, GivenPath) else GivenPath(str(path)) for path in paths)


def open_binary(path: str | Path | InputFile, noun: str) -> io.BufferedReader:
    """Opens a file to read bytes from; `noun` says in errors what it should be."""
    if isinstance(path, InputFile):
        return path.open(noun)
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


def read_whole(path: str | Path | InputFile, noun: str, hint: str) -> bytes:
    """Returns the bytes of a file; `noun` says in errors what it should be, `hint` what one looks like."""
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
