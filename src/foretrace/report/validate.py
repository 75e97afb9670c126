"""How predictions compare with measured runs: a screen, JSON and a plot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from foretrace.basics.plain import to_plain
from foretrace.basics.units import format_percent, format_time
from foretrace.report.design import STYLES
from foretrace.report.json import read_record, to_json
from foretrace.report.plots.scatter import Point, groups_of, letters, scatter_svg
from foretrace.report.table import TextTable
from foretrace.report.terminal import Screen, Span, show
from foretrace.validate.results import (
    Compared,
    ResultGroup,
    RowResult,
    Validation,
    by_axis,
    by_family,
    by_gpu,
    group_of,
)
from foretrace.validate.training_runs import MEMORY_KINDS, MemoryKind

VALIDATION_SCHEMA = "foretrace.validation/1"
MAX_ROWS = 8
MAX_SKIPPED = 6


@dataclass(frozen=True, slots=True)
class TimesRecord:
    """A measured and a predicted time; `error` is a share of what was measured."""

    measured_s: float
    predicted_s: float
    error: float


@dataclass(frozen=True, slots=True)
class PeaksRecord:
    """Measured and predicted peak memory, and what it counts; `error` is a share of what was measured."""

    kind: MemoryKind
    measured_bytes: float
    predicted_bytes: float
    error: float

    @classmethod
    def of(cls, kind: MemoryKind, memory: Compared) -> PeaksRecord:
        """Reads a peak."""
        return cls(kind, memory.measured, memory.predicted, memory.error)


@dataclass(frozen=True, slots=True)
class RowRecord:
    """A row that was predicted."""

    id: str
    family: str
    grade: str
    gpu: str
    axes: tuple[str, ...]
    measured_s: float | None
    predicted_s: float | None
    error: float | None
    band_s: tuple[float, float] | None
    in_band: bool | None
    memory: PeaksRecord | None
    more_memory: list[PeaksRecord]
    fits: bool
    parts: dict[str, TimesRecord]
    reason: str
    notes: tuple[str, ...]

    @classmethod
    def of(cls, row: RowResult) -> RowRecord:
        """Reads a row."""
        memory, step = row.memory, row.step
        return read_record(
            cls,
            row,
            measured_s=None if step is None else step.measured,
            predicted_s=None if step is None else step.predicted,
            in_band=row.inside,
            memory=None if memory is None else PeaksRecord.of(row.memory_kind, memory),
            more_memory=[PeaksRecord.of(kind, peak) for kind, peak in row.more_memory.items()],
            parts={name: TimesRecord(part.measured, part.predicted, part.error) for name, part in row.parts.items()},
        )


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A row that was not predicted, and why."""

    id: str
    family: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class ValidationRecord:
    """The errors of the best grade, groups of all grades, rows, and what was skipped."""

    interrupted: bool
    notes: tuple[str, ...]
    graded: str | None
    mape: float | None
    bias: float | None
    coverage: float | None
    half_width: float | None
    mean_of_families: float | None
    memory: dict[str, float] | None
    groups: list[dict[str, Any]]
    rows: list[RowRecord]
    skipped: list[SkippedRecord]


def validation_json(validation: Validation) -> dict[str, Any]:
    """Returns everything about a validation; errors are shares of what was measured."""
    grade = validation.best_grade
    whole = None if grade is None else group_of("all", validation.graded(grade))
    memory = None
    if whole is not None and whole.memory_mape is not None:
        memory = {"mape": whole.memory_mape, "rows": whole.memory_rows}
    record = ValidationRecord(
        interrupted=validation.interrupted,
        notes=validation.notes,
        graded=grade,
        mape=None if whole is None else whole.mape,
        bias=None if whole is None else whole.bias,
        coverage=None if whole is None else whole.coverage,
        half_width=None if whole is None else whole.half_width,
        mean_of_families=None if grade is None else validation.mean_of_families(grade),
        memory=memory,
        groups=[group for grade in validation.grades for group in _groups_json(validation.graded(grade), grade)],
        rows=[RowRecord.of(row) for row in validation.rows],
        skipped=[read_record(SkippedRecord, run) for run in validation.skipped],
    )
    return to_json(VALIDATION_SCHEMA, record)


