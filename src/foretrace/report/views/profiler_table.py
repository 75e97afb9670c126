"""The view of what profiler tables mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from foretrace.basics.units import format_count, format_time
from foretrace.readings.profiler_table import ExplainedTables, TableExplanation
from foretrace.report.page.blocks import Block, FactList, KeyFigure, KeyFigures, Section, Text, View
from foretrace.report.profiler_table import (
    TableExplanationRecord,
    bound_text,
    communication_table,
    device_text,
    explanations_json,
    host_text,
    kinds_table,
    labels_table,
)
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import notes_section, page_table


def profiler_tables_view(explained: ExplainedTables) -> View:
    """Makes the view of the profiler tables of a file."""
    explanations = explained.tables
    sections: list[Section] = []
    for number, explanation in enumerate(explanations, 1):
        several = len(explanations) > 1
        prefix = f"table{number}-" if several else ""
        suffix = f", table {number} of {len(explanations)}" if several else ""
        sections += [
            Section(f"{prefix}{section.key}", section.title + suffix, section.blocks, section.remark, section.wide)
            for section in _sections(explanation)
        ]
    notes = [note for explanation in explanations for note in explanation.profile.table.diagnostics]
    rows = sum(len(explanation.profile.table.rows) for explanation in explanations)
    subtitle = f"a PyTorch profiler table, {format_count(rows)} rows"
    if len(explanations) > 1:
        subtitle = f"{len(explanations)} PyTorch profiler tables, {format_count(rows)} rows"
    return View(Path(explained.path).name, "profiler table", [*sections, *notes_section(notes)], subtitle)


def _sections(explanation: TableExplanation) -> Iterator[Section]:
    yield _step(explanation)
    device, steps = explanation.profile.device, explanation.profile.host.steps
    kinds = kinds_table(explanation)
    if kinds.rows:
        yield Section("kinds", "Kinds of work", (page_table(kinds, shown=20),))
    if device.labels:
        yield Section("labels", "What is inside what", (page_table(labels_table(device, steps), shown=24),))
    if explanation.profile.calls:
        yield Section("communication", "Communication", (page_table(communication_table(explanation)),))
    lists = (
        ("do-not-add", "Do not add", explanation.do_not_add),
        ("cannot-tell", "It cannot tell", explanation.cannot_tell),
    )
    for key, title, texts in lists:
        if texts:
            yield Section(key, title, [Text(f"· {text}") for text in texts], wide=False)


def _step(explanation: TableExplanation) -> Section:
    host, device = explanation.profile.host, explanation.profile.device
    each = " a step" if host.steps > 1 else ""
    figures = []
    if device.parts:
        remark = f"{format_time(device.total_s)} in {host.steps} steps" if host.steps > 1 else ""
        figures.append(KeyFigure(f"Device{each}", format_time(device.total_s / host.steps), remark))
    remark = f"of {format_time(host.wall_s)} in all"
    figures.append(KeyFigure(f"Host's own work{each}", format_time(host.work_s), remark))
    facts = [
        ("bound", bound_text(explanation)),
        ("steps", f"{host.steps} ({host.steps_from})"),
        ("device", device_text(device, host.steps)),
        ("host", host_text(explanation)),
    ]
    blocks: list[Block] = [KeyFigures(figures), FactList(facts)]
    return Section("step", "The answer", blocks)


KINDS: Final = (
    AnswerKind(
        ExplainedTables,
        profiler_tables_view,
        explanations_json,
        main_table="tables",
        notebook_sections=("step", "kinds", "notes"),
        records=(TableExplanationRecord,),
    ),
)
