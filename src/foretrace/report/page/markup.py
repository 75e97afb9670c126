"""Renders views as HTML. Everything that comes from an answer is escaped here, and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import singledispatch
from html import escape
from typing import Any, Final

from foretrace.basics.errors import printable
from foretrace.basics.units import format_bytes, format_count, format_time
from foretrace.report.design import with_variables
from foretrace.report.glossary import TERMS
from foretrace.report.page.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    FactList,
    Fold,
    Gantt,
    KeyFigure,
    KeyFigures,
    Notes,
    Picture,
    Section,
    StackedBars,
    Table,
    Text,
    View,
)
from foretrace.report.page.origin import origin_facts

_BACKGROUND: Final = re.compile(r'<rect width="\d+" height="\d+" fill="white"/>\n?')
_SVG_HEAD: Final = re.compile(r"<svg [^>]*>")
_SVG_SIZE: Final = re.compile(r'width="(\d+)" height="(\d+)"')
_BAR_HEAD: Final = '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
_TINTS: Final = (1.0, 0.6, 0.35, 0.8, 0.2, 0.47)
"""How opaque the parts of a stack are that share a colour, in turn; axes and phases have colours of their own."""
_MAX_PRINTED: Final = 100
"""Rows of a table that are folded away on the screen but printed."""
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:[nµm]?s|min|h|%|[KMGT]i?B|[KMGTP]?FLOP/s)(?!\w))")
"""The space between a number and its unit."""
_TITLE_HEIGHT: Final = 36
"""Pixels at the top of a picture that its own title takes; on a page a heading says it."""


ORIGIN_TITLE: Final = "How to reproduce it"


def text(value: str) -> str:
    """Escapes a text for HTML; control characters are replaced, since names of files and kernels may contain some."""
    return escape(printable(value))


def tag(name: str, content: str = "", /, **attributes: str | float | bool | None) -> str:
    """Returns an element. `content` is HTML; attributes are escaped, and left out where they are None or False.

    An underscore in the name of an attribute stands for a hyphen, `class_` for `class`.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return f"<{name}{written}>{content}</{name}>"


def render_view(view: View, prefix: str = "") -> str:
    """Returns a view as an `article`; the addresses of its sections begin with `prefix`."""
    heading = f"{prefix}answer"
    head = tag("p", text(view.kind), class_="kind") + tag("h2", text(view.title), id=heading)
    if view.subtitle:
        head += tag("p", text(view.subtitle), class_="subtitle")
    parts = [tag("header", head), *(_section(section, prefix) for section in view.sections)]
    if view.states_origin:
        parts.append(_origin(view, prefix))
    return tag("article", "\n".join(parts), class_="answer", aria_labelledby=heading)


def _section(section: Section, prefix: str) -> str:
    key = f"{prefix}{section.key}"
    head = tag("h3", text(section.title), id=f"{key}-title")
    if section.remark:
        head += tag("p", text(section.remark), class_="remark")
    body = head + "".join(render(block) for block in section.blocks)
    kind = "view" if section.wide else "view narrow"
    return tag("section", body, class_=kind, id=key, aria_labelledby=f"{key}-title")


def _origin(view: View, prefix: str) -> str:
    """Returns the section that says what an answer was made of, and how to make it again."""
    command, facts = origin_facts(view)
    rows = "".join(tag("dt", text(name)) + tag("dd", text(value)) for name, value in facts)
    blocks: list[str] = [tag("dl", rows, class_="facts")] if rows else []
    if command:
        blocks.insert(0, render(Code(command)))
    head = tag("h3", ORIGIN_TITLE, id=f"{prefix}origin-title")
    return tag(
        "section", head + "".join(blocks), class_="view", id=f"{prefix}origin", aria_labelledby=f"{prefix}origin-title"
    )


@singledispatch
def render(block: Block) -> str:
    """Returns a block as HTML."""
    raise TypeError(type(block).__name__)


@render.register
def _figures(block: KeyFigures) -> str:
    return tag("dl", "".join(map(_figure, block.figures)), class_="figures")


def _figure(figure: KeyFigure) -> str:
    inner = tag("dt", text(figure.name), title=TERMS.get(figure.name)) + tag(
        "dd", text(figure.value), class_=f"value {figure.tone}".strip()
    )
    if figure.share is not None:
        colour = "bad" if figure.tone == "bad" or figure.share > 1.0 else "accent"
        inner += tag("dd", _length_svg(0.0, min(max(figure.share, 0.0), 1.0), colour), class_="meter")
    if figure.remark:
        inner += tag("dd", _UNIT.sub("\u00a0", text(figure.remark)), class_="remark")
    return tag("div", inner)


