"""Measured against predicted, on two logarithmic axes: as letters on a terminal, and as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from foretrace.basics.units import format_time
from foretrace.report.axis import COLOURS, FONT, LogAxis

NEAR = 0.10
"""How far off the lines beside the diagonal are."""

_SIDE, _LEFT, _TOP, _LEGEND = 560, 76, 48, 240


@dataclass(frozen=True, slots=True)
class Point:
    """A row: what was measured and predicted, in seconds, and the group whose colour it has."""

    name: str
    group: str
    measured_s: float
    predicted_s: float
    band_s: tuple[float, float] | None = None


def _around(points: Sequence[Point]) -> LogAxis:
    """An axis in seconds that holds all points."""
    values = [value for point in points for value in (point.measured_s, point.predicted_s)]
    return LogAxis(min(values) / 1.3, max(values) * 1.3)


def groups_of(points: Sequence[Point]) -> list[str]:
    """The groups in the order in which they get letters and colours."""
    return sorted({point.group for point in points})


def letters(points: Sequence[Point], width: int = 60, height: int = 20) -> list[str]:
    """A plot of letters, one row of text per line, predicted upwards: `a` is the first group; `·` the diagonal. Where
    several groups meet, `+`."""
    if not points:
        return []
    scale, names = _around(points), groups_of(points)
    grid = [[" "] * width for _ in range(height)]
    for column in range(width):
        grid[height - 1 - round(column / (width - 1) * (height - 1))][column] = "·"
    for point in points:
        column = round(scale.of(point.measured_s) * (width - 1))
        row = height - 1 - round(scale.of(point.predicted_s) * (height - 1))
        letter = chr(ord("a") + names.index(point.group) % 26)
        taken = grid[row][column]
        grid[row][column] = letter if taken in (" ", "·", letter) else "+"
    low, high = format_time(scale.low), format_time(scale.high)
    lines = ["│" + "".join(row) for row in grid]
    return [*lines, "└" + "─" * width, f" {low}{high:>{width - len(low)}}"]


def scatter_svg(points: Sequence[Point], title: str) -> str:
    """The plot as SVG: a dot per row with its band, the diagonal, and lines 10 % beside it."""
    width, height = _LEFT + _SIDE + _LEGEND, _TOP + _SIDE + 64
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'{FONT} font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="28" font-size="17" font-weight="bold">{escape(title)}</text>',
    ]
    if points:
        scale = _around(points)
        parts += _frame(scale)
        parts += _dots(points, scale)
    return "\n".join([*parts, "</svg>", ""])


def _x(scale: LogAxis, value: float) -> float:
    return _LEFT + scale.of(value) * _SIDE


def _y(scale: LogAxis, value: float) -> float:
    return _TOP + (1 - scale.of(value)) * _SIDE


def _frame(scale: LogAxis) -> list[str]:
    parts = []
    for tick in scale.ticks():
        x, y, text = _x(scale, tick), _y(scale, tick), escape(_tick(tick))
        parts += [
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_TOP + _SIDE}" stroke="#e6e6e6"/>',
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _SIDE}" y2="{y:.1f}" stroke="#e6e6e6"/>',
            f'<text x="{x:.1f}" y="{_TOP + _SIDE + 20}" text-anchor="middle">{text}</text>',
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>',
        ]
    for factor, style in ((1.0, 'stroke="#444"'), *((one, 'stroke="#999" stroke-dasharray="5 4"') for one in _BESIDE)):
        low, high = max(scale.low, scale.low / factor), min(scale.high, scale.high / factor)
        ends = f'x1="{_x(scale, low):.1f}" y1="{_y(scale, low * factor):.1f}" x2="{_x(scale, high):.1f}"'
        parts.append(f'<line {ends} y2="{_y(scale, high * factor):.1f}" {style}/>')
    middle = _TOP + _SIDE / 2
    upright = f'text-anchor="middle" transform="rotate(-90 18 {middle})"'
    return [
        *parts,
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#444"/>',
        f'<text x="{_LEFT + _SIDE / 2}" y="{_TOP + _SIDE + 46}" text-anchor="middle">measured step time</text>',
        f'<text x="18" y="{middle}" {upright}>predicted step time</text>',
    ]


_BESIDE = (1 - NEAR, 1 + NEAR)


def _dots(points: Sequence[Point], scale: LogAxis) -> list[str]:
    names, parts = groups_of(points), []
    for point in points:
        colour = COLOURS[names.index(point.group) % len(COLOURS)]
        x, y = _x(scale, point.measured_s), _y(scale, point.predicted_s)
        if point.band_s is not None:
            low, high = (_y(scale, one) for one in point.band_s)
            line = f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}"'
            parts.append(f'{line} stroke="{colour}" stroke-opacity="0.35"/>')
        error = 100 * (point.predicted_s / point.measured_s - 1)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.75">'
            f"<title>{escape(point.name)}: {error:+.1f} %</title></circle>"
        )
    for number, name in enumerate(names):
        y = _TOP + 14 + 22 * number
        own = [point for point in points if point.group == name]
        mape = 100 * sum(abs(point.predicted_s / point.measured_s - 1) for point in own) / len(own)
        text = f"{name} ({len(own)}): {mape:.1f} %"
        x = _LEFT + _SIDE + 18
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 12}" y="{y}" font-size="12">{escape(text)}</text>')
    below = _TOP + 14 + 22 * len(names) + 12
    said = ("bars: predicted band (90 %)", f"dashed: {100 * NEAR:.0f} % off")
    x = _LEFT + _SIDE + 13
    parts += [
        f'<text x="{x}" y="{below + 18 * number}" font-size="12" fill="#666">{text}</text>'
        for number, text in enumerate(said)
    ]
    return parts


def _tick(seconds: float) -> str:
    """A round time without the digits that say nothing: `10 ms`, `2 s`."""
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"
