"""The memory of a job: a table by stage, what the fullest stage holds over the step, and a snapshot next to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.codes import SECTIONS
from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import MINUS, format_bytes, format_count, format_percent, format_time
from foretrace.inputs.inventory import mesh_text
from foretrace.program.columns import Category, label
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.answer_record import MemoryRecord
from foretrace.readings.answer.memory_fit import MemoryFit, StageMemory
from foretrace.readings.memory import PeakPlace, peak_place
from foretrace.report.json import to_json, with_properties
from foretrace.report.plots.memory_plot import memory_letters, memory_svg
from foretrace.report.table import TextTable
from foretrace.report.terminal import MAX_DIAGNOSTICS, Screen, Span, diagnostic_lines, show
from foretrace.simulation.relief import Relief

if TYPE_CHECKING:
    from foretrace.inputs.memory_snapshot import MemorySnapshot

MEMORY_SCHEMA = "foretrace.memory/2"
_GIB = 1 << 30

_OF_TIME: Final = {
    *SECTIONS["Prices"],
    *SECTIONS["Simulations"],
    *SECTIONS["Clusters and networks"],
    "domain-gpus",
    "group-crosses-domain",
    "host-busy",
}
"""Codes of diagnostics that are about the time of a step, not its memory."""

_VERDICT_STYLES: Final = {"fits": "green", "caution": "yellow", "does not fit": "red"}


@dataclass(frozen=True, slots=True)
class ReliefRecord:
    """A change of the plan by which the job fits: its options, and what it makes of memory and step."""

    options: str
    peak_bytes: int
    needed_bytes: int
    headroom_bytes: int
    step_time_s: float

    @classmethod
    def of(cls, relief: Relief) -> ReliefRecord:
        """Reads a change."""
        memory = relief.memory
        return cls(relief.options, memory.peak_bytes, memory.needed_bytes, memory.headroom_bytes, relief.step_time_s)


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """The memory of the fullest stage over the step, and where in the schedule its peak is."""

    role: str
    peak: PeakPlace | None
    time_s: Floats
    held_bytes: Longs


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """A memory snapshot next to the fullest stage of a prediction; errors are signed shares of what was measured."""

    file: str
    snapshot: MemorySnapshot
    predicted: MemoryFit

    @property
    def role(self) -> str | None:
        """The stage that is compared."""
        return None if self.predicted.worst is None else self.predicted.worst.role

    @property
    def allocated_error(self) -> float | None:
        """The error of the allocated peak."""
        measured = self.snapshot.peak_allocated_bytes
        return self.predicted.peak_bytes / measured - 1 if measured else None

    @property
    def reserved_error(self) -> float | None:
        """The error of the reserved peak."""
        measured = self.snapshot.peak_reserved_bytes
        return self._reserved_bytes / measured - 1 if measured else None

    @property
    def _reserved_bytes(self) -> int:
        worst = self.predicted.worst
        return 0 if worst is None else worst.reserved_band_bytes[1]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The remarks on what the snapshot does not tell."""
        snapshot, notes = self.snapshot, list(self.snapshot.diagnostics)
        if not snapshot.events:
            text = (
                "the snapshot has no history: it shows the moment at which it was taken, not a peak; call "
                "torch.cuda.memory._record_memory_history() before the step"
            )
            notes.append(Diagnostic("warning", "not-recorded", text, self.file))
        elif not snapshot.is_whole:
            held = format_bytes(snapshot.first_allocated_bytes)
            text = f"the history begins with {held} allocated: a higher peak before it is not seen"
            notes.append(Diagnostic("note", "not-recorded", text, self.file))
        if snapshot.out_of_memory_events:
            text = f"the run was out of memory {snapshot.out_of_memory_events:,} times within the history"
            notes.append(Diagnostic("warning", "odd-input", text, self.file))
        if snapshot.devices > 1:
            text = f"of {snapshot.devices} devices, the fullest was taken: device {snapshot.device}"
            notes.append(Diagnostic("note", "one-of-several", text, self.file))
        if len({stage.peak_bytes for stage in self.predicted.stages}) > 1:
            text = f"compared with {self.role}, the fullest: the snapshot should be of one of its ranks"
            notes.append(Diagnostic("note", "assumed", text, self.file))
        return tuple(notes)

    def table(self) -> TextTable:
        """Returns the predicted and the measured peaks next to each other."""
        snapshot = self.snapshot
        rows = [
            _compared("allocated", self.predicted.peak_bytes, snapshot.peak_allocated_bytes),
            _compared("reserved", self._reserved_bytes, snapshot.peak_reserved_bytes),
        ]
        history = f"{format_count(snapshot.events)} events"
        if snapshot.span_s is not None and snapshot.peak_s is not None:
            history += (
                f" in {format_time(snapshot.span_s)}, most allocated {format_time(snapshot.peak_s)} after the first"
            )
        note = f"measured: {self.file}, device {snapshot.device}, {history}"
        return TextTable([f"peak of {self.role}", "predicted", "measured", "difference"], rows, note)


