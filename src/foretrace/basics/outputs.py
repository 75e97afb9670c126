"""Writes files, each in one go, and checks outputs before any work.

Every file that the package writes goes through `replacing`, so that errors, signals and other processes leave the old
content or the new one.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from foretrace.basics.errors import InputError, shown
from foretrace.basics.file_registry import active_registry

PAGE_ENDINGS: Final = (".html", ".htm")
"""The endings of the files that hold pages."""

_BUFFER_BYTES: Final = 1 << 18
_MAX_LINKS: Final = 40
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_TEMPORARY: Final = ".foretrace-{}.tmp"
_LEFTOVER: Final = re.compile(r"\.foretrace-[0-9a-f]{16}\.tmp")


def write_whole(path: Path, parts: Iterable[bytes], noun: str) -> None:
    """Writes the parts to a file in one go, as `replacing` does. `noun` is what errors call the file."""
    with replacing(path, noun) as stream:
        stream.writelines(parts)


def write_text(path: Path, text: str, noun: str = "file") -> None:
    """Writes a text to a file in one go, as `replacing` does. `noun` is what errors call the file."""
    write_whole(path, [text.encode()], noun)


@contextmanager
def replacing(path: Path, noun: str) -> Iterator[BinaryIO]:
    """Yields a stream to a temporary file next to `path`, which replaces `path` when the block ends without an error.

    A reader sees the old content or all of the new one, also while several processes write the same file. After an
    error, and after an exception that a signal raised, the old content is still there and the temporary file is not.
    A process that is killed can leave the temporary file behind, which `is_leftover` tells by its name.

    Links are followed, and a file that is replaced keeps its mode; a new one gets the mode that the umask leaves.
    Open descriptors (`/dev/stdout`, `/dev/fd/3`, `>(gzip > out.gz)` of a shell) and `/dev/null` are written to as the
    bytes come. Other devices, named pipes and sockets are errors.

    Args:
        path: The file to write.
        noun: What errors call the file.

    Raises:
        InputError: The file cannot be written (`unwritable-file`).
        UsageError: The command that runs has read the file (`output-overwrites-input`).
    """
    with _unwritable_if_refused(path, noun):
        target = _output_target(path)
        state = _check_target(target)
    if isinstance(target, int) or (state is not None and not stat.S_ISREG(state.st_mode)):
        with _written_through(target, path, noun) as stream:
            yield stream
        return
    registry = active_registry()
    if registry is not None:
        registry.check_output(target, path)
    import secrets  # only writing needs it, and it takes a while

    temporary = target.parent / _TEMPORARY.format(secrets.token_hex(8))
    raw: _OutputFile | None = None
    try:
        with _unwritable_if_refused(path, noun):
            # O_EXCL also refuses a link of this name, wherever it leads.
            raw = _OutputFile(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666), path, noun)
        buffered = io.BufferedWriter(raw, _BUFFER_BYTES)
        yield buffered
        buffered.flush()
        with _unwritable_if_refused(path, noun):
            if state is not None:
                _keep_mode(raw.fileno(), state)
                os.fsync(raw.fileno())  # the old content goes only when the new one is on the disk
            raw.close()
            temporary.replace(target)
    finally:
        if raw is not None:
            with suppress(OSError):
                raw.close()
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def claim_output(path: Path, noun: str = "file", *, folder: bool = False) -> None:
    """Checks before any work that an output can be written, and that it is neither an input nor another output.

    Args:
        path: The output.
        noun: What errors call it.
        folder: Whether it is a folder, which is made where it does not exist.

    Raises:
        InputError: It cannot be written (`unwritable-file`), as far as this can be known now.
        UsageError: It is an input or another output (`output-overwrites-input`).
    """
    with _unwritable_if_refused(path, noun):
        target = _output_target(path)
        if folder:
            _check_folder(path)
        else:
            _check_target(target)
    registry = active_registry()
    if registry is not None:
        registry.claim(path, folder=folder)


def make_folder(path: Path) -> set[str]:
    """Makes a folder for outputs, and those above it, where it does not exist; returns the names of what is in it."""
    with _unwritable_if_refused(path, "folder"):
        path.mkdir(parents=True, exist_ok=True)
        return {entry.name for entry in path.iterdir()}


def old_content(path: Path, size: int = 1 << 20) -> bytes | None:
    """Returns the first bytes of a file that is to be replaced; None where there is no file.

    The file does not become an input of the command by this.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return stream.read(size)
    except (OSError, ValueError):
        return None


