"""Describes what an answer was made of: the command, the versions, and the files that were read, with their hashes."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foretrace.basics.file_registry import MAX_HASHED, FileRegistry, ReadFile, active_registry
from foretrace.basics.files import is_of_package, sha256_of
from foretrace.basics.package import VERSION


@dataclass(frozen=True, slots=True)
class OriginFile:
    """A file that was read; without size and hash where it could not be read a second time, or has changed since."""

    name: str
    size_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """What an answer was made of.

    Attributes:
        words: The words of the command after `foretrace`; empty for what was made from Python.
        versions: The versions that the answer depends on; empty where the origin is not known.
        files: The first files that were read. Those of the package are part of its version, and are left out.
        more_files: How many more files were read.
    """

    words: tuple[str, ...]
    versions: tuple[str, ...]
    files: tuple[OriginFile, ...]
    more_files: int = 0

    @property
    def command(self) -> str:
        """The command line; empty for what was made from Python."""
        return command_text(self.words)

    @property
    def is_known(self) -> bool:
        """Whether the file of the answer says what it was made of."""
        return bool(self.versions)


def command_text(words: Sequence[str]) -> str:
    """Returns the command line of the words after `foretrace`; empty where there are none."""
    return shlex.join(["foretrace", *words]) if words else ""


UNKNOWN_ORIGIN: Final = Origin((), (), ())
"""The origin of answers that earlier versions saved without it."""


def origin_of(words: Sequence[str], inputs: Sequence[str]) -> Origin:
    """Returns the origin of what this process makes.

    Args:
        words: The words of the command after `foretrace`.
        inputs: The files that were read.
    """
    registry = active_registry()
    files = [name for name in inputs if not is_of_package(name)]
    described = tuple(_described(name, registry) for name in files[:MAX_HASHED])
    return Origin(tuple(words), tuple(_versions()), described, len(files) - len(described))


def origin_of_command() -> Origin:
    """Returns the origin of what the command that runs makes; without a command, only the versions are known."""
    registry = active_registry()
    return origin_of((), ()) if registry is None else origin_of(registry.words, registry.inputs)


def _versions() -> Iterator[str]:
    """Yields the versions that an answer depends on: of Foretrace, of NVIDIA's tables where they are installed, …"""
    from importlib.metadata import PackageNotFoundError, version  # takes longer to import than most commands to start

    yield f"foretrace {VERSION}"
    for package in ("aiconfigurator-core", "numpy"):
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"
    yield f"Python {platform.python_version()}"


def _described(name: str, registry: FileRegistry | None) -> OriginFile:
    """Returns the hash of what was read. A file that was not hashed then is read again, unless it has changed."""
    read = None if registry is None else registry.read_file(name)
    if read is not None and read.sha256 is not None:
        return OriginFile(name, read.size_bytes, read.sha256)
    try:
        path = Path(name)
        if not path.is_file() or (read is not None and ReadFile.of(os.stat(path)) != read):  # noqa: PTH116 - its result
            return OriginFile(name)
        return OriginFile(name, path.stat().st_size, sha256_of(path))
    except OSError:
        return OriginFile(name)
