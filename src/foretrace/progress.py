"""What is being done, for whoever shows it: the command line shows it after a second, a program not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Watch = Callable[[str], AbstractContextManager[object]]
"""Shows a text while it is entered."""

_watch: ContextVar[Watch] = ContextVar("watch", default=nullcontext)


def doing(text: str) -> AbstractContextManager[object]:
    """Returns a context manager for work that `text` describes; what it enters may have a `text` to change."""
    return _watch.get()(text)


@contextmanager
def shown_by(watch: Watch) -> Iterator[None]:
    """Shows all work inside by `watch`."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
