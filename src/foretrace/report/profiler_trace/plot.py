"""A profiler's traces drawn: a step lane by lane, ranks side by side, queues and bandwidths over time; as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import UsageError
from foretrace.basics.units import format_bandwidth, format_time
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.critical import TracePath
from foretrace.readings.profiler_views.intervals import united
from foretrace.readings.profiler_views.rank import Rank
from foretrace.report.axis import COLOURS, FONT

_LEFT, _WIDTH, _RIGHT, _TOP, _LANE = 130, 900, 290, 64, 34
_MIN_PX: Final = 0.15
_MAX_RANKS: Final = 64
_STATES: Final = {
    "compute": "#2e933c",
    "compute + communication": "#8d5fd3",
    "compute + memory": "#8fbf5f",
    "compute + communication + memory": "#b08fe0",
    "communication": "#d1495b",
    "communication + memory": "#e58a96",
    "memory": "#e08e0b",
    "idle": "#dddddd",
}
_PARTS: Final = {
    "compute": "#4a4a4a",
    "communication": "#d1495b",
    "memory": "#e08e0b",
    "host": "#6db3e8",
    "launch": "#17a2a2",
    "gap": "#d5d5d5",
}
_KINDS: Final = {
    "gemm": "#2e933c",
    "attention": "#8d5fd3",
    "communication": "#d1495b",
    "copy": "#e08e0b",
    "elementwise": "#1b6ca8",
    "norm": "#17a2a2",
    "optimizer": "#7a5230",
    "embedding": "#5fbf6f",
    "moe expert": "#1f6f2b",
    "convolution": "#6fae3c",
    "memset": "#f0b95e",
    "loss": "#c26bb1",
    "softmax": "#b08fe0",
    "reduction": "#4fc3c3",
    "indexing": "#a8a03a",
}
_OTHER: Final = "#999999"


@dataclass(frozen=True, slots=True)
class _Across:
    """Time on the page."""

    low_s: float
    high_s: float

    def x(self, time_s: Floats) -> Floats:
        share = (np.asarray(time_s) - self.low_s) / max(self.high_s - self.low_s, 1e-12)
        return _LEFT + np.clip(share, 0.0, 1.0) * _WIDTH

    def marks(self, bottom: float) -> list[str]:
        """Times below, and lines up from them."""
        parts = []
        for share in np.linspace(0.0, 1.0, 6).tolist():
            x = _LEFT + share * _WIDTH
            time = format_time(share * (self.high_s - self.low_s))
            parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e6e6e6"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(time)}</text>')
        return parts


def trace_svg(trace: ProfilerTrace, view: str | None) -> str:
    """The drawing of a view: the step by default."""
    if view is not None and view not in _DRAWN:
        raise UsageError(
            "option-not-for-command",
            f"--plot: there is no drawing of {view}",
            hint=f"drawn: the step, or with --view {', '.join(_DRAWN)}",
        )
    return _DRAWN[view or "steps"](trace)


def _page(title: str, height: float, parts: Sequence[str]) -> str:
    width = _LEFT + _WIDTH + _RIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
            f'viewBox="0 0 {width} {height:.0f}" {FONT} font-size="12">',
            f'<rect width="{width}" height="{height:.0f}" fill="white"/>',
            f'<text x="20" y="30" font-size="17" font-weight="bold">{escape(title)}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _legend(named: Sequence[tuple[str, str]], top: float = _TOP) -> list[str]:
    x, parts = _LEFT + _WIDTH + 36, []
    for number, (name, colour) in enumerate(named):
        y = top + 12 + 19 * number
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{escape(name)}</text>')
    return parts


def _boxes(across: _Across, start_s: Floats, end_s: Floats, y: float, height: float, colour: str) -> list[str]:
    """Intervals as boxes; those closer than a page can show become one."""
    pixel_s = (across.high_s - across.low_s) / _WIDTH
    inside = (end_s > across.low_s) & (start_s < across.high_s)
    starts, ends = united(start_s[inside], end_s[inside] + _MIN_PX * pixel_s)
    left, right = across.x(starts), across.x(ends)
    return [
        f'<rect x="{a:.2f}" y="{y:.1f}" width="{max(b - a, _MIN_PX):.2f}" height="{height:.1f}" fill="{colour}"/>'
        for a, b in zip(left.tolist(), right.tolist(), strict=True)
    ]


def _step(trace: ProfilerTrace) -> str:
    """The median step of the first rank: annotations, streams by kind of work, and the critical path."""
    rank, path = trace.ranks[0], trace.critical_path()
    if not path.length_s:
        raise UsageError("nothing-to-do", "--plot: no work of a step was recorded")
    across = _Across(float(path.start_s[0]), float(path.start_s[0]) + path.length_s)
    kinds = _kinds_in(rank, across)
    colours = {kind: _KINDS.get(kind, _OTHER) for kind in kinds}
    lanes: list[tuple[str, list[str]]] = []
    y = float(_TOP)
    for label, at in _annotation_lanes(rank, across):
        lanes.append((label, _named_boxes(rank, across, at, y + 4)))
        y += _LANE
    for number, (_, stream) in enumerate(rank.streams):
        drawn = _stream(rank, number, across, y + 4, colours)
        if drawn:
            lanes.append((f"stream {stream}", drawn))
            y += _LANE
    lanes.append(("critical path", _path(path, across, y + 4)))
    y += _LANE
    parts = across.marks(y)
    for number, (label, drawn) in enumerate(lanes):
        middle = _TOP + number * _LANE + _LANE / 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        parts += drawn
    parts += _legend([(f"{kind}", colours[kind]) for kind in kinds])
    shown = [part for part in _PARTS if path.parts_s.get(part)]
    below = _TOP + 19 * len(kinds) + 24
    parts += _legend([(f"path: {part} {format_time(path.parts_s[part])}", _PARTS[part]) for part in shown], below)
    title = f"{path.step}, rank {path.rank}: {format_time(path.length_s)}"
    return _page(title, max(y + 40, below + 19 * len(shown) + 20), parts)


def _kinds_in(rank: Rank, across: _Across) -> list[str]:
    """Kinds of work in the step, those with the most time first; those without a colour of their own are other."""
    work, names = rank.ran, tuple(WorkKind)
    inside = (work.end_s > across.low_s) & (work.start_s < across.high_s)
    sums = np.bincount(rank.kinds[work.name[inside]], weights=work.duration_s[inside], minlength=len(names))
    order = [int(one) for one in np.argsort(-sums, kind="stable") if sums[one] > 0]
    found = [str(names[one]) for one in order]
    return [*(kind for kind in found if kind in _KINDS), *(["other"] if set(found) - set(_KINDS) else [])]


def _stream(rank: Rank, number: int, across: _Across, y: float, colours: dict[str, str]) -> list[str]:
    work, names = rank.ran, tuple(WorkKind)
    kind = rank.kinds[work.name]
    drawn: list[str] = []
    for one in np.unique(kind[work.stream == number]).tolist():
        mine = (work.stream == number) & (kind == one)
        colour = colours.get(str(names[one]), _OTHER)
        drawn += _boxes(across, work.start_s[mine], work.end_s[mine], y, _LANE - 8, colour)
    return drawn


def _annotation_lanes(rank: Rank, across: _Across) -> list[tuple[str, Longs]]:
    """Ranges of the thread with most of them, by how deep they nest: the three outermost levels."""
    events = rank.trace.events
    ranges = events.of(EventCategory.ANNOTATION)
    inside = (events.end_s[ranges] > across.low_s) & (events.start_s[ranges] < across.high_s)
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


def _named_boxes(rank: Rank, across: _Across, at: Longs, y: float) -> list[str]:
    """Ranges with their names where these fit."""
    events = rank.trace.events
    left, right = across.x(events.start_s[at]).tolist(), across.x(events.end_s[at]).tolist()
    parts = []
    for a, b, name in zip(left, right, rank.trace.names(at), strict=True):
        style = 'fill="#cfe0ee" stroke="#7aa7c7" stroke-width="0.6"'
        title = f"<title>{escape(name)}</title>"
        parts.append(f'<rect x="{a:.2f}" y="{y:.1f}" width="{b - a:.2f}" height="{_LANE - 8}" {style}>{title}</rect>')
        room = int((b - a - 8) / 6.5)
        if room >= 3:
            text = name if len(name) <= room else f"{name[: room - 1]}…"
            parts.append(f'<text x="{a + 4:.2f}" y="{y + 17:.1f}">{escape(text)}</text>')
    return parts


def _path(path: TracePath, across: _Across, y: float) -> list[str]:
    drawn: list[str] = []
    for part, colour in _PARTS.items():
        mine = np.array([one == part for one in path.part], dtype=bool)
        drawn += _boxes(across, path.start_s[mine], path.end_s[mine], y, _LANE - 8, colour)
    return drawn


def _ranks(trace: ProfilerTrace) -> str:
    """What the device of each rank did, as parts of its span."""
    shown = trace.occupancies[:_MAX_RANKS]
    parts: list[str] = []
    height = _LANE if len(shown) <= 16 else 14
    for number, one in enumerate(shown):
        y, x = _TOP + number * height, float(_LEFT)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + height / 2 + 4}" text-anchor="end">rank {one.rank}</text>')
        for state, colour in _STATES.items():
            seconds = one.states_s[state]
            width = _WIDTH * seconds / one.span_s if one.span_s > 0 else 0.0
            if width > 0:
                title = f"<title>{state}: {format_time(seconds)}</title>"
                box = f'x="{x:.2f}" y="{y + 2}" width="{width:.2f}" height="{height - 4}" fill="{colour}"'
                parts.append(f"<rect {box}>{title}</rect>")
            x += width
    used = [(state, colour) for state, colour in _STATES.items() if any(one.states_s[state] > 0 for one in shown)]
    bottom = _TOP + len(shown) * height
    for share in np.linspace(0.0, 1.0, 6).tolist():
        x = _LEFT + share * _WIDTH
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{share:.0%}</text>')
    hidden = len(trace.occupancies) - len(shown)
    more = f" ({hidden} more ranks are not drawn)" if hidden > 0 else ""
    tallest = max(bottom + 40, _TOP + 19 * len(used) + 20)
    return _page(f"what the device does, rank by rank{more}", tallest, [*parts, *_legend(used)])


def _curves(
    title: str, named: Sequence[tuple[str, Floats, Floats]], text: Callable[[float], str], quarter: float = 0.0
) -> str:
    """Step functions of time, one colour each; `quarter` is what a quarter of the height is a multiple of."""
    some = [one for one in named if len(one[1])]
    if not some:
        raise UsageError("nothing-to-do", "--plot: there is nothing of this in the trace")
    across = _Across(min(float(one[1][0]) for one in some), max(float(one[1][-1]) for one in some))
    most = max(float(one[2].max()) for one in some) or 1.0
    most = 4 * quarter * float(np.ceil(most / (4 * quarter))) if quarter else most
    height, bottom = 320.0, _TOP + 320.0
    parts = across.marks(bottom)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * height
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="#e6e6e6"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(text(share * most))}</text>')
    for number, (_, time_s, level) in enumerate(some):
        colour = COLOURS[number % len(COLOURS)]
        left, peak = _peaks(across, time_s, level)
        down = bottom - peak / most * height
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(left.tolist(), down.tolist(), strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
    names = [(one[0], COLOURS[number % len(COLOURS)]) for number, one in enumerate(some)]
    return _page(title, max(bottom + 40, _TOP + 19 * len(names) + 20), [*parts, *_legend(names)])


def _peaks(across: _Across, time_s: Floats, level: Floats) -> tuple[Floats, Floats]:
    """The least and the largest level of each pixel, in turn, so that no peak is lost."""
    pixel = np.clip(across.x(time_s) - _LEFT, 0, _WIDTH - 1).astype(np.int64)
    first = np.flatnonzero(np.append(True, pixel[1:] != pixel[:-1]))
    # What lasts from the pixel before is seen in this one too.
    before = np.append(0.0, level[:-1].astype(np.float64))[first]
    low = np.minimum(np.minimum.reduceat(level, first), before)
    high = np.maximum(np.maximum.reduceat(level, first), before)
    last = level[np.append(first[1:] - 1, len(level) - 1)]
    x = np.repeat(_LEFT + pixel[first].astype(np.float64), 4)
    return x, np.column_stack([before, low, high, last]).ravel()


def _queues(trace: ProfilerTrace) -> str:
    several = len(trace.ranks) > 1
    found = sorted(trace.queues().queues, key=lambda queue: -queue.spread.count)[: len(COLOURS)]
    named = [
        (f"{f'rank {one.rank} ' if several else ''}stream {one.stream}", one.time_s, one.length.astype(np.float64))
        for one in found
    ]
    return _curves("launched work that waits", named, lambda value: f"{value:.0f}", quarter=1.0)


def _bandwidths(trace: ProfilerTrace) -> str:
    several = len(trace.ranks) > 1
    found = sorted(trace.memory_bandwidth().copies, key=lambda copy: -copy.seconds)[: len(COLOURS)]
    named = [(f"{one.kind}{f' rank {one.rank}' if several else ''}", one.time_s, one.bytes_per_s) for one in found]
    return _curves("copies and memsets", named, format_bandwidth)


_DRAWN: Final[dict[str, Callable[[ProfilerTrace], str]]] = {
    "steps": _step,
    "critical-path": _step,
    "breakdown": _ranks,
    "overlap": _ranks,
    "queue": _queues,
    "bandwidth": _bandwidths,
}
