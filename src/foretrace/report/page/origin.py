"""Says what answers were made of: the command, the version, and the input files with their hashes."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import foretrace
from foretrace.basics.files import sha256_of
from foretrace.basics.units import format_bytes, format_count
from foretrace.report.page.blocks import View

MAX_FILES: Final = 20
"""Input files that are listed each with its hash; more are counted."""


def with_origin(views: Sequence[View], words: Sequence[str], inputs: Sequence[str]) -> list[View]:
    """Adds the versions, the command and the inputs to the last of some views, which closes their page.

    Args:
        views: The views of one page.
        words: The words of the command after `foretrace`; empty for views that were made from Python.
        inputs: The files that were read. Those of the package are part of its version, and are left out.
    """
    package = Path(foretrace.__file__).parent.resolve()
    files = [name for name in inputs if package not in Path(name).resolve().parents]
    facts = [("versions", " · ".join(_versions()))]
    facts += [("input", _described(name)) for name in files[:MAX_FILES]]
    if len(files) > MAX_FILES:
        facts.append(("", f"and {format_count(len(files) - MAX_FILES)} more files"))
    *before, last = views
    command = shlex.join(["foretrace", *words]) if words else last.command
    return [*before, replace(last, facts=(*last.facts, *facts), command=command)]


def _versions() -> Iterator[str]:
    """Yields the versions that an answer depends on: of Foretrace, of NVIDIA's tables where they are installed, …"""
    yield f"foretrace {foretrace.__version__}"
    for package in ("aiconfigurator-core", "numpy"):
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"
    yield f"Python {platform.python_version()}"


def _described(name: str) -> str:
    """Returns a file's name, size and SHA-256; only the name where it cannot be read a second time."""
    path = Path(name)
    try:
        digest = sha256_of(path) if path.is_file() else None
        return name if digest is None else f"{name} · {format_bytes(path.stat().st_size)} · sha256 {digest}"
    except OSError:
        return name
