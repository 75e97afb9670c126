"""Keeps apart the files that a command reads and the files that it writes.

A command claims its outputs before any work, and every file is recorded where it is opened for reading. So an input is
never replaced by an output of the same command, whatever names, links or folders lead to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self, TypeAlias

from foretrace.basics.errors import InputError, UsageError, shown

FileId: TypeAlias = tuple[int, int]
"""The device and the inode of a file: the same for all of its names and links."""


MAX_HASHED: Final = 20
"""Files that are hashed while they are read, the first ones; answers list no more."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The state of a file when it was opened; `sha256` is of its content, where that was hashed while it was read."""

    size_bytes: int
    modified_ns: int
    sha256: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, state: os.stat_result) -> Self:
        """Returns the state that `os.stat` states."""
        return cls(state.st_size, state.st_mtime_ns)


class FileRegistry:
    """The files that one command reads and writes.

    Args:
        words: The words that the command was called with.
        hashes_inputs: Whether its answer states the hashes of the files that it reads.
    """

    def __init__(self, words: Sequence[str] = (), *, hashes_inputs: bool = False) -> None:
        self.words = tuple(words)
        self.hashes_inputs = hashes_inputs
        self._hashed: set[str] = set()
        self._inputs: dict[FileId, str] = {}
        self._read: dict[str, ReadFile] = {}
        self._input_folders: set[FileId] = set()
        self._pipes: set[FileId] = set()
        self._outputs: dict[FileId | str, str] = {}
        self._output_folders: dict[FileId | str, str] = {}

    def claim(self, path: Path, *, folder: bool = False) -> None:
        """Records an output before it is written. Raises UsageError if it is an input or another output already.

        Args:
            path: The file, which need not exist.
            folder: Whether it is a folder, to which files are written whose names are not known yet.
        """
        keys = _keys(path)
        if folder:
            if any(key in self._input_folders for key in keys):
                raise _overwritten(path, "holds files that are read")
            above = Path(_real_path(path))
            if any(str(place) in self._outputs for place in (above, *above.parents)):
                raise _overwritten(path, "would be a file and a folder")
            self._output_folders |= dict.fromkeys(keys, str(path))
        else:
            if self._output(keys) is not None:
                raise _overwritten(path, "would be written twice")
            folders = [Path(key) for key in self._output_folders if isinstance(key, str)]
            if any(Path(_real_path(path)) in (place, *place.parents) for place in folders):
                raise _overwritten(path, "would be a file and a folder")
            self.check_output(path)
            self._outputs |= dict.fromkeys(keys, str(path))

    def is_claimed(self, path: Path) -> bool:
        """Returns whether a file is an output."""
        return self._output(_keys(path)) is not None

    def _output(self, keys: Iterable[FileId | str]) -> str | None:
        """Returns the name by which the output of any of the keys was claimed; None where there is none."""
        # Another process may have replaced an output since it was claimed; a new file can get the inode of the old one.
        for key in keys:
            name = self._outputs.get(key)
            if name is not None and (isinstance(key, str) or file_id(name) == key):
                return name
        return None

    def check_output(self, path: Path, name: str | Path | None = None) -> None:
        """Raises UsageError if a file that is to be written was read; `name` is what the user called it."""
        for key in _keys(path) if self._inputs else ():
            if isinstance(key, tuple) and key in self._inputs:
                raise _read_and_written(self._inputs[key], name or path)

    def check_input(self, path: str | Path) -> None:
        """Raises UsageError if a file that is to be read is an output."""
        output = self._output(_keys(Path(path))) if self._outputs else None
        if output is not None:
            raise _read_and_written(path, output)

    def add_input(self, path: str | Path, state: os.stat_result) -> None:
        """Records a file that was opened for reading. Raises UsageError if it is an output.

        Args:
            path: The name that it was opened by.
            state: Its `os.fstat`.
        """
        key = state.st_dev, state.st_ino
        if stat.S_ISREG(state.st_mode):
            # An output that is already written is another file than before; its path is the same.
            output = self._output((key, _real_path(path))) if self._outputs else None
            if output is not None:
                raise _read_and_written(path, output)
            self._inputs[key] = str(path)
            self._read.setdefault(str(path), ReadFile.of(state))
        elif not stat.S_ISCHR(state.st_mode):
            self._pipes.add(key)

    def claim_hash(self, path: str | Path) -> bool:
        """Claims the hash of an opened file; returns whether it is hashed while it is read.

        Those are the first `MAX_HASHED` files, each once.
        """
        name = str(path)
        read = self._read.get(name)
        if not self.hashes_inputs or read is None or read.sha256 is not None:
            return False
        if len(self._hashed) < MAX_HASHED:
            self._hashed.add(name)
        return name in self._hashed

    def add_hash(self, path: str | Path, size_bytes: int, sha256: str) -> None:
        """Records the SHA-256 of the content of a file, all of which was read."""
        read = self._read.get(str(path))
        if read is not None:
            self._read[str(path)] = replace(read, size_bytes=size_bytes, sha256=sha256)

    def read_file(self, name: str) -> ReadFile | None:
        """Returns the state of a file when it was opened; None where it was not opened by this name."""
        return self._read.get(name)

    def add_named_input(self, path: str | Path) -> None:
        """Records a file that an input names: it may be read late, after outputs are written, or not at all.

        Raises UsageError if it is an output.
        """
        self.check_input(path)
        key = file_id(path)
        if key is not None:
            self._inputs[key] = str(path)

    def add_input_folder(self, path: Path) -> None:
        """Records a folder whose files are read. Raises UsageError if files are to be written to it."""
        key = file_id(path)
        if key is not None:
            if key in self._output_folders:
                raise _overwritten(path, "holds files that are read")
            self._input_folders.add(key)

    def check_pipe(self, path: Path) -> None:
        """Raises InputError if a pipe was opened before: its content is gone, and opening it again would wait."""
        if self._pipes and file_id(path) in self._pipes:
            hint = "write it to a file, and give that"
            raise InputError("unreadable-file", "a pipe can be read only once", where=str(path), hint=hint)

    @property
    def inputs(self) -> list[str]:
        """The names of the files that were read, in the order in which they were opened."""
        return list(self._inputs.values())

    def inputs_of(self, folder: Path) -> list[Path]:
        """Returns the files of a folder that were read."""
        key = file_id(folder)
        return [path for path in map(Path, self._inputs.values()) if file_id(path.parent) == key]


