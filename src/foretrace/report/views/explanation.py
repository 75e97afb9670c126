"""The view of an explanation: why a step took as long as it did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretrace.basics.units import format_percent, format_time
from foretrace.readings.explain import Explanation
from foretrace.report.explain import (
    calls_table,
    explanation_json,
    fact_texts,
    kind_text,
    longest_waits,
    ranks_by_lateness,
    ranks_table,
    remedies_table,
    replay_text,
    run_size_text,
    stages_table,
)
from foretrace.report.page.blocks import Block, FactList, KeyFigure, KeyFigures, Section, Text, View
from foretrace.report.views import AnswerKind
from foretrace.report.views.answer import answer_view
from foretrace.report.views.text_table import notes_section, numbered, page_table, sentence


def explanation_view(explanation: Explanation) -> View:
    """Makes the view of an explanation: the step and what made it long first, then the figures behind it."""
    answer = explanation.answer
    step = answer_view(answer)
    figures = ("stages", "path", "prices", "memory", "roofline", "links", "inputs")
    sections = [
        _step(explanation),
        *_advice(explanation),
        *step.chosen("breakdown"),
        *_remedies(explanation),
        *step.chosen("pipeline"),
        *_communication(explanation),
        *_stages(explanation),
        *_ranks(explanation),
        *_facts(explanation),
        *step.chosen(*figures),
        *notes_section((*explanation.notes, *answer.diagnostics)),
    ]
    return View(answer.title or "a run", "explanation", sections, run_size_text(explanation), answer.origin)


def _step(explanation: Explanation) -> Section:
    step_s = explanation.step_s
    figures = [KeyFigure("Step", format_time(step_s), kind_text(explanation))]
    line = explanation.pipeline
    if len(line.stages) > 1 and step_s > 0:
        ideal = "" if line.ideal_bubble is None else f"; equal stages: {format_percent(line.ideal_bubble)}"
        remark = f"of the step, all stages together{ideal}"
        figures.append(KeyFigure("Stages wait", format_percent(line.waits_share), remark, share=line.waits_share))
    replayed = replay_text(explanation)
    if explanation.replay_step_s is not None and replayed:
        figures.append(KeyFigure("Replayed", format_time(explanation.replay_step_s), replayed))
    return Section("step", "The answer", (KeyFigures(figures),))


def _advice(explanation: Explanation) -> Iterator[Section]:
    if explanation.advice:
        blocks = numbered([remark.text for remark in explanation.advice])
        yield Section("advice", "Causes", blocks, "means over ranks; they may overlap")


def _remedies(explanation: Explanation) -> Iterator[Section]:
    if explanation.remedies:
        yield Section("remedies", "Possible changes", (page_table(remedies_table(explanation)),), wide=False)


def _communication(explanation: Explanation) -> Iterator[Section]:
    table = calls_table(explanation.calls)
    if table.rows:
        waits: list[Block] = [Text(sentence(text)) for text in longest_waits(explanation.worst_calls)]
        yield Section("communication", "Communication", [page_table(table), *waits])


def _stages(explanation: Explanation) -> Iterator[Section]:
    table = stages_table(explanation, explanation.pipeline.stages)
    if table.rows:
        yield Section("waits", "Waits by stage", (page_table(table, shown=20),))


def _ranks(explanation: Explanation) -> Iterator[Section]:
    ranks = ranks_by_lateness(explanation)
    if len(ranks) > 1 or any(rank.meetings for rank in ranks):
        table = page_table(ranks_table(explanation, ranks))
        yield Section("ranks", "Ranks that others wait for", (table,))


def _facts(explanation: Explanation) -> Iterator[Section]:
    facts = [("critical path" if name == "path" else name, text) for name, text in fact_texts(explanation)]
    if facts:
        yield Section("facts", "More about the step", (FactList(facts),))


KINDS: Final = (
    AnswerKind(
        Explanation,
        explanation_view,
        explanation_json,
        main_table="ranks",
        notebook_sections=("step", "advice", "breakdown", "remedies", "notes"),
    ),
)