def _compared(name: str, predicted: int, measured: int) -> list[str]:
    error = "" if not measured else format_percent(predicted / measured - 1)
    sign = "" if not error or error.startswith(MINUS) else "+"
    return [name, format_bytes(predicted), format_bytes(measured), sign + error]


def memory_json(
    answer: Answer, relief: Sequence[Relief] | None = (), measured: MeasuredMemory | None = None
) -> dict[str, Any]:
    """Returns the memory of a job, with the track of its fullest stage, and what would make it fit."""
    figures, cluster = answer.model, answer.cluster
    assert figures is not None
    worst = figures.memory.worst
    track = None
    if worst is not None:
        place = peak_place(answer.timeline, worst.track)
        track = TrackRecord(worst.role, place, worst.track.time_s, worst.track.total_bytes)
    return to_json(
        MEMORY_SCHEMA,
        {"model": figures.name, "plan": figures.plan, "cluster": None if cluster is None else cluster.name},
        MemoryRecord.of(figures.memory),
        {
            "would_fit": None if relief is None else [ReliefRecord.of(each) for each in relief],
            "worst": track,
            "snapshot": None if measured is None else _snapshot_json(measured),
            "diagnostics": about_memory(answer, measured),
        },
    )


def _snapshot_json(measured: MeasuredMemory) -> dict[str, Any]:
    values = with_properties(measured.snapshot, "is_whole")
    del values["diagnostics"]  # they are among those of the answer
    errors = {name: getattr(measured, name) for name in ("role", "allocated_error", "reserved_error")}
    return {"file": measured.file, **values, **errors}


def about_memory(answer: Answer, measured: MeasuredMemory | None) -> tuple[Diagnostic, ...]:
    """Returns the diagnostics that concern memory, the plan and its layout."""
    left_out = {*_OF_TIME, "out-of-memory"}  # the verdict says that already
    kept = tuple(diagnostic for diagnostic in answer.diagnostics if diagnostic.code not in left_out)
    return kept if measured is None else (*kept, *measured.diagnostics)


def print_memory(
    answer: Answer,
    stream: TextIO | None = None,
    measured: MeasuredMemory | None = None,
    relief: Sequence[Relief] | None = (),
) -> None:
    """Prints the screen of a job's memory."""
    screen, memory = Screen.of(stream or sys.stdout), answer.memory
    worst = None if memory is None else memory.worst
    if memory is None or worst is None:
        show(screen, [[], [("  nothing is known of this job's memory", "")]])
        return
    lines: list[list[Span]] = [
        [],
        *_headline(answer, memory, worst),
        [],
        *stages_table(memory).lines(),
        *outside_table(memory).spaced_lines(),
    ]
    if measured is not None:
        lines += [[], *measured.table().lines()]
    lines += _over_time(worst, answer.step_time_s, screen)
    lines += relief_table(relief or ()).spaced_lines()
    lines += [[], *diagnostic_lines(about_memory(answer, measured), MAX_DIAGNOSTICS)]
    show(screen, lines)


def memory_plot(answer: Answer) -> str:
    """Draws the memory of the fullest stage over the step as SVG."""
    memory = answer.memory
    assert answer.model is not None and memory is not None and memory.worst is not None
    ranks = f"{format_count(answer.world_size)} GPU{'s' if answer.world_size > 1 else ''}"
    title = f"{answer.model.name} on {ranks}: memory of {memory.worst.role} over a step ({memory.verdict})"
    return memory_svg(memory, memory.worst, answer.step_time_s, title)


def _headline(answer: Answer, memory: MemoryFit, worst: StageMemory) -> list[list[Span]]:
    needed = f"{format_bytes(memory.needed_bytes)} of {format_bytes(memory.capacity_bytes)}"
    share = format_percent(memory.needed_bytes / memory.capacity_bytes)
    place = peak_place_text(answer, worst)
    return [
        [("  Memory  ", ""), (memory.verdict, f"bold {_VERDICT_STYLES[memory.verdict]}"), (room_text(memory), "")],
        [(f"  Job     {gpus_text(answer)}", "")],
        [(f"          {memory_fields_text(answer)}", "")],
        [("  Peak    ", ""), (format_bytes(worst.peak_bytes), "bold"), (f" allocated on {worst.role}{place}", "")],
        [(f"  Needs   {needed} ({share}): {needs_text(memory)}", "")],
    ]


def gpus_text(answer: Answer) -> str:
    """Returns the GPUs of a job and its axes."""
    gpu = "GPU" if answer.cluster is None else answer.cluster.gpu.title
    return f"{format_count(answer.world_size)} × {gpu} · {mesh_text(answer.mesh)}".rstrip(" ·")