def file_id(path: str | Path) -> FileId | None:
    """Returns what identifies a file or folder that links are followed to; None where there is none."""
    try:
        state = os.stat(path)  # noqa: PTH116 - a path or a text
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino


def _keys(path: Path) -> tuple[FileId | str, ...]:
    """Returns what identifies an output: its path after links and, where there is one, the file; nothing of devices."""
    try:
        real = _real_path(path)
        state = path.stat()
    except OSError:
        return (real,)
    except ValueError:  # a name that no file has
        return ()
    if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        return ()
    return real, (state.st_dev, state.st_ino)


def _real_path(path: str | Path) -> str:
    """Returns a path after links; the path itself where the current folder, which it begins in, is gone."""
    try:
        return os.path.realpath(path)
    except OSError:
        return str(path)


def _read_and_written(read: str | Path, written: str | Path) -> UsageError:
    """Returns the error for an output that is an input, by the names that the user gave both."""
    if str(read) == str(written):
        return _overwritten(written, "is read, and would be written over")
    return _overwritten(written, f"is {shown(str(read))}, which is read")


def _overwritten(path: str | Path, problem: str) -> UsageError:
    hint = "give every output a name of its own"
    return UsageError("output-overwrites-input", f"{shown(str(path))} {problem}", hint=hint)


_registry: ContextVar[FileRegistry | None] = ContextVar("file_registry", default=None)


@contextmanager
def tracked_files(words: Sequence[str] = (), *, hashes_inputs: bool = False) -> Iterator[FileRegistry]:
    """Keeps inputs and outputs apart while the block runs; inside of such a block, joins it.

    Args:
        words: The words that the command was called with.
        hashes_inputs: Whether its answer states the hashes of the files that it reads.
    """
    active = _registry.get()
    if active is not None:
        yield active
        return
    registry = FileRegistry(words, hashes_inputs=hashes_inputs)
    token = _registry.set(registry)
    try:
        yield registry
    finally:
        _registry.reset(token)


def active_registry() -> FileRegistry | None:
    """Returns the registry of the command that runs; None where nothing is tracked."""
    return _registry.get()


def record_named_input(path: str | Path) -> None:
    """Records a file that an input names for the command that runs, as `FileRegistry.add_named_input` does."""
    registry = _registry.get()
    if registry is not None:
        registry.add_named_input(path)
