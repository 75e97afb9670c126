"""The view of SimAI's figures next to ours, and why they differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from foretrace.compat.simai.compare import SimaiComparison
from foretrace.readings.answer.answer import Answer
from foretrace.report.page.blocks import Block, Cell, KeyFigure, KeyFigures, Row, Section, Table, Text, View
from foretrace.report.simai import (
    EXPOSED_WORDS,
    comparison_json,
    defect_effect_text,
    failure_text,
    figure_rows,
    refusal_notes,
)
from foretrace.report.views import AnswerKind
from foretrace.report.views.answer import answer_view
from foretrace.report.views.text_table import notes_section, size_of


def simai_view(comparison: SimaiComparison) -> View:
    """Makes the view of a comparison with SimAI: our answer, with SimAI's figures after the step."""
    if isinstance(comparison.own, Answer):
        view = answer_view(comparison.own)
        sections = [
            *view.chosen("step"),
            _figures(comparison),
            *view.chosen("breakdown"),
            *_defects(comparison),
            *(section for section in view.sections if section.key not in ("step", "breakdown")),
        ]
        return replace(view, kind="comparison with SimAI", sections=sections)
    total = next(printed for word, printed, _ in figure_rows(comparison) if word == "total")
    step = Section("step", "The answer", (KeyFigures([KeyFigure("SimAI's total", f"{total} µs")]),))
    notes = notes_section(refusal_notes(comparison))
    return View("A workload", "comparison with SimAI", [step, _figures(comparison), *_defects(comparison), *notes])


def _figures(comparison: SimaiComparison) -> Section:
    own = isinstance(comparison.own, Answer)
    rows: list[Row] = [
        [word, Cell(theirs, size_of(theirs)), *([Cell(ours, size_of(ours))] if own else [])]
        for word, theirs, ours in figure_rows(comparison)
    ]
    head = ("µs", "SimAI-Analytical", *(["ours"] if own else []))
    blocks: list[Block] = [Table(head, rows, EXPOSED_WORDS if own else "", right=(1, 2))]
    failure = failure_text(comparison)
    if failure:
        blocks.append(Text(failure, "bad"))
    return Section("simai", "SimAI's figures next to ours", blocks, wide=False)


def _defects(comparison: SimaiComparison) -> Iterator[Section]:
    rows: list[Row] = [
        [defect.id, Cell(defect_effect_text(defect), defect.effect_us), defect.title, defect.touches]
        for defect in comparison.defects
    ]
    if rows:
        remark = "µs: SimAI's total with only this mended, minus it"
        table = Table(("defect", "effect", "what it is", "where it shows"), rows, right=(1,), shown=24)
        yield Section("defects", "Why they differ", (table,), remark)


KINDS: Final = (
    AnswerKind(
        SimaiComparison,
        simai_view,
        lambda comparison: comparison_json(comparison, explained=True),
        main_table="simai.defects",
        notebook_sections=("step", "simai", "breakdown", "notes"),
    ),
)
