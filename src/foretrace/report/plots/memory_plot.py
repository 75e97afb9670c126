"""The memory of one stage over the step, stacked by kind: as letters on a terminal, and as an SVG."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from foretrace.basics.units import format_bytes, format_time
from foretrace.program.columns import Category, label
from foretrace.readings.answer.memory_fit import MemoryFit, StageMemory
from foretrace.report.design import FRAME, GRID, MEMORY_COLOURS, MUTED, SERIES, VERMILLION, Shade
from foretrace.report.svg import LEGEND_ROW, Canvas, LinearAxis
from foretrace.report.wrap import Line, Span

KIND_COLOURS: Final = {
    kind: MEMORY_COLOURS[label(kind)]
    for kind in (
        Category.WEIGHTS,
        Category.OPTIMIZER,
        Category.GRADIENTS,
        Category.BUFFERS,
        Category.ACTIVATIONS,
        Category.TEMPORARIES,
    )
}
"""The colour of each kind, from the bottom of the stack to its top: what varies most is at the top."""
_OPACITY: Final = 0.75
_KINDS: Final = {
    kind: (kind.name[0], Shade(SERIES[colour].light, _OPACITY), SERIES[colour].style)
    for kind, colour in KIND_COLOURS.items()
}
"""Letter, shade and style of each kind, in the same order."""

_ROWS: Final = 10
_MAX_COLUMNS: Final = 80
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 680, 360, 76, 56, 236
_SLICES: Final = 680
_GIB: Final = 1 << 30
_LINE_GAP: Final = 16
"""Pixels that two labels of lines need between them."""


def memory_letters(stage: StageMemory, step_s: float, width: int) -> list[Line]:
    """Returns what a stage holds over the step as rows of letters, the peak at the top; nothing for a step of no time.

    Args:
        stage: The stage.
        step_s: The time of a step.
        width: Columns that may be used.
    """
    top = format_bytes(stage.peak_bytes)
    columns = min(_MAX_COLUMNS, width - len(top) - 4)
    if step_s <= 0 or stage.peak_bytes <= 0 or columns < 1:
        return []
    held = stage.track.held_bytes[stage.track.fullest_moments(step_s, columns)][:, list(_KINDS)]
    above = held.cumsum(axis=1)
    middles = (np.arange(_ROWS) + 0.5) / _ROWS * stage.peak_bytes
    # The kind whose part of the stack holds the middle of a cell; beyond the last one there is nothing.
    kinds = (above[:, :, None] <= middles[None, None, :]).sum(axis=1)
    signs = [*((letter, style) for letter, _, style in _KINDS.values()), (" ", "")]
    lines: list[Line] = []
    for row in reversed(range(_ROWS)):
        name = top if row == _ROWS - 1 else "0" if row == 0 else ""
        line: list[Span] = [(f"  {name:>{len(top)}}  ", "bright_black")]
        for kind in kinds[:, row].tolist():
            letter, style = signs[kind]
            if len(line) > 1 and line[-1][1] == style:
                line[-1] = (line[-1][0] + letter, style)
            else:
                line.append((letter, style))
        lines.append(line)
    end = format_time(step_s)
    lines.append([(f"  {'':>{len(top)}}  0{end:>{max(columns - 1, len(end) + 1)}}", "bright_black")])
    drawn = set(kinds.ravel().tolist())
    shown = [kind for number, kind in enumerate(_KINDS) if number in drawn]
    words = "   ".join(f"{_KINDS[kind][0]} {label(kind)}" for kind in reversed(shown))
    return [*lines, [(f"  {'':>{len(top)}}  {words}", "bright_black")]]


def memory_svg(memory: MemoryFit, stage: StageMemory, step_s: float, title: str) -> str:
    """Draws what a stage holds over the step, with lines at what the allocator reserves and what it may use.

    Args:
        memory: The memory of the job.
        stage: The stage to draw.
        step_s: The time of a step.
        title: The heading.
    """
    canvas = Canvas(_LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + 66, title, title_x=_LEFT, font_size=13)
    high = 1.06 * max(memory.capacity_bytes, stage.reserved_band_bytes[1], 1)
    _draw_grid(canvas, step_s, high)
    if step_s > 0:
        _draw_stack(canvas, stage, step_s, high)
    labels = _draw_lines(canvas, memory, stage, high)
    _draw_legend(canvas, stage, labels)
    _draw_peak(canvas, stage, step_s, high)
    return canvas.svg()


def _y(size_bytes: float, high: float) -> float:
    """Returns where a size is on the canvas."""
    return _TOP + _HEIGHT * (1 - size_bytes / high)


def _draw_grid(canvas: Canvas, step_s: float, high: float) -> None:
    for size in LinearAxis(0, high / _GIB).ticks(8):
        y = _y(size * _GIB, high)
        canvas.line((_LEFT, y), (_LEFT + _WIDTH, y), GRID)
        canvas.text(_LEFT - 8, y + 4, f"{size:g}", "end")
    for time_s in LinearAxis(0, step_s).ticks(7):
        x = _LEFT + _WIDTH * time_s / step_s
        canvas.line((x, _TOP + _HEIGHT), (x, _TOP + _HEIGHT + 5), FRAME)
        canvas.text(x, _TOP + _HEIGHT + 20, format_time(time_s) if time_s else "0", "middle")
    canvas.text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 46, "time in the step", "middle")
    middle = _TOP + _HEIGHT / 2
    canvas.text(22, middle, "memory in GiB", "middle", transform=f"rotate(-90 22 {middle:g})")


def _draw_stack(canvas: Canvas, stage: StageMemory, step_s: float, high: float) -> None:
    held = stage.track.held_bytes[stage.track.fullest_moments(step_s, _SLICES)][:, list(_KINDS)]
    x = [_LEFT + _WIDTH * number / _SLICES for number in range(_SLICES + 1)]
    below = np.zeros(_SLICES, dtype=np.int64)
    for column, (_, shade, _) in zip(held.T, _KINDS.values(), strict=True):
        if not column.any():
            continue
        # Left and right end of every slice, first along the top, then back along the bottom.
        upper, lower = (
            [(edge, _y(size, high)) for at, size in enumerate(sizes) for edge in (x[at], x[at + 1])]
            for sizes in ((below + column).tolist(), below.tolist())
        )
        outline = _without_flat(upper) + _without_flat(lower)[::-1]
        canvas.polyline(outline, "none", 0, **shade.fill)
        below = below + column
    canvas.rect(_LEFT, _TOP, _WIDTH, _HEIGHT, fill="none", stroke=FRAME)


def _without_flat(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leaves out points on a level line between their neighbours."""
    kept = [
        point
        for before, point, after in zip(points, points[1:], points[2:], strict=False)
        if not before[1] == point[1] == after[1]
    ]
    return [points[0], *kept, points[-1]]


