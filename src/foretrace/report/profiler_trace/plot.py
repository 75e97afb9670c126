"""Drawings of profiler traces as SVG: a step lane by lane, ranks below each other, queues and bandwidths over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import UsageError
from foretrace.basics.units import format_bandwidth, format_count, format_percent, format_time
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.readings.answer.answer import Answer
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.intervals import united
from foretrace.readings.profiler_views.rank import Rank
from foretrace.report.design import BLUE, COLOURS, GREEN, GREY, GRID, ORANGE, PURPLE, SKY, VERMILLION, WINE, Shade
from foretrace.report.svg import Canvas
from foretrace.report.table import TextTable

_LEFT, _WIDTH, _RIGHT, _TOP, _LANE = 130, 900, 290, 64, 34
_BOX = _LANE - 8
_LEGEND_X = _LEFT + _WIDTH + 42
_MIN_PX: Final = 0.15
_MAX_RANKS: Final = 64


_STATES: Final = {
    "compute": Shade(GREEN),
    "compute + communication": Shade(PURPLE),
    "compute + memory": Shade(GREEN, 0.5),
    "compute + communication + memory": Shade(PURPLE, 0.5),
    "communication": Shade(BLUE),
    "communication + memory": Shade(BLUE, 0.5),
    "memory": Shade(ORANGE),
    "idle": Shade(GREY, 0.25),
}
_BOUNDS: Final = {"compute": Shade(GREEN), "communication": Shade(BLUE), "host": Shade(GREY)}
_KINDS: Final = {
    "gemm": Shade(GREEN),
    "attention": Shade(PURPLE),
    "communication": Shade(BLUE),
    "copy": Shade(ORANGE),
    "elementwise": Shade(VERMILLION),
    "norm": Shade(WINE),
    "optimizer": Shade(SKY),
    "embedding": Shade(GREEN, 0.35),
    "moe expert": Shade(GREEN, 0.65),
    "convolution": Shade(PURPLE, 0.35),
    "memset": Shade(ORANGE, 0.65),
    "loss": Shade(WINE, 0.5),
    "softmax": Shade(PURPLE, 0.65),
    "reduction": Shade(VERMILLION, 0.5),
    "indexing": Shade(ORANGE, 0.35),
}
_OTHER: Final = Shade(GREY)
_RANGE: Final = Shade(SKY, 0.3)

_Draw = Callable[[Canvas, float], None]
"""Draws a lane on a canvas, with the upper side of its boxes at a y."""
_Boxes = list[tuple[Shade, list[tuple[float, float]]]]
"""Shades, and x and width of the boxes of each."""


@dataclass(frozen=True, slots=True)
class _TimeAxis:
    """Time across the page."""

    low_s: float
    high_s: float

    def x(self, time_s: Floats) -> Floats:
        share = (np.asarray(time_s) - self.low_s) / max(self.high_s - self.low_s, 1e-12)
        return _LEFT + np.clip(share, 0.0, 1.0) * _WIDTH

    def draw(self, canvas: Canvas, bottom: float) -> None:
        """Draws six lines of a grid, and below them the time since the start."""
        for share in np.linspace(0.0, 1.0, 6).tolist():
            x = _LEFT + share * _WIDTH
            canvas.line((x, _TOP), (x, bottom), GRID)
            canvas.text(x, bottom + 18, format_time(share * (self.high_s - self.low_s)), "middle")


def has_drawing(view: str) -> bool:
    """Returns whether there is a drawing of a view."""
    return view in _DRAWN


def profiler_trace_svg(trace: ProfilerTrace, view: str | None) -> str:
    """Draws a view, by default the step."""
    if view is not None and not has_drawing(view):
        raise UsageError(
            "option-not-for-command",
            f"--plot: there is no drawing of {view}",
            hint=f"drawn: the step, or with --view {', '.join(_DRAWN)}",
        )
    return _DRAWN[view or "steps"](trace)


def _canvas(title: str) -> Canvas:
    return Canvas(_LEFT + _WIDTH + _RIGHT, 0, title, title_x=20)


def _finish(canvas: Canvas, bottom: float, legend_bottom: float) -> str:
    """Makes the page as high as what is drawn on it."""
    canvas.height = max(bottom + 40, legend_bottom + 10)
    return canvas.svg()


def _boxes(axis: _TimeAxis, start_s: Floats, end_s: Floats) -> list[tuple[float, float]]:
    """Returns x and width of intervals; those closer than a page can show become one."""
    pixel_s = (axis.high_s - axis.low_s) / _WIDTH
    inside = (end_s > axis.low_s) & (start_s < axis.high_s)
    starts, ends = united(start_s[inside], end_s[inside] + _MIN_PX * pixel_s)
    left, right = axis.x(starts).tolist(), axis.x(ends).tolist()
    return [(low, max(high - low, _MIN_PX)) for low, high in zip(left, right, strict=True)]


def _draw_boxes(boxes: _Boxes, canvas: Canvas, y: float) -> None:
    for shade, places in boxes:
        with canvas.group(**shade.fill):
            for x, width in places:
                canvas.rect(x, y, width, _BOX)


def _step_axis(answer: Answer) -> _TimeAxis:
    """Returns the time axis of the median step."""
    path = answer.critical_path
    if not path.length_s:
        raise UsageError("nothing-to-do", "--plot: no work of a step was recorded")
    begin_s = answer.timeline.origin_s + float(path.start_s[0])
    return _TimeAxis(begin_s, begin_s + answer.step_time_s)


def streams_table(trace: ProfilerTrace) -> TextTable:
    """Returns how long each stream of the drawn step runs work of each kind."""
    rank, step_s = trace.ranks[0], trace.explanation.answer.step_time_s
    axis, work, names = _step_axis(trace.explanation.answer), rank.ran, tuple(WorkKind)
    inside_s = np.minimum(work.end_s, axis.high_s) - np.maximum(work.start_s, axis.low_s)
    kinds = rank.kinds[work.name]
    rows = []
    for number, (_, stream) in enumerate(rank.streams):
        of_stream = (work.stream == number) & (inside_s > 0)
        sums = np.bincount(kinds[of_stream], weights=inside_s[of_stream], minlength=len(names))
        count = np.bincount(kinds[of_stream], minlength=len(names))
        for kind in np.argsort(-sums, kind="stable").tolist():
            if count[kind]:
                seconds = float(sums[kind])
                cells = (format_count(int(count[kind])), format_time(seconds), format_percent(seconds / step_s))
                rows.append((f"stream {stream}", str(names[kind]), *cells))
    return TextTable(("stream", "kind of work", "pieces", "time", "of the step"), rows, text_columns=2)


def _step(trace: ProfilerTrace) -> str:
    """Draws the median step of the first rank: annotations, streams by kind of work, and the critical path."""
    rank, answer = trace.ranks[0], trace.explanation.answer
    path, step_s = answer.critical_path, answer.step_time_s
    axis = _step_axis(answer)
    kinds = _kinds_in(rank, axis)
    colours = {kind: _KINDS.get(kind, _OTHER) for kind in kinds}
    lanes: list[tuple[str, _Draw]] = [
        (label, partial(_draw_ranges, rank, axis, ranges)) for label, ranges in _annotation_lanes(rank, axis)
    ]
    for number, (_, stream) in enumerate(rank.streams):
        boxes = _stream(rank, number, axis, colours)
        if any(places for _, places in boxes):
            lanes.append((f"stream {stream}", partial(_draw_boxes, boxes)))
    lanes.append(("critical path", partial(_draw_boxes, _path(answer, axis))))
    canvas = _canvas(f"{trace.median_step}, the median step, rank {rank.number}: {format_time(step_s)}")
    bottom = float(_TOP + _LANE * len(lanes))
    axis.draw(canvas, bottom)
    for number, (label, draw) in enumerate(lanes):
        y = _TOP + number * _LANE
        canvas.text(_LEFT - 8, y + _LANE / 2 + 4, label, "end")
        draw(canvas, y + 4)
    below = canvas.legend(_LEGEND_X, _TOP + 12, [(kind, colours[kind]) for kind in kinds], "box")
    bounds = [_bound_of(part, answer) for part in path.parts_s]
    parts = [
        (f"path: {part} {format_time(seconds)}", _BOUNDS[bound])
        for (part, seconds), bound in zip(path.parts_s.items(), bounds, strict=True)
    ]
    return _finish(canvas, bottom, canvas.legend(_LEGEND_X, below + 20, parts, "box"))


def _kinds_in(rank: Rank, axis: _TimeAxis) -> list[str]:
    """Returns the kinds of work in the step, those with the most time first; last other, for those without a colour."""
    work, names = rank.ran, tuple(WorkKind)
    inside = (work.end_s > axis.low_s) & (work.start_s < axis.high_s)
    sums = np.bincount(rank.kinds[work.name[inside]], weights=work.duration_s[inside], minlength=len(names))
    kinds = [str(names[number]) for number in np.argsort(-sums, kind="stable").tolist() if sums[number] > 0]
    return [*(kind for kind in kinds if kind in _KINDS), *(["other"] if set(kinds) - set(_KINDS) else [])]


def _stream(rank: Rank, number: int, axis: _TimeAxis, colours: dict[str, Shade]) -> _Boxes:
    """Returns the work of a stream, each kind in its colour."""
    work, names = rank.ran, tuple(WorkKind)
    kinds = rank.kinds[work.name]
    boxes: _Boxes = []
    for kind in np.unique(kinds[work.stream == number]).tolist():
        mine = (work.stream == number) & (kinds == kind)
        boxes.append((colours.get(str(names[kind]), _OTHER), _boxes(axis, work.start_s[mine], work.end_s[mine])))
    return boxes


def _annotation_lanes(rank: Rank, axis: _TimeAxis) -> list[tuple[str, Longs]]:
    """Returns the ranges of the thread with most of them, by how deep they nest: the three outermost levels."""
    events = rank.trace.events
    ranges = events.of(EventCategory.ANNOTATION)
    inside = (events.end_s[ranges] > axis.low_s) & (events.start_s[ranges] < axis.high_s)
    ranges = ranges[inside & (events.thread[ranges] >= 0)]
    if not len(ranges):
        return []
    main = np.bincount(events.thread[ranges]).argmax()
    ranges = ranges[events.thread[ranges] == main]
    depth, above = np.zeros(len(ranges), dtype=np.int64), rank.links.annotation[ranges]
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, rank.links.annotation[above], -1)
    return [(f"host ranges {level + 1}", ranges[depth == level]) for level in range(min(int(depth.max()) + 1, 3))]


def _draw_ranges(rank: Rank, axis: _TimeAxis, ranges: Longs, canvas: Canvas, y: float) -> None:
    """Draws ranges with their names where these fit."""
    events = rank.trace.events
    left, right = axis.x(events.start_s[ranges]).tolist(), axis.x(events.end_s[ranges]).tolist()
    for low, high, name in zip(left, right, rank.trace.names(ranges), strict=True):
        canvas.rect(low, y, high - low, _BOX, name, **_RANGE.fill, stroke=BLUE, stroke_width=0.6)
        room = int((high - low - 8) / 6.5)
        if room >= 3:
            canvas.text(low + 4, y + 17, name if len(name) <= room else f"{name[: room - 1]}…")


def _bound_of(part: str, answer: Answer) -> str:
    """Returns what a part of the critical path is: computation, communication or the host."""
    axes = {communicator.axis for communicator in answer.timeline.graph.program.communicators}
    return "host" if part == "host" else "communication" if part in axes else "compute"


def _path(answer: Answer, axis: _TimeAxis) -> _Boxes:
    """Returns the critical path, each part in its colour."""
    path, origin_s = answer.critical_path, answer.timeline.origin_s
    bounds = {part: _bound_of(part, answer) for part in path.parts_s}
    boxes: _Boxes = []
    for bound, shade in _BOUNDS.items():
        mine = np.array([bounds.get(part) == bound for part in path.part], dtype=bool)
        boxes.append((shade, _boxes(axis, path.start_s[mine] + origin_s, path.end_s[mine] + origin_s)))
    return boxes


def _ranks(trace: ProfilerTrace) -> str:
    """Draws what the device of each rank did, as parts of its span."""
    shown = trace.occupancies[:_MAX_RANKS]
    hidden = len(trace.occupancies) - len(shown)
    more = f" ({hidden} more ranks are not drawn)" if hidden > 0 else ""
    canvas = _canvas(f"what the device does, rank by rank{more}")
    height = _LANE if len(shown) <= 16 else 14
    for number, occupancy in enumerate(shown):
        y, x = _TOP + number * height, float(_LEFT)
        canvas.text(_LEFT - 8, y + height / 2 + 4, f"rank {occupancy.rank}", "end")
        for state, shade in _STATES.items():
            seconds = occupancy.states_s[state]
            width = _WIDTH * seconds / occupancy.span_s if occupancy.span_s > 0 else 0.0
            if width > 0:
                canvas.rect(x, y + 2, width, height - 4, f"{state}: {format_time(seconds)}", **shade.fill)
            x += width
    bottom = _TOP + len(shown) * height
    for share in np.linspace(0.0, 1.0, 6).tolist():
        canvas.text(_LEFT + share * _WIDTH, bottom + 18, f"{share:.0%}", "middle")
    used = [
        (state, shade) for state, shade in _STATES.items() if any(occupancy.states_s[state] > 0 for occupancy in shown)
    ]
    return _finish(canvas, bottom, canvas.legend(_LEGEND_X, _TOP + 12, used, "box"))


@dataclass(frozen=True, slots=True, eq=False)
class _Series:
    """A quantity that changes at some times and stays the same in between."""

    name: str
    time_s: Floats
    level: Floats


def _step_functions(title: str, series: Sequence[_Series], text: Callable[[float], str], quarter: float = 0.0) -> str:
    """Draws quantities over time, each in its colour; a quarter of the height is a multiple of `quarter`."""
    some = [quantity for quantity in series if len(quantity.time_s)]
    if not some:
        raise UsageError("nothing-to-do", "--plot: there is nothing of this in the trace")
    axis = _TimeAxis(
        min(float(quantity.time_s[0]) for quantity in some), max(float(quantity.time_s[-1]) for quantity in some)
    )
    top = max(float(quantity.level.max()) for quantity in some) or 1.0
    top = 4 * quarter * float(np.ceil(top / (4 * quarter))) if quarter else top
    height, bottom = 320.0, _TOP + 320.0
    canvas = _canvas(title)
    axis.draw(canvas, bottom)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * height
        canvas.line((_LEFT, y), (_LEFT + _WIDTH, y), GRID)
        canvas.text(_LEFT - 8, y + 4, text(share * top), "end")
    entries = [(quantity.name, COLOURS[number % len(COLOURS)]) for number, quantity in enumerate(some)]
    for quantity, (_, colour) in zip(some, entries, strict=True):
        left, peak = _peaks(axis, quantity.time_s, quantity.level)
        down = bottom - peak / top * height
        canvas.polyline(zip(left.tolist(), down.tolist(), strict=True), colour, 1.2)
    return _finish(canvas, bottom, canvas.legend(_LEGEND_X, _TOP + 12, entries, "box"))


def _peaks(axis: _TimeAxis, time_s: Floats, level: Floats) -> tuple[Floats, Floats]:
    """Returns x and level of four points per pixel, with its least and its largest level, so that no peak is lost."""
    pixel = np.clip(axis.x(time_s) - _LEFT, 0, _WIDTH - 1).astype(np.int64)
    first = np.flatnonzero(np.append(True, pixel[1:] != pixel[:-1]))
    # A level lasts from the pixel before into this one.
    before = np.append(0.0, level[:-1].astype(np.float64))[first]
    low = np.minimum(np.minimum.reduceat(level, first), before)
    high = np.maximum(np.maximum.reduceat(level, first), before)
    last = level[np.append(first[1:] - 1, len(level) - 1)]
    x = np.repeat(_LEFT + pixel[first].astype(np.float64), 4)
    return x, np.column_stack([before, low, high, last]).ravel()


def _queues(trace: ProfilerTrace) -> str:
    several = len(trace.ranks) > 1
    queues = sorted(trace.queues().queues, key=lambda queue: -queue.spread.count)[: len(COLOURS)]
    series = [
        _Series(
            f"{f'rank {queue.rank} ' if several else ''}stream {queue.stream}",
            queue.time_s,
            queue.length.astype(np.float64),
        )
        for queue in queues
    ]
    return _step_functions("launched work that waits", series, lambda value: f"{value:.0f}", quarter=1.0)


def _bandwidths(trace: ProfilerTrace) -> str:
    several = len(trace.ranks) > 1
    copies = sorted(trace.memory_bandwidth().copies, key=lambda copy: -copy.seconds)[: len(COLOURS)]
    series = [
        _Series(f"{copy.kind}{f' rank {copy.rank}' if several else ''}", copy.time_s, copy.bytes_per_s)
        for copy in copies
    ]
    return _step_functions("copies and memsets", series, format_bandwidth)


_DRAWN: Final[dict[str, Callable[[ProfilerTrace], str]]] = {
    "steps": _step,
    "critical-path": _step,
    "breakdown": _ranks,
    "overlap": _ranks,
    "queue": _queues,
    "bandwidth": _bandwidths,
}