@render.register
def _bars(block: Bars) -> str:
    low = min([0.0, *(bar.value for bar in block.bars)])
    high = max([0.0, *(bar.value for bar in block.bars)])
    span = max(high - low, block.whole) or 1.0
    remarks, shares = any(bar.remark for bar in block.bars), any(bar.share for bar in block.bars)
    name, value, remark = block.head
    head = ""
    if any(block.head):
        cells = [
            tag("th", text(name), scope="col"),
            tag("th", text(value), scope="col", class_="number"),
            *["<td></td>"] * shares,
            tag("td", class_="length"),
        ]
        head = tag("thead", tag("tr", "".join([*cells, tag("th", text(remark), scope="col") if remarks else ""])))
    rows = "".join(_bar(bar, (low, span), remarks=remarks, shares=shares) for bar in block.bars)
    return tag("div", tag("table", head + tag("tbody", rows), class_="bars"), class_="scroll")


def _bar(bar: Bar, scale: tuple[float, float], *, remarks: bool, shares: bool) -> str:
    low, span = scale
    start, length = (min(bar.value, 0.0) - low) / span, abs(bar.value) / span
    cells = [
        tag("th", text(bar.name), scope="row", title=TERMS.get(bar.name), data_options=bar.options or None),
        tag("td", text(bar.text), class_="number"),
        *([tag("td", text(bar.share), class_="number")] if shares else []),
        tag("td", _length_svg(start, length, bar.colour), class_="length"),
    ]
    return tag(
        "tr", "".join([*cells, tag("td", _UNIT.sub("\u00a0", text(bar.remark)), class_="remark") if remarks else ""])
    )


def _length_svg(start: float, length: float, colour: str) -> str:
    """Returns a horizontal bar from `start` over `length`, both as shares of the cell."""
    return (
        f'{_BAR_HEAD}<rect x="{_percent(start)}" width="{_percent(length)}" height="10" fill="var(--{colour})"/></svg>'
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".")


@render.register
def _stacks(block: StackedBars) -> str:
    span = max((sum(stack.values) for stack in block.stacks), default=0.0) or 1.0
    tints = _tints([colour for _, colour in block.parts])
    legend = "".join(
        tag("li", _swatch(colour, tint) + text(name)) for (name, colour), tint in zip(block.parts, tints, strict=True)
    )
    write = format_bytes if block.unit == "bytes" else format_time
    rows = []
    for stack in block.stacks:
        x, shapes = 0.0, list[str]()
        for (name, colour), tint, value in zip(block.parts, tints, stack.values, strict=True):
            if value <= 0:
                continue
            title = tag("title", text(f"{stack.name}: {name} {write(value)}"))
            place = f'x="{_percent(x / span)}" width="{_percent(value / span)}"'
            shapes.append(f'<rect {place} height="10" fill="var(--{colour})"{tint}>{title}</rect>')
            x += value
        drawn = _BAR_HEAD + "".join(shapes) + "</svg>"
        cells = (
            tag("th", text(stack.name), scope="row")
            + tag("td", drawn, class_="length")
            + tag("td", text(stack.text), class_="number")
        )
        rows.append(tag("tr", cells))
    chart = tag("table", tag("tbody", "".join(rows)), class_="bars stacks")
    table = Table(
        ["", *(name for name, _ in block.parts)],
        [
            [stack.name, *(Cell(write(value), value) if value > 0 else "" for value in stack.values)]
            for stack in block.stacks
        ],
        right=range(1, len(block.parts) + 1),
        summary="the numbers",
    )
    return tag("ul", legend, class_="legend") + tag("div", chart, class_="scroll") + render(table)


def _tints(colours: Sequence[str]) -> list[str]:
    """Returns an attribute for each part that tells those of one colour apart."""
    seen: dict[str, int] = {}
    tints = []
    for colour in colours:
        number = seen[colour] = seen.get(colour, -1) + 1
        tints.append("" if number == 0 else f' fill-opacity="{_TINTS[number % len(_TINTS)]:g}"')
    return tints


def _swatch(colour: str, tint: str = "") -> str:
    return (
        f'<svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect width="10" height="10" fill="var(--{colour})"{tint}/></svg>'
    )


