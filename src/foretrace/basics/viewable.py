"""Defines `Viewable`, the base class of answers: what a notebook shows of them, and how they become frames and plots.

`report/` renders answers. It imports their classes, so they cannot import it at module level; the methods import it
when called.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from foretrace.basics.arguments import checked_calls

if TYPE_CHECKING:
    import pandas


class Plot(Protocol):
    """A page or a section of it, which a notebook shows."""

    def save(self, path: str | Path) -> None:
        """Writes it as a page (.html), or its picture (.svg) where it has one."""


@checked_calls
class Viewable:
    """An answer that can be looked at."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the whole answer as plain values, SI units, keys as in `--json` (docs/json.md)."""
        values: dict[str, Any] = import_module("foretrace.report.notebook").answer_values(self)
        return values

    def to_frame(self, key: str | None = None) -> pandas.DataFrame:
        """Returns a table of the answer as a pandas frame.

        Args:
            key: The key of `to_dict()` that holds the table, such as `rank_classes` or `remedies`; keys of keys are
                joined by dots: `memory.stages`. None: the main table of this kind of answer. A table that is empty or
                null gives an empty frame.

        Raises:
            InputError: There is no table of this name, or pandas is not installed.
        """
        return import_module("foretrace.report.notebook").answer_frame(self, key)

    def plot(self, section: str | None = None) -> Plot:
        """Returns a section of the answer's page, which a notebook shows: `pipeline`, `memory`, `roofline`, …

        Args:
            section: The key of the section; None: the whole page.

        Raises:
            InputError: The answer has no such section.
        """
        plot: Plot = import_module("foretrace.report.notebook").answer_plot(self, section)
        return plot

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        html: str = import_module("foretrace.report.notebook").notebook_html(self)
        return html
