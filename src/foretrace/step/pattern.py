"""The pattern of a contracted step: its program with all durations left open, which steps of the same shape share.

A search runs thousands of steps that differ in seconds only. The order of their ops is found once for each shape. A
step has a shape if all its units are contracted: without sharded parameters, offloading and cuts. All ranks of a stage
do the same, so one rank of each stage is enough.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.mesh import Mesh
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Program
from foretrace.schedules import ActionKind, Schedule
from foretrace.step.build import TrainingStepWriter, transfers_of
from foretrace.step.contract import Contraction
from foretrace.step.memory_rules import MemoryRules
from foretrace.step.segments import count_launches, items_of, parts_of
from foretrace.step.spec import Call, ChunkSpec, EndItem, StepSpec, Unit
from foretrace.step.units import needs_begin

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A message between two stages: one way, or an exchange."""

    exchanged: bool
    source: int
    target: int


@dataclass(frozen=True, slots=True, eq=False)
class ActionFacts:
    """The work of a chunk in an action: the seconds of each unit, and how many launches of the host they need."""

    unit_s: tuple[float, ...]
    present: tuple[bool, ...]
    launches: float


@dataclass(frozen=True, slots=True, eq=False)
class PatternKey:
    """A step whose units are all contracted.

    Attributes:
        key: Equal for steps whose programs differ in durations only.
        chunks: The different chunks.
        ends: The different ends of stages.
        facts: What each chunk does in each kind of action, by the number of the chunk.
    """

    key: Hashable
    chunks: tuple[ChunkSpec, ...]
    ends: tuple[Sequence[EndItem], ...]
    facts: dict[tuple[int, ActionKind], ActionFacts]

    @classmethod
    def of(cls, spec: StepSpec, contraction: Contraction) -> PatternKey | None:
        """Returns the shape of a step; None where it has units that are not contracted."""
        launches = spec.launches
        if spec.sharding is not None or (spec.mesh.pp == 1 and launches is not None and launches.graphs != "full"):
            return None
        chunks: dict[int, ChunkSpec] = {}
        ends: dict[int, Sequence[EndItem]] = {}
        roles = []
        for role in spec.roles:
            if role.cuts:
                return None
            numbers = tuple(
                tuple(tuple(_number(chunks, form) for form in chunk.forms) for chunk in variants)
                for variants in role.chunks
            )
            roles.append((role.stage, numbers, _number(ends, role.end)))
        facts: dict[tuple[int, ActionKind], ActionFacts] = {}
        works = _WorkFacts(spec, contraction)
        for number, chunk in enumerate(chunks.values()):
            for kind in _kinds(spec.schedule):
                of_chunk = works.action(chunk, kind)
                if of_chunk is None:
                    return None
                facts[number, kind] = of_chunk
        key = (
            (spec.schedule, transfers_of(spec), spec.variants, spec.repeats, spec.end_waits_for_transfers),
            tuple(roles),
            tuple((place, of_chunk.present, of_chunk.launches > 0) for place, of_chunk in facts.items()),
            tuple(tuple(map(_signature, end)) for end in ends.values()),
        )
        return cls(key, tuple(chunks.values()), tuple(ends.values()), facts)


class _WorkFacts:
    """Finds the facts of works once for each."""

    def __init__(self, spec: StepSpec, contraction: Contraction) -> None:
        self.spec, self.contraction = spec, contraction
        self.rules = MemoryRules(None, spec.gradient_bytes)
        self.gathers = any(end.before is not None for role in spec.roles for end in role.end)
        self._known: dict[tuple[int, ActionKind], tuple[float | None, float, bool, bool]] = {}

    def action(self, chunk: ChunkSpec, kind: ActionKind) -> ActionFacts | None:
        """Returns what a chunk does in an action; None where a unit is not contracted."""
        units = chunk.units if kind == ActionKind.FORWARD else chunk.units[::-1]
        unit_s: list[float] = []
        present: list[bool] = []
        launches = 0.0
        for unit in units:
            seconds, count, is_present, begins = self._unit(unit, kind)
            # A call at the very beginning of an action does not wait for the host, nor for gathered parameters.
            waits = not any(present) or (self.gathers and kind == ActionKind.FORWARD)
            if seconds is None or unit.offloaded_bytes or (begins and waits):
                return None
            unit_s.append(seconds)
            present.append(is_present)
            launches += count
        if kind != ActionKind.FORWARD:
            unit_s.reverse()
            present.reverse()
        return ActionFacts(tuple(unit_s), tuple(present), launches)

    def _unit(self, unit: Unit, kind: ActionKind) -> tuple[float | None, float, bool, bool]:
        """Returns a unit's seconds, its launches, whether it has ops, and whether a call comes before its first one."""
        key = id(unit.work), kind
        if key not in self._known:
            items, graphs = items_of(unit.work, kind), self.spec.launches
            seconds = self.contraction.work_s(unit.work, kind)
            count = 0 if graphs is None else count_launches(items, graphs.graphs)
            present = bool(items) or bool(self.rules.unit(unit, kind, allocates_gradients=False))
            calls = any(isinstance(item, Call) and item.concurrent is not None for item in items)
            self._known[key] = seconds, count, present, calls and needs_begin(parts_of(items))
        return self._known[key]


