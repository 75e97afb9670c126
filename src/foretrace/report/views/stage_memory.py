"""The memory of each stage as blocks: at its peak, and over the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from foretrace.basics.units import format_bytes, format_percent, format_time
from foretrace.program.columns import label
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.memory_fit import MemoryFit, StageMemory
from foretrace.report.memory import outside_table, peak_place_text
from foretrace.report.page.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Fold,
    KeyFigure,
    Picture,
    Row,
    Section,
    StackedBar,
    StackedBars,
    Table,
    Text,
    Tone,
)
from foretrace.report.plots.memory_plot import KIND_COLOURS, memory_svg
from foretrace.report.table import TextTable
from foretrace.report.views.text_table import MAX_ROWS, left_out_text, page_table
from foretrace.simulation.relief import Relief

MAX_PICTURES: Final = 8
"""Stages whose memory over the step is drawn: the fullest, and others from the first to the last."""
_TONES: Final[dict[str, Tone]] = {"fits": "", "caution": "bad", "does not fit": "bad"}


def memory_figure(answer: Answer) -> Iterator[KeyFigure]:
    """Yields the headline number of memory, where the job states it."""
    memory, peak = answer.memory, answer.peak_memory
    if memory is not None and memory.worst is not None:
        share = memory.needed_bytes / memory.capacity_bytes
        low, _, high = memory.needed_band_bytes
        remark = (
            f"of {format_bytes(memory.capacity_bytes)} ({format_percent(share)}) on {memory.worst.role}: "
            f"{memory.verdict}; {format_bytes(low)} to {format_bytes(high)}"
        )
        yield KeyFigure("Memory", format_bytes(memory.needed_bytes), remark, _TONES[memory.verdict], min(share, 1.0))
    elif peak is not None:
        yield KeyFigure("Peak memory", format_bytes(peak.bytes), f"rank {peak.rank}, {peak.role}")


def memory_section(answer: Answer, *, pictures: bool = True) -> Iterator[Section]:
    """Yields the section on memory, where the job is a model: without it, there is nothing to compare with."""
    memory = answer.memory
    if memory is None or memory.worst is None:
        return
    blocks: list[Block] = [stage_stacks(memory)]
    if pictures and answer.step_time_s > 0:
        worst = memory.worst
        blocks.append(_over_time(answer, memory, worst))
        others = [stage for stage in _spread(memory) if stage is not worst]
        if others:
            folded = [_over_time(answer, memory, stage) for stage in others]
            rest = len(memory.stages) - 1
            count = f"{rest}" if len(others) == rest else f"{len(others)} of {rest}"
            blocks.append(Fold(f"{count} other stage{'' if rest == 1 else 's'} over the step", folded))
        blocks.append(_moments(answer, memory))
        blocks.append(page_table(_held_table(memory), summary="what a GPU holds"))
    remark = "allocated at the peak, by kind"
    yield Section("memory", "Memory of each stage", blocks, remark)


def relief_section(relief: Sequence[Relief] | None) -> Iterator[Section]:
    """Yields the changes by which a job would fit, those with the fewest GPUs first; None: none were looked for."""
    if relief is None:
        return
    bars = [
        Bar(
            each.options,
            each.step_time_s,
            format_time(each.step_time_s),
            remark=f"needs {format_bytes(each.memory.needed_bytes)}, "
            f"{format_bytes(each.memory.headroom_bytes)} to spare",
            options=each.options,
        )
        for each in relief
    ]
    none = "No change that was tried of recomputation, ZeRO, axes, microbatches, offloading or GPUs makes it fit."
    block: Block = Bars(bars, ("change", "step", "memory")) if bars else Text(none)
    yield Section("relief", "What would fit", (block,), "each one simulated")


def stage_stacks(memory: MemoryFit) -> StackedBars:
    """Returns what each stage holds at its peak, by kind."""
    kinds = [kind for kind in KIND_COLOURS if any(label(kind) in stage.by_category for stage in memory.stages)]
    stacks = [
        StackedBar(
            stage.role, [float(stage.by_category.get(label(kind), 0)) for kind in kinds], format_bytes(stage.peak_bytes)
        )
        for stage in memory.stages
    ]
    return StackedBars([(label(kind), KIND_COLOURS[kind]) for kind in kinds], stacks, unit="bytes")


def _held_table(memory: MemoryFit) -> TextTable:
    """Returns what the fullest GPU holds, part by part, and what is left of it."""
    gap = 0 if memory.worst is None else memory.worst.gap_bytes[1]
    rows = [
        ["allocated at the peak", format_bytes(memory.peak_bytes), ""],
        ["reserved beyond that", format_bytes(gap), "gaps of the allocator"],
        *outside_table(memory).rows,
        ["free", format_bytes(memory.headroom_bytes), ""],
    ]
    return TextTable(("memory of the fullest GPU", "size", "known from"), rows)


def _moments(answer: Answer, memory: MemoryFit) -> Table:
    """Returns when each stage holds most and least: what the pictures over the step show, in numbers."""
    rows: list[Row] = []
    for stage in memory.stages[:MAX_ROWS]:
        total, time_s = stage.track.total_bytes, stage.track.time_s
        peak, least = (int(find(total)) for find in (np.argmax, np.argmin))
        rows.append(
            [
                stage.role,
                *(_moment(int(total[place]), float(time_s[place])) for place in (peak, least)),
                peak_place_text(answer, stage).removeprefix(", "),
            ]
        )
    caption = left_out_text(len(memory.stages) - len(rows))
    head = ("stage", "most", "least", "where the most is")
    return Table(head, rows, caption, right=(1, 2), summary="when each stage holds most")


def _moment(size_bytes: int, time_s: float) -> Cell:
    return Cell(f"{format_bytes(size_bytes)} at {format_time(time_s)}", size_bytes)


def _over_time(answer: Answer, memory: MemoryFit, stage: StageMemory) -> Picture:
    title = f"{stage.role} over the step"
    return Picture(
        memory_svg(memory, stage, answer.step_time_s, title), f"memory of {stage.role} over the step, by kind"
    )


def _spread(memory: MemoryFit) -> list[StageMemory]:
    """Returns some stages, from the first to the last at equal distances."""
    count = min(len(memory.stages), MAX_PICTURES)
    if count < 2:
        return list(memory.stages)
    last = len(memory.stages) - 1
    return [memory.stages[round(number * last / (count - 1))] for number in range(count)]
