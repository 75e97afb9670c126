"""A sweep as one screen, with its curve on a terminal, as JSON, as CSV and as a picture."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TextIO

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_bytes, format_count, format_number, format_percent, format_time
from foretrace.report.json import read_record, to_json
from foretrace.report.plots.curves import Axes, Curve, Dot, curves_svg
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show
from foretrace.search.axes import Value
from foretrace.search.sweep import OUT_OF_MEMORY, Outcome, Sweep, SweepError

SWEEP_SCHEMA = "foretrace.sweep/2"
MAX_WARNINGS = 4
CURVE_ROWS = 8
MAX_PARTS = 3
BAND_WORDS = "± is the larger side of the band"
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """One point of a sweep; what is not known of it is null."""

    values: dict[str, Value]
    world_size: int | None
    step_time_s: float | None
    step_time_band_s: tuple[float, float] | None
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    needed_memory_bytes: int | None
    efficiency: float | None
    breakdown_s: dict[str, float] | None
    error: SweepError | None


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """A whole sweep; `best` are the values of the best outcome."""

    title: str
    over: tuple[str, ...]
    scale: str | None
    interrupted: bool
    best: dict[str, Value] | None
    points: tuple[OutcomeRecord, ...]
    warnings: tuple[Diagnostic, ...]


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Returns the whole sweep."""
    record = read_record(
        SweepRecord,
        sweep,
        over=sweep.names,
        scale=None if sweep.scaling is None else sweep.scaling.scale,
        best=None if sweep.best is None else _values(sweep, sweep.best),
        points=tuple(read_record(OutcomeRecord, point, values=_values(sweep, point)) for point in sweep.outcomes),
    )
    return to_json(SWEEP_SCHEMA, record)


def _values(sweep: Sweep, outcome: Outcome) -> dict[str, Value]:
    return {name: value.value for name, value in zip(sweep.names, outcome.point, strict=True)}


def sweep_csv(sweep: Sweep) -> str:
    """Returns a row for every point: its values, then the numbers of the JSON and the code of an error."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    numbers = [field.name for field in fields(OutcomeRecord) if field.name not in ("values", "breakdown_s", "error")]
    numbers.remove("step_time_band_s")
    writer.writerow([*sweep.names, *numbers, "error"])
    for outcome in sweep.outcomes:
        cells = [getattr(outcome, name) for name in numbers]
        values = [value.value for value in outcome.point]
        writer.writerow([*values, *cells, outcome.error.code if outcome.error else ""])
    return stream.getvalue()


def sweep_svg(sweep: Sweep) -> str:
    """Draws tokens per second and GPU (steps per second where tokens are not known) over the first axis.

    The combinations of all other axes are a curve each. Names are set apart evenly, in their order.
    """
    first = sweep.axes[0]
    tokens = all(outcome.tokens_per_s_per_gpu for outcome in sweep.ran)
    numbers = [value.number for value in first.values]
    units = {value.unit for value in first.values}
    even = len(units) > 1 or any(not number or number <= 0 for number in numbers)
    # Powers of two are evenly spaced on a logarithmic axis, and are where it has its ticks.
    places = {value: float(2**place) if even else float(value.number or 1) for place, value in enumerate(first.values)}
    labels = {place: value.label for value, place in places.items()}
    curves: dict[str, list[Dot]] = {}
    for outcome in sweep.ran:
        others = zip(sweep.names[1:], outcome.point[1:], strict=True)
        name = " · ".join(f"{axis} {value.label}" for axis, value in others) or first.name
        rate = (outcome.tokens_per_s_per_gpu if tokens else 1 / outcome.step_time_s if outcome.step_time_s else 0) or 0
        if rate > 0:
            title = f"{first.name} {outcome.point[0].label}: {format_time(outcome.step_time_s or 0.0)}"
            curves.setdefault(name, []).append(Dot(places[outcome.point[0]], rate, title=title))
    drawn = [Curve(name, tuple(sorted(dots, key=lambda dot: dot.x))) for name, dots in curves.items()]
    what = "tokens/s per GPU" if tokens else "steps/s"
    axes = Axes(first.name, what, lambda x: labels.get(x, "" if even else f"{x:,g}"), format_number)
    return curves_svg(drawn, axes, f"{sweep.title}: {what}" if sweep.title else what)


def print_sweep(sweep: Sweep, stream: TextIO | None = None) -> None:
    """Prints the screen of a sweep."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[]]
    job = swept_job_text(sweep)
    if job:
        lines += [[(f"  Job    {job}", "")], []]
    lines += _table(sweep, screen.width)
    if screen.rich and len(sweep.axes) == 1:
        lines += _curve(sweep, screen.width)
    lines += [[], *diagnostic_lines(sweep.warnings, MAX_WARNINGS), *_footer(sweep)]
    show(screen, lines)