@dataclass(frozen=True, slots=True, eq=False)
class _ActionOps:
    """The templates of an action's block: the op of each unit, and the first launch of the host (-1: none)."""

    place: tuple[int, ActionKind]
    units: Longs
    launch: int


@dataclass(frozen=True, slots=True, eq=False)
class StepPattern:
    """Which templates of a shape's program stand for what.

    Attributes:
        templates: The number of templates.
        actions: The blocks of actions.
        messages: The different messages between stages.
        message_op: The templates that are ends of messages.
        message_of: Which of `messages` each of these is.
        ends: The first template of each end of a stage that the program has, by the number of the end.
    """

    templates: int
    actions: tuple[_ActionOps, ...]
    messages: tuple[MessagePlace, ...]
    message_op: Longs
    message_of: Longs
    ends: dict[int, int]

    def durations(
        self, shape: PatternKey, message_s: Sequence[float], end_s: Sequence[Sequence[float]], launch_s: float
    ) -> Floats:
        """Returns the seconds of each template.

        Args:
            shape: A step of this pattern.
            message_s: The seconds of each of `messages`.
            end_s: The seconds of the items of each end of a stage.
            launch_s: The seconds of a launch of the host.
        """
        seconds = np.zeros(self.templates)
        seconds[self.message_op] = np.array(message_s)[self.message_of] if message_s else 0.0
        for number, first in self.ends.items():
            seconds[first : first + len(end_s[number])] = end_s[number]
        for action in self.actions:
            facts = shape.facts[action.place]
            np.add.at(seconds, action.units, facts.unit_s)
            if action.launch >= 0:
                seconds[action.launch : action.launch + 2] = launch_s, (facts.launches - 1) * launch_s
        return seconds


def build_pattern(spec: StepSpec, contraction: Contraction, shape: PatternKey) -> tuple[Program, StepPattern]:
    """Writes the program of a shape with one rank for each stage, and finds what its templates stand for."""
    roles = tuple(replace(role, ranks=(role.stage,)) for role in spec.roles)
    small = replace(spec, mesh=Mesh(pp=spec.mesh.pp), roles=roles)
    build = ProgramBuilder(small.mesh, repeats=spec.repeats)
    writer = TrainingStepWriter(build, small, "segment", contraction)
    messages = writer.write().messages
    program = build.program(checked=False)
    start = program.templates.start.tolist()
    chunk_number = {id(chunk): number for number, chunk in enumerate(shape.chunks)}
    actions = []
    for (kind, _, chunk, *_), block in writer.actions.blocks.items():
        first, place = start[block.number], (chunk_number[chunk], kind)
        units = first + np.array(writer.actions.marks[block.number].first, dtype=np.int64)
        actions.append(_ActionOps(place, units, first if shape.facts[place].launches else -1))
    places: dict[MessagePlace, int] = {}
    message_of = []
    for _, how, channel in messages:
        # An exchange takes the longer of both ways, whoever sends first.
        ends = sorted(channel.ends) if how == "exchange" else channel.ends
        message_of.append(places.setdefault(MessagePlace(how == "exchange", *ends), len(places)))
    pattern = StepPattern(
        templates=start[-1],
        actions=tuple(actions),
        messages=tuple(places),
        message_op=np.array([start[block.number] for block in messages.values()], dtype=np.int64),
        message_of=np.array(message_of, dtype=np.int64),
        ends={number: start[writer.end_block(end).number] for number, end in enumerate(shape.ends) if end},
    )
    return program, pattern


def _number(known: dict[int, Thing], thing: Thing) -> int:
    """Returns the number of a thing among those known, by identity."""
    if id(thing) not in known:
        known[id(thing)] = thing
    return list(known).index(id(thing))


def _kinds(schedule: Schedule) -> Iterable[ActionKind]:
    return [kind for kind in ActionKind if any((rows.kind == kind).any() for rows in schedule.stage_actions)]


def _signature(end: EndItem) -> Hashable:
    """Returns what decides the place of an end item among others, without its seconds."""
    axis = end.item.axis if isinstance(end.item, Call) else type(end.item).__name__
    return axis, end.lane, end.when, end.after, end.after_reductions, end.before, end.before_item
