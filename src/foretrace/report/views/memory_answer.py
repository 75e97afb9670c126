"""The view of what every stage of a job holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foretrace.basics.units import format_bytes, format_count
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.memory_fit import MemoryFit
from foretrace.report.memory import (
    MeasuredMemory,
    about_memory,
    gpus_text,
    memory_fields_text,
    needs_text,
    peak_place_text,
    room_text,
    stages_table,
)
from foretrace.report.page.blocks import Block, KeyFigure, KeyFigures, Section, Text, View
from foretrace.report.views.stage_memory import memory_figure, memory_section, relief_section
from foretrace.report.views.text_table import notes_section, page_table, sentence
from foretrace.simulation.relief import Relief


def memory_view(answer: Answer, relief: Sequence[Relief] | None = None, measured: MeasuredMemory | None = None) -> View:
    """Makes the view of the memory of a job.

    Args:
        answer: The predicted step.
        relief: Changes of the plan by which the job would fit.
        measured: A memory snapshot to compare with.
    """
    memory = answer.memory
    sections = [_step(answer, memory), *relief_section(None if memory is None or memory.fits else relief)]
    if measured is not None:
        sections.append(_measured(measured))
    sections += memory_section(answer)
    if memory is not None:
        sections += _tables(memory)
    sections += notes_section(about_memory(answer, measured))
    return View(answer.title or "a job", "memory", sections, gpus_text(answer), answer.origin)


def _step(answer: Answer, memory: MemoryFit | None) -> Section:
    if memory is None or memory.worst is None:
        return Section("step", "The answer", (Text("Nothing is known of this job's memory."),))
    worst = memory.worst
    peak = KeyFigure(
        "Peak", format_bytes(worst.peak_bytes), f"allocated on {worst.role}{peak_place_text(answer, worst)}"
    )
    blocks: list[Block] = [
        KeyFigures([*memory_figure(answer), peak]),
        Text(f"{sentence(memory.verdict + room_text(memory))} It needs {needs_text(memory)}."),
        Text(memory_fields_text(answer), "muted"),
    ]
    return Section("step", "The answer", blocks)


def _measured(measured: MeasuredMemory) -> Section:
    events = f"{format_count(measured.snapshot.events)} events were recorded"
    return Section("measured", "Predicted and measured", (page_table(measured.table()),), events)


def _tables(memory: MemoryFit) -> Iterator[Section]:
    stages = page_table(stages_table(memory), shown=16)
    yield Section("stages", "The peak of each stage in numbers", (stages,))
