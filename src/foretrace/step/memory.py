"""Finds the peak of every stage's memory without running the step.

Every byte is taken and given back on the compute lane, as `memory_rules.py` says, so that the order of the schedule
decides the peak. An action's memory is found once for each chunk and kind, relative to its beginning; a stage is then
a sum over its actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.program.columns import Category, label, word
from foretrace.schedules import ActionKind
from foretrace.step.end import turns_of
from foretrace.step.memory_rules import (
    NO_PART,
    BytesByCategory,
    Memory,
    MemoryRules,
    add_bytes,
    lane_memory,
    temporaries,
)
from foretrace.step.segments import CLOSES, Segment, UnitPart, cut_parts, items_of, parts_of
from foretrace.step.sharding import GRADIENT_BUFFERS, ShardedUnits
from foretrace.step.spec import Cut, Item, RoleSpec, StepSpec, Unit, Work


@dataclass(frozen=True, slots=True)
class SchedulePlace:
    """A unit of an action in the schedule of a stage.

    Attributes:
        kind: Whether the action is a forward or a backward, and which.
        microbatch: Its microbatch.
        chunk: The chunk of the stage.
        unit: The number of the unit in the chunk, in the order of the forward.
        layer: The number of the unit's layer within the chunk; -1 for an end of the model.
    """

    kind: ActionKind
    microbatch: int
    chunk: int
    unit: int
    layer: int


@dataclass(frozen=True, slots=True)
class StagePeak:
    """The most memory that the ranks of a role hold at any moment of a step.

    Attributes:
        role: The name of the role.
        stage: Its stage.
        peak_bytes: All categories together.
        by_category: The bytes held at the peak, by category.
        place: Where in the schedule the peak is first reached; None where no unit takes memory, or where it is at the
            end of the step.
        exact: Whether a run of the step reaches this peak; otherwise it stays at or below it.
    """

    role: str
    stage: int
    peak_bytes: int
    by_category: dict[str, int]
    place: SchedulePlace | None
    exact: bool


def stage_peaks(spec: StepSpec) -> tuple[StagePeak, ...]:
    """Returns the peak of every role of a step, by the order of its schedule alone.

    The peaks equal those of a run of `build_step(spec)` to the byte, unless parameters are split (ZeRO-3). Then gathers
    and reductions run on a lane of their own, and the result is an upper bound (`exact` is False): gathers count from
    the moment they may begin, reductions until the compute lane has waited for them, for a later call of that lane or
    for the end of the step.

    A step begins with what is `resident`; frees of end items belong to the compute lane.
    """
    walk = _Walk(spec)
    known: dict[tuple[object, ...], StagePeak] = {}
    peaks = []
    for role in spec.roles:
        chunks = [id(chunk) for variants in role.chunks for chunk in variants]
        key = (role.stage, *chunks, id(role.end), id(role.cuts), *sorted(role.resident.items()))
        peak = known.get(key)
        if peak is None:
            peak = known[key] = walk.peak(role)
        peaks.append(peak if peak.role == role.name else replace(peak, role=role.name))
    return tuple(peaks)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleMemory:
    """The memory of a role's schedule apart from the end of its step, relative to what is held from step to step.

    Attributes:
        peak_bytes: The most of all categories together.
        net_bytes: By how much all of them together have changed at its end.
        low: The least of each `Category` at any moment; negative where a schedule frees what it did not take.
    """

    peak_bytes: int
    net_bytes: int
    low: Longs


def schedule_memory(spec: StepSpec) -> tuple[ScheduleMemory, ...]:
    """Returns the memory of the schedule of every role, as `stage_peaks` has it before it adds what is `resident`."""
    walk = _Walk(spec)
    wholes = [walk.schedule_of(role)[0] for role in spec.roles]
    return tuple(ScheduleMemory(whole.peak, int(whole.net.sum()), whole.low) for whole in wholes)


def unit_peak_bytes(work: Work, kind: ActionKind, gradient_bytes: int = 0) -> int:
    """Returns the peak of a unit in an action, relative to its beginning, where parameters are whole.

    Args:
        work: The work of the unit.
        kind: The kind of action.
        gradient_bytes: The size of each gradient that the action allocates, if any.
    """
    memory = MemoryRules(None, gradient_bytes).unit(Unit(work), kind, allocates_gradients=gradient_bytes > 0)
    level = peak = 0
    for allocated, freed in _lane_changes(parts_of(items_of(work, kind)), memory):
        level += sum(allocated.values())
        peak = max(peak, level)
        level -= sum(freed.values())
    return peak


@dataclass(frozen=True, slots=True, eq=False)
class _Profile:
    """The memory of a part of a step, relative to its beginning, by category.

    Attributes:
        net: By how much memory has changed at its end.
        low: The least of each category at any moment.
        at_peak: The memory when all of it together is at its peak, which is not below the beginning.
        peak: The sum of `at_peak`.
        place: Which of the profiles it is made of has the peak.
    """

    net: Longs
    low: Longs
    at_peak: Longs
    peak: int
    place: int = 0


def _event(allocated: BytesByCategory, freed: BytesByCategory) -> _Profile:
    """Returns the profile of an op that takes memory and then gives memory back."""
    at_peak = _vector(allocated)
    net = at_peak - _vector(freed)
    return _Profile(net, np.minimum(net, 0), at_peak, int(at_peak.sum()))


def _in_turn(profiles: Sequence[_Profile], order: Longs | None = None) -> _Profile:
    """Returns the profile of `profiles[order[0]]`, `profiles[order[1]]`, … one after the other; by default of all."""
    if not profiles:
        return _event({}, {})
    if order is None:
        distinct = {id(each): each for each in profiles}
        number = {key: at for at, key in enumerate(distinct)}
        order, profiles = np.array([number[id(each)] for each in profiles]), list(distinct.values())
    net, lows = np.array([each.net for each in profiles]), np.array([each.low for each in profiles])
    changes = net.sum(axis=1)[order]
    totals = np.cumsum(changes) - changes + np.array([each.peak for each in profiles])[order]
    place = int(np.argmax(totals))
    before = np.bincount(order[:place], minlength=len(profiles)) @ net
    low = lows.min(axis=0)
    for category in np.flatnonzero(net.any(axis=0)).tolist():  # mostly one, activations
        change = net[order, category]
        low[category] = (np.cumsum(change) - change + lows[order, category]).min()
    whole = np.bincount(order, minlength=len(profiles)) @ net
    return _Profile(whole, low, before + profiles[order[place]].at_peak, int(totals[place]), place)


def _vector(sizes: BytesByCategory) -> Longs:
    vector = np.zeros(len(Category), dtype=np.int64)
    for category, size in sizes.items():
        vector[word(Category, category)] += size
    return vector


@dataclass(frozen=True, slots=True, eq=False)
class _Action:
    """The memory of an action.

    Attributes:
        before: The part before it first waits for a gather or a reduction; all of it where it waits for none.
        after: The rest. When it begins, reductions of earlier actions have ended.
        units: The unit of each element of both parts, in the order in which they run.
        first_after: The first of them that belongs to `after`.
        reducing_bytes: Buffers of its own reductions that may not have ended when it ends.
    """

    before: _Profile
    after: _Profile | None
    units: tuple[int, ...]
    first_after: int
    reducing_bytes: int

    @classmethod
    def of(cls, elements: Sequence[tuple[int, _Profile]], wait: int | None, reducing_bytes: int) -> _Action:
        """Returns the action whose elements, each with its unit, first wait for a call at number `wait`."""
        profiles, units = [profile for _, profile in elements], tuple(unit for unit, _ in elements)
        if wait is None:
            return cls(_in_turn(profiles), None, units, len(profiles), reducing_bytes)
        return cls(_in_turn(profiles[:wait]), _in_turn(profiles[wait:]), units, wait, reducing_bytes)

    def unit(self, part: int) -> int:
        """Returns the unit in which the first or the second part has its peak."""
        if part and self.after:
            return self.units[self.first_after + self.after.place]
        return self.units[self.before.place]


@dataclass(frozen=True, slots=True)
class _Moves:
    """The memory that an action fetches for a unit, and what the reduction of its gradients takes and gives back."""

    fetched: BytesByCategory
    gathers: bool = False
    reduces: bool = False
    reduction_bytes: tuple[int, int] = (0, 0)


_LaneCall = tuple[Literal["gather", "reduce"], int]
"""A call for a unit, by the unit's place in the action."""


