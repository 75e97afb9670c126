"""Shows answers in notebooks: as HTML, as pandas frames, and as plots that are sections of their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foretrace.basics.errors import InputError, did_you_mean
from foretrace.basics.outputs import write_text
from foretrace.basics.viewable import Viewable
from foretrace.report.page.blocks import Picture, View
from foretrace.report.page.document import notebook_style, report_html
from foretrace.report.page.markup import render_view, tag
from foretrace.report.page.origin import with_origin
from foretrace.report.views import view_of

if TYPE_CHECKING:
    import pandas

JSON: Final = {
    "Comparison": "compare:comparison_json",
    "Explanation": "explain:explanation_json",
    "NetworkAnswer": "network:network_json",
    "PlanSearch": "plan:plan_json",
}
"""The functions of this folder that make the JSON of answers which do not do so themselves, as `module:function`."""

MAIN_TABLES: Final = {
    "Answer": "breakdown_s",
    "Comparison": "breakdown",
    "Explanation": "ranks",
    "NetworkAnswer": "steps",
    "PlanSearch": "plans",
}
"""The table of `to_frame()`, by the class of the answer."""

SHOWN_SECTIONS: Final = ("step", "breakdown", "gains", "best", "plans", "waterfall", "figures", "notes")
"""Sections that a notebook shows of an answer; `plot()` shows the others."""
_PLOT_HEIGHT: Final = 640


@dataclass(frozen=True, slots=True, repr=False)
class SectionPlot:
    """A page, or a section of it, in a frame of its own, in which the pipeline can be zoomed."""

    view: View

    def _repr_html_(self) -> str:
        page = escape(report_html([self.view]), quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" width="100%" height="{_PLOT_HEIGHT}" '
            f'frameborder="0" title="{escape(self.view.title, quote=True)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Plot: {', '.join(section.key for section in self.view.sections)} of {self.view.title}>"

    def save(self, path: str | Path) -> None:
        """Writes the plot to a file: a page (.html), or its picture (.svg) where it has one."""
        path = Path(path)
        if path.suffix.lower() == ".html":
            write_text(path, report_html(with_origin([self.view], (), ())), "page")
            return
        pictures = [block for section in self.view.sections for block in section.blocks if isinstance(block, Picture)]
        if path.suffix.lower() != ".svg" or not pictures:
            problem = f"{self!r} cannot be written as {path.suffix or 'a file without an ending'}"
            raise InputError("bad-value", problem, where=str(path), hint="plots are written as .html; pictures as .svg")
        write_text(path, pictures[0].svg, "picture")


def answer_values(answer: Viewable) -> dict[str, Any]:
    """Returns an answer as plain values."""
    module, _, function = JSON[type(answer).__name__].partition(":")
    values: dict[str, Any] = getattr(import_module(f"foretrace.report.{module}"), function)(answer)
    return values


def answer_frame(answer: Viewable, key: str | None) -> pandas.DataFrame:
    """Returns a table of an answer as a pandas frame; see `Viewable.to_frame`."""
    try:
        import pandas
    except ImportError:
        raise InputError("missing-package", "frames need pandas", hint="pip install pandas") from None
    key = MAIN_TABLES[type(answer).__name__] if key is None else key
    values = answer.to_dict()
    tables = dict(_tables(values))
    if key not in tables:
        problem = f"the answer has no table {key}{did_you_mean(key, tables)}"
        raise InputError("unknown-name", problem, hint=f"tables: {', '.join(tables)}")
    table = tables[key]
    if isinstance(table, Mapping):
        return pandas.DataFrame({key: list(table.values())}, index=list(table))
    return pandas.json_normalize(list(table))


def _tables(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Returns the tables among some values with their names: lists of objects, and numbers by name."""
    tables: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            if value and all(isinstance(item, int | float) for item in value.values()):
                tables.append((f"{before}{name}", value))
            else:
                tables += _tables(value, f"{before}{name}.")
        elif isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
            tables.append((f"{before}{name}", value))
    return tables


def answer_plot(answer: Viewable, section: str | None) -> SectionPlot:
    """Returns the page of an answer, or one of its sections."""
    view = view_of(answer)
    if section is None:
        return SectionPlot(view)
    chosen = [each for each in view.sections if each.key == section]
    if not chosen:
        keys = [each.key for each in view.sections]
        problem = f"the answer has no section {section}{did_you_mean(section, keys)}"
        raise InputError("unknown-name", problem, hint=f"sections: {', '.join(keys)}")
    return SectionPlot(replace(view, sections=chosen))


def notebook_html(answer: Viewable) -> str:
    """Returns the main sections of an answer, with a style that keeps to itself."""
    view = view_of(answer)
    shown = [each for each in view.sections if each.key in SHOWN_SECTIONS]
    return tag(
        "div", f"<style>{notebook_style()}</style>{render_view(replace(view, sections=shown))}", class_="foretrace"
    )
