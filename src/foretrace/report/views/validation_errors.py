"""The views of a validation: predictions next to measured runs, without and with a calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_percent, format_time
from foretrace.report.calibration import OWN_STEPS, before_after_table, calibrated_json
from foretrace.report.page.blocks import (
    Block,
    Cell,
    KeyFigure,
    KeyFigures,
    Picture,
    Row,
    Section,
    Table,
    Text,
    View,
)
from foretrace.report.validate import (
    ValidationRecord,
    band_and_memory_texts,
    groups_table,
    memory_table,
    misfits_text,
    parts_table,
    signed_error,
    validation_json,
    validation_svg,
    why_skipped,
)
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import MAX_ROWS, left_out_text, notes_section, page_table, without_empty
from foretrace.validate.calibrated import CalibratedValidation
from foretrace.validate.results import RowResult, Validation, group_of


def validation_view(validation: Validation) -> View:
    """Makes the view of a validation."""
    return View("Predicted against measured", "validation", _sections(validation), _subtitle(validation))


def calibrated_view(both: CalibratedValidation) -> View:
    """Makes the view of a validation with a calibration, next to one without it."""
    step, *others = _sections(both.validation)
    blocks: list[Block] = [page_table(before_after_table(both), shown=20)]
    if len(both.counted) < len(both.rows):
        blocks.append(Text(OWN_STEPS, "muted"))
    title = f"Without and with {both.calibration.name}"
    sections = [step, Section("calibration", title, blocks), *others]
    return View("Predicted against measured", "validation", sections, _subtitle(both.validation))


def _subtitle(validation: Validation) -> str:
    skipped = f", {len(validation.skipped)} skipped" if validation.skipped else ""
    return f"{len(validation.rows)} rows{skipped}"


def _sections(validation: Validation) -> list[Section]:
    if not validation.rows:
        empty = Section("step", "The answer", (Text("No row could be predicted."),))
        return [empty, *_notes(validation)]
    return [
        _step(validation),
        *_scatter(validation),
        *(
            Section(f"groups-{grade.lower()}", f"By family, GPU and axis, grade {grade}", (_groups(validation, grade),))
            for grade in validation.grades
        ),
        Section("rows", "Row by row", (_rows(validation),), "those furthest off first"),
        *_parts(validation),
        *_notes(validation),
    ]


def _step(validation: Validation) -> Section:
    """Returns the mean errors of the best grade, and those of other grades."""
    blocks: list[Block] = []
    for grade in validation.grades:
        rows = validation.graded(grade)
        whole, families = group_of("all", rows), validation.mean_of_families(grade)
        figures = []
        if whole.mape is not None and whole.bias is not None:
            timed = sum(row.step is not None for row in rows)
            remark = f"{timed} rows of grade {grade}, bias {signed_error(whole.bias)}"
            figures.append(KeyFigure("Mean absolute error", format_percent(whole.mape), remark))
        if families is not None:
            figures.append(KeyFigure("Mean over families", format_percent(families)))
        if whole.coverage is not None:
            figures.append(KeyFigure("In their band", format_percent(whole.coverage), share=whole.coverage))
        if whole.memory_mape is not None:
            figures.append(KeyFigure("Error of peak memory", format_percent(whole.memory_mape)))
        texts = band_and_memory_texts(whole)
        blocks += [KeyFigures(figures)] if figures else [Text(f"No step time of {whole.rows} rows was measured.")]
        blocks += [Text(" · ".join(texts), "muted")] if texts else []
    return Section("step", "The answer", blocks)


def _scatter(validation: Validation) -> Iterator[Section]:
    if validation.timed:
        alt = f"predicted against measured time of {len(validation.timed)} steps, a colour for each family"
        picture = Picture(validation_svg(validation), alt)
        yield Section("scatter", "Predicted against measured", (picture,), "both logarithmic; dashes: 10 % off")


def _groups(validation: Validation, grade: str) -> Table:
    return page_table(groups_table(validation.graded(grade)), shown=24)


def _rows(validation: Validation) -> Table:
    head = ("row", "family", "GPU", "measured", "predicted", "band", "error", "memory", "depends on")
    timed = list(validation.worst)
    rows = [*timed, *(row for row in validation.rows if row.step is None)]
    caption = left_out_text(len(rows) - MAX_ROWS)
    table = Table(head, [_row(row) for row in rows[:MAX_ROWS]], caption, right=(3, 4, 5, 6, 7), shown=20)
    return without_empty(table)


def _row(row: RowResult) -> Row:
    step, error = row.step, row.error
    band = "" if row.band_s is None else " to ".join(map(format_time, row.band_s))
    return [
        row.id,
        row.family,
        row.gpu,
        "" if step is None else Cell(format_time(step.measured), step.measured),
        "" if step is None else Cell(format_time(step.predicted), step.predicted),
        Cell(band, None if row.band_s is None else row.band_s[0], "bad" if row.inside is False else ""),
        "" if error is None else Cell(signed_error(error), abs(error)),
        "" if row.memory is None else Cell(signed_error(row.memory.error), abs(row.memory.error)),
        row.reason,
    ]


def _parts(validation: Validation) -> Iterator[Section]:
    parts, memory = parts_table(validation.rows), memory_table(validation.rows)
    if parts.rows:
        yield Section("parts", "Errors of the parts of a step", (page_table(parts),))
    if memory.rows:
        yield Section("memory", "Errors of memory", (page_table(memory),))


def _notes(validation: Validation) -> Iterator[Section]:
    """Returns the section of what was assumed of all rows, which should not fit, and which were left out."""
    notes = [Diagnostic("note", "assumed", text) for text in validation.notes]
    misfits = misfits_text(validation)
    if misfits:
        notes.insert(0, Diagnostic("warning", "out-of-memory", misfits))
    notes += [Diagnostic("warning", "rows-skipped", f"skipped {reason}") for reason in why_skipped(validation)]
    return notes_section(notes)


_IN_NOTEBOOKS: Final = ("step", "calibration", "scatter", "notes")
KINDS: Final = (
    AnswerKind(Validation, validation_view, validation_json, "rows", _IN_NOTEBOOKS, (ValidationRecord,)),
    AnswerKind(CalibratedValidation, calibrated_view, calibrated_json, "rows", _IN_NOTEBOOKS, (ValidationRecord,)),
)
