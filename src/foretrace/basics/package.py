"""Holds what basics must know of the whole package, which they cannot import: its version, and what renders answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import pandas

VERSION: Final = "0.7.0.dev0"
"""The version of Foretrace; that of `pyproject.toml`."""


class Plot(Protocol):
    """A page or a section of it, which a notebook shows."""

    def save(self, path: str | Path) -> None:
        """Writes it as a page (.html), or its picture (.svg) where it has one."""


class Renderer(Protocol):
    """Renders answers; a module with these functions is one."""

    def answer_values(self, answer: Any) -> dict[str, Any]:
        """Returns an answer as plain values."""

    def answer_frame(self, answer: Any, key: str | None) -> pandas.DataFrame:
        """Returns a table of an answer as a pandas frame."""

    def answer_plot(self, answer: Any, section: str | None) -> Plot:
        """Returns the page of an answer, or one of its sections."""

    def notebook_html(self, answer: Any) -> str:
        """Returns what a notebook shows of an answer."""


_load: Callable[[], Renderer] | None = None


def register_renderer(load: Callable[[], Renderer]) -> None:
    """Registers what renders answers; `load` imports it when an answer is rendered first."""
    global _load
    _load = load


def renderer() -> Renderer:
    """Returns what renders answers."""
    assert _load is not None, "the package registers its renderer"
    return _load()
