"""Compares two traces of the same job: ops and kernels by name, in one step of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.viewable import Viewable
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory
from foretrace.readings.profiler_views.rank import Rank
from foretrace.readings.profiler_views.statistics import tally

_HOST = (EventCategory.CPU_OP, EventCategory.RUNTIME, EventCategory.ANNOTATION)


@dataclass(frozen=True, slots=True)
class Change:
    """One op or kernel in a step before and after; counts and seconds are means over the steps and ranks looked at."""

    name: str
    side: Literal["host", "device"]
    before_count: float
    after_count: float
    before_s: float
    after_s: float

    @property
    def change_s(self) -> float:
        """How much longer it takes."""
        return self.after_s - self.before_s

    @property
    def what(self) -> str:
        """added, removed, more, fewer or same: how its count changed."""
        if self.before_count == 0:
            return "added"
        if self.after_count == 0:
            return "removed"
        if self.before_count == self.after_count:
            return "same"
        return "more" if self.after_count > self.before_count else "fewer"


@dataclass(frozen=True, slots=True)
class TraceDiff(Viewable):
    """The changes between two traces, the largest change of time first; host ops nest, so do not add up their times."""

    before_steps: int
    after_steps: int
    before_step_s: float
    after_step_s: float
    changes: tuple[Change, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    """Those of both traces, each with the trace that it is of."""

    def of(self, side: Literal["host", "device"]) -> tuple[Change, ...]:
        """Returns only ops, or only kernels."""
        return tuple(change for change in self.changes if change.side == side)


_Totals = dict[tuple[str, Literal["host", "device"]], tuple[float, float]]


def diff(before: Sequence[Rank], after: Sequence[Rank], step: str | None = None) -> TraceDiff:
    """Compares two traces step by step on average, or one step by its name."""
    first, first_steps, first_s = _means(before, step)
    second, second_steps, second_s = _means(after, step)
    changes = []
    for key in dict.fromkeys((*first, *second)):
        before_count, before_s = first.get(key, (0.0, 0.0))
        after_count, after_s = second.get(key, (0.0, 0.0))
        changes.append(Change(*key, before_count, after_count, before_s, after_s))
    changes.sort(key=lambda change: (-abs(change.change_s), change.name))
    return TraceDiff(first_steps, second_steps, first_s, second_s, tuple(changes))


def _means(ranks: Sequence[Rank], step_name: str | None) -> tuple[_Totals, int, float]:
    """Returns count and seconds of each op and kernel in a step, the number of steps, and how long a step takes."""
    totals: dict[tuple[str, Literal["host", "device"]], list[float]] = {}
    looked, lengths_s = 0, []
    for rank in ranks:
        chosen = _steps(rank, step_name)
        looked += len(chosen)
        lengths_s += rank.counted_steps.each_s[chosen].tolist()
        events = rank.trace.events
        inside = np.isin(rank.steps.of_event, chosen)
        sides: tuple[tuple[Literal["host", "device"], tuple[EventCategory, ...]], ...] = (
            ("host", _HOST),
            ("device", ON_DEVICE),
        )
        for side, categories in sides:
            at = events.of(*categories)
            at = at[inside[at]]
            tallied = tally(events.name[at], events.duration_s[at])
            for name, count, total_s in zip(
                tallied.group.tolist(), tallied.count.tolist(), tallied.total_s.tolist(), strict=True
            ):
                sums = totals.setdefault((rank.trace.strings[name], side), [0.0, 0.0])
                sums[0] += count
                sums[1] += total_s
    looked = max(looked, 1)
    means: _Totals = {key: (count / looked, total_s / looked) for key, (count, total_s) in totals.items()}
    return means, looked, float(np.mean(lengths_s)) if lengths_s else 0.0


def _steps(rank: Rank, step_name: str | None) -> Longs:
    """Returns the steps to look at: the one of this name, else those that count."""
    if step_name is None:
        return rank.counted
    return np.array([number for number, name in enumerate(rank.steps.names) if name == step_name], dtype=np.int64)
