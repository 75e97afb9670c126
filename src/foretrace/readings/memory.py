"""Memory over a step: what each rank class holds, by category, from the program's own allocations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic
from foretrace.program.columns import Category, Phase, label
from foretrace.program.timeline import Timeline


@dataclass(frozen=True, slots=True)
class MemoryTrack:
    """The memory that one rank class holds from each moment on: [moments, categories], in bytes.

    It also tells by how much a step makes that grow, and how much it frees that it neither took nor was stated to hold.
    `peak_op` is the op that takes the memory with which the peak is reached; -1 where no op takes any. `peak_at` is the
    first moment at which most is held; -1 where nobody has looked yet.
    """

    rank_class: int
    time_s: Floats
    held_bytes: Longs
    grows_bytes: int
    assumed_bytes: int
    peak_op: int = -1
    peak_at: int = -1

    @property
    def total_bytes(self) -> Longs:
        """All categories together."""
        return np.asarray(self.held_bytes.sum(axis=1))

    @property
    def peak_bytes(self) -> int:
        """The most held at any moment."""
        return int(self.held_bytes[self._peak_at()].sum())

    def at_peak(self) -> dict[str, int]:
        """Returns the bytes held at the peak, by category."""
        held = self.held_bytes[self._peak_at()]
        return {label(category): int(held[category]) for category in Category if held[category]}

    def _peak_at(self) -> int:
        return self.peak_at if self.peak_at >= 0 else int(np.argmax(self.total_bytes))

    def fullest_moments(self, step_s: float, slices: int) -> Longs:
        """Returns for each of `slices` equal parts of the step the moment at which most is held in it."""
        edges = np.linspace(0.0, step_s, slices + 1)
        total = self.total_bytes
        first = np.maximum(np.searchsorted(self.time_s, edges[:-1], side="right") - 1, 0)
        last = np.maximum(np.searchsorted(self.time_s, edges[1:], side="left"), first + 1)
        parts = zip(first.tolist(), last.tolist(), strict=True)
        return np.array([low + int(np.argmax(total[low:high])) for low, high in parts], dtype=np.int64)

    def by_category(self) -> dict[str, Longs]:
        """Returns the track of each category that is ever held."""
        return {
            label(category): self.held_bytes[:, category] for category in Category if self.held_bytes[:, category].any()
        }


EMPTY_TRACK = MemoryTrack(-1, np.zeros(1), np.zeros((1, len(Category)), dtype=np.int64), 0, 0)
"""The track of ranks that hold nothing."""


@dataclass(frozen=True, slots=True)
class PeakPlace:
    """The op of a step that takes the memory with which a peak is reached.

    Attributes:
        op_name: The name of the op.
        phase: The part of the step that it belongs to, in the words of `Phase`.
        microbatch: Its microbatch; -1 at the end of the step.
        chunk: The chunk of its stage.
        layer: The number of its layer within the chunk; -1 for an end of the model and the end of the step.
        time_s: When the peak is reached, from the start of the step.
    """

    op_name: str
    phase: str
    microbatch: int
    chunk: int
    layer: int
    time_s: float


def peak_place(timeline: Timeline, track: MemoryTrack) -> PeakPlace | None:
    """Returns where in the step a track reaches its peak; None where no op of the step takes memory."""
    if track.peak_op < 0:
        return None
    ops, op = timeline.graph.ops, track.peak_op
    row = {name: int(ops.column(name)[op]) for name in ("name", "phase", "chunk", "layer")}
    return PeakPlace(
        op_name=timeline.graph.program.strings[row["name"]],
        phase=label(Phase(row["phase"])),
        microbatch=int(ops.microbatch[op]),
        chunk=row["chunk"],
        layer=row["layer"],
        time_s=float(track.time_s[int(np.argmax(track.total_bytes))]),
    )


def memory_tracks(timeline: Timeline) -> list[MemoryTrack]:
    """Returns the track of every rank class; none if the program does not state memory."""
    program = timeline.graph.program
    if not len(program.templates.memory_op) and not len(program.resident.role):
        return []
    resident = np.zeros((len(program.roles), len(Category)), dtype=np.int64)
    np.add.at(resident, (program.resident.role, program.resident.category), program.resident.bytes)
    op, row = timeline.graph.ops.side_table(program.templates.memory_op)
    enabled = timeline.graph.ops.column("enabled")[op] != 0
    if not enabled.all():
        op, row = op[enabled], row[enabled]
    return [_track(timeline, number, resident, op, row) for number in range(len(timeline.graph.classes))]


def memory_notes(timeline: Timeline, tracks: list[MemoryTrack]) -> list[Diagnostic]:
    """Returns notes on roles that end a step with more memory or less, or free what they did not hold."""
    program, notes = timeline.graph.program, dict[str, Diagnostic]()
    for track in tracks:
        role = program.roles[int(program.role_of[timeline.graph.classes.representative[track.rank_class]])]
        size = track.grows_bytes
        if size and program.repeats:
            text = f"a step allocates {size:,} bytes more than it frees"
            if size < 0:
                text = f"a step frees {-size:,} bytes more than it allocates"
            notes.setdefault(role, Diagnostic("warning", "memory-imbalance", text, f'role "{role}"'))
        if track.assumed_bytes:
            text = (
                f"{track.assumed_bytes:,} bytes are freed before they are allocated; taken as held when the step begins"
            )
            notes.setdefault(f"{role} assumed", Diagnostic("note", "assumed", text, f'role "{role}"'))
    return list(notes.values())


def _track(timeline: Timeline, number: int, resident: Longs, op: Longs, row: Longs) -> MemoryTrack:
    graph, templates = timeline.graph, timeline.graph.program.templates
    role = int(graph.program.role_of[graph.classes.representative[number]])
    first_op = graph.ops.start[role]
    mine = slice(*np.searchsorted(op, graph.ops.start[role : role + 2]).tolist())  # ops are in the order of their roles
    node = op[mine] - first_op + graph.start[number]
    row = row[mine]
    category = templates.memory_category[row]
    times = np.concatenate([timeline.end_s[node], timeline.start_s[node]])
    change = np.concatenate([-templates.memory_free_bytes[row], templates.memory_alloc_bytes[row]])
    category = np.concatenate([category, category])
    # At one moment, what is freed makes room for what is taken; ops of no duration take and free in order of issue.
    instant = timeline.end_s[node] <= timeline.start_s[node]
    turn = np.concatenate([np.where(instant, 2 * node + 1, -1), 2 * node])
    base = resident[role].copy()
    period = timeline.step_time_s
    if graph.program.repeats and period > 0:
        # What happens steps after its own has not happened yet, for as many steps, when this one begins.
        late = np.floor(times / (period * (1 + 1e-12))).astype(np.int64)
        np.add.at(base, category, -change * late)
        times = times - late * period
    used = change != 0
    times, change, category = times[used], change[used], category[used]
    moment = np.round(times / period * 1e12) if period > 0 else times  # so that rounding does not part what coincides
    order = np.lexsort((turn[used], moment))
    deltas = np.zeros((len(order) + 1, len(Category)), dtype=np.int64)
    deltas[0] = base
    deltas[np.arange(1, len(order) + 1), category[order]] = change[order]
    held = np.cumsum(deltas, axis=0)
    missing = np.maximum(-held.min(axis=0), 0)  # what is freed before it is taken was held from before
    held += missing
    moments = np.maximum.accumulate(np.concatenate([[0.0], times[order]]))
    peak_op, peak = -1, int(np.argmax(held.sum(axis=1)))
    if len(order):
        # A peak at the beginning of the step was reached by the last event of the step before.
        peak_op = int(np.concatenate([op[mine], op[mine]])[used][order[peak - 1]])
    return MemoryTrack(number, moments, held, int(change.sum()), int(missing.sum()), peak_op, peak)
