"""Shows on a page what its answers were made of: the command, the versions, and the input files with their hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from foretrace.basics.origin import Origin, OriginFile
from foretrace.basics.units import format_bytes, format_count
from foretrace.report.page.blocks import View

_NOT_SAVED: Final = "not known: an earlier version of Foretrace saved the answer without them"


def with_origin(views: Sequence[View], origin: Origin) -> list[View]:
    """Adds the versions, the command and the inputs to the last of some views, which closes their page.

    Args:
        views: The views of one page. Those of saved answers state their own origin before that of the page.
        origin: What the page was made of.
    """
    *before, last = views
    if last.facts:
        page = [("this page", origin.command)] if origin.command else []
        return [*before, replace(last, facts=(*last.facts, *page, *_facts(origin, "its ")))]
    return [*before, replace(last, facts=tuple(_facts(origin)), command=origin.command or last.command)]


def with_saved_origin(view: View, origin: Origin | None) -> View:
    """Adds what a saved answer was made of to its view; None: the file does not say."""
    if origin is None:
        return replace(view, facts=(("command, versions", _NOT_SAVED),))
    return replace(view, facts=tuple(_facts(origin)), command=origin.command)


def _facts(origin: Origin, of: str = "") -> Iterator[tuple[str, str]]:
    """Yields versions and files; `of` precedes their names."""
    yield f"{of}versions", " · ".join(origin.versions)
    yield from ((f"{of}input", _described(file)) for file in origin.files)
    if origin.more_files:
        yield "", f"and {format_count(origin.more_files)} more files"


def _described(file: OriginFile) -> str:
    """Returns a file's name, size and SHA-256; only the name where these are not known."""
    if file.sha256 is None or file.size_bytes is None:
        return file.name
    return f"{file.name} · {format_bytes(file.size_bytes)} · sha256 {file.sha256}"
