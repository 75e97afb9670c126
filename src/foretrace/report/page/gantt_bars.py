"""Merges the ops of a step into the bars of a chart.

A step has up to millions of ops, a page has room for `MAX_BARS` bars. Ops that follow each other without a visible gap
and serve the same microbatch are therefore one bar. The ops inside bars are kept as *patterns*: the layers of a chunk
run in the same way for every microbatch, so a few patterns hold the ops of all bars, and a reader who zooms in sees
them. The rest is left out in a fixed order, stated in `MergedStep.notes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, Mask, first_uses, ranges, stable_order
from foretrace.program.columns import Kind, Phase
from foretrace.readings.answer.answer import Answer

MAX_BARS: Final = 100_000
"""Bars of a chart, which a page draws without lag."""
MAX_INNER_OPS: Final = 40_000
"""Ops of all patterns."""
MAX_OPS: Final = 2_000_000
"""Ops of the rank classes that are read; those that stand for a role are read in any case."""
MAX_ROWS: Final = 4_000
"""Lanes of the rank classes that are read, with the same exception."""
TICKS: Final = 1 << 27
"""Ticks of the time axis: times are compared and encoded as whole ticks, 7e-9 of the axis each."""
LANE_KINDS: Final = ("compute", "communication", "host")
"""The kinds of lanes from top to bottom."""

_TINY_GAP: Final = 2e-4
"""The longest gap within a bar, as a share of the step: less than half a pixel of a wide screen."""
_ROUNDING: Final = 1e-9
"""The share of the step by which ops of a lane may overlap because of rounding."""
_MAX_ALTERNATIONS: Final = 3
"""How often an instance of a block changes between kinds of backward before they count as one kind: the kinds then
alternate from layer to layer."""
_BACKWARD: Final = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE)
_MIX: Final = tuple(np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


@dataclass(frozen=True, slots=True)
class _Merging:
    """How coarsely ops are merged: the gaps allowed, as multiples of a tiny one, and what bars of a row differ in."""

    compute_gap: float
    other_gap: float
    collectives: bool = True
    phases: bool = True
    microbatches: bool = True
    loss: str = ""


_MERGINGS: Final = (
    _Merging(1, 1),
    _Merging(1, 5, collectives=False, loss="single collectives of a microbatch"),
    _Merging(5, 10, False, False, loss="kinds of backward, single collectives, and gaps below 0.1 % of the step"),
    _Merging(25, 25, False, False, False, loss="microbatches, and gaps below 0.5 % of the step"),
    _Merging(250, 250, False, False, False, loss="microbatches, and gaps below 5 % of the step"),
)
"""From the finest to the coarsest."""
_COARSEST_FOR_ALL: Final = 2
"""The coarsest merging that makes room for further rank classes of a role; it keeps microbatches apart."""


@dataclass(frozen=True, slots=True, eq=False)
class GanttBars:
    """Bars by row and start, one value of each column per bar.

    `start_s` and `end_s` are seconds. `gap_s` is the time within the bar in which no op runs, `wait_s` how long its
    ops waited for partners. `microbatch` and `chunk` are -1 where a bar has none or several, `pattern` is -1 where the
    ops inside are not kept, or are the bar itself.
    """

    row: Longs
    start_s: Floats
    end_s: Floats
    gap_s: Floats
    wait_s: Floats
    colour: Longs
    name: Longs
    microbatch: Longs
    chunk: Longs
    ops: Longs
    critical: Mask
    pattern: Longs

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class GanttPatterns:
    """The ops inside bars: those of pattern p are `first[p] : first[p + 1]`, in seconds from the start of the bar."""

    first: Longs
    start_s: Floats
    end_s: Floats
    colour: Longs
    name: Longs


@dataclass(frozen=True, slots=True, eq=False)
class MergedStep:
    """The bars of a step and their patterns.

    Colours count the phases, then `axes`, then the host. A name is a string of the program, or, from the number of
    strings on, a colour: that of a bar whose ops have several names. Row `i` is lane `lane[i]` of rank class
    `rank_class[i]`, and `main[i]` says whether this class stands for its role.
    """

    axes: tuple[str, ...]
    bars: GanttBars
    patterns: GanttPatterns
    rank_class: Longs
    lane: Longs
    main: Mask
    notes: tuple[str, ...]


def merge_ops(answer: Answer) -> MergedStep | None:
    """Returns the bars of an answer's step, as finely as the limits allow; None where no op takes place."""
    return _Merger(answer).merge()


