"""Curves on two logarithmic axes: in dots of Braille on a terminal, and as an SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foretrace.report.design import COLOURS, FRAME, MUTED, STYLES
from foretrace.report.svg import LEGEND_ROW, Canvas, LogAxis, PlotArea
from foretrace.report.terminal import Span

_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 640, 380, 92, 52, 250
_MAX_LEGEND = 16

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""What each of the 4 × 2 dots adds to the first Braille character of Unicode."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a curve, both values above 0; `title` is shown where a mouse rests on it."""

    x: float
    y: float
    group: str = ""
    """Dots of each group have their own colour where there is one curve."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Dots in rising order, joined; a `limit` is drawn thin and dashed, without dots."""

    name: str
    dots: tuple[Dot, ...]
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """The titles of the axes, and how the values at their ticks are written."""

    x_title: str
    y_title: str
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]


def braille(curves: Sequence[Curve], axes: Axes, width: int = 64, height: int = 12) -> list[list[Span]]:
    """Returns the curves as lines of text with their axes; nothing where there are fewer than two dots."""
    if sum(len(curve.dots) for curve in curves) < 2:
        return []
    across, up = _axis(curves, "x"), _axis(curves, "y")
    cells: dict[tuple[int, int], tuple[int, str]] = {}
    for number, curve in enumerate(sorted(curves, key=lambda curve: not curve.limit)):
        style = "bright_black" if curve.limit else STYLES[(number - _limits(curves)) % len(STYLES)]
        for column, row in _pixels(curve, across, up, 2 * width, 4 * height):
            place = (height - 1 - row // 4, column // 2)
            dot = _DOTS[3 - row % 4][column % 2]
            cells[place] = (cells.get(place, (0, ""))[0] | dot, style)
    marks = {height - 1 - min(int(up.of(tick) * height), height - 1): axes.y_text(tick) for tick in up.ticks()}
    label = max(len(text) for text in marks.values()) if marks else 0
    lines: list[list[Span]] = []
    for row in range(height):
        line: list[Span] = [(f"  {marks.get(row, ''):>{label}} ┤" if row in marks else f"  {'':>{label}} │", "")]
        for column in range(width):
            dots, style = cells.get((row, column), (0, ""))
            line.append((chr(0x2800 + dots) if dots else " ", style))
        lines.append(line)
    lines.append([(f"  {'':>{label}} └{'─' * width}", "")])
    return [*lines, [(f"  {'':>{label}}  {_marks_below(across, axes, width)}", "bright_black")]]


def _limits(curves: Sequence[Curve]) -> int:
    return sum(curve.limit for curve in curves)


def _pixels(curve: Curve, across: LogAxis, up: LogAxis, width: int, height: int) -> list[tuple[int, int]]:
    """Returns the dots that a curve passes; every third of those of a limit."""
    passed: dict[tuple[int, int], None] = {}
    for first, second in pairwise(curve.dots) if len(curve.dots) > 1 else ((curve.dots[0], curve.dots[0]),):
        ends = [(across.of(dot.x) * (width - 1), up.of(dot.y) * (height - 1)) for dot in (first, second)]
        steps = max(1, round(max(abs(ends[1][0] - ends[0][0]), abs(ends[1][1] - ends[0][1]))))
        for step in range(steps + 1):
            part = step / steps
            column, row = (round(a + part * (b - a)) for a, b in zip(*ends, strict=True))
            if not curve.limit or column % 3 == 0:
                passed[column, row] = None
    return list(passed)


def _marks_below(across: LogAxis, axes: Axes, width: int) -> str:
    """Returns the values below the x axis, as many as fit in a line."""
    text = [" "] * (width + 12)
    free = 0
    for tick in across.binary_ticks(8):
        word = axes.x_text(tick)
        start = max(round(across.of(tick) * (width - 1)) - len(word) // 2, 0)
        if start >= free and start + len(word) <= len(text):
            text[start : start + len(word)] = word
            free = start + len(word) + 2
    return "".join(text).rstrip()


def _axis(curves: Sequence[Curve], of: str) -> LogAxis:
    """Returns an axis that holds all dots, with some room above and below them."""
    values = [getattr(dot, of) for curve in curves for dot in curve.dots]
    if of == "x":
        low, high = min(values), max(values)
        return LogAxis(low, high) if high > low else LogAxis(low / 2, high * 2)
    return LogAxis(min(values) / 1.5, max(values) * 1.5)


def curves_svg(curves: Sequence[Curve], axes: Axes, title: str) -> str:
    """Draws the curves as SVG, with their dots and a legend."""
    canvas = Canvas(_LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + 72, title, title_x=_LEFT, font_size=13)
    if any(curve.dots for curve in curves):
        across, up = _axis(curves, "x"), _axis(curves, "y")
        area = PlotArea(_LEFT, _TOP, _WIDTH, _HEIGHT, across, up, inset=10)
        area.draw_ticks(canvas, across.binary_ticks(), up.ticks(), axes.x_text, axes.y_text)
        area.draw_frame(canvas, axes.x_title, axes.y_title)
        _draw_curves(canvas, curves, area)
    return canvas.svg()


def _draw_curves(canvas: Canvas, curves: Sequence[Curve], area: PlotArea) -> None:
    """Draws curves, dots and the legend, which names the curves, or the groups of dots where there is one curve."""
    solid = [curve for curve in curves if not curve.limit]
    groups = list(dict.fromkeys(dot.group for curve in solid for dot in curve.dots)) if len(solid) == 1 else []
    groups = groups if any(groups) else []
    for curve in curves:
        places = [(area.x(dot.x), area.y(dot.y)) for dot in curve.dots]
        if curve.limit:
            canvas.polyline(places, FRAME, stroke_dasharray="6 4")
            continue
        colour = MUTED if groups else COLOURS[solid.index(curve) % len(COLOURS)]
        canvas.polyline(places, colour)
        for dot, (x, y) in zip(curve.dots, places, strict=True):
            fill = COLOURS[groups.index(dot.group) % len(COLOURS)] if groups else colour
            canvas.circle(x, y, 4, fill, dot.title)
    names = groups or [curve.name for curve in solid if len(solid) > 1]
    entries = [(name, COLOURS[number % len(COLOURS)]) for number, name in enumerate(names)]
    _draw_legend(canvas, area, entries, [curve.name for curve in curves if curve.limit])


def _draw_legend(canvas: Canvas, area: PlotArea, entries: Sequence[tuple[str, str]], limits: Sequence[str]) -> None:
    x = area.right + 20
    shown = entries if len(entries) <= _MAX_LEGEND else entries[: _MAX_LEGEND - 1]
    y = canvas.legend(x, area.top + 14, shown)
    if len(shown) < len(entries):
        canvas.text(x + 14, y, f"and {len(entries) - len(shown)} more", fill=MUTED)
        y += LEGEND_ROW
    canvas.legend(x, y, [(name, FRAME) for name in dict.fromkeys(limits)], "dashes")
