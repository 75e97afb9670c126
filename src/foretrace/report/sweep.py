"""A sweep as one screen, with its curve on a terminal, and as JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TextIO

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_count, format_percent, format_time
from foretrace.report.json import read_record, to_json
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show
from foretrace.search.sweep import Outcome, Sweep, Value

SWEEP_SCHEMA = "foretrace.sweep/1"
MAX_WARNINGS = 4
CURVE_ROWS = 8
MAX_PARTS = 3
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """One value of a sweep; what is not known of it is null."""

    value: Value
    world_size: int | None
    step_time_s: float | None
    step_time_band_s: tuple[float, float] | None
    tokens_per_s_per_gpu: float | None
    efficiency: float | None
    breakdown_s: dict[str, float] | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """A whole sweep; `best` is the value of the best outcome."""

    title: str
    over: str
    interrupted: bool
    best: Value | None
    points: tuple[OutcomeRecord, ...]
    warnings: tuple[Diagnostic, ...]


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Returns the whole sweep."""
    best = None if sweep.best is None else sweep.best.value
    points = tuple(read_record(OutcomeRecord, outcome) for outcome in sweep.outcomes)
    return to_json(SWEEP_SCHEMA, read_record(SweepRecord, sweep, over=sweep.axis.name, best=best, points=points))


def print_sweep(sweep: Sweep, stream: TextIO | None = None) -> None:
    """Prints the screen of a sweep."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[]]
    if sweep.title:
        lines += [[(f"  Job    {sweep.title}", "")], []]
    lines += _table(sweep)
    if screen.rich:
        lines += _curve(sweep, screen.width)
    lines += [[], *diagnostic_lines(sweep.warnings, MAX_WARNINGS), *_footer(sweep)]
    show(screen, lines)


def _table(sweep: Sweep) -> list[list[Span]]:
    ran = [outcome for outcome in sweep.outcomes if outcome.error is None]
    parts = _largest_parts(ran)
    tokens = any(outcome.tokens_per_s_per_gpu is not None for outcome in ran)
    gpus = sweep.axis.name != "gpus"
    head = [sweep.axis.name, *(["GPUs"] if gpus else []), "step", *(["tokens/s per GPU"] if tokens else [])]
    head += ["efficiency", *parts]
    rows = [_cells(outcome, gpus, tokens, parts) for outcome in ran]
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    label = max([widths[0], *(len(outcome.label) for outcome in sweep.outcomes)])
    widths[0] = label
    cells = iter(rows)
    lines: list[list[Span]] = [[("  " + _row(head, widths), "bold")]]
    for outcome in sweep.outcomes:
        if outcome.error is not None:
            lines.append([(f"  {outcome.label:<{label}}  ", ""), (outcome.error, "yellow")])
        else:
            is_best = outcome is sweep.best
            text = _row(next(cells), widths) + ("  best" if is_best else "")
            lines.append([("  " + text, "bold green" if is_best else "")])
    return lines


def _row(cells: list[str], widths: list[int]) -> str:
    first, *others = (
        f"{cell:{'<' if i == 0 else '>'}{width}}" for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others])


def _cells(outcome: Outcome, gpus: bool, tokens: bool, parts: list[str]) -> list[str]:
    step = outcome.step_time_s or 0.0
    rate = [] if not tokens else ["" if outcome.tokens_per_s_per_gpu is None else _three(outcome.tokens_per_s_per_gpu)]
    seconds = outcome.breakdown_s or {}
    return [
        outcome.label,
        *([format_count(outcome.world_size or 0)] if gpus else []),
        format_time(step) + _band(outcome),
        *rate,
        "" if outcome.efficiency is None else format_percent(outcome.efficiency),
        *(format_percent(seconds.get(part, 0.0) / step if step else 0.0) for part in parts),
    ]


def _three(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _band(outcome: Outcome) -> str:
    """Returns how far the step may be off, as the larger side of its band."""
    if outcome.step_time_band_s is None or not outcome.step_time_s:
        return ""
    low, high = outcome.step_time_band_s
    off = max(outcome.step_time_s - low, high - outcome.step_time_s)
    return f" ± {format_percent(off / outcome.step_time_s)}" if off > 0 else ""


def _largest_parts(ran: list[Outcome]) -> list[str]:
    """Returns the parts of the breakdown that take the largest share of any step."""
    most: dict[str, float] = {}
    for outcome in ran:
        for part, seconds in (outcome.breakdown_s or {}).items():
            most[part] = max(most.get(part, 0.0), seconds / outcome.step_time_s if outcome.step_time_s else 0.0)
    return sorted(most, key=lambda part: -most[part])[:MAX_PARTS]


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
        done, asked = len(sweep.outcomes), len(sweep.axis.values)
        lines.append([("  note     ", "yellow"), (f"interrupted: {done} of {asked} values are finished", "")])
    words = (
        "efficiency is the work done per second and GPU, relative to the first value that ran",
        "± is the larger side of the band; parts are shares of the step, mean over ranks; all of them are in --json",
        "foretrace simulate says of each what its prices rest on and what was guessed",
    )
    return lines + [[(f"  {text}", "bright_black")] for text in words]
