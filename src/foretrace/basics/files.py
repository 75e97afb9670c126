"""Reads files.

Every file that a user names is opened by an `InputFile`, which records it as an input of the command that runs
(`foretrace.basics.file_registry`).
"""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from foretrace.basics.errors import InputError, nearest
from foretrace.basics.file_registry import FileRegistry, active_registry
from foretrace.basics.limits import limited, too_large
from foretrace.basics.outputs import is_leftover

MAX_FILE_BYTES: Final = 512 << 20
"""Bytes of a file that has no smaller limit of its own."""

MAX_LISTED: Final = 1000
"""Files of a folder, or matches of a pattern, that are looked at to recognise what they are."""

_MAX_HEAD_BYTES: Final = 1 << 20
_PART_BYTES: Final = 64 << 20
_HASHED_AT_ONCE_BYTES: Final = 128 << 10
_MAX_WAITING: Final = 64
"""Files that may be open between a look at their beginning and reading; systems allow a process as few as 256."""


_PACKAGE: Final = os.path.realpath(Path(__file__).parents[1])
_allowed: list[str] | None = None
"""The folders below which files may be opened; None: anywhere."""


def restrict_inputs(folders: Iterable[str | Path]) -> None:
    """Lets this process open inputs only below some folders from now on; all other files do not exist for it.

    A server calls it before it works on what somebody else asks. Patterns are then names like any other. Files that
    come with the package can always be read.
    """
    global _allowed
    _allowed = [os.path.realpath(folder) for folder in folders]


def is_restricted() -> bool:
    """Returns whether this process answers requests of others, and so opens only some files."""
    return _allowed is not None


def may_open(path: str | os.PathLike[str]) -> bool:
    """Returns whether inputs at this path may be opened, wherever its links and `..` lead."""
    if _allowed is None:
        return True
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):  # a name that no file has
        return False
    return any(real == folder or real.startswith(folder + os.sep) for folder in (*_allowed, _PACKAGE))


