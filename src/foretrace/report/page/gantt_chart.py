"""The pipeline of a step as a chart that a page draws: `report/web/gantt.js` and the modules that it imports.

`gantt_bars` merges the ops of a step into bars; this module names rows, colours and ops, and packs the columns.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.units import format_percent, format_time
from foretrace.program.columns import Phase, label
from foretrace.readings.answer.answer import Answer
from foretrace.report.design import part_colour
from foretrace.report.page.blocks import Cell
from foretrace.report.page.gantt_bars import TICKS, GanttBars, GanttPatterns, MergedStep, merge_ops
from foretrace.report.plots.gantt import LETTERS, MEANINGS

_TYPES: Final = (("u8", np.uint8), ("i8", np.int8), ("u16", np.uint16), ("i16", np.int16), ("i32", np.int32))
"""The types of packed columns, by the name that a page knows them by; the first that fits is used."""


@dataclass(frozen=True, slots=True)
class GanttRow:
    """A lane of a rank class: `rank` stands for `ranks` identical ones; `main` classes stand for their role.

    `axis` is the axis on which most bars of a lane of communication meet, empty where none does.
    """

    role: str
    rank: int
    ranks: int
    lane: str
    kind: str
    axis: str
    main: bool

    @property
    def label(self) -> str:
        """The row in words."""
        role = f"{self.role} · " if self.role else ""
        return f"{role}rank {self.rank} · {self.lane}"


@dataclass(frozen=True, slots=True)
class BarColour:
    """A colour of bars: its meaning, the sign that stands for it, a variable of the style sheet and a tone of it.

    Only axes that the design has no colour for share a variable, and differ in the tone.
    """

    name: str
    sign: str
    variable: str
    tone: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class GanttChart:
    """A step as rows of bars.

    `begin_s` is when the first device begins the step, which a host that runs ahead begins before. `span_s` is the
    first and last moment of the axis. `notes` states what was left out.
    """

    title: str
    step_time_s: float
    begin_s: float
    span_s: tuple[float, float]
    rows: tuple[GanttRow, ...]
    colours: tuple[BarColour, ...]
    names: tuple[str, ...]
    bars: GanttBars
    patterns: GanttPatterns
    notes: tuple[str, ...]

    @property
    def tick_s(self) -> float:
        """Seconds of a tick of the packed columns."""
        return (self.span_s[1] - self.span_s[0]) / TICKS

    def to_json(self) -> dict[str, Any]:
        """Returns the chart as plain values.

        The columns of bars and patterns are whole numbers, little-endian, deflated and in base64. Times are ticks, and
        a start is the gap to the end of the bar before in its row: mostly zero, so it packs well.
        """
        counts = np.bincount(self.bars.row, minlength=len(self.rows)).tolist()
        return {
            "title": self.title,
            "step_time_s": self.step_time_s,
            "begin_s": self.begin_s,
            "span_s": list(self.span_s),
            "tick_s": self.tick_s,
            "rows": [asdict(row) | {"bars": count} for row, count in zip(self.rows, counts, strict=True)],
            "colours": [asdict(colour) for colour in self.colours],
            "names": list(self.names),
            "notes": list(self.notes),
            "bars": self._packed_bars(),
            "patterns": self._packed_patterns(),
        }

    def summary_rows(self) -> list[tuple[Cell, ...]]:
        """Returns, for each row, its label, its busy share of the step, its first start and its last end."""
        bars, count = self.bars, len(self.rows)
        busy_s = np.bincount(bars.row, bars.end_s - bars.start_s - bars.gap_s, count) / self.step_time_s
        edges = np.searchsorted(bars.row, np.arange(count + 1))
        figures = zip(
            self.rows,
            busy_s.tolist(),
            bars.start_s[edges[:-1]].tolist(),
            bars.end_s[edges[1:] - 1].tolist(),
            strict=True,
        )
        return [
            (
                Cell(row.label),
                Cell(format_percent(busy), busy),
                Cell(format_time(low_s), low_s),
                Cell(format_time(high_s), high_s),
            )
            for row, busy, low_s, high_s in figures
        ]

    def _packed_bars(self) -> dict[str, Any]:
        bars = self.bars
        start, end = self._ticks(bars.start_s - self.span_s[0]), self._ticks(bars.end_s - self.span_s[0])
        return {
            "gap": _packed(_after_previous(start, end, np.flatnonzero(np.diff(bars.row, prepend=-1)))),
            "duration": _packed(end - start),
            "idle": _packed(self._ticks(bars.gap_s)),
            "wait": _packed(self._ticks(bars.wait_s)),
            "colour": _packed(bars.colour),
            "name": _packed(bars.name),
            "microbatch": _packed(bars.microbatch),
            "chunk": _packed(bars.chunk),
            "ops": _packed(bars.ops),
            "critical": _packed(bars.critical.astype(np.int64)),
            "pattern": _packed(bars.pattern),
        }

    def _packed_patterns(self) -> dict[str, Any]:
        patterns = self.patterns
        start, end = self._ticks(patterns.start_s), self._ticks(patterns.end_s)
        return {
            "ops": _packed(np.diff(patterns.first)),
            "gap": _packed(_after_previous(start, end, patterns.first[:-1])),
            "duration": _packed(end - start),
            "colour": _packed(patterns.colour),
            "name": _packed(patterns.name),
        }

    def _ticks(self, seconds: Floats) -> Longs:
        return np.rint(seconds / self.tick_s).astype(np.int64)


def gantt_chart(answer: Answer) -> GanttChart | None:
    """Returns the chart of an answer's step; None where no op takes place or the step takes no time."""
    timeline = answer.timeline
    if timeline.step_time_s <= 0 or not len(timeline.graph):
        return None
    merged = merge_ops(answer)
    if merged is None:
        return None
    bars, patterns = merged.bars, merged.patterns
    rows = _rows(answer, merged)
    colours, (bar_colour, pattern_colour) = _renumbered(bars.colour, patterns.colour)
    names, (bar_name, pattern_name) = _renumbered(bars.name, patterns.name)
    begin_s = timeline.device_begins_s
    strings, table = timeline.graph.program.strings, _colours(merged.axes)
    return GanttChart(
        answer.title,
        timeline.step_time_s,
        begin_s,
        (min(0.0, float(bars.start_s.min())), max(begin_s + timeline.step_time_s, float(bars.end_s.max()))),
        rows,
        tuple(table[number] for number in colours),
        tuple(strings[number] if number < len(strings) else table[number - len(strings)].name for number in names),
        replace(bars, colour=bar_colour, name=bar_name),
        replace(patterns, colour=pattern_colour, name=pattern_name),
        merged.notes,
    )