class _GatherLane:
    """Bounds the memory of gathers and reductions, which run in the order of issue, at unknown times.

    Between what has ended for sure and what has been issued, the lane may be anywhere. Its memory is at most
    `slack_bytes` above that with everything ended.
    """

    def __init__(self) -> None:
        self.slack_bytes = 0
        self._open: list[tuple[_LaneCall, int, int]] = []

    def issue(self, call: _LaneCall, rise: int, net: int) -> int:
        """Adds a call that takes `rise` bytes and has changed memory by `net` when it has ended.

        Returns by how much the bound grows.
        """
        before = self.slack_bytes
        self._open.append((call, rise, net))
        self.slack_bytes = max(before, rise) - net
        return net + self.slack_bytes - before

    def wait(self, call: _LaneCall) -> int:
        """Ends all calls up to `call`. Returns by how much the bound grows, which is never above 0."""
        before, self.slack_bytes = self.slack_bytes, 0
        for at in range(len(self._open) - 1, -1, -1):
            if self._open[at][0] == call:
                del self._open[: at + 1]
                break
        for _, rise, net in self._open:
            self.slack_bytes = max(self.slack_bytes, rise) - net
        return self.slack_bytes - before

    def state(self, place: int) -> tuple[object, ...]:
        """Returns what further calls depend on, with units numbered from that at `place`."""
        calls = [(what, unit - place, rise, net) for (what, unit), rise, net in self._open]
        return self.slack_bytes, *calls

    def skip(self, units: int) -> None:
        """Goes on to a unit further on, at which the state of the lane is the same."""
        self._open = [((what, unit + units), rise, net) for (what, unit), rise, net in self._open]