def _groups_json(rows: Sequence[RowResult], grade: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "grade": grade, **to_plain(group)} for kind, groups in _kinds(rows) for group in groups]


def _kinds(rows: Sequence[RowResult]) -> tuple[tuple[str, tuple[ResultGroup, ...]], ...]:
    """Returns what rows are grouped by, and the groups."""
    return ("family", by_family(rows)), ("gpu", by_gpu(rows)), ("axis", by_axis(rows))


def points_of(validation: Validation) -> list[Point]:
    """Returns the rows as points of a plot."""
    return [
        Point(row.id, row.family, row.step.measured, row.step.predicted, row.band_s)
        for row in validation.rows
        if row.step is not None
    ]


def validation_svg(validation: Validation) -> str:
    """Draws measured against predicted as SVG, with a colour per family."""
    mape = group_of("all", validation.rows).mape if validation.rows else None
    error = "" if mape is None else f", mean error {100 * mape:.1f} %"
    return scatter_svg(points_of(validation), f"{len(validation.timed)} measured steps{error}")


def print_validation(validation: Validation, stream: TextIO | None = None) -> None:
    """Prints the screen of a validation."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[]]
    for grade in validation.grades:
        lines += [*_headline(validation, grade), *groups_table(validation.graded(grade)).spaced_lines(), []]
    if validation.rows:
        tables = (parts_table(validation.rows), memory_table(validation.rows))
        lines += _scatter(validation, screen)
        lines += [line for table in tables if table.rows for line in (*table.lines(), [])]
        lines += _worst(validation)
    else:
        lines += [[("  no row could be predicted", "bold")]]
    show(screen, [*lines, *_skipped(validation)])


def _headline(validation: Validation, grade: str) -> list[list[Span]]:
    rows = validation.graded(grade)
    whole, families = group_of("all", rows), validation.mean_of_families(grade)
    start = f"  Grade {grade}   "
    lines: list[list[Span]] = [[(start, ""), (f"no step time of {whole.rows} rows was measured", "")]]
    if whole.mape is not None and whole.bias is not None and families is not None:
        timed = sum(row.step is not None for row in rows)
        facts = f" mean absolute error of {timed} rows, bias {signed_error(whole.bias)}; "
        lines = [[(start, ""), (format_percent(whole.mape), "bold"), (facts, ""), (format_percent(families), "bold")]]
        lines[0].append((" mean over families", ""))
    more = band_and_memory_texts(whole)
    return [*lines, [(" " * len(start) + " · ".join(more), "")]] if more else lines


def band_and_memory_texts(whole: ResultGroup) -> list[str]:
    """Returns how many rows lie in their band, and the error of memory, as far as they are known."""
    texts = []
    if whole.coverage is not None and whole.half_width is not None:
        width = format_percent(whole.half_width)
        texts.append(f"{format_percent(whole.coverage)} of rows lie in their band (median ± {width})")
    if whole.memory_mape is not None:
        texts.append(f"peak memory off by {format_percent(whole.memory_mape)} over {whole.memory_rows} rows")
    return texts


def groups_table(rows: Sequence[RowResult]) -> TextTable:
    """Returns the errors by family, GPU and axis."""
    cells = []
    for kind, groups in _kinds(rows):
        cells += [[f"{kind} {group.name}", *_cells(group)] for group in groups]
    return TextTable(["", "rows", "mean error", "bias", "worst", "in band", "memory"], cells)


def _cells(group: ResultGroup) -> list[str]:
    return [
        str(group.rows),
        "" if group.mape is None else format_percent(group.mape),
        "" if group.bias is None else signed_error(group.bias),
        "" if group.worst is None else signed_error(group.worst),
        "" if group.coverage is None else format_percent(group.coverage),
        "" if group.memory_mape is None else format_percent(group.memory_mape),
    ]


def _scatter(validation: Validation, screen: Screen) -> list[list[Span]]:
    """Returns the plot; nothing on a pipe, where its lines would break `cut`."""
    points = points_of(validation)
    if not screen.rich or not points:
        return []
    names = groups_of(points)
    lines: list[list[Span]] = [[("  predicted (up) against measured", "bold"), (", both logarithmic", "")]]
    styles = {chr(ord("a") + number % 26): STYLES[number % len(STYLES)] for number in range(len(names))}
    for text in letters(points, min(70, screen.width - 6), 20):
        plain = text[:1] in "└ "
        lines.append([("  ", ""), *((sign, "" if plain else styles.get(sign, "bright_black")) for sign in text)])
    legend = " · ".join(f"{chr(ord('a') + number % 26)} {name}" for number, name in enumerate(names))
    return [*lines, [(f"  {legend} · + several", "bright_black")], []]


def parts_table(rows: Sequence[RowResult]) -> TextTable:
    """Returns the errors of forward, backward and optimizer, where they were measured separately."""
    timed = [row for row in rows if row.parts]
    names = list(dict.fromkeys(name for row in timed for name in row.parts))
    cells = []
    for row in timed:
        memory = "" if row.memory is None else signed_error(row.memory.error)
        errors = (signed_error(row.parts[name].error) if name in row.parts else "" for name in names)
        cells.append([row.id, *errors, "" if row.error is None else signed_error(row.error), memory])
    return TextTable(["error by part", *names, "step", "memory"], cells)


def memory_table(rows: Sequence[RowResult]) -> TextTable:
    """Returns the errors of each kind of memory, where several were measured or nothing else was."""
    chosen = [row for row in rows if row.more_memory or row.step is None]
    cells = []
    for row in chosen:
        peaks = {**({} if row.memory is None else {row.memory_kind: row.memory}), **row.more_memory}
        cells.append([row.id, *(signed_error(peaks[kind].error) if kind in peaks else "" for kind in MEMORY_KINDS)])
    return TextTable(["error of memory", *MEMORY_KINDS], cells)


def _worst(validation: Validation) -> list[list[Span]]:
    cells = [
        [row.id, format_time(step.measured), format_time(step.predicted), signed_error(step.error), row.reason]
        for row in validation.worst[:MAX_ROWS]
        if (step := row.step) is not None
    ]
    if not cells:
        return []
    width = max(len(row[-1]) for row in cells)
    cells = [[*row[:-1], f"{row[-1]:<{width}}"] for row in cells]
    return TextTable(["furthest off", "measured", "predicted", "error", f"{'rests on':<{width}}"], cells).lines()


def _skipped(validation: Validation) -> list[list[Span]]:
    """Returns what was left out, by reason, and which rows ran although they are predicted not to fit."""
    lines: list[list[Span]] = [[], *([("  note     ", ""), (text, "")] for text in validation.notes)]
    misfits = misfits_text(validation)
    if misfits:
        lines.append([("  memory   ", "yellow"), (misfits, "")])
    reasons = why_skipped(validation)
    lines += [[("  skipped  ", "yellow"), (reason, "")] for reason in reasons[:MAX_SKIPPED]]
    if len(reasons) > MAX_SKIPPED:
        lines.append([(f"           {len(reasons) - MAX_SKIPPED} more reasons in --json", "bright_black")])
    return lines


def misfits_text(validation: Validation) -> str:
    """Returns which rows ran although they are predicted not to fit; empty where there are none."""
    misfits = [row.id for row in validation.not_fitting]
    if not misfits:
        return ""
    return f"{len(misfits)} of the rows ran, but are predicted not to fit in memory ({_some(misfits)})"


def why_skipped(validation: Validation) -> list[str]:
    """Returns each reason for which rows were left out, with their number and some of their names."""
    reasons: dict[str, list[str]] = {}
    for run in validation.skipped:
        reasons.setdefault(run.why, []).append(run.id)
    return [f"{len(ids)}: {why} ({_some(ids)})" for why, ids in reasons.items()]


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def signed_error(value: float) -> str:
    """Returns an error as a percentage with its sign."""
    sign = "+" if value > 0 and f"{100 * value:.1f}" != "0.0" else ""
    return f"{sign}{format_percent(value)}"
