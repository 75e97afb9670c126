"""Defines `Viewable`, the base class of answers: what a notebook shows of them, and how they become frames and plots.

`report/` renders answers. It imports their classes, so they cannot import it; the package registers it with
`package.register_renderer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretrace.basics.arguments import checked_calls
from foretrace.basics.package import Plot, renderer

if TYPE_CHECKING:
    import pandas


@checked_calls
class Viewable:
    """An answer that can be looked at."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the whole answer as plain values, SI units, keys as in `--json` (docs/json.md)."""
        return renderer().answer_values(self)

    def to_frame(self, key: str | None = None) -> pandas.DataFrame:
        """Returns a table of the answer as a pandas frame.

        Args:
            key: The key of `to_dict()` that holds the table, such as `rank_classes` or `remedies`; keys of keys are
                joined by dots: `memory.stages`. None: the main table of this kind of answer. A table that is empty or
                null gives an empty frame.

        Raises:
            InputError: There is no table of this name, or pandas is not installed.
        """
        return renderer().answer_frame(self, key)

    def plot(self, section: str | None = None) -> Plot:
        """Returns a section of the answer's page, which a notebook shows: `pipeline`, `memory`, `roofline`, …

        Args:
            section: The key of the section; None: the whole page.

        Raises:
            InputError: The answer has no such section.
        """
        return renderer().answer_plot(self, section)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        return renderer().notebook_html(self)