def is_leftover(name: str) -> bool:
    """Returns whether a file is called as temporary files are; one that is still there was left by a killed process."""
    return _LEFTOVER.fullmatch(name) is not None


class _OutputFile(io.FileIO):
    """A file whose errors are those of an output: errors of what is read meanwhile are not mistaken for them."""

    def __init__(self, descriptor: int, path: Path, noun: str) -> None:
        super().__init__(descriptor, "w")
        self._path, self._noun = path, noun

    def write(self, data: Any, /) -> int:
        """Writes bytes."""
        with _unwritable_if_refused(self._path, self._noun):
            return super().write(data)


@contextmanager
def _written_through(target: Path | int, path: Path, noun: str) -> Iterator[BinaryIO]:
    """Yields a stream to an open descriptor or a device, which is written as the bytes come."""
    with _unwritable_if_refused(path, noun):
        if target == 1 and sys.stdout is not None:
            sys.stdout.flush()
        # A descriptor is used, not opened again: a second one would begin at byte 0 of a file, and sockets have none.
        descriptor = os.dup(target) if isinstance(target, int) else os.open(target, os.O_WRONLY)
        raw = _OutputFile(descriptor, path, noun)
    with raw:
        buffered = io.BufferedWriter(raw, _BUFFER_BYTES)
        yield buffered
        buffered.flush()


def _output_target(path: Path) -> Path | int:
    """Returns the file that an output path leads to, or the number of the open descriptor that it stands for."""
    text = os.fspath(path)
    descriptors = ("/dev/fd", "/proc/self/fd", f"/proc/{os.getpid()}/fd")
    for _ in range(_MAX_LINKS):
        folder, name = os.path.split(text)
        folder = os.path.realpath(folder)
        if folder in descriptors and name.isdecimal() and name.isascii():
            return int(name[:9])
        text = os.path.join(folder, name)  # noqa: PTH118 - as the parts above
        if not os.path.islink(text):  # noqa: PTH114
            return Path(os.path.realpath(text))
        text = os.path.join(folder, os.readlink(text))  # noqa: PTH115, PTH118
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _check_target(target: Path | int) -> os.stat_result | None:
    """Returns the state of an output, None where there is no file yet. Raises OSError where it cannot be written."""
    if isinstance(target, int):
        return os.fstat(target)
    try:
        state = target.stat()
    except FileNotFoundError:
        state = None
    if state is not None and stat.S_ISCHR(state.st_mode) and state.st_rdev == Path(os.devnull).stat().st_rdev:
        return state
    if state is not None and stat.S_ISDIR(state.st_mode):
        raise _refusal(errno.EISDIR)
    if state is not None and not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    # A rename would replace a file that its owner has protected against writing.
    if state is not None and not os.access(target, os.W_OK):
        raise _refusal(errno.EACCES)
    _check_enterable(target.parent)
    return state


def _check_folder(path: Path) -> None:
    """Raises OSError where a folder cannot be made, or no files can be made in it."""
    place = Path(os.path.realpath(path))
    while place != place.parent:
        try:
            place.stat()
        except FileNotFoundError:
            place = place.parent
        else:
            break
    _check_enterable(place)


def _check_enterable(folder: Path) -> None:
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise _refusal(errno.ENOTDIR)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refusal(errno.EACCES)


def _refusal(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _keep_mode(descriptor: int, state: os.stat_result) -> None:
    """Gives a new file the owner, where that is allowed, and the mode of the one that it replaces."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (state.st_uid, state.st_gid):
        with suppress(OSError):
            os.fchown(descriptor, state.st_uid, state.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(state.st_mode))


@contextmanager
def _unwritable_if_refused(path: Path, noun: str) -> Iterator[None]:
    """Turns an error of the operating system into that of an output that cannot be written."""
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        # ValueError: a null character, or half of a surrogate pair; TypeError: not a name at all.
        reason = error.strerror if isinstance(error, OSError) else "no file can be called so"
        if isinstance(error, FileNotFoundError) and not path.parent.exists():
            reason = f"the folder {shown(str(path.parent))} does not exist"
        hint = "give the name of a file in a folder that exists and that you may write to"
        raise InputError(
            "unwritable-file", f"the {noun} cannot be written: {reason}", where=str(path), hint=hint
        ) from error
