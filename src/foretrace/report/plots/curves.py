"""Curves on two logarithmic axes: in dots of Braille on a terminal, and as an SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from foretrace.report.axis import COLOURS, FONT, STYLES, LogAxis
from foretrace.report.terminal import Span

_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 640, 380, 92, 52, 250
_MAX_LEGEND = 16

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""What each of the 4 × 2 dots adds to the first sign of Unicode's Braille."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a curve, both values above 0; `title` is shown where a mouse rests on it."""

    x: float
    y: float
    group: str = ""
    """Dots of a group have a colour of their own where there is one curve."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Dots in rising order, joined; a `limit` is drawn thin and dashed, without dots."""

    name: str
    dots: tuple[Dot, ...]
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """What is plotted over what: the words at the axes, and how their marks are written."""

    x_title: str
    y_title: str
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]


def braille(curves: Sequence[Curve], axes: Axes, width: int = 64, height: int = 12) -> list[list[Span]]:
    """The curves as lines of text with their axes; nothing where there are fewer than two dots."""
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
    """The dots that a curve passes, every third of a limit's."""
    found: dict[tuple[int, int], None] = {}
    for first, second in pairwise(curve.dots) if len(curve.dots) > 1 else ((curve.dots[0], curve.dots[0]),):
        ends = [(across.of(dot.x) * (width - 1), up.of(dot.y) * (height - 1)) for dot in (first, second)]
        steps = max(1, round(max(abs(ends[1][0] - ends[0][0]), abs(ends[1][1] - ends[0][1]))))
        for step in range(steps + 1):
            part = step / steps
            column, row = (round(a + part * (b - a)) for a, b in zip(*ends, strict=True))
            if not curve.limit or column % 3 == 0:
                found[column, row] = None
    return list(found)


def _marks_below(across: LogAxis, axes: Axes, width: int) -> str:
    """As many marks of the axis as fit side by side."""
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
    """An axis that holds all dots, with some room above and below them."""
    values = [getattr(dot, of) for curve in curves for dot in curve.dots]
    if of == "x":
        low, high = min(values), max(values)
        return LogAxis(low, high) if high > low else LogAxis(low / 2, high * 2)
    return LogAxis(min(values) / 1.5, max(values) * 1.5)


def curves_svg(curves: Sequence[Curve], axes: Axes, title: str) -> str:
    """The curves as SVG, with marks of the axes, dots and a legend."""
    width, height = _LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + 72
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'{FONT} font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="30" font-size="17" font-weight="bold">{escape(title)}</text>',
    ]
    if any(curve.dots for curve in curves):
        frame = _Frame(_axis(curves, "x"), _axis(curves, "y"))
        parts += [*frame.drawn(axes), *_lines(curves, frame)]
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Frame:
    """The two axes on the page."""

    across: LogAxis
    up: LogAxis

    def x(self, value: float) -> float:
        return _LEFT + 10 + self.across.of(value) * (_WIDTH - 20)

    def y(self, value: float) -> float:
        return _TOP + (1 - self.up.of(value)) * _HEIGHT

    def drawn(self, axes: Axes) -> list[str]:
        """Grid, marks and titles."""
        bottom, middle = _TOP + _HEIGHT, _TOP + _HEIGHT / 2
        parts = []
        for tick in self.across.binary_ticks():
            x = f"{self.x(tick):.1f}"
            parts.append(f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}" stroke="#e6e6e6"/>')
            parts.append(f'<text x="{x}" y="{bottom + 20}" text-anchor="middle">{escape(axes.x_text(tick))}</text>')
        for tick in self.up.ticks():
            y = self.y(tick)
            parts.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _WIDTH}" y2="{y:.1f}" stroke="#e6e6e6"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(axes.y_text(tick))}</text>'
            )
        return [
            *parts,
            f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#444"/>',
            f'<text x="{_LEFT + _WIDTH / 2}" y="{bottom + 48}" text-anchor="middle">{escape(axes.x_title)}</text>',
            f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">'
            f"{escape(axes.y_title)}</text>",
        ]


def _lines(curves: Sequence[Curve], frame: _Frame) -> list[str]:
    """The curves with their dots, and the legend: of curves, or of the groups of dots where there is one curve."""
    solid = [curve for curve in curves if not curve.limit]
    groups = list(dict.fromkeys(dot.group for curve in solid for dot in curve.dots)) if len(solid) == 1 else []
    parts: list[str] = []
    for curve in curves:
        colour = "#888888" if curve.limit else "#555555" if groups else COLOURS[solid.index(curve) % len(COLOURS)]
        dashes = ' stroke-dasharray="6 4"' if curve.limit else ""
        places = " ".join(f"{frame.x(dot.x):.1f},{frame.y(dot.y):.1f}" for dot in curve.dots)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>')
        for dot in () if curve.limit else curve.dots:
            fill = COLOURS[groups.index(dot.group) % len(COLOURS)] if groups else colour
            parts.append(
                f'<circle cx="{frame.x(dot.x):.1f}" cy="{frame.y(dot.y):.1f}" r="4" fill="{fill}">'
                f"<title>{escape(dot.title)}</title></circle>"
            )
    named = [(name, COLOURS[number % len(COLOURS)]) for number, name in enumerate(groups)]
    named = named or [(curve.name, COLOURS[number % len(COLOURS)]) for number, curve in enumerate(solid)]
    return [*parts, *_legend(named, [curve.name for curve in curves if curve.limit])]


def _legend(named: Sequence[tuple[str, str]], limits: Sequence[str]) -> list[str]:
    x, parts = _LEFT + _WIDTH + 20, []
    shown = named if len(named) <= _MAX_LEGEND else named[: _MAX_LEGEND - 1]
    for number, (name, colour) in enumerate(shown):
        y = _TOP + 14 + 22 * number
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{escape(name)}</text>')
    y = _TOP + 14 + 22 * len(shown)
    if len(shown) < len(named):
        parts.append(f'<text x="{x + 14}" y="{y}" fill="#666">and {len(named) - len(shown)} more</text>')
        y += 22
    for name in dict.fromkeys(limits):
        ends = f'x1="{x - 6}" y1="{y - 4}" x2="{x + 8}" y2="{y - 4}"'
        parts.append(f'<line {ends} stroke="#888888" stroke-width="1.5" stroke-dasharray="6 4"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{escape(name)}</text>')
        y += 22
    return parts
