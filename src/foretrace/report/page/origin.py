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
    """Adds the versions, the command and the inputs to the first of some views, which opens their page.

    Args:
        views: The views of one page. Those of saved answers state their own origin before that of the page.
        origin: What the page was made of.
    """
    first, *others = views
    return [replace(first, facts=tuple(_facts(origin)), command=origin.command or first.command), *others]


def origin_facts(view: View) -> tuple[str, list[tuple[str, str]]]:
    """Returns the command that made an answer and the facts about its origin.

    For a saved answer, the facts about the page follow.
    """
    if view.origin is None:
        return view.command, list(view.facts)
    facts = list(_facts(view.origin)) if view.origin.is_known else [("command, versions", _NOT_SAVED)]
    facts += [("this page", view.command)] if view.command else []
    return view.origin.command, facts + [(name and f"its {name}", value) for name, value in view.facts]


def _facts(origin: Origin) -> Iterator[tuple[str, str]]:
    """Yields versions and files."""
    yield "versions", " · ".join(origin.versions)
    yield from (("input", _described(file)) for file in origin.files)
    if origin.more_files:
        yield "", f"and {format_count(origin.more_files)} more files"


def _described(file: OriginFile) -> str:
    """Returns a file's name, size and SHA-256; only the name where these are not known."""
    if file.sha256 is None or file.size_bytes is None:
        return file.name
    return f"{file.name} · {format_bytes(file.size_bytes)} · sha256 {file.sha256}"
