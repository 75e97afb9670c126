"""Shows answers in notebooks: as HTML, as pandas frames, and as plots that are sections of their pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import sha256
from html import escape
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from foretrace.basics.errors import InputError, did_you_mean
from foretrace.basics.origin import origin_of
from foretrace.basics.outputs import PAGE_ENDINGS, write_text
from foretrace.basics.viewable import Viewable
from foretrace.report.page.blocks import Picture, View
from foretrace.report.page.document import notebook_style, report_html
from foretrace.report.page.markup import render_view, tag
from foretrace.report.page.origin import with_origin
from foretrace.report.views import kind_of, view_of

if TYPE_CHECKING:
    import pandas

_PLOT_HEIGHT: Final = 640
_BUTTON: Final = re.compile(r"<button\b[^>]*>[^<]*</button>")
"""A button of a page. Those of a cell have no script and would do nothing."""


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
        if path.suffix.lower() in PAGE_ENDINGS:
            write_text(path, report_html(with_origin([self.view], origin_of((), ()))), "page")
            return
        pictures = [block for section in self.view.sections for block in section.blocks if isinstance(block, Picture)]
        if path.suffix.lower() != ".svg" or not pictures:
            problem = f"{self!r} cannot be written as {path.suffix or 'a file without an ending'}"
            raise InputError("bad-value", problem, where=str(path), hint="plots are written as .html; pictures as .svg")
        write_text(path, pictures[0].svg, "picture")


def answer_values(answer: Viewable) -> dict[str, Any]:
    """Returns an answer as plain values."""
    return kind_of(answer).to_json(answer)


def answer_frame(answer: Viewable, key: str | None) -> pandas.DataFrame:
    """Returns a table of an answer as a pandas frame; see `Viewable.to_frame`."""
    try:
        import pandas
    except ImportError:
        raise InputError("missing-package", "frames need pandas", hint="pip install pandas") from None
    kind = kind_of(answer)
    keys = {name: hint for record in kind.records for name, hint in get_type_hints(record).items()}
    tables = dict(_tables(answer.to_dict(), keys if kind.records else None))
    key = key or kind.main_table
    if not key:
        problem = f"{type(answer).__name__} has no main table"
        raise InputError("missing-argument", problem, hint=f"name one of {', '.join(tables)}" if tables else None)
    if key not in tables:
        problem = f"the answer has no table {key}{did_you_mean(key, tables)}"
        raise InputError("unknown-name", problem, hint=f"tables: {', '.join(tables)}")
    table = tables[key]
    if isinstance(table.values, Mapping):
        return pandas.DataFrame({key: list(table.values.values())}, index=list(table.values))
    return pandas.json_normalize(list(table.values)) if table.values else pandas.DataFrame(columns=list(table.columns))


class _FrameTable(NamedTuple):
    """A table among the values of an answer: numbers by name, or rows. `columns` are those of a table without rows."""

    values: Mapping[str, Any] | Sequence[Any]
    columns: Sequence[str] = ()


def _tables(values: Mapping[str, Any], hints: Mapping[str, Any] | None, before: str = "") -> dict[str, _FrameTable]:
    """Returns the tables among some values with their names: lists of objects, and numbers by name.

    Args:
        values: The values of an object.
        hints: The types of the fields of the record that the object was made of. They tell whether an empty list or
            null is a table without rows. None: every empty list is one.
        before: What precedes the names: those of the outer objects.
    """
    tables: dict[str, _FrameTable] = {}
    for name, value in values.items():
        hint = _without_none(None if hints is None else hints.get(name))
        if isinstance(value, Mapping) and value and not _is_numbers(value):
            inner = get_type_hints(hint) if is_dataclass(hint) else None if hints is None else {}
            tables |= _tables(value, inner, f"{before}{name}.")
        elif _is_table(value, hint, hints is None):
            row = (*get_args(hint), None)[0]
            columns = [field.name for field in fields(row)] if is_dataclass(row) and not value else []
            empty: Any = {} if get_origin(hint) is Mapping else []
            tables[f"{before}{name}"] = _FrameTable(value or empty, columns)
    return tables


def _is_table(value: Any, hint: Any, is_untyped: bool) -> bool:
    """Returns whether a value is a table, or may be one with rows; an object is one where it is not a record."""
    if value and isinstance(value, Mapping):
        return _is_numbers(value)
    if value and isinstance(value, list):
        return all(isinstance(item, Mapping) for item in value)
    if value not in (None, [], {}):
        return False
    if is_untyped:
        return value is not None
    arguments = get_args(hint)
    if get_origin(hint) is Mapping:
        return arguments[1] in (int, float)
    return get_origin(hint) in (tuple, list) and (is_dataclass(arguments[0]) or get_origin(arguments[0]) is dict)


def _is_numbers(values: Mapping[str, Any]) -> bool:
    return all(isinstance(value, int | float) for value in values.values())


def _without_none(hint: Any) -> Any:
    """Returns the type `T` of a field of the type `T | None`; any other type as it is."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if get_origin(hint) in (Union, UnionType) and len(kinds) == 1 else hint


def answer_plot(answer: Viewable, section: str | None) -> SectionPlot:
    """Returns the page of an answer, or one of its sections."""
    view = view_of(answer)
    if section is None:
        return SectionPlot(view)
    chosen = view.chosen(section)
    if not chosen:
        keys = [each.key for each in view.sections]
        problem = f"the answer has no section {section}{did_you_mean(section, keys)}"
        raise InputError("unknown-name", problem, hint=f"sections: {', '.join(keys)}")
    return SectionPlot(replace(view, sections=chosen))


def notebook_html(answer: Viewable) -> str:
    """Returns the main sections of an answer, with a style that keeps to itself.

    A notebook is one page: ids begin with a hash of the content, so that those of several outputs differ.
    """
    kind = kind_of(answer)
    view = kind.view(answer)
    view = replace(view, sections=view.chosen(*kind.notebook_sections))
    prefix = f"f{sha256(render_view(view).encode()).hexdigest()[:12]}-"
    html = _BUTTON.sub("", render_view(view, prefix))
    return tag("div", f"<style>{notebook_style()}</style>{html}", class_="foretrace")