def swept_job_text(sweep: Sweep) -> str:
    """Returns what the job is, and its GPUs where these do not vary."""
    gpus = {outcome.world_size for outcome in sweep.ran}
    words = [sweep.title, f"{format_count(next(iter(gpus)) or 0)} GPUs" if len(gpus) == 1 else ""]
    return " · ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class SweepColumn:
    """A column of the table: its head and the cell of every outcome that ran."""

    head: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        """The characters of the widest cell."""
        return max(len(cell) for cell in (self.head, *self.cells))


def _table(sweep: Sweep, width: int) -> list[list[Span]]:
    points = [
        SweepColumn(axis.name, tuple(outcome.point[number].label for outcome in sweep.outcomes))
        for number, axis in enumerate(sweep.axes)
    ]
    columns = sweep_columns(sweep)
    if sum(each.width + 2 for each in (*points, *columns)) + len("  best") > width:
        columns = sweep_columns(sweep, band=False)
    for column in part_columns(sweep)[:MAX_PARTS]:
        if sum(each.width + 2 for each in (*points, *columns, column)) + len("  best") <= width:
            columns.append(column)
    head = "  ".join(
        [*(f"{each.head:<{each.width}}" for each in points), *(f"{each.head:>{each.width}}" for each in columns)]
    )
    lines: list[list[Span]] = [[(f"  {head}", "bold")]]
    row = 0
    for number, outcome in enumerate(sweep.outcomes):
        values = "  ".join(f"{each.cells[number]:<{each.width}}" for each in points)
        if outcome.error is not None:
            room = max(width - len(values) - 4, 20)
            lines.append([(f"  {values}  ", ""), (_reason(outcome.error, room), "yellow")])
            continue
        cells = "  ".join(f"{each.cells[row]:>{each.width}}" for each in columns)
        row += 1
        is_best = outcome is sweep.best
        lines.append([(f"  {values}  {cells}" + ("  best" if is_best else ""), "bold green" if is_best else "")])
    return lines


def _reason(error: SweepError, room: int) -> str:
    """Returns why a point has no result, cut to the room there is."""
    text = reason_text(error)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def reason_text(error: SweepError) -> str:
    """Returns why a point has no result."""
    return f"does not fit: {error.message}" if error.code == OUT_OF_MEMORY else error.message


def part_columns(sweep: Sweep) -> list[SweepColumn]:
    """Returns a column for each part of the breakdown, those with the largest share of any step first."""
    parts = _largest_parts(sweep.ran)
    return [SweepColumn(part, tuple(_share(outcome, part) for outcome in sweep.ran)) for part in parts]


def sweep_columns(sweep: Sweep, band: bool = True) -> list[SweepColumn]:
    """Returns the columns whose figures are known for any point, in their order."""
    ran = sweep.ran

    def column(head: str, cells: list[str]) -> list[SweepColumn]:
        return [SweepColumn(head, tuple(cells))] if any(cells) else []

    scaled = sweep.scaling is not None
    same_size = len({each.world_size for each in ran}) <= 1
    return [
        *([] if scaled or same_size else column("GPUs", [format_count(each.world_size or 0) for each in ran])),
        *column("step", [format_time(each.step_time_s or 0.0) + (_band(each) if band else "") for each in ran]),
        *column("tokens/s/GPU", [_known(each.tokens_per_s_per_gpu, format_number) for each in ran]),
        *column("MFU", [_known(each.mfu, format_percent) for each in ran]),
        *column("memory", [_known(each.needed_memory_bytes or each.peak_memory_bytes, format_bytes) for each in ran]),
        *column("scaling" if scaled else "efficiency", [_known(each.efficiency, format_percent) for each in ran]),
    ]