@render.register
def _table(block: Table) -> str:
    right = set(block.right)
    head = "".join(
        tag("th", text(name), scope="col", class_="number" if column in right else None) if name else "<td></td>"
        for column, name in enumerate(block.head)
    )
    rows = [_row(row, right) for row in block.rows]
    caption = tag("caption", text(block.caption)) if block.caption else ""

    label = block.caption or block.summary or block.head[0] or "table"
    shown = len(rows) if block.summary else block.shown
    bodies = tag("tbody", "".join(rows[:shown])) + (tag("tbody", "".join(rows[shown:])) if rows[shown:] else "")
    inner = tag("table", caption + tag("thead", tag("tr", head)) + bodies, data_sortable=True)
    table = tag("div", inner, class_="scroll", role="group", aria_label=label)
    if block.summary:
        return tag("details", tag("summary", text(block.summary)) + table)
    if not rows[shown:]:
        return table
    more = len(rows) - shown
    kind = "rest long" if more > _MAX_PRINTED else "rest"
    return table + tag("details", tag("summary", f"{format_count(more)} more rows"), class_=kind)


def _row(row: Sequence[str | Cell], right: set[int]) -> str:
    cells = []
    for column, value in enumerate(row):
        cell = value if isinstance(value, Cell) else Cell(value)
        kind = " ".join(word for word in ("number" if column in right else "", cell.tone) if word) or None
        sort = None if cell.sort is None else f"{cell.sort:.9g}"
        inner = text(cell.text)
        if column == 0:
            cells.append(
                tag("th", inner, scope="row", class_=kind, data_sort=sort, data_plan_options=cell.options or None)
            )
        else:
            cells.append(tag("td", inner, class_=kind, data_sort=sort))
    return tag("tr", "".join(cells))


@render.register
def _picture(block: Picture) -> str:
    """Returns an SVG file as a part of the page: its colours follow the scheme, and its own title and page are left
    out."""
    svg = _BACKGROUND.sub("", with_variables(block.svg), count=1)
    size = _SVG_SIZE.search(svg)
    assert size is not None, "pictures of report/svg.py state their size"
    width, height = int(size[1]), int(size[2])
    head = (
        f'<svg viewBox="0 {_TITLE_HEIGHT} {width} {height - _TITLE_HEIGHT}" role="img" aria-label="{text(block.alt)}" '
        f'font-family="var(--font)" font-size="12" fill="currentColor" data-width="{width}">'
    )
    return tag("div", _SVG_HEAD.sub(lambda _: head, svg, count=1), class_="scroll picture")


@render.register
def _gantt(block: Gantt) -> str:
    table = Table(
        ("row", "busy", "first start", "last end"), block.chart.summary_rows(), right=(1, 2, 3), summary="as a table"
    )
    notes = "".join(tag("p", text(note), class_="remark") for note in block.chart.notes)
    script = f'<script type="application/json">{script_json(block.chart.to_json())}</script>'
    return tag("div", script, class_="gantt", data_gantt=True) + notes + render(table)


def script_json(value: Mapping[str, Any]) -> str:
    """Returns JSON that may stand in a `script` element: nothing in it can end the element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


@render.register
def _text(block: Text) -> str:
    return tag("p", text(block.text), class_=block.tone or None)


@render.register
def _facts(block: FactList) -> str:
    rows, previous = [], ""
    for name, value in block.facts:
        inner = name.strip()
        depth = "inner" if name != name.lstrip() else None
        rows.append(tag("dt", "" if name == previous else text(inner), class_=depth) + tag("dd", text(value)))
        previous = name
    return tag("dl", "".join(rows), class_="facts text")


@render.register
def _notes(block: Notes) -> str:
    items = []
    for note in block.diagnostics:
        place = tag("span", text(note.where) + ": ", class_="place") if note.where else ""
        label = tag("span", text(note.level), class_=f"level {note.level}")
        items.append(tag("li", f"{label} {place}{text(note.message)} {tag('code', text(note.code))}"))
    return tag("ul", "".join(items), class_="notes")


@render.register
def _code(block: Code) -> str:
    button = tag("button", "Copy", type="button", data_copy=True, aria_label=f"Copy the {block.label}")
    code = tag("pre", tag("code", text(block.text)), tabindex="0", role="region", aria_label=block.label)
    return tag("div", code + button, class_="code")


@render.register
def _fold(block: Fold) -> str:
    return tag("details", tag("summary", text(block.summary)) + "".join(render(inner) for inner in block.blocks))
