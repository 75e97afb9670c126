"""The way from one step time to another, part by part, as an SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from foretrace.basics.units import format_difference, format_time
from foretrace.report.design import FRAME, GREY, GRID, MUTED, SERIES, change_colour
from foretrace.report.svg import Canvas, LinearAxis

_LEFT, _TOP, _WIDTH, _ROW, _BAR = 190, 52, 520, 28, 18
_LABEL: Final = 150
MAX_STEPS: Final = 14
"""Parts that have a bar of their own; the smaller ones share one."""
_MARGIN: Final = 0.08
OTHERS: Final = "other parts"


def waterfall_svg(
    first: tuple[str, float], last: tuple[str, float], steps: Sequence[tuple[str, float]], title: str
) -> str:
    """Draws how a time becomes another.

    Args:
        first: The name and the seconds of the time at the start.
        last: The same at the end.
        steps: The names and the seconds of the parts that differ, in the order in which they are drawn.
        title: The heading.
    """
    steps = _shortened(steps)
    times = [first[1]]
    for _, seconds in steps:
        times.append(times[-1] + seconds)
    low, high = min(*times, last[1]), max(*times, last[1])
    # Differences are often small next to the step: the axis begins near the smallest time, and says so.
    begin = 0.0 if low <= 0.6 * high else max(low - (high - low) * 0.6 - _MARGIN * low, 0.0)
    axis = LinearAxis(begin, high + _MARGIN * (high - begin) or 1.0)
    rows = len(steps) + 2
    canvas = Canvas(_LEFT + _WIDTH + _LABEL, _TOP + rows * _ROW + 44, title)
    bottom = _TOP + rows * _ROW

    def x(seconds: float) -> float:
        return _LEFT + axis.of(seconds) * _WIDTH

    for tick in axis.ticks(6):
        canvas.line((x(tick), _TOP), (x(tick), bottom), GRID)
        canvas.text(x(tick), bottom + 16, format_time(tick) if tick else "0", "middle", fill=MUTED)
    _draw_whole(canvas, 0, first, x)
    for number, ((name, seconds), before, after) in enumerate(zip(steps, times, times[1:], strict=False), 1):
        y, left, right = _TOP + number * _ROW, x(min(before, after)), x(max(before, after))
        colour = SERIES[change_colour(seconds)].light
        canvas.text(_LEFT - 10, y + 18, name, "end")
        canvas.rect(left, y + 5, max(right - left, 1.0), _BAR, fill=colour)
        canvas.line((x(before), y - 5), (x(before), y + 5), FRAME, stroke_dasharray="2 2")
        canvas.text(right + 8, y + 18, format_difference(after, before))
    _draw_whole(canvas, rows - 1, last, x)
    if begin > 0:
        canvas.text(_LEFT, bottom + 34, f"the axis begins at {format_time(begin)}", fill=MUTED, font_size=11)
    return canvas.svg()


def _draw_whole(canvas: Canvas, row: int, whole: tuple[str, float], x: Callable[[float], float]) -> None:
    y, (name, seconds) = _TOP + row * _ROW, whole
    canvas.text(_LEFT - 10, y + 18, name, "end", font_weight="bold")
    canvas.rect(_LEFT, y + 5, max(x(seconds) - _LEFT, 1.0), _BAR, fill=GREY)
    canvas.text(x(seconds) + 8, y + 18, format_time(seconds), font_weight="bold")


def _shortened(steps: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Returns the steps with the smallest of too many added up."""
    if len(steps) <= MAX_STEPS:
        return list(steps)
    largest = sorted(steps, key=lambda step: -abs(step[1]))[: MAX_STEPS - 1]
    kept = [step for step in steps if step in largest]
    return [*kept, (OTHERS, sum(seconds for step in steps if step not in largest for seconds in step[1:]))]