def needs_text(memory: MemoryFit) -> str:
    """Returns what the memory that a GPU needs consists of."""
    low, _, high = memory.reserved_band_bytes
    fullest = max(memory.stages, key=lambda stage: stage.reserved_band_bytes[1])
    on = "" if fullest is memory.worst else f" on {fullest.role}"
    reserved = f"{format_bytes(memory.reserved_bytes)} reserved{on} ({format_bytes(low)} to {format_bytes(high)})"
    return f"{reserved} and {format_bytes(memory.outside_bytes)} outside the allocator"


def memory_fields_text(answer: Answer) -> str:
    """Returns what decides the memory of a plan, next to its axes."""
    assert answer.model is not None
    plan = answer.model.plan
    recompute = ",".join(plan["recompute_modules"] or ()) or plan["recompute"]
    words = [
        f"{format_count(plan['seq_len'])} tokens",
        f"mbs {plan['mbs']}",
        f"{format_count(plan['microbatches'])} microbatches",
        plan["schedule"] + (f", vpp {plan['vpp']}" if plan["vpp"] > 1 else ""),
        f"ZeRO-{plan['zero']}",
        plan["precision"],
        f"recompute {recompute}",
        plan["stack"],
    ]
    return " · ".join(words)


def room_text(memory: MemoryFit) -> str:
    """Returns the head-room of the usual estimate, and of the one that casts doubt on it."""
    most, usual, least = (memory.capacity_bytes - size for size in memory.needed_band_bytes)
    words = f": {format_bytes(usual)} to spare" if usual >= 0 else f": {format_bytes(-usual)} too little"
    if usual >= 0 > least:
        words += f", {format_bytes(-least)} too little if memory fragments most"
    if most >= 0 > usual:
        words += f" as memory usually fragments, {format_bytes(most)} to spare if it does not"
    return words


def peak_place_text(answer: Answer, stage: StageMemory) -> str:
    """Returns where in the schedule a stage holds most."""
    place = peak_place(answer.timeline, stage.track)
    if place is None:
        return ""
    words = "" if place.phase == "none" else f", in the {place.phase.replace('_', ' ')}"
    if place.microbatch >= 0:
        words += f" of microbatch {place.microbatch}"
    if place.layer >= 0:
        chunks = int(answer.timeline.graph.ops.ints("chunk").max(initial=0)) + 1
        words += f", layer {place.layer} of " + (f"chunk {place.chunk}" if chunks > 1 else "the stage")
    else:
        words += f' ("{place.op_name}")'
    step_s = answer.step_time_s
    return words + (f", {format_percent(place.time_s / step_s)} into the step" if step_s > 0 else "")


def stages_table(memory: MemoryFit) -> TextTable:
    """Returns a row per stage; neighbours that hold the same share a row."""
    kinds = [label(category) for category in Category]
    kinds = [kind for kind in kinds if any(kind in stage.by_category for stage in memory.stages)]
    rows: list[tuple[str, list[str]]] = []
    for stage in memory.stages:
        reserved = stage.reserved_band_bytes[1]
        total = reserved + memory.outside_bytes
        cells = [f"{stage.ranks:,}", *(_gib(stage.by_category.get(kind, 0)) for kind in kinds)]
        cells += [*map(_gib, (stage.peak_bytes, reserved, total)), format_percent(total / memory.capacity_bytes)]
        if rows and rows[-1][1] == cells:
            first = rows[-1][0].partition(" … ")[0]
            rows[-1] = (f"{first} … {stage.role}", cells)
        else:
            rows.append((stage.role, cells))
    heads = ["at its peak, GiB", "ranks each", *kinds, "allocated", "reserved", "total", "of GPU"]
    return TextTable(heads, [[name, *cells] for name, cells in rows])


def outside_table(memory: MemoryFit) -> TextTable:
    """Returns the parts outside the allocator, the largest first."""
    parts = sorted(memory.outside, key=lambda part: -part.bytes)
    rows = [[part.name, format_bytes(part.bytes), part.source] for part in parts]
    return TextTable(["outside the allocator", "size", "from"], rows, text_columns=3)


def relief_table(relief: Sequence[Relief]) -> TextTable:
    """Returns the changes by which a job fits, those with the fewest GPUs first, then the shortest step."""
    rows = [
        [each.options, format_time(each.step_time_s), _gib(each.memory.needed_bytes), _gib(each.memory.headroom_bytes)]
        for each in relief
    ]
    return TextTable(["would fit, each one simulated", "step", "needs, GiB", "to spare"], rows)


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f}" if size else "0"


def _over_time(stage: StageMemory, step_s: float, screen: Screen) -> list[list[Span]]:
    """Returns what a stage holds over the step: the most in each slice of it, by kind."""
    rows = memory_letters(stage, step_s, screen.width)
    heading: list[Span] = [("  over the step", "bold"), (f" ({stage.role}, the most in each part of it)", "")]
    return [[], heading, *rows] if rows else []
