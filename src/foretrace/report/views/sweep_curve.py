"""The view of a sweep: the best point, the curve and a table of all points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_number, format_percent, format_time
from foretrace.report.page.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    KeyFigure,
    KeyFigures,
    Picture,
    Row,
    Section,
    Table,
    Text,
    Tone,
    View,
)
from foretrace.report.sweep import (
    BAND_WORDS,
    SweepRecord,
    efficiency_text,
    interrupted_text,
    part_columns,
    reason_text,
    sweep_columns,
    sweep_json,
    sweep_svg,
    swept_job_text,
)
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import MAX_ROWS, left_out_text, notes_section, size_of
from foretrace.search.sweep import Outcome, Sweep


def sweep_view(sweep: Sweep) -> View:
    """Makes the view of a sweep."""
    notes = sweep.warnings
    if sweep.interrupted:
        notes = (*notes, Diagnostic("warning", "interrupted", interrupted_text(sweep)))
    sections = [
        _step(sweep),
        *_curve(sweep),
        *_efficiency(sweep),
        Section("points", "The points", list(_tables(sweep))),
        *notes_section(notes),
    ]
    names = " and ".join(sweep.names)
    return View(f"{sweep.title or 'A job'} over {names}", "sweep", sections, swept_job_text(sweep))


def _step(sweep: Sweep) -> Section:
    best, ran = sweep.best, sweep.ran
    count = f"{len(ran)} of {len(sweep.outcomes)} points ran"
    if not ran:
        return Section("step", "The answer", (Text(f"No value can be run: {count}."),))
    if best is None:
        figures = [KeyFigure("Step", format_time(ran[0].step_time_s or 0.0), f"{_place(sweep, ran[0])}; {count}")]
        return Section("step", "The answer", (KeyFigures(figures),))
    figures = [
        KeyFigure("Best", _place(sweep, best), count),
        KeyFigure("Step", format_time(best.step_time_s or 0.0)),
    ]
    if best.tokens_per_s_per_gpu is not None:
        figures.append(KeyFigure("Tokens per second and GPU", format_number(best.tokens_per_s_per_gpu)))
    if best.mfu is not None:
        figures.append(KeyFigure("MFU", format_percent(best.mfu), share=best.mfu))
    return Section("step", "The answer", (KeyFigures(figures),))


def _place(sweep: Sweep, outcome: Outcome) -> str:
    return " · ".join(f"{name} {value.label}" for name, value in zip(sweep.names, outcome.point, strict=True))


def _curve(sweep: Sweep) -> Iterator[Section]:
    if len({outcome.point[0] for outcome in sweep.ran}) > 1:
        alt = f"the rate over {sweep.names[0]}: {len(sweep.ran)} points"
        yield Section("curve", f"The rate over {sweep.names[0]}", (Picture(sweep_svg(sweep), alt),))


def _efficiency(sweep: Sweep) -> Iterator[Section]:
    known = [outcome for outcome in sweep.ran if outcome.efficiency is not None]
    if len(known) < 2:
        return
    bars = [
        Bar(
            outcome.label,
            outcome.efficiency or 0.0,
            format_percent(outcome.efficiency or 0.0),
            "green" if outcome is sweep.best else "blue",
            "best" if outcome is sweep.best else "",
        )
        for outcome in known[:MAX_ROWS]
    ]
    title = "Scaling" if sweep.scaling is not None else "Efficiency"
    yield Section("efficiency", title, (Bars(bars, (" · ".join(sweep.names), "", "")),), efficiency_text(sweep))


def _tables(sweep: Sweep) -> Iterator[Block]:
    """Yields a table of the points that ran, and one of the others with the reasons."""
    columns = [*sweep_columns(sweep), *part_columns(sweep)]
    rows: list[Row] = []
    for number, outcome in enumerate(sweep.ran[:MAX_ROWS]):
        tone: Tone = "good" if outcome is sweep.best else ""
        cells = [Cell(column.cells[number], size_of(column.cells[number]), tone) for column in columns]
        rows.append([*_names(outcome), *cells])
    head = [*sweep.names, *(column.head for column in columns)]
    right = range(len(sweep.names), len(head))
    if rows:
        yield Table(head, rows, _caption(BAND_WORDS, len(sweep.ran)), right, shown=40)
    failed = [outcome for outcome in sweep.outcomes if outcome.error is not None]
    reasons: list[Row] = [
        [*_names(outcome), Cell(reason_text(outcome.error), tone="bad")]
        for outcome in failed[:MAX_ROWS]
        if outcome.error is not None
    ]
    if reasons:
        yield Table([*sweep.names, "why it cannot be run"], reasons, _caption("", len(failed)), shown=20)


def _names(outcome: Outcome) -> list[str | Cell]:
    return [Cell(value.label, value.number) for value in outcome.point]


def _caption(words: str, count: int) -> str:
    """Returns the words above a table, and how many of its rows are left out."""
    more = left_out_text(count - MAX_ROWS)
    return "; ".join(text for text in (words, more) if text)


KINDS: Final = (
    AnswerKind(
        Sweep,
        sweep_view,
        sweep_json,
        main_table="points",
        notebook_sections=("step", "curve", "points", "notes"),
        records=(SweepRecord,),
    ),
)
