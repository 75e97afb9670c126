"""Finds the moments of a schedule that can have the peak of memory, as sums of the sizes of units.

Between two units, a stage holds some kept units of each kind, some that wait for their weight gradients, and some
gradients. The peak of a unit comes on top. The numbers of these depend on the shape of a step alone, so that they are
counted once for plans of all sizes. A moment is left out where another with the same unit holds as much of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from foretrace.basics.arrays import Longs, Mask, stable_order
from foretrace.schedules import ActionKind
from foretrace.search.planner.shapes import StepShape
from foretrace.step.memory import unit_peak_bytes
from foretrace.step.segments import CLOSES
from foretrace.step.spec import Work

STEADY_MICROBATCHES: Final = {
    "1f1b": (1, 1),
    "zb-h1": (1, 1),
    "zb-v": (2, 1),
    "dualpipe-v": (2, 1),
    "dualpipe": (2, 2),
    "interleaved-1f1b": (3, 0),
    "interleaved-zb": (3, 0),
}
"""The microbatches from which on a schedule only repeats itself: a multiple of stages, and a number to add.

More of them repeat a pattern in the middle of every stage, so that all that a stage ever holds at once, and all pairs
of actions that follow each other, occur with this number already. Other schedules hold more with each microbatch."""

SIZES: Final = 4
"""Sizes of a unit that stay between units: kept on the GPU, sent to the host, recomputed, gradients."""
_KEPT, _OFFLOADED, _RECOMPUTED, _GRADIENTS = range(SIZES)
PEAKS: Final = 6
"""Peaks of a unit: in each kind of action, and in those that end a backward where they allocate gradients."""
_WITH_GRADIENTS: Final = {ActionKind.BACKWARD: 4, ActionKind.BACKWARD_WEIGHT: 5}
_MAX_COMPARED: Final = 256
"""Moments that are compared with each other at most; of more, none is left out."""


class FormKind(NamedTuple):
    """Decides which sizes the moments of a shape are sums of.

    Attributes:
        ahead: How many units ahead a backward fetches activations from the host; None where none are there.
        allocates: Whether the first backward of a step allocates gradients.
    """

    ahead: int | None
    allocates: bool


def steady_microbatches(schedule: str, stages: int, microbatches: int) -> int:
    """Returns the smallest number of microbatches with which every stage holds at most what it holds with more."""
    if schedule not in STEADY_MICROBATCHES:
        return microbatches
    times, more = STEADY_MICROBATCHES[schedule]
    return min(microbatches, times * stages + more)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryForms:
    """The moments of a shape that can have the peak, by type of stage. Stages of a type hold the same units.

    Attributes:
        counts: Units of each kind that a stage of each type holds, `[types, kinds]`.
        held: How often each size of each kind is there at each moment, `[moments, SIZES * kinds]`.
        peak: The peak of which unit comes on top, kind by kind; the last number stands for none, `[moments]`.
        starts: The first moment of each type, `[types]`.
    """

    counts: Longs
    held: Longs
    peak: Longs
    starts: Longs

    @classmethod
    def of(cls, shape: StepShape, form: FormKind) -> MemoryForms:
        """Returns the moments of a shape."""
        kinds = len(shape.kinds)
        per_stage = shape.counts[shape.schedule.piece].sum(axis=1)
        numbers: dict[tuple[int, ...], int] = {}
        types = np.array([numbers.setdefault(tuple(counts), len(numbers)) for counts in per_stage.tolist()])
        groups, rows = _maxima(*_moments(shape, form, types))
        # Every type has a moment at which it holds nothing.
        held = [np.zeros((len(numbers), SIZES * kinds), dtype=np.int64)]
        peak, stage_type = [np.full(len(numbers), PEAKS * kinds)], [np.arange(len(numbers))]
        steps: dict[tuple[int, int, int], tuple[Longs, Longs]] = {}
        for (number, *action), row in zip(groups, rows, strict=True):
            piece, kind, first = action
            if not shape.pieces[piece]:
                continue
            if (piece, kind, first) not in steps:
                units = shape.pieces[piece][:: 1 if kind == ActionKind.FORWARD else -1]
                steps[piece, kind, first] = _units(units, kinds, ActionKind(kind), bool(first), form.ahead)
            offsets, peaks = steps[piece, kind, first]
            held.append(offsets + row)
            peak.append(peaks)
            stage_type.append(np.full(len(peaks), number))
        everything = np.concatenate(held)
        if form.ahead is None:
            everything[:, kinds * _OFFLOADED : kinds * _RECOMPUTED] = 0
        return cls._reduced(np.array(list(numbers)), everything, np.concatenate(peak), np.concatenate(stage_type))

    @classmethod
    def _reduced(cls, counts: Longs, held: Longs, peak: Longs, stage_type: Longs) -> MemoryForms:
        """Returns the moments of all types without those that hold no more than another."""
        group = stage_type * (int(peak.max()) + 1) + peak
        order = stable_order(group)
        held, peak, stage_type, group = held[order], peak[order], stage_type[order], group[order]
        kept = np.concatenate([_undominated(part) for part in np.split(held, np.flatnonzero(np.diff(group)) + 1)])
        starts = np.searchsorted(stage_type[kept], np.arange(len(counts)))
        return cls(counts, held[kept], peak[kept], starts.astype(np.int64))

    def peaks(self, sizes: Longs, unit_peaks: Longs) -> Longs:
        """Returns the peak of each type of stage for each plan, `[plans, types]`.

        Args:
            sizes: The sizes of units of each kind, `[plans, SIZES * kinds]`.
            unit_peaks: Their peaks, and 0 at the end, `[plans, PEAKS * kinds + 1]`.
        """
        used = self.held.any(axis=0)
        totals = sizes[:, used] @ self.held[:, used].T + unit_peaks[:, self.peak]
        peaks: Longs = np.maximum.reduceat(totals, self.starts, axis=1)
        return peaks


def unit_memory(work: Work, *, offloaded: bool, gradient_bytes: int, splits_backward: bool) -> tuple[list[int], ...]:
    """Returns the sizes of a unit and its peaks, as `MemoryForms` names them by number.

    Args:
        work: The work of the unit.
        offloaded: Whether all its saved activations go to the host.
        gradient_bytes: The size of a gradient that the first backward allocates; 0 where it allocates none.
        splits_backward: Whether input and weight gradients may be actions of their own.
    """
    sent = work.saved_bytes if offloaded else work.offloaded_bytes
    gradients = gradient_bytes * (work.parameters + work.expert_parameters)
    sizes = [work.saved_bytes - sent, sent, work.recomputed_bytes, gradients]
    asked = [kind for kind in ActionKind if splits_backward or kind < ActionKind.BACKWARD_INPUT]
    peaks = [unit_peak_bytes(work, kind) if kind in asked else 0 for kind in ActionKind]
    for kind in CLOSES:
        again = kind in asked and gradient_bytes
        peaks.append(unit_peak_bytes(work, kind, gradient_bytes) if again else peaks[kind])
    return sizes, peaks


def _moments(shape: StepShape, form: FormKind, types: Longs) -> tuple[Longs, Longs]:
    """Returns for every row of every stage its type, piece, kind and whether it allocates, and what is held before it.

    Equal pieces have the number of the first of them.
    """
    schedule, kinds = shape.schedule, len(shape.kinds)
    firsts: dict[tuple[int, ...], int] = {}
    same = np.array([firsts.setdefault(units, number) for number, units in enumerate(shape.pieces)])
    stages = np.repeat(np.arange(schedule.stages), [len(rows) for rows in schedule.stage_actions])
    kind, chunk, microbatch = (
        np.concatenate([getattr(rows, name) for rows in schedule.stage_actions])
        for name in ("kind", "chunk", "microbatch")
    )
    piece = same[schedule.piece[stages, chunk]]
    counts = shape.counts[piece]
    forward, inputs, weights = (
        kind == action for action in (ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
    )
    closes = weights | (kind == ActionKind.BACKWARD)
    first = np.zeros(len(kind), dtype=np.int64)
    change = np.zeros((len(kind), SIZES * kinds), dtype=np.int64)
    change[:, : kinds * (_KEPT + 1)] = (forward.astype(np.int64) - closes)[:, None] * counts
    if inputs.any():
        waiting = (inputs.astype(np.int64) - weights)[:, None] * counts
        change[:, kinds * _OFFLOADED : kinds * _GRADIENTS] = np.tile(waiting, 2)
    if form.allocates:
        direction = schedule.direction.tolist()
        earliest = np.array([direction.index(way) for way in schedule.chunk_direction.tolist()])
        first = (closes & (microbatch == earliest[chunk])).astype(np.int64)
        change[:, kinds * _GRADIENTS :] = first[:, None] * counts
    before = np.cumsum(change, axis=0) - change
    starts = np.searchsorted(stages, np.arange(schedule.stages))
    before -= before[starts][stages]
    return np.stack([types[stages], piece, kind, first], axis=1), before


def _maxima(groups: Longs, held: Longs) -> tuple[list[list[int]], Longs]:
    """Returns the rows of each group that hold no less than another in everything, each with its group."""
    radix = groups.max(axis=0) + 1
    number = groups[:, 0]
    for column in range(1, groups.shape[1]):
        number = number * radix[column] + groups[:, column]
    order = stable_order(number)
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    held = held[order]
    most = np.maximum.reduceat(held, starts, axis=0)
    sizes = np.diff(starts, append=len(held))
    has_most = (held == np.repeat(most, sizes, axis=0)).all(axis=1)
    chosen: list[list[int]] = []
    rows: list[Longs] = []
    for example, begin, size, top in zip(
        groups[order[starts]].tolist(),
        starts.tolist(),
        sizes.tolist(),
        np.logical_or.reduceat(has_most, starts).tolist(),
        strict=True,
    ):
        if top:
            # The first row that has the most of everything stands for all rows of its group.
            some = held[begin + int(np.argmax(has_most[begin : begin + size]))][None]
        else:
            distinct = np.unique(held[begin : begin + size], axis=0)
            some = distinct[_undominated(distinct)]
        rows.append(some)
        chosen += [example] * len(some)
    return chosen, np.concatenate(rows)


def _units(units: Sequence[int], kinds: int, action: ActionKind, first: bool, ahead: int | None) -> tuple[Longs, Longs]:
    """Returns what an action holds while each of its units runs, more than before it, and the peak of that unit.

    Within a run of equal units the memory changes by the same amount from unit to unit, so that only units next to the
    ends of a run can have the peak.

    Args:
        units: The kinds of the units in the order in which the action runs them.
        kinds: How many kinds there are.
        action: The kind of action.
        first: Whether it allocates gradients.
        ahead: As in `FormKind`.
    """
    each = np.zeros((len(units) + 1, kinds), dtype=np.int64)
    each[np.arange(len(units)), units] = 1
    done = np.concatenate([np.zeros((1, kinds), dtype=np.int64), np.cumsum(each[:-1], axis=0)])
    at = _near_ends(units, 0 if ahead is None else ahead + 1)
    change = np.zeros((len(at), SIZES, kinds), dtype=np.int64)
    if action == ActionKind.FORWARD:
        change[:, _KEPT] = done[at]
        if ahead is not None:
            change[:, _OFFLOADED] = each[at - 1]  # goes to the host while the next unit runs; [-1] is none
    elif action == ActionKind.BACKWARD_WEIGHT:
        change[:, : _RECOMPUTED + 1] = -done[at][:, None]
    else:
        fetched = done[np.minimum(at + (ahead or 0) + 1, len(units))]
        if action == ActionKind.BACKWARD:
            change[:, _KEPT], change[:, _OFFLOADED] = -done[at], fetched - done[at]
        else:
            change[:, _OFFLOADED], change[:, _RECOMPUTED] = fetched, done[at]
    if first:
        change[:, _GRADIENTS] = done[at]
    peak = np.array(units)[at] * PEAKS + (_WITH_GRADIENTS[action] if first else action)
    return change.reshape(len(at), SIZES * kinds), peak


def _near_ends(units: Sequence[int], margin: int) -> Longs:
    """Returns the numbers of units that are at most `margin` away from the first or the last of a run of equal ones."""
    near = np.zeros(len(units), dtype=bool)
    begin = 0
    for _, run in groupby(units):
        end = begin + len(list(run))
        near[begin : begin + margin + 1] = near[max(end - margin - 1, 0) : end] = True
        begin = end
    return np.flatnonzero(near).astype(np.int64)


def _undominated(rows: Longs) -> Mask:
    """Returns which rows are not at or below another row in every column; of equal rows, the first."""
    if len(rows) == 1 or len(rows) > _MAX_COMPARED:
        return np.ones(len(rows), dtype=bool)
    below: Mask = np.logical_and.reduce(rows[:, None] <= rows[None], axis=2)
    equal = below & below.T
    # Among equal rows the first stays.
    dropped: Mask = np.logical_or.reduce((below & ~equal) | np.tril(equal, -1), axis=1)
    return ~dropped
