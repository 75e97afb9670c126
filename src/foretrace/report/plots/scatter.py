"""Measured against predicted, on two logarithmic axes: as letters on a terminal, and as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.basics.units import format_time
from foretrace.report.design import COLOURS, FRAME, GREY, MUTED
from foretrace.report.svg import LEGEND_ROW, Canvas, LogAxis, PlotArea

NEAR = 0.10
"""How far the dashed lines are from the diagonal, as a share of what was measured."""

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
    """Returns an axis in seconds that holds all points."""
    values = [value for point in points for value in (point.measured_s, point.predicted_s)]
    return LogAxis(min(values) / 1.3, max(values) * 1.3)


def groups_of(points: Sequence[Point]) -> list[str]:
    """Returns the groups in the order in which they get letters and colours."""
    return sorted({point.group for point in points})


def letters(points: Sequence[Point], width: int = 60, height: int = 20) -> list[str]:
    """Returns a plot as lines of letters, predicted upwards.

    `a` is the first group, `·` the diagonal, and `+` a place of several groups.
    """
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
        drawn = grid[row][column]
        grid[row][column] = letter if drawn in (" ", "·", letter) else "+"
    low, high = format_time(scale.low), format_time(scale.high)
    lines = ["│" + "".join(row) for row in grid]
    return [*lines, "└" + "─" * width, f" {low}{high:>{width - len(low)}}"]


def scatter_svg(points: Sequence[Point], title: str) -> str:
    """Draws the plot as SVG: a dot per row with its band, the diagonal, and lines 10 % above and below it."""
    canvas = Canvas(_LEFT + _SIDE + _LEGEND, _TOP + _SIDE + 64, title, title_x=_LEFT, font_size=13)
    if points:
        scale = _around(points)
        area = PlotArea(_LEFT, _TOP, _SIDE, _SIDE, scale, scale)
        area.draw_ticks(canvas, scale.ticks(), scale.ticks(), _tick, _tick)
        _draw_diagonals(canvas, area)
        area.draw_frame(canvas, "measured step time", "predicted step time")
        _draw_dots(canvas, area, points)
        _draw_legend(canvas, area, points)
    return canvas.svg()


def _draw_diagonals(canvas: Canvas, area: PlotArea) -> None:
    scale = area.across
    for factor in (1.0, 1 - NEAR, 1 + NEAR):
        low, high = max(scale.low, scale.low / factor), min(scale.high, scale.high / factor)
        ends = (area.x(low), area.y(low * factor)), (area.x(high), area.y(high * factor))
        if factor == 1.0:
            canvas.line(*ends, FRAME)
        else:
            canvas.line(*ends, GREY, stroke_dasharray="5 4")


def _draw_dots(canvas: Canvas, area: PlotArea, points: Sequence[Point]) -> None:
    names = groups_of(points)
    for point in points:
        colour = COLOURS[names.index(point.group) % len(COLOURS)]
        x = area.x(point.measured_s)
        if point.band_s is not None:
            low_s, high_s = point.band_s
            canvas.line((x, area.y(low_s)), (x, area.y(high_s)), colour, stroke_opacity=0.35)
        title = f"{point.name}: {100 * _error(point):+.1f} %"
        canvas.circle(x, area.y(point.predicted_s), 4, colour, title, fill_opacity=0.75)


def _draw_legend(canvas: Canvas, area: PlotArea, points: Sequence[Point]) -> None:
    """Names the groups with their mean absolute errors, and says what lines mean."""
    entries = []
    for number, name in enumerate(groups_of(points)):
        of_group = [point for point in points if point.group == name]
        mape = 100 * sum(abs(_error(point)) for point in of_group) / len(of_group)
        entries.append((f"{name} ({len(of_group)}): {mape:.1f} %", COLOURS[number % len(COLOURS)]))
    with canvas.group(font_size=12):
        y = canvas.legend(area.right + 18, area.top + 14, entries) + 12
        for text in ("bars: predicted band (90 %)", f"dashed: {100 * NEAR:.0f} % off"):
            canvas.text(area.right + 13, y, text, fill=MUTED)
            y += LEGEND_ROW


def _error(point: Point) -> float:
    return point.predicted_s / point.measured_s - 1


def _tick(seconds: float) -> str:
    """Returns a round time without trailing zeros: `10 ms`, `2 s`."""
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"