class _Merger:
    """The ops of the rank classes to show, by row and start, as columns."""

    def __init__(self, answer: Answer) -> None:
        self.timeline = answer.timeline
        self.graph = self.timeline.graph
        self.program = self.graph.program
        self.axes = tuple(dict.fromkeys(communicator.axis for communicator in self.program.communicators))
        self.on_path = np.zeros(len(self.graph), dtype=bool)
        self.on_path[answer.critical_path.node] = True
        self.notes: list[str] = []
        kinds = [LANE_KINDS.index(lane.kind) for lane in self.program.lanes]
        self.lane_order = np.argsort(kinds, kind="stable")
        self.classes, self.mains = self._choose_classes()
        self._read_ops()

    def merge(self) -> MergedStep | None:
        """Merges the ops, and leaves out what does not fit."""
        if not len(self.node):
            return None
        first, stop, merges_backward = self._bounds()
        first, stop = self._limited(first, stop)
        bars, patterns = self._patterned(self._bars(first, stop, merges_backward), first)
        numbers, row = np.unique(bars.row, return_inverse=True)
        place, lane = np.divmod(numbers, len(self.lane_order))
        return MergedStep(
            self.axes,
            replace(bars, row=row.ravel()),
            patterns,
            self.classes[place],
            self.lane_order[lane],
            place < self.mains,
            tuple(self.notes),
        )

    def _choose_classes(self) -> tuple[Longs, int]:
        """Returns the rank classes to read, and how many of them, the first, stand for a role."""
        graph = self.graph
        roles = self.program.role_of[graph.classes.representative].astype(np.int64)
        mains, _ = first_uses(roles)
        mains = mains[np.argsort(roles[mains], kind="stable")]
        others = np.setdiff1d(np.arange(len(roles)), mains)
        # The rest comes in the order of how many of their ops set the step time.
        path = np.concatenate([[0], np.cumsum(self.on_path)])
        others = others[np.argsort(-np.diff(path[graph.start])[others], kind="stable")]
        classes = np.concatenate([mains, others])
        lanes = np.arange(1, len(classes) + 1) * len(self.program.lanes)
        fits = (np.cumsum(np.diff(graph.start)[classes], dtype=np.int64) <= MAX_OPS) & (lanes <= MAX_ROWS)
        return classes[: max(len(mains), int(fits.sum()))], len(mains)

    def _read_ops(self) -> None:
        """Reads the columns of the ops that take place, in the order of rows and starts."""
        graph, timeline, lanes = self.graph, self.timeline, len(self.lane_order)
        sizes = np.diff(graph.start)[self.classes]
        node = ranges(graph.start[self.classes], sizes)
        place = np.repeat(np.arange(len(sizes)), sizes)
        if not graph.ops.all_enabled:
            runs = np.flatnonzero(graph.ops.column("enabled")[graph.op[node]])
            node, place = node[runs], place[runs]
        row = place * lanes + np.argsort(self.lane_order)[graph.ops.column("lane")[graph.op[node]]]
        order = stable_order(row)
        if ((np.diff(timeline.start_s[node[order]]) < 0) & (np.diff(row[order]) == 0)).any():
            order = np.lexsort((timeline.start_s[node], row))
        self.node, self.row = node[order], row[order]
        self.start_s, self.end_s = timeline.start_s[self.node], timeline.end_s[self.node]
        self.low_s = min(0.0, float(timeline.start_s.min()))
        self.span_s = max(timeline.step_time_s, float(timeline.end_s.max())) - self.low_s
        # Placing each row after the one before keeps the running maximum within rows.
        offset_s = self.row * (2 * self.span_s)
        self.reach_s = np.maximum.accumulate(self.end_s + offset_s) - offset_s
        op, ops = graph.op[self.node], graph.ops
        self.name, self.microbatch, self.chunk = ops.column("name")[op], ops.microbatch[op], ops.column("chunk")[op]
        self.collective, self.phase = (ops.column(name)[op].astype(np.int64) for name in ("collective", "phase"))
        kind = ops.column("kind")[op]
        axis_of = np.array([len(Phase) + self.axes.index(each.axis) for each in self.program.communicators] + [0])
        self.colour = np.where(kind == Kind.COMPUTE, self.phase, axis_of[ops.ints("communicator")[op]])
        self.colour[kind == Kind.HOST] = len(Phase) + len(self.axes)
        self.is_backward = np.isin(self.phase, _BACKWARD)
        self.alternates = self._alternates(ops.instance[op], kind == Kind.COMPUTE)

    def _alternates(self, instance: Ints, computes: Mask) -> Mask:
        """Returns which ops belong to an instance whose kinds of backward alternate."""
        # Classes of a role issue the same ops, so the one that stands for the role is enough.
        backward_ops = np.flatnonzero(computes & self.is_backward & (self.row < self.mains * len(self.lane_order)))
        changes = np.diff(self.phase[backward_ops]) != 0
        changes &= (np.diff(instance[backward_ops]) == 0) & (np.diff(self.row[backward_ops]) == 0)
        count = np.bincount(instance[backward_ops][1:][changes], minlength=int(instance.max(initial=0)) + 1)
        return np.asarray((count > _MAX_ALTERNATIONS)[instance] & self.is_backward)

    def _bounds(self) -> tuple[Longs, Longs, Mask]:
        """Returns the first op of each bar and the op after its last, of the finest merging and classes that fit.

        The third value says of which ops the kinds of backward count as one.
        """
        of_class = self.row // len(self.lane_order)
        for number, merging in enumerate(_MERGINGS):
            merges_backward = self.alternates if merging.phases else self.is_backward
            first = np.flatnonzero(self._begins(merging, merges_backward))
            total = np.cumsum(np.bincount(of_class[first], minlength=len(self.classes)))
            shown = int(np.searchsorted(total, MAX_BARS, side="right"))
            if shown == len(total) or (shown >= self.mains and number >= _COARSEST_FOR_ALL):
                break
        shown = max(shown, self.mains)
        if merging.loss:
            self.notes.append(f"Bars do not show {merging.loss}: a chart holds at most {MAX_BARS:,} bars.")
        classes = len(self.graph.classes)
        if shown < classes:
            left_out = f"{classes - shown:,} of {classes:,} groups of identical ranks are left out"
            self.notes.append(f"{left_out}; one rank of each stage is shown.")
        first = first[of_class[first] < shown]
        end = int(np.searchsorted(of_class, shown))
        return first, np.append(first[1:], end), merges_backward

    def _begins(self, merging: _Merging, merges_backward: Mask) -> Mask:
        """Returns at which ops a bar begins."""
        step_s = self.timeline.step_time_s
        gap_s = self.start_s[1:] - self.reach_s[:-1]
        kinds = np.array([LANE_KINDS.index(self.program.lanes[lane].kind) for lane in self.lane_order])
        # On a compute lane, communication interrupts the computation that it belongs to, and is part of its bar.
        is_other_lane = kinds[self.row % len(self.lane_order)] != 0
        colour = np.where(merges_backward & (self.colour < len(Phase)), Phase.BACKWARD, self.colour)
        phase = np.where(merges_backward, Phase.BACKWARD, self.phase)
        columns = [np.where(is_other_lane, colour, -1)]
        if merging.collectives:
            columns.append(np.where(is_other_lane, self.collective, -1))
        if merging.microbatches:
            nameless = (phase == Phase.NONE) & (self.microbatch < 0)
            columns += [phase, self.microbatch, self.chunk, np.where(nameless, self.name, -1)]
        else:
            columns.append(np.where(is_other_lane, 0, phase))
        allowed = np.where(is_other_lane, merging.other_gap, merging.compute_gap)[1:]
        differs = gap_s > allowed * (_TINY_GAP * step_s)
        for column in columns:
            differs |= column[1:] != column[:-1]
        # Ops of a lane that overlap, which recorded ones may, are one bar.
        differs &= gap_s > -_ROUNDING * step_s
        differs |= np.diff(self.row) != 0
        return np.concatenate([[True], differs])

    def _limited(self, first: Longs, stop: Longs) -> tuple[Longs, Longs]:
        """Leaves out the bars that start last, if even the coarsest merging has too many."""
        if len(first) <= MAX_BARS:
            return first, stop
        kept = np.sort(np.argsort(self.start_s[first], kind="stable")[:MAX_BARS])
        self.notes.append(f"The {len(first) - MAX_BARS:,} bars that start last are left out.")
        return first[kept], stop[kept]

    def _bars(self, first: Longs, stop: Longs, merges_backward: Mask) -> GanttBars:
        """Returns the bars of ops `first[i] : stop[i]`, without patterns; the row numbers still have holes."""
        row, count = self.row[first], stop - first
        busy = np.concatenate([[0.0], np.cumsum(self.end_s - self.start_s)])
        wait = np.concatenate([[0.0], np.cumsum(np.maximum(self.timeline.wait_s[self.node], 0.0))])
        before = np.where(self.row[first - 1] == row, self.reach_s[first - 1], -np.inf)
        before[first == 0] = -np.inf
        # Remove overlaps caused by rounding.
        start_s = np.maximum(self.start_s[first], before)
        end_s = np.maximum(self.reach_s[stop - 1], start_s)
        gap_s = np.where(count > 1, (end_s - start_s) - (busy[stop] - busy[first]), 0.0)
        gap_s[gap_s < _ROUNDING * self.timeline.step_time_s] = 0.0
        colour = np.where(merges_backward & (self.colour < len(Phase)), Phase.BACKWARD, self.colour)
        colour = _reduced(np.minimum, colour, first, stop)
        on_path = np.concatenate([[0], np.cumsum(self.on_path[self.node])])
        name = _common(self.name, first, stop)
        return GanttBars(
            row,
            start_s,
            end_s,
            gap_s,
            np.minimum(wait[stop] - wait[first], self.span_s),
            colour,
            np.where(name >= 0, name, len(self.program.strings) + colour),
            _common(self.microbatch, first, stop),
            _common(self.chunk, first, stop),
            count,
            on_path[stop] > on_path[first],
            np.full(len(first), -1),
        )

    def _patterned(self, bars: GanttBars, first: Longs) -> tuple[GanttBars, GanttPatterns]:
        """Finds the patterns of bars of several ops; bars whose ops start and end at the same ticks share one."""
        several = np.flatnonzero(bars.ops > 1)
        counts = bars.ops[several]
        op = ranges(first[several], counts)
        start = np.repeat(bars.start_s[several], counts)
        tick_s = self.span_s / TICKS
        begin_s, end_s = np.maximum(self.start_s[op] - start, 0.0), np.maximum(self.end_s[op] - start, 0.0)
        hashed = np.rint(begin_s / tick_s).astype(np.uint64) * _MIX[0]
        hashed ^= np.rint(end_s / tick_s).astype(np.uint64) * _MIX[1]
        hashed ^= (self.name[op].astype(np.uint64) << np.uint64(8) | self.colour[op].astype(np.uint64)) * _MIX[2]
        hashed = (hashed ^ hashed >> np.uint64(31)) * _MIX[1]
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(hashed)])  # modulo 2 ** 64
        edges = np.concatenate([[0], np.cumsum(counts)])
        _, example, number, uses = np.unique(
            sums[edges[1:]] - sums[edges[:-1]], return_index=True, return_inverse=True, return_counts=True
        )
        order = np.lexsort((example, -uses))
        order = order[counts[example[order]] <= MAX_INNER_OPS]
        order = order[np.cumsum(counts[example[order]]) <= MAX_INNER_OPS]
        new_number = np.full(len(example), -1)
        new_number[order] = np.arange(len(order))
        pattern = np.full(len(bars), -1)
        pattern[several] = new_number[number.ravel()]
        lost = int(uses.sum() - uses[order].sum())
        if lost:
            self.notes.append(f"The single ops inside {lost:,} of {len(several):,} merged bars are left out.")
        sizes = counts[example[order]]
        kept = ranges(edges[example[order]], sizes)
        inner = op[kept]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        return replace(bars, pattern=pattern), GanttPatterns(
            ends, begin_s[kept], end_s[kept], self.colour[inner], self.name[inner].astype(np.int64)
        )


def _reduced(function: np.ufunc, column: NDArray[np.generic], first: Longs, stop: Longs) -> Longs:
    """Applies a function such as `np.minimum` to the values `first[i] : stop[i]`."""
    # Every second range is a hole between bars, or empty: reduceat then gives the value that it begins with.
    edges = np.stack([first, stop], axis=1).ravel()
    values: Longs = function.reduceat(np.append(column, column[-1:]), edges)[::2].astype(np.int64)
    return values


def _common(column: NDArray[np.generic], first: Longs, stop: Longs) -> Longs:
    """Returns the value that the ops of a bar share, -1 where they differ."""
    low, high = _reduced(np.minimum, column, first, stop), _reduced(np.maximum, column, first, stop)
    return np.where(low == high, low, -1)
