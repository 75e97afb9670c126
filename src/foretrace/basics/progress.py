"""Announces work that takes time: the command line shows it after a second, a program not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Protocol


class ShownWork(Protocol):
    """Work that is being done; whoever does it may change its text."""

    text: str


Watch = Callable[[str], AbstractContextManager[ShownWork]]
"""Shows a text while it is entered."""


def _unseen(text: str) -> AbstractContextManager[ShownWork]:
    return nullcontext(SimpleNamespace(text=text))


_watch: ContextVar[Watch] = ContextVar("watch", default=_unseen)


@contextmanager
def doing(text: str) -> Iterator[ShownWork]:
    """Shows `text` while the work inside runs; work inside of it, worker processes included, is not shown."""
    watch = _watch.get()
    with shown_by(_unseen), watch(text) as work:
        yield work


@contextmanager
def shown_by(watch: Watch) -> Iterator[None]:
    """Shows all work inside by `watch`."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