def _runs(moves: Sequence[_Moves], profiles: Sequence[_Profile]) -> list[range]:
    """Returns for each unit the run of units around it that move the same and have the same profile."""
    runs: list[range] = []
    for _, group in groupby(range(len(moves)), lambda at: (id(moves[at]), id(profiles[at]))):
        places = list(group)
        runs += [range(places[0], places[-1] + 1)] * len(places)
    return runs


class _Walk:
    """Finds the profiles of one step. Works and chunks that are the same object have one profile for each kind."""

    def __init__(self, spec: StepSpec) -> None:
        self.spec, self.schedule = spec, spec.schedule
        self.sharded = ShardedUnits(spec.sharding, {}) if spec.sharding else None
        self.rules = MemoryRules(self.sharded, spec.gradient_bytes)
        direction = self.schedule.direction.tolist()
        self._first_microbatch = np.array([direction.index(way) for way in self.schedule.chunk_direction.tolist()])
        self._units: dict[tuple[object, ...], _Profile] = {}
        self._actions: dict[tuple[object, ...], _Action] = {}
        self._changes: dict[tuple[str, int], _Profile] = {}

    def peak(self, role: RoleSpec) -> StagePeak:
        """Returns the peak of a role."""
        whole, reducing_bytes, place = self.schedule_of(role)
        resident = _vector(role.resident) + _vector({"buffers": reducing_bytes})
        ends = [end for end in role.end if end.takes or end.frees]
        step = _in_turn([whole, *(_event(end.takes, end.frees) for end in ends)])
        held = resident + np.maximum(-(resident + step.low), 0)  # what is freed before it is taken was held from before
        held += step.at_peak
        exact = self.sharded is None or not self.sharded.spec.gathers
        exact = exact and all(end.lane == "compute" for end in ends)
        by_category = {label(category): int(held[category]) for category in Category if held[category]}
        at_unit = place if step.place == 0 and step.peak > 0 else None
        return StagePeak(role.name, role.stage, int(held.sum()), by_category, at_unit, exact)

    def schedule_of(self, role: RoleSpec) -> tuple[_Profile, int, SchedulePlace | None]:
        """Returns the profile of a role's schedule, without the end of its step.

        Returns also the bytes of reductions that go on in the next step, and where the peak is.
        """
        numbers, actions = self._actions_of(role)
        carried_bytes = 0
        if self.sharded and self.sharded.spec.gathers:
            profiles, order, turns, reducing_bytes = _with_reductions(actions, numbers.tolist())
            if not any(end.after_reductions for end in role.end):
                carried_bytes = reducing_bytes
            whole = _in_turn(profiles, order)
            row, part = turns[whole.place]
        else:
            whole = _in_turn([action.before for action in actions], numbers)
            row, part = whole.place, 0
        if whole.peak <= 0:
            return whole, carried_bytes, None
        kind, microbatch, chunk = self.schedule.stage_actions[role.stage].action(row)
        unit = actions[int(numbers[row])].unit(part)
        layer = role.chunks[chunk][self.spec.variants[microbatch % len(self.spec.variants)]].units[unit].layer
        return whole, carried_bytes, SchedulePlace(kind, microbatch, chunk, unit, layer)

    def _actions_of(self, role: RoleSpec) -> tuple[Longs, list[_Action]]:
        """Returns which of the distinct actions each row of a role's schedule is, and these."""
        spec, rows = self.spec, self.schedule.stage_actions[role.stage]
        variants = np.array(spec.variants)
        variant = variants[rows.microbatch % len(variants)]
        # The first backward of a chunk allocates gradients, the last one has cuts.
        first, last = np.zeros((2, len(rows)), dtype=np.int64)
        if spec.gradient_bytes:
            first[:] = (rows.microbatch == self._first_microbatch[rows.chunk]) & np.isin(rows.kind, CLOSES)
        if role.cuts:
            last[list(turns_of(self.schedule)[role.stage].finals.values())] = 1
        code = ((rows.chunk * (1 + variants.max()) + variant) * len(ActionKind) + rows.kind) * 4 + 2 * first + last
        _, examples, numbers = np.unique(code, return_index=True, return_inverse=True)
        actions = []
        columns = (column[examples].tolist() for column in (rows.kind, rows.chunk, variant, first, last))
        for kind, number, which, allocates, has_cuts in zip(*columns, strict=True):
            chunk = role.chunks[number][which]
            cuts = [cut for cut in role.cuts if cut.chunk == number] if has_cuts else []
            key = (id(chunk), kind, allocates, (id(role.cuts), number) if cuts else 0)
            if key not in self._actions:
                self._actions[key] = self._action(chunk.units, ActionKind(kind), bool(allocates), cuts)
            actions.append(self._actions[key])
        return numbers, actions

    def _action(self, units: Sequence[Unit], kind: ActionKind, allocates: bool, cuts: Sequence[Cut]) -> _Action:
        """Walks the units of an action as `build_step` writes them: what is fetched ahead, then a unit, then what goes
        away."""
        forward = kind == ActionKind.FORWARD
        numbers = range(len(units)) if forward else range(len(units))[::-1]
        units = [units[number] for number in numbers]
        moves, profiles = self._of_units(units, kind, allocates)
        ahead = self.spec.prefetch[0 if forward else 1] if any(unit.fetched or unit.gathers for unit in moves) else 0
        if cuts:
            parts = cut_parts([self._items(unit.work, kind) for unit in units], cuts)
            memory = [self.rules.unit(unit, kind, allocates_gradients=allocates) for unit in units]
            profiles = [_unit_profile(*unit) for unit in zip(parts, memory, strict=True)]
        elements: list[tuple[int, _Profile]] = []
        lane, wait, leaving_bytes = _GatherLane(), None, 0
        runs, at = _runs(moves, profiles), -ahead
        lane_state: tuple[object, ...] = ()
        while at < len(units):
            begin = len(elements)
            if (coming := at + ahead) < len(units) and ((unit := moves[coming]).fetched or unit.gathers):
                sizes = dict(unit.fetched)
                if unit.gathers:
                    size = sizes.get("buffers", 0)
                    sizes["buffers"] = lane.issue(("gather", coming), size, size)
                elements += [(coming, self._change(category, size)) for category, size in sizes.items()]
            if at < 0:
                at += 1
                continue
            waits: list[_LaneCall] = [("gather", at)] if moves[at].gathers else []
            if at >= GRADIENT_BUFFERS and moves[at - GRADIENT_BUFFERS].reduces:
                waits.append(("reduce", at - GRADIENT_BUFFERS))
            if waits:
                wait = len(elements) if wait is None else wait
                ended_bytes = sum(lane.wait(call) for call in waits)
                elements.append((at, self._change("buffers", ended_bytes)))
            elements.append((at, profiles[at]))
            if leaving_bytes:
                elements.append((at, self._change("activations", -leaving_bytes)))
            leaving_bytes = units[at].offloaded_bytes if forward else 0
            if moves[at].reduces:
                copied, freed = moves[at].reduction_bytes
                size = lane.issue(("reduce", at), copied, copied - freed)
                elements.append((at, self._change("buffers", size)))
            before, lane_state = lane_state, lane.state(at)
            again = runs[at].stop - 1 - coming
            if again > 0 and at - GRADIENT_BUFFERS >= runs[at].start and lane_state == before:
                # All that this unit has met, the next ones of its run meet again.
                repeated = elements[begin:]
                elements += [(place + turn, change) for turn in range(1, again + 1) for place, change in repeated]
                lane.skip(again)
                at += again
            at += 1
        if leaving_bytes:
            elements.append((len(units) - 1, self._change("activations", -leaving_bytes)))
        return _Action.of([(numbers[place], change) for place, change in elements], wait, lane.slack_bytes)

    def _of_units(
        self, units: Sequence[Unit], kind: ActionKind, allocates: bool
    ) -> tuple[list[_Moves], list[_Profile]]:
        """Returns what an action moves for each unit, and the profile of each. Units that do the same share both."""
        known: dict[tuple[object, ...], tuple[_Moves, _Profile]] = {}
        each = []
        for unit in units:
            key = (id(unit.work), unit.layer < 0, unit.offloaded)
            if key not in known:
                known[key] = self._moves(unit, kind), self._unit(unit, kind, allocates)
            each.append(known[key])
        return [moves for moves, _ in each], [profile for _, profile in each]

    def _moves(self, unit: Unit, kind: ActionKind) -> _Moves:
        """Returns what an action fetches for a unit and sends away."""
        fetched, sharded = self.rules.fetched(unit, kind), self.sharded
        if not sharded or not sharded.spec.gathers or not sharded.reduces(unit):
            return _Moves(fetched)
        return _Moves(fetched, sharded.gathers(unit, kind), kind in CLOSES, sharded.reduction_bytes(unit))

    def _change(self, category: str, size: int) -> _Profile:
        """Returns the profile of an op that takes `size` bytes, or gives them back where that is negative."""
        key = category, size
        if key not in self._changes:
            self._changes[key] = _event({category: size}, {}) if size > 0 else _event({}, {category: -size})
        return self._changes[key]

    def _unit(self, unit: Unit, kind: ActionKind, allocates: bool) -> _Profile:
        """Returns the profile of a unit in an action, without what is fetched before it or goes away after it."""
        key = (id(unit.work), kind, allocates, unit.layer < 0)
        if key not in self._units:
            memory = self.rules.unit(unit, kind, allocates_gradients=allocates)
            self._units[key] = _unit_profile(parts_of(self._items(unit.work, kind)), memory)
        return self._units[key]

    def _items(self, work: Work, kind: ActionKind) -> Sequence[Item]:
        items = items_of(work, kind)
        return items if self.sharded is None else self.sharded.with_copies(work, kind, items)


