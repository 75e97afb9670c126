"""Work that is shown while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from foretrace.basics.progress import ShownWork, doing, shown_by


def test_only_the_outermost_work_is_shown() -> None:
    """Two lines on one terminal would overwrite each other."""
    texts = []

    @contextmanager
    def watch(text: str) -> Iterator[ShownWork]:
        texts.append(text)
        yield SimpleNamespace(text=text)

    with shown_by(watch):
        with doing("a sweep"), doing("one of its jobs"):
            pass
        with doing("the next"):
            pass
    assert texts == ["a sweep", "the next"]