def _draw_legend(canvas: Canvas, stage: StageMemory, labels: list[float]) -> None:
    """Names the kinds with their sizes at the peak, in the order of the stack, away from the labels of lines."""
    entries = [
        (f"{label(kind)} {format_bytes(stage.by_category[label(kind)])}", shade)
        for kind, (_, shade, _) in reversed(_KINDS.items())
        if label(kind) in stage.by_category
    ]
    y = _TOP + _HEIGHT - LEGEND_ROW * (len(entries) - 1)
    if any(label > y - 44 for label in labels):
        y = _TOP + 86
    x = _LEFT + _WIDTH + 26
    canvas.circle(x, y - 30, 4, FRAME)
    canvas.text(x + 14, y - 26, f"at the peak of {format_bytes(stage.peak_bytes)}", fill=MUTED)
    canvas.legend(x, y, entries, "box")


def _draw_lines(canvas: Canvas, memory: MemoryFit, stage: StageMemory, high: float) -> list[float]:
    """Draws the memory of the GPU, what is left of it for the allocator, and what the allocator usually reserves.

    Returns where the labels of the lines are.
    """
    left = memory.capacity_bytes - memory.outside_bytes
    lines = [(memory.capacity_bytes, "the GPU", VERMILLION, "none")]
    if memory.outside and left > 0:
        lines.append((left, "for the allocator", VERMILLION, "6 4"))
    if stage.gap_bytes[1]:
        lines.append((stage.reserved_band_bytes[1], "usually reserved", FRAME, "2 3"))
    text_y, labels = -math.inf, []
    for size, words, colour, dashes in sorted(lines, key=lambda line: -line[0]):
        y = _y(size, high)
        canvas.line((_LEFT, y), (_LEFT + _WIDTH, y), colour, stroke_width=1.5, stroke_dasharray=dashes)
        text_y = max(y + 4, text_y + _LINE_GAP)
        canvas.text(_LEFT + _WIDTH + 8, text_y, f"{format_bytes(size)}: {words}", fill=colour, font_size=12)
        labels.append(text_y)
    return labels


def _draw_peak(canvas: Canvas, stage: StageMemory, step_s: float, high: float) -> None:
    if step_s <= 0:
        return
    time_s = float(stage.track.time_s[int(np.argmax(stage.track.total_bytes))])
    x, y = _LEFT + _WIDTH * min(time_s / step_s, 1.0), _y(stage.peak_bytes, high)
    canvas.circle(x, y, 4, FRAME, f"{format_bytes(stage.peak_bytes)} at {format_time(time_s)}")