def _unit_profile(parts: Sequence[UnitPart], memory: Memory) -> _Profile:
    """Returns the profile of a unit's parts on the compute lane."""
    return _in_turn([_event(allocated, freed) for allocated, freed in _lane_changes(parts, memory)])


def _lane_changes(parts: Sequence[UnitPart], memory: Memory) -> Iterator[tuple[BytesByCategory, BytesByCategory]]:
    """Yields what each part of a unit on the compute lane takes and then gives back, temporaries included."""
    for at, (allocated, freed) in lane_memory(parts, memory).items():
        part = parts[at] if at != NO_PART else None
        held = temporaries(part.temporary_bytes) if isinstance(part, Segment) else {}
        if held:
            yield add_bytes(allocated, held), add_bytes(freed, held)
        elif allocated or freed:
            yield allocated, freed


def _with_reductions(
    actions: Sequence[_Action], numbers: Sequence[int]
) -> tuple[list[_Profile], Longs, list[tuple[int, int]], int]:
    """Returns the profiles of a stage's actions, with the ends of reductions that go on into the next action.

    Returns also their order, for each the row of the schedule and the part of the action, and the bytes of reductions
    that go on after all of them.
    """
    profiles = [part for action in actions for part in (action.before, action.after or action.before)]
    order, turns, ends = list[int](), list[tuple[int, int]](), dict[int, int]()
    reducing_bytes = 0
    for row, number in enumerate(numbers):
        action = actions[number]
        order.append(2 * number)
        turns.append((row, 0))
        if action.after:
            if reducing_bytes not in ends:
                ends[reducing_bytes] = len(profiles)
                profiles.append(_event({}, {"buffers": reducing_bytes}))
            order += [ends[reducing_bytes], 2 * number + 1]
            turns += [(row, 0), (row, 1)]
            reducing_bytes = 0
        reducing_bytes += action.reducing_bytes
    return profiles, np.array(order), turns, reducing_bytes
