"""Contracts a step to the level of actions: ops that only wait for each other are one op.

The time of the step stays the same. A unit is contracted if nothing outside it waits for an op within it, and no op
within it waits for anything but the unit before it and other ops of its own. Its items run one after the other on the
compute lane, and concurrent calls have ended before the unit does. Then it takes the same time whenever it begins. A
collective starts for all its members at once if these behave identically, which `simulation.action_level` checks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from foretrace.schedules import ActionKind
from foretrace.step.segments import PHASES, Segment, UnitPart, items_of, parts_of
from foretrace.step.spec import Call, Compute, Item, StepSpec, Work
from foretrace.step.units import sync_gap_s


class UnitSeconds(Protocol):
    """The seconds of works that run alone."""

    def seconds(self, work: Work, kind: ActionKind) -> float | None:
        """Returns how long a work's items take in an action, from the begin of the first to the end of the last.

        They are the items of `step.segments.items_of`. Each has its price alone; those on the compute lane run one
        after the other, and a concurrent call runs next to the computation that it names. Where no call is concurrent,
        this is the sum. Gaps after computations that the host waits for (`Compute.syncs_host`) do not count. None means
        that the seconds are not known, or not the same for all ranks; the items are then written op by op.
        """


def contractible(spec: StepSpec) -> bool:
    """Returns whether each stage has one role, so that all ranks of a stage do the same."""
    return len({role.stage for role in spec.roles}) == len(spec.roles)


class Contraction:
    """Gives the contracted parts of a step's units, whose works take what `seconds` says."""

    def __init__(self, spec: StepSpec, seconds: UnitSeconds) -> None:
        self.source, self.launches = seconds, spec.launches
        self._busy = _busy_axes(spec)
        self._seconds: dict[tuple[int, ActionKind], float | None] = {}

    def parts(self, work: Work, kind: ActionKind, items: Sequence[Item]) -> list[UnitPart] | None:
        """Returns a unit's parts with all items of its work as one; None where it cannot be contracted.

        Args:
            work: The unit's work.
            kind: The action.
            items: The items of the unit, which may have others around those of its work.
        """
        seconds = self.work_s(work, kind)
        if seconds is None:
            return None
        own = items_of(work, kind)
        if len(items) == len(own):
            return [_segment(work.name, kind, seconds)] if own else []
        before = next(at for at in range(len(items)) if items[at] is own[0]) if own else len(items)
        after = before + len(own)
        return [*parts_of(items[:before]), _segment(work.name, kind, seconds), *parts_of(items[after:])]

    def work_s(self, work: Work, kind: ActionKind) -> float | None:
        """Returns the seconds of a work as one op, with the gaps in which the host is waited for; None: not one op."""
        key = id(work), kind
        if key not in self._seconds:
            self._seconds[key] = self._contracted_s(work, kind)
        return self._seconds[key]

    def _contracted_s(self, work: Work, kind: ActionKind) -> float | None:
        items = items_of(work, kind)
        if not items:
            return 0.0
        if not ends_alone(items) or any(
            isinstance(item, Call) and item.concurrent is not None and item.axis in self._busy for item in items
        ):
            return None
        seconds = self.source.seconds(work, kind)
        if seconds is None or self.launches is None:
            return seconds
        waits = sum(isinstance(item, Compute) and item.syncs_host for item in items)
        # A gap next to a concurrent call might hide it.
        if waits and any(isinstance(item, Call) and item.concurrent is not None for item in items):
            return None
        return seconds + waits * sync_gap_s(self.launches.seconds)


def ends_alone(items: Sequence[Item]) -> bool:
    """Returns whether all calls next to a unit's computations have been waited for when the unit ends."""
    # Whether a call is waited for by the next item, the one after it, the unit's end.
    waits = later = ends_phase = False
    for item in items:
        concurrent = item.concurrent if isinstance(item, Call) else None
        if concurrent == "step":
            return False
        if concurrent == "phase":
            ends_phase = True
        elif concurrent == "next":
            later = True
        elif concurrent == "previous":
            waits = True
        elif isinstance(item, Compute):
            waits, later = later, False
        else:
            waits = later = False
    return not (waits or later or ends_phase)


def _busy_axes(spec: StepSpec) -> set[str]:
    """Returns the axes with calls that run next to several units, and may hold up calls that run next to one."""
    chunks = {
        id(form): form for role in spec.roles for variants in role.chunks for chunk in variants for form in chunk.forms
    }
    works = {id(unit.work): unit.work for chunk in chunks.values() for unit in chunk.units}
    items = [item for work in works.values() for item in (*work.forward, *work.recompute, *work.backward)]
    axes = {item.axis for item in items if isinstance(item, Call) and item.concurrent == "step"}
    for role in spec.roles:
        for end in role.end:
            if isinstance(end.item, Call) and end.lane != "compute":
                axes.add(end.item.axis)
        axes.update(item.axis for cut in role.cuts for item in cut.items if isinstance(item, Call))
    return axes | ({"dp", "shard", "edp", "replicate"} if spec.sharding else set())


@dataclass(frozen=True, slots=True)
class ContractedUnits:
    """The contracted units of an action, by their numbers in its order.

    Attributes:
        parts: The parts of those that are contracted, with the seconds of units joined to them.
        joined: Those that are written as one op with the one before.
    """

    parts: dict[int, list[UnitPart]]
    joined: frozenset[int]


def join_units(
    parts: Sequence[list[UnitPart] | None], present: Sequence[bool], tied: Collection[int], kind: ActionKind
) -> ContractedUnits:
    """Joins neighbouring units that are contracted to one part each.

    Args:
        parts: The contracted parts of each unit in the order of the action; None where it is not contracted.
        present: Whether a unit is written at all.
        tied: Units that wait for something when they begin (forward), or for whose end something waits (backward).
        kind: The action.
    """
    contracted: dict[int, list[UnitPart]] = {}
    joined: set[int] = set()
    head, total_s = -1, 0.0  # the unit that others are joined to, and the seconds of all of them
    forward = kind == ActionKind.FORWARD
    for at, (own, is_present) in enumerate(zip(parts, present, strict=True)):
        if forward and at in tied:
            head = -1
        if is_present:
            seconds = _single_s(own)
            if seconds is None:
                head = -1
                if own is not None:
                    contracted[at] = own
            elif head < 0:
                head, total_s = at, seconds
                contracted[at] = [_segment("unit", kind, seconds)]
            else:
                total_s += seconds
                joined.add(at)
                contracted[head] = [_segment("units", kind, total_s)]
        if not forward and at in tied:
            head = -1
    return ContractedUnits(contracted, frozenset(joined))


def _single_s(parts: list[UnitPart] | None) -> float | None:
    """Returns the seconds of a unit that is contracted to one part, or to none."""
    if parts is None or len(parts) > 1:
        return None
    return sum(item.seconds for part in parts if isinstance(part, Segment) for item in part.items)


def _segment(name: str, kind: ActionKind, seconds: float) -> Segment:
    return Segment((Compute(name, PHASES[kind], seconds=seconds),))
