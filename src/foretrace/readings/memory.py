"""Memory over a step: what each rank class holds, by category, from the program's own allocations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs, ranges
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
    events = _Events(timeline, resident)
    return [events.track(number) for number in range(len(timeline.graph.classes))]


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


class _Events:
    """All moments at which rank classes take or free memory, class by class, each class in order of time."""

    def __init__(self, timeline: Timeline, resident: Longs) -> None:
        graph, templates = timeline.graph, timeline.graph.program.templates
        op, row = graph.ops.side_table(templates.memory_op)
        if not graph.ops.all_enabled:
            enabled = graph.ops.column("enabled")[op] != 0
            op, row = op[enabled], row[enabled]
        role = graph.program.role_of[graph.classes.representative]
        edges = np.searchsorted(op, graph.ops.start)  # ops are in the order of their roles
        counts = np.diff(edges)[role]
        rows, owner = ranges(edges[role], counts), np.repeat(np.arange(len(role)), counts)
        op, row = op[rows], row[rows]
        node = op + (graph.start[:-1] - graph.ops.start[role])[owner]
        start_s, end_s = timeline.start_s[node], timeline.end_s[node]
        times = np.concatenate([end_s, start_s])
        change = np.concatenate([-templates.memory_free_bytes[row], templates.memory_alloc_bytes[row]])
        category = np.tile(templates.memory_category[row].astype(np.int64), 2)
        owner, op = np.tile(owner, 2), np.tile(op, 2)
        # At one moment, what is freed makes room for what is taken; ops of no duration take and free in order of issue.
        turn = np.concatenate([np.where(end_s <= start_s, 2 * node + 1, -1), 2 * node])
        used = np.flatnonzero(change)
        times, change, category, turn, owner, op = (
            column[used] for column in (times, change, category, turn, owner, op)
        )
        base, period = resident[role], timeline.step_time_s
        if graph.program.repeats and period > 0:
            # What happens steps after its own has not happened yet, for as many steps, when this one begins.
            late = np.floor(times / (period * (1 + 1e-12))).astype(np.int64)
            ahead = np.flatnonzero(late)
            np.subtract.at(base, (owner[ahead], category[ahead]), change[ahead] * late[ahead])
            times = times - late * period
        # So that rounding does not part what coincides.
        moment = np.round(times / period * 1e12) if period > 0 else times
        order = np.lexsort((turn, moment, owner))
        self.start = np.searchsorted(owner[order], np.arange(len(role) + 1))
        self.time_s, self.op = times[order], op[order]
        change, category = change[order], category[order]
        self.grows_bytes = np.diff(np.append(0, np.cumsum(change))[self.start])
        # A class begins with a row of what it holds at first; what classes before it hold in the end is taken off.
        first = self.start[:-1] + np.arange(len(role))
        deltas = np.zeros((len(order) + len(role), len(Category)), dtype=np.int64)
        deltas[np.arange(len(order)) + owner[order] + 1, category] = change
        deltas[first] = base
        self.held = np.cumsum(deltas, axis=0)
        self.held -= np.repeat(self.held[first] - base, np.diff(np.append(first, len(deltas))), axis=0)
        # Memory that is freed before it is taken was held from before.
        missing = np.maximum(-np.minimum.reduceat(self.held, first, axis=0), 0)
        self.held += np.repeat(missing, np.diff(np.append(first, len(deltas))), axis=0)
        self.missing_bytes, self.total = missing.sum(axis=1), self.held.sum(axis=1)

    def track(self, number: int) -> MemoryTrack:
        """Returns the track of a rank class."""
        low, high = (int(edge) for edge in self.start[number : number + 2])
        rows = slice(low + number, high + number + 1)
        moments = np.maximum.accumulate(np.concatenate([[0.0], self.time_s[low:high]]))
        peak = int(np.argmax(self.total[rows]))
        # A peak at the beginning of the step was reached by the last event of the step before.
        peak_op = int(self.op[low + peak - 1 if peak else high - 1]) if high > low else -1
        grows_bytes, missing_bytes = int(self.grows_bytes[number]), int(self.missing_bytes[number])
        return MemoryTrack(number, moments, self.held[rows], grows_bytes, missing_bytes, peak_op, peak)