def _known(number: float | None, text: Callable[[float], str]) -> str:
    return "" if number is None else text(number)


def _share(outcome: Outcome, part: str) -> str:
    seconds, step = (outcome.breakdown_s or {}).get(part, 0.0), outcome.step_time_s or 0.0
    return format_percent(seconds / step if step else 0.0)


def _band(outcome: Outcome) -> str:
    """Returns how far the step may be off, as the larger side of its band."""
    if outcome.step_time_band_s is None or not outcome.step_time_s:
        return ""
    low, high = outcome.step_time_band_s
    off = max(outcome.step_time_s - low, high - outcome.step_time_s)
    return f" ± {format_percent(off / outcome.step_time_s)}" if off > 0 else ""


def _largest_parts(ran: Sequence[Outcome]) -> list[str]:
    """Returns the parts of the breakdown that take the largest share of any step."""
    most: dict[str, float] = {}
    for outcome in ran:
        for part, seconds in (outcome.breakdown_s or {}).items():
            most[part] = max(most.get(part, 0.0), seconds / outcome.step_time_s if outcome.step_time_s else 0.0)
    return sorted(most, key=lambda part: -most[part])


def _curve(sweep: Sweep, width: int) -> list[list[Span]]:
    """Returns the efficiency over the values, a column of blocks for each, from 0 to the largest."""
    ran = [outcome for outcome in sweep.outcomes if outcome.efficiency is not None]
    top = max((outcome.efficiency or 0.0 for outcome in ran), default=0.0)
    label = max((len(outcome.label) for outcome in ran), default=0)
    if len(ran) < 2 or top <= 0 or len(ran) * (label + 1) > width - 12:
        return []
    lines: list[list[Span]] = [[], [("  efficiency", "bold"), (" (work per second and GPU, the first is 100 %)", "")]]
    for row in reversed(range(CURVE_ROWS)):
        scale = format_percent(top) if row == CURVE_ROWS - 1 else "0 %" if row == 0 else ""
        line: list[Span] = [(f"  {scale:>8} ", "bright_black")]
        for outcome in ran:
            eighths = round((outcome.efficiency or 0.0) / top * CURVE_ROWS * 8) - row * 8
            block = _EIGHTHS[min(max(eighths, 0), 8)]
            line.append((f" {block * label}", "green" if outcome is sweep.best else "blue"))
        lines.append(line)
    lines.append([(f"  {'':>8} " + "".join(f" {outcome.label:^{label}}" for outcome in ran), "bright_black")])
    return lines


def _footer(sweep: Sweep) -> list[list[Span]]:
    lines: list[list[Span]] = []
    if sweep.interrupted:
        lines.append([("  note     ", "yellow"), (interrupted_text(sweep), "")])
    if not sweep.ran:
        return lines
    words = (
        efficiency_text(sweep),
        f"{BAND_WORDS}; all parts of the step are in --json",
        "foretrace simulate lists the price sources and assumptions of each point",
    )
    return lines + [[(f"  {text}", "bright_black")] for text in words]


def interrupted_text(sweep: Sweep) -> str:
    """Returns how many values of an interrupted sweep are finished."""
    count = math.prod(len(axis.values) for axis in sweep.axes)
    return f"interrupted: {len(sweep.outcomes)} of {count} values are finished"


def efficiency_text(sweep: Sweep) -> str:
    """Returns what the efficiency of a sweep is."""
    named = "scaling" if sweep.scaling is not None else "efficiency"
    return f"{named} is work per second and GPU, relative to the first value that ran"