def is_of_package(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file comes with the package."""
    return os.path.realpath(path).startswith(_PACKAGE + os.sep)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file that was read. Raises OSError where it cannot be read again."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class _HashedFile(io.RawIOBase):
    """A file that is hashed while it is read; its hash is recorded when every byte was read, in order.

    Bytes that are read again are hashed once. Reads that bypass the stream, such as through `fileno`, are not hashed.
    """

    def __init__(self, file: io.RawIOBase, path: Path, registry: FileRegistry) -> None:
        self._file = file
        self._path = path
        self._registry = registry
        self._size_bytes = os.fstat(file.fileno()).st_size
        self._hash = hashlib.sha256()
        self._hashed_bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any, /) -> int:
        begin = self._file.tell()
        count = self._file.readinto(buffer) or 0
        self._add(begin, memoryview(buffer).cast("B")[:count])
        return count

    def readall(self) -> bytes:
        begin = self._file.tell()
        data = self._file.readall()
        self._add(begin, data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()

    def _add(self, begin: int, data: bytes | memoryview) -> None:
        """Hashes what of some bytes was not hashed before, if nothing is missing in between."""
        end = begin + len(data)
        if not begin <= self._hashed_bytes <= end:
            return
        self._hash.update(memoryview(data)[self._hashed_bytes - begin :])
        self._hashed_bytes = end
        if end >= self._size_bytes:
            self._registry.add_hash(self._path, end, self._hash.hexdigest())


class InputFile(os.PathLike[str]):
    """A file of an input, opened once: first its beginning is looked at, then the same handle is read to its end."""

    _waiting: ClassVar[list[weakref.ref[InputFile]]] = []
    """Files whose beginning was looked at and that can be opened again, the oldest first."""

    def __init__(self, path: str | Path) -> None:
        self._stream: io.BufferedReader | None = None
        self._head = b""
        self._looked_bytes = 0
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"InputFile({str(self.path)!r})"

    def __del__(self) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name of the file, without its folder."""
        return self.path.name

    def head(self, size: int = 1 << 16) -> bytes:
        """Returns the first `size` bytes, at most 1 MiB; nothing where the file cannot be read.

        Of a pipe, these are the bytes that have come by now, which may be fewer.
        """
        size = min(size, _MAX_HEAD_BYTES)
        if len(self._head) == self._looked_bytes < size:
            self._looked_bytes = size
            self._head = self._read_head(size)
        return self._head[:size]

    def _read_head(self, size: int) -> bytes:
        try:
            if self._stream is None and (not self.path.exists() or self.path.is_dir()):
                return b""
            stream = self._stream = self._stream or self._open()
            if not stream.seekable():
                self._looked_bytes = _MAX_HEAD_BYTES
                return stream.peek()
            head = stream.read(size)
            stream.seek(0)
        except (OSError, ValueError):
            self.close()
            return b""
        self._limit_waiting()
        return head

    def _limit_waiting(self) -> None:
        """Closes the file that has waited longest where too many do; it is opened again when it is read."""
        others = [ref for ref in InputFile._waiting if (file := ref()) is not self and file and file._stream]
        if len(others) >= _MAX_WAITING and (oldest := others.pop(0)()) is not None:
            oldest.close()
        InputFile._waiting = [*others, weakref.ref(self)]

    def take(self) -> io.BufferedReader:
        """Returns the file opened at its beginning; who takes it closes it.

        Raises OSError or ValueError where the file cannot be opened.
        """
        stream, self._stream = self._stream, None
        stream = stream or self._open()
        if not stream.seekable():
            self._looked_bytes = _MAX_HEAD_BYTES  # a pipe that was handed over is not looked at again
        return stream

    def _open(self) -> io.BufferedReader:
        if not may_open(self.path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        registry = active_registry()
        if registry is None:
            return self.path.open("rb")
        registry.check_pipe(self.path)
        stream = self.path.open("rb")
        try:
            registry.add_input(self.path, os.fstat(stream.fileno()))
        except BaseException:
            stream.close()
            raise
        if is_of_package(self.path) or not registry.claim_hash(self.path):
            return stream
        return io.BufferedReader(_HashedFile(stream.detach(), self.path, registry), _HASHED_AT_ONCE_BYTES)

    def open(self, noun: str) -> io.BufferedReader:
        """Returns the file opened at its beginning; who takes it closes it. `noun` is what errors call it."""
        return open_binary(self, noun)

    def close(self) -> None:
        """Closes the file, where it was looked at and not read."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


@dataclass(frozen=True)
class GivenPath:
    """A path as the user gave it: a file, a folder, or a pattern such as `run/*.txt`."""

    text: str
    file: InputFile | None = field(default=None, compare=False, repr=False)
    """The file that it is, where that may be open already."""

    @cached_property
    def path(self) -> Path:
        """The path itself."""
        return Path(self.text)

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        try:
            return may_open(self.path) and self.path.is_dir()
        except (OSError, ValueError):
            return False

    @cached_property
    def is_pattern(self) -> bool:
        """Whether it is a pattern, and not the name of a file."""
        try:
            return _allowed is None and glob.has_magic(self.text) and not self.path.exists()
        except (OSError, ValueError):
            return False

    @cached_property
    def is_file(self) -> bool:
        """Whether it is a file or a pipe."""
        try:
            return may_open(self.path) and self.path.exists() and not self.path.is_dir()
        except (OSError, ValueError):
            return False

    @property
    def is_many(self) -> bool:
        """Whether it may stand for many files: a folder or a pattern."""
        return self.is_folder or self.is_pattern

    @cached_property
    def matches(self) -> tuple[Path, ...]:
        """The files and folders that a pattern matches, in order of names; else the path itself."""
        if not self.is_pattern:
            return (self.path,)
        try:
            return tuple(sorted(Path(match) for match in glob.glob(self.text, recursive=True)))  # noqa: PTH207 - absolute
        except ValueError:  # a character that no path has
            return ()

    @cached_property
    def files(self) -> tuple[InputFile, ...]:
        """The files that it names: itself, those of a folder, or those that a pattern matches, in order of names.

        A folder that a pattern matches counts with its files.
        """
        if not self.is_many:
            return (self.file or InputFile(self.path),)
        place, registry = self.path, active_registry()
        try:
            files = [place for place in self.matches if place.is_file()]
            for place in (match for match in self.matches if match.is_dir()):
                if registry is not None:
                    registry.add_input_folder(place)
                files += sorted(path for path in place.iterdir() if path.is_file())
        except OSError as error:
            text = f"the folder cannot be read: {error.strerror}"
            raise InputError("unreadable-file", text, where=str(place)) from None
        return tuple(InputFile(file) for file in dict.fromkeys(files) if not is_leftover(file.name))

    @property
    def first_files(self) -> tuple[InputFile, ...]:
        """The files by which a folder or pattern is recognised; none where it cannot be read."""
        try:
            return self.files[:MAX_LISTED]
        except InputError:
            return ()

    def close(self) -> None:
        """Closes the files that were looked at and not read."""
        for file in self.__dict__.get("files", ()):
            file.close()


AnyFile: TypeAlias = str | Path | InputFile
"""A file by its name, or one whose beginning may have been looked at."""

AnyPath: TypeAlias = "str | Path | InputFile | GivenPath"
"""A file, a folder or a pattern, in any form."""


def input_file(path: AnyFile) -> InputFile:
    """Returns a file as an `InputFile`. Raises InputError where it is something else."""
    if not isinstance(path, (str, os.PathLike)):
        raise _not_a_path(path)
    return path if isinstance(path, InputFile) else InputFile(path)


def given_paths(paths: Iterable[AnyPath]) -> tuple[GivenPath, ...]:
    """Returns paths as `GivenPath`s. Raises InputError where they are something else."""
    if not isinstance(paths, Iterable):
        raise _not_a_path(paths)
    return tuple(map(given_path, paths))


def given_path(path: AnyPath) -> GivenPath:
    """Returns a path as a `GivenPath`. Raises InputError where it is something else."""
    if isinstance(path, GivenPath):
        return path
    if not isinstance(path, (str, os.PathLike)):
        raise _not_a_path(path)
    return GivenPath(str(path), path if isinstance(path, InputFile) else None)


def _not_a_path(value: object) -> InputError:
    return InputError("bad-value", f"a file is given by its name, not by {type(value).__name__}")


def head_bytes(path: AnyFile, size: int) -> bytes:
    """Returns the first bytes of a file; nothing where it cannot be read. Never an error.

    A file that is given by its name is closed again. A pipe that is given by its name is not looked at, since what it
    has given cannot be read again.
    """
    if isinstance(path, InputFile):
        return path.head(size)
    try:
        if not Path(path).is_file():
            return b""
    except (OSError, ValueError):
        return b""
    file = InputFile(path)
    head = file.head(size)
    file.close()
    return head


def open_binary(path: AnyFile, noun: str) -> io.BufferedReader:
    """Opens a file to read bytes from; `noun` says in errors what it should be."""
    try:
        return input_file(path).take()
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


def read_whole(path: AnyFile, noun: str, hint: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Returns the bytes of a file.

    Args:
        path: The file.
        noun: What errors call the file.
        hint: What errors say such a file looks like.
        max_bytes: The size of the largest real file of its kind; a user can raise it (`foretrace.basics.limits`).
    """
    most = limited(max_bytes)
    try:
        with open_binary(path, noun) as stream:
            too_long = os.fstat(stream.fileno()).st_size > most
            data = b"" if too_long else read_up_to(stream, most + 1)
    except OSError as error:
        raise InputError(unreadable(error), f"the {noun} cannot be read: {error.strerror}", where=str(path)) from None
    if too_long or len(data) > most:
        raise too_large(f"the {noun} has more than {_shown_size(most)}", str(path), hint)
    return data


def read_up_to(stream: io.BufferedIOBase, most: int) -> bytes:
    """Returns what is left of a stream, at most `most` bytes: a pipe has no size and may not end."""
    parts, left = [], most
    while left and (part := stream.read(min(left, _PART_BYTES))):  # a read makes room for all that it asks for
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def unpack(data: bytes, noun: str, where: str, max_bytes: int) -> bytes:
    """Returns bytes that gzip packed, or the bytes themselves where it did not.

    Args:
        data: The content of a file.
        noun: What errors call the file.
        where: The file.
        max_bytes: Bytes that may come out; a user can raise it (`foretrace.basics.limits`).
    """
    if not data.startswith(b"\x1f\x8b"):
        return data
    import gzip
    import zlib

    most = limited(max_bytes)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            unpacked = read_up_to(stream, most + 1)
    except (EOFError, OSError, zlib.error) as error:
        code = "truncated-file" if isinstance(error, EOFError) else "bad-compression"
        raise InputError(code, f"the packed {noun} is cut off or damaged", where=where) from None
    if len(unpacked) > most:
        raise too_large(f"the {noun} unpacks to more than {_shown_size(most)}", where)
    return unpacked


def _shown_size(size_bytes: int) -> str:
    return f"{size_bytes >> 20:,} MiB" if size_bytes >= 1 << 20 else f"{size_bytes:,} bytes"


def unreadable(error: OSError | ValueError) -> str:
    """Returns the code for a file that could not be opened or read."""
    if isinstance(error, FileNotFoundError):
        return "file-not-found"
    return "folder-instead-of-file" if isinstance(error, IsADirectoryError) else "unreadable-file"


def _near_file(path: Path) -> str | None:
    """Returns the file next to a missing one that was probably meant."""
    if not may_open(path.parent):
        return None
    try:
        near = nearest(path.name, [entry.name for entry in islice(path.parent.iterdir(), 1000)], 0.75)
    except (OSError, ValueError):
        return None
    return str(path.parent / near) if near else None
