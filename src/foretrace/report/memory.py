"""The memory of a job: a table by stage, and what the fullest stage holds over the step."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.units import format_bytes, format_count, format_percent, format_time
from foretrace.program.columns import Category, label
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.answer_record import MemoryRecord
from foretrace.readings.answer.memory_fit import MemoryFit, StageMemory
from foretrace.report.json import to_json
from foretrace.report.table import table
from foretrace.report.terminal import MAX_DIAGNOSTICS, Screen, Span, diagnostic_lines, show
from foretrace.simulation.relief import Relief

MEMORY_SCHEMA = "foretrace.memory/1"
_EIGHTHS = "▁▂▃▄▅▆▇█"
_WIDTH = 80
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ReliefRecord:
    """A change of the plan by which the job fits."""

    options: str
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """Returns the memory of the fullest stage over the step."""

    role: str
    time_s: Floats
    held_bytes: Longs


def memory_json(answer: Answer, relief: Relief | None = None) -> dict[str, Any]:
    """Returns the memory of a job, with the track of its fullest stage, and what would make it fit."""
    figures, cluster = answer.model, answer.cluster
    assert figures is not None
    worst = figures.memory.worst
    track = None if worst is None else TrackRecord(worst.role, worst.track.time_s, worst.track.total_bytes)
    return to_json(
        MEMORY_SCHEMA,
        {"model": figures.name, "plan": figures.plan, "cluster": None if cluster is None else cluster.name},
        MemoryRecord.of(figures.memory),
        {
            "would_fit": None if relief is None else ReliefRecord(relief.words, relief.peak_bytes),
            "worst": track,
            "diagnostics": answer.diagnostics,
        },
    )


def print_memory(answer: Answer, stream: TextIO | None = None) -> None:
    """Prints the screen of a job's memory."""
    screen, memory = Screen.of(stream or sys.stdout), answer.memory
    worst = None if memory is None else memory.worst
    if memory is None or worst is None:
        show(screen, [[], [("  nothing is known of this job's memory", "")]])
        return
    lines: list[list[Span]] = [[], *_headline(answer, memory, worst), [], *_stages(memory)]
    lines += [*_over_time(worst, answer.step_time_s, screen), []]
    lines += diagnostic_lines(answer.diagnostics, MAX_DIAGNOSTICS)
    show(screen, lines)


def _headline(answer: Answer, memory: MemoryFit, worst: StageMemory) -> list[list[Span]]:
    needed = worst.peak_bytes + memory.overhead_bytes
    verdict = "fits" if memory.fits else "does not fit"
    peak, capacity = format_bytes(worst.peak_bytes), format_bytes(memory.capacity_bytes)
    axes = answer.mesh.replace(",", " · ").replace("=", " ")
    gpu = "GPU" if answer.cluster is None else answer.cluster.gpu.title
    job = f"{format_count(answer.world_size)} × {gpu} · {axes}"
    share = format_percent(needed / memory.capacity_bytes)
    rest = f"and about {format_bytes(memory.overhead_bytes)} for CUDA and NCCL: {share} of {capacity}, {verdict}"
    return [
        [("  Peak   ", ""), (peak, "bold"), (f" allocated on {worst.role}     {job}", "")],
        [(f"         {rest}", "" if memory.fits else "red")],
    ]


def _stages(memory: MemoryFit) -> list[list[Span]]:
    """Returns a row per stage; neighbours that hold the same share a row."""
    kinds = [label(category) for category in Category]
    kinds = [kind for kind in kinds if any(kind in stage.by_category for stage in memory.stages)]
    rows: list[tuple[str, list[str]]] = []
    for stage in memory.stages:
        cells = [f"{stage.ranks:,}", *(_gib(stage.by_category.get(kind, 0)) for kind in kinds)]
        cells += [_gib(stage.peak_bytes), format_percent(stage.peak_bytes / memory.capacity_bytes)]
        if rows and rows[-1][1] == cells:
            first = rows[-1][0].partition(" … ")[0]
            rows[-1] = (f"{first} … {stage.role}", cells)
        else:
            rows.append((stage.role, cells))
    heads = ["at its peak, GiB", "ranks", *kinds, "peak", "of the GPU"]
    return table(heads, [[name, *cells] for name, cells in rows])


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f}" if size else "0"


def _over_time(stage: StageMemory, step_s: float, screen: Screen) -> list[list[Span]]:
    """Returns what a stage holds over the step: the most in each slice of it."""
    if not screen.rich or step_s <= 0:
        return []
    track = stage.track
    width = min(_WIDTH, screen.width - 4)
    edges = np.linspace(0.0, step_s, width + 1)
    total = track.total_bytes
    first = np.searchsorted(track.time_s, edges[:-1], side="right") - 1
    last = np.searchsorted(track.time_s, edges[1:], side="left")
    most = [
        int(total[max(low, 0) : max(high, low + 1)].max())
        for low, high in zip(first.tolist(), last.tolist(), strict=True)
    ]
    bars = "".join(_EIGHTHS[min(int(8 * size / max(stage.peak_bytes, 1)), 7)] for size in most)
    end = format_time(step_s)
    return [
        [],
        [(f"  {stage.role} over the step", "bold"), (f", up to {format_bytes(stage.peak_bytes)}", "")],
        [(f"  {bars}", "green")],
        [(f"  0{end:>{width - 1}}", "bright_black")],
    ]