def _rows(answer: Answer, merged: MergedStep) -> tuple[GanttRow, ...]:
    graph = answer.timeline.graph
    program, classes = graph.program, graph.classes
    axes = _axes_of_rows(merged)
    rows = []
    for number, lane, axis, main in zip(
        merged.rank_class.tolist(), merged.lane.tolist(), axes, merged.main.tolist(), strict=True
    ):
        rank, queue = int(classes.representative[number]), program.lanes[lane]
        role = program.roles[int(program.role_of[rank])]
        row_axis = axis if queue.kind == "communication" else ""
        rows.append(GanttRow(role, rank, int(classes.count[number]), queue.name, queue.kind, row_axis, main))
    return tuple(rows)


def _axes_of_rows(merged: MergedStep) -> list[str]:
    """Returns the axis that most bars of each row meet on, the first of several; empty where none does."""
    axes, bars = merged.axes, merged.bars
    axis = bars.colour - len(Phase)
    has_axis = (axis >= 0) & (axis < len(axes))
    count = np.zeros((len(merged.lane), len(axes) + 1), dtype=np.int64)
    np.add.at(count, (bars.row[has_axis], axis[has_axis] + 1), 1)
    return [("", *axes)[place] for place in count.argmax(axis=1).tolist()]


def _colours(axes: tuple[str, ...]) -> list[BarColour]:
    """Returns the colours of the phases, of communication on each axis and of the host."""
    phases = [BarColour(MEANINGS[LETTERS[phase]], LETTERS[phase], f"--{part_colour(label(phase))}") for phase in Phase]
    seen: Counter[str] = Counter()
    axis_colours = []
    for axis in axes:
        variable = f"--{part_colour(axis)}"
        axis_colours.append(BarColour(f"{axis} communication", axis, variable, seen[variable]))
        seen[variable] += 1
    return [*phases, *axis_colours, BarColour("host", "H", f"--{part_colour('host')}")]


def _renumbered(*columns: Longs) -> tuple[list[int], list[Longs]]:
    """Returns the distinct values of some columns together, and the columns as places among them."""
    values, place = np.unique(np.concatenate(columns), return_inverse=True)
    return values.tolist(), np.split(place.ravel(), np.cumsum([len(column) for column in columns])[:-1])


def _after_previous(start: Longs, end: Longs, first: Longs) -> Longs:
    """Returns how long after the end of the bar before each bar starts; those that are first, after zero."""
    gap = start.copy()
    gap[1:] -= end[:-1]
    gap[first] = start[first]
    return gap


def _packed(column: Longs) -> dict[str, str]:
    """Returns whole numbers as the smallest type that holds them, deflated, in base64."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    name, type_ = next(
        (name, type_) for name, type_ in _TYPES if np.iinfo(type_).min <= low and high <= np.iinfo(type_).max
    )
    little_endian = column.astype(np.dtype(type_).newbyteorder("<")).tobytes()
    return {"type": name, "data": base64.b64encode(zlib.compress(little_endian, 9)).decode("ascii")}
