"""The kernels of a step under the roofline of their GPU, as an SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from foretrace.basics.units import format_bandwidth, format_flops, format_percent, format_time
from foretrace.hardware.cluster import Gpu
from foretrace.program.kernels import PEAK_OF
from foretrace.readings.roofline import RooflinePoint
from foretrace.report.design import FRAME, GREEN, MUTED, ORANGE, Shade
from foretrace.report.svg import Canvas, LogAxis, PlotArea

_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 560, 380, 96, 60, 330
_MIN_RADIUS: Final = 4.0
_MAX_RADIUS: Final = 17.0
_DECADE_PART: Final = 8.0
"""How far the x axis goes below the least FLOPs per byte, as a factor: kernels that only move bytes stand there."""
MAX_NAMED: Final = 10
"""Kernels that are numbered and named next to the picture."""
_MAX_NAME: Final = 46
_MULTIPLIES, _MOVES = Shade(GREEN, 0.6), Shade(ORANGE, 0.7)
_NUMBER_WIDTH, _NUMBER_HEIGHT = 14, 10
"""Pixels that a number takes in or next to a dot."""
_DIGIT_WIDTH: Final = 7
_LEGEND_START, _LEGEND_STEP = 170, 150


def roofline_svg(points: Sequence[RooflinePoint], gpu: Gpu, title: str) -> str:
    """Draws kernels by FLOPs per byte and the rate at which they compute.

    The area of a dot is the time of its kernels. Those that only move bytes are squares at the left edge, below the
    roof by the share of the memory's bandwidth that they do not reach.
    """
    bandwidth = gpu.memory_bytes_per_s
    computing = [point for point in points if point.dtype]
    dtypes = dict.fromkeys(PEAK_OF.get(point.dtype, point.dtype) for point in computing)
    roofs = {dtype: gpu.peak_flops[dtype] for dtype in dtypes if dtype in gpu.peak_flops}
    peak = max(roofs.values(), default=gpu.peak_flops.get("bf16", bandwidth))
    intensities = [peak / bandwidth, *(point.intensity for point in computing)]
    across = LogAxis(min(intensities) / _DECADE_PART, 3 * max(intensities))
    rates = [_rate(point, across, bandwidth) for point in points]
    area = PlotArea(_LEFT, _TOP, _WIDTH, _HEIGHT, across, LogAxis(min(rates) / 2, 2 * max([peak, *rates])), inset=20)
    canvas = Canvas(_LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + 66, title, title_x=_LEFT, font_size=13)
    area.draw_ticks(
        canvas, across.ticks(), area.up.ticks() if isinstance(area.up, LogAxis) else [], _plain, format_flops
    )
    _draw_roofs(canvas, area, roofs or {"": peak}, bandwidth)
    _draw_points(canvas, area, points, gpu)
    area.draw_frame(canvas, "FLOPs per byte", "")
    canvas.text(_LEFT, _TOP - 10, "rate of one GPU", fill=MUTED)
    _draw_legend(canvas, points)
    return canvas.svg()


def _plain(value: float) -> str:
    return f"{value:,.12g}"


def _rate(point: RooflinePoint, across: LogAxis, bandwidth: float) -> float:
    """Returns the height of a kernel; of one that only moves bytes, the rate that it would have at the left edge."""
    return point.flops_per_s if point.dtype else min(point.bytes_per_s, bandwidth) * across.low


def _draw_roofs(canvas: Canvas, area: PlotArea, roofs: dict[str, float], bandwidth: float) -> None:
    low, peak = area.across.low, max(roofs.values())
    ends = [(low, bandwidth * low), (peak / bandwidth, peak)]
    canvas.polyline([(area.x(x), area.y(y)) for x, y in ends], FRAME, 1.5)
    middle = math.sqrt(low * peak / bandwidth)
    canvas.text(
        area.x(middle) + 10, area.y(bandwidth * middle) + 14, f"memory, {format_bandwidth(bandwidth)}", fill=MUTED
    )
    for dtype, top in roofs.items():
        canvas.line((area.x(top / bandwidth), area.y(top)), (area.right, area.y(top)), FRAME, stroke_width=1.5)
        canvas.text(area.right - 6, area.y(top) - 7, f"{dtype} {format_flops(top)}".strip(), "end", fill=MUTED)


def _draw_points(canvas: Canvas, area: PlotArea, points: Sequence[RooflinePoint], gpu: Gpu) -> None:
    """Draws the kernels, the largest first, so that none hides a smaller one, and names the first of them."""
    assert isinstance(area.across, LogAxis)
    longest = max((point.seconds for point in points), default=1.0)
    legend_x, legend_y = area.right + 22, area.top + 10
    numbers: list[tuple[float, float]] = []
    """Where numbers begin; they are drawn last, so that no dot covers them."""
    for number, point in enumerate(sorted(points, key=lambda point: -point.seconds), 1):
        x = area.x(point.intensity if point.dtype else area.across.low)
        y = area.y(_rate(point, area.across, gpu.memory_bytes_per_s))
        radius = max(_MAX_RADIUS * math.sqrt(point.seconds / longest), _MIN_RADIUS)
        facts = f"{format_time(point.seconds)} a step, {format_percent(point.roof_share(gpu))} of the roof"
        title = f"{point.name}: {facts}, {format_time(point.duration_s)} each"
        if point.dtype:
            canvas.circle(x, y, radius, _MULTIPLIES.colour, title, fill_opacity=_MULTIPLIES.opacity)
        else:
            half = radius * math.sqrt(math.pi) / 2  # a square of the same area
            canvas.rect(x - half, y - half, 2 * half, 2 * half, title, **_MOVES.fill)
        if number > MAX_NAMED:
            continue
        in_dot = radius > 2 * _MIN_RADIUS
        numbers.append(
            _free_place(x - _DIGIT_WIDTH * len(str(number)) / 2 if in_dot else x + radius + 3, y + 4, numbers)
        )
        name = point.name if len(point.name) <= _MAX_NAME else f"{point.name[: _MAX_NAME - 1]}…"
        canvas.text(legend_x, legend_y, f"{number}", "end", font_weight="bold", font_size=12)
        canvas.text(legend_x + 8, legend_y, name, font_size=12)
        canvas.text(legend_x + 8, legend_y + 14, facts, font_size=11, fill=MUTED)
        legend_y += 36
    for number, place in enumerate(numbers, 1):
        canvas.text(*place, str(number), font_size=10, font_weight="bold")
    if len(points) > MAX_NAMED:
        canvas.text(legend_x + 8, legend_y, f"and {len(points) - MAX_NAMED} without a number", font_size=11, fill=MUTED)


def _free_place(x: float, y: float, used: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns the place nearest to a wanted one, left or right of it, at which a number covers no other."""
    offsets = sorted((step * _NUMBER_WIDTH / 2 for step in range(-2 * len(used), 2 * len(used) + 1)), key=abs)
    for offset in offsets:
        if not any(
            abs(x + offset - other_x) < _NUMBER_WIDTH and abs(y - other_y) < _NUMBER_HEIGHT for other_x, other_y in used
        ):
            return x + offset, y
    return x, y


def _draw_legend(canvas: Canvas, points: Sequence[RooflinePoint]) -> None:
    """Names the shapes that are in use, above the plot."""
    x = float(_LEFT + _LEGEND_START)
    if any(point.dtype for point in points):
        canvas.legend(x, _TOP - 10, [("multiply matrices", _MULTIPLIES)])
        x += _LEGEND_STEP
    if not all(point.dtype for point in points):
        canvas.legend(x, _TOP - 10, [("only move bytes, at the left edge", _MOVES)], "box")
