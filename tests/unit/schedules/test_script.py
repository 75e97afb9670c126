"""Turns of a pipeline as columns, against a slow reference that goes action by action."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Program
from foretrace.schedules import Action, ActionKind, Schedule, StageActions, make, names
from foretrace.schedules.pipeline import BATCHED, Transfer, pipeline
from foretrace.schedules.script import script_of

SIZES = ((1, 2, None), (2, 4, None), (4, 8, None), (4, 8, 3), (3, 9, None), (6, 12, 2), (5, 3, None))

Message = tuple[bool, int, int, int, int]
"""Forward, microbatch, piece, and the stages it goes from and to."""

Wait = tuple[int, int]
"""A turn and which of its actions."""


def schedules() -> list[Schedule]:
    """Every schedule in the sizes that it allows."""
    made = []
    for name in names():
        for stages, microbatches, chunks in SIZES:
            try:
                made.append(make(name, stages, microbatches, chunks))
            except InputError:
                continue
    return made


class Reference:
    """The turns of a stage, one Python object each: label, microbatch, and the waits of each action."""

    def __init__(self, schedule: Schedule, stage: int, together: bool) -> None:
        self.schedule, self.stage, self.together = schedule, stage, together
        self.turns: list[tuple[str, int, list[list[Wait]]]] = []
        self.done: dict[Action, Wait] = {}
        self.slots = list(schedule.actions(stage))

    def message(self, action: Action, *, made: bool) -> Message | None:
        """The message that an action needs or makes, if it crosses to another stage."""
        toward = {ActionKind.FORWARD: 1, ActionKind.BACKWARD_WEIGHT: 0}.get(action.kind, -1)
        piece = int(self.schedule.piece[self.stage, action.chunk])
        first = piece if made else piece - toward
        if not toward or not all(0 <= at < self.schedule.pieces for at in (first, first + toward)):
            return None
        ends = [self.schedule.where(action.microbatch, at)[0] for at in (first, first + toward)]
        if ends[0] == ends[1]:
            return None
        return (toward == 1, action.microbatch, first, *ends)  # type: ignore[return-value]

    def local(self, action: Action) -> list[Wait]:
        """What an action needs of its own stage."""
        _, microbatch, chunk = action
        if action.kind == ActionKind.BACKWARD_WEIGHT or self.message(action, made=False):
            return []
        forward = action.kind == ActionKind.FORWARD
        piece = int(self.schedule.piece[self.stage, chunk]) + (-1 if forward else 1)
        if forward and piece < 0:
            return []
        if not forward and piece == self.schedule.pieces:
            return [self.done[Action(ActionKind.FORWARD, microbatch, chunk)]]
        before = self.schedule.where(microbatch, piece)[1]
        kinds = [ActionKind.FORWARD] if forward else [ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT]
        return [self.done[at] for kind in kinds if (at := Action(kind, microbatch, before)) in self.done]

    def issue(self, word: str, message: Message, waits: list[Wait]) -> Wait:
        """Adds one end of a message."""
        forward, microbatch, _, source, target = message
        ways = ("forward", "backward") if forward else ("backward", "forward")
        label = f"{word} {ways[0]} {source}→{target}"
        if word == "exchange":
            label = f"send {ways[0]}, receive {ways[1]} {min(source, target)}↔{max(source, target)}"
        self.turns.append((label, microbatch, [waits]))
        return len(self.turns) - 1, 0

    def act(self, slot: tuple[Action, ...], waits: list[list[Wait]]) -> None:
        """Adds the actions of a slot."""
        groups = [range(len(slot))] if self.together else [range(at, at + 1) for at in range(len(slot))]
        for group in groups:
            label = " & ".join(str(slot[at]) for at in group)
            self.turns.append((label, slot[group[0]].microbatch, [waits[at] for at in group]))
            self.done.update((slot[at], (len(self.turns) - 1, number)) for number, at in enumerate(group))

    def run_async(self) -> None:
        """Writes transfers next to computation."""
        for slot in self.slots:
            waits = []
            for action in slot:
                needed = self.message(action, made=False)
                waits.append([self.issue("receive", needed, [])] if needed else self.local(action))
            self.act(slot, waits)
            for action in slot:
                if made := self.message(action, made=True):
                    self.issue("send", made, [self.done[action]])

    def gaps(self) -> list[tuple[list[Message], list[Message]]]:
        """What is sent and received before each slot, and after the last."""
        return [
            (
                [message for action in before if (message := self.message(action, made=True))],
                [message for action in after if (message := self.message(action, made=False))],
            )
            for before, after in pairwise([(), *self.slots, ()])
        ]

    def run_batched(self, exchanged: set[tuple[Message, Message]]) -> None:
        """Writes transfers for which computation waits."""
        for (sends, receives), before, slot in zip(self.gaps(), [(), *self.slots], [*self.slots, ()], strict=True):
            outputs = [self.done[action] for action in before]
            if len(sends) == len(receives) == 1 and (receives[0], sends[0]) in exchanged:
                issued = [self.issue("exchange", sends[0], outputs)]
            else:
                issued = [self.issue("send", message, outputs) for message in sends]
                issued += [self.issue("receive", message, outputs) for message in receives]
            if slot:
                self.act(slot, [[*self.local(action), *issued] for action in slot])


def reference(schedule: Schedule, issue: str, together: bool) -> list[Reference]:
    """The turns of all stages."""
    stages = [Reference(schedule, stage, together) for stage in range(schedule.stages)]
    both = {
        (sends[0], receives[0])
        for stage in stages
        for sends, receives in stage.gaps()
        if len(sends) == len(receives) == 1 and sends[0][4] == receives[0][3]
    }
    for stage in stages:
        stage.run_async() if issue == "async" else stage.run_batched(both)
    return stages


def written(schedule: Schedule, issue: Any, together: bool) -> Program:
    """A program with a block of its own for every action, whose ports are its second and its third op."""
    build = ProgramBuilder(Mesh(pp=schedule.stages))

    def block(_stage: int, slot: tuple[Action, ...]) -> Any:
        made = build.block(" & ".join(map(str, slot)))
        made.compute("ahead", 1e-3)
        for number, action in enumerate(slot):
            suffix = f" {number}" if len(slot) > 1 else ""
            made.port(f"in{suffix}", made.compute(f"{action} begins", 1e-3))
            made.port(f"out{suffix}", made.compute(f"{action} ends", 1e-3))
        return made

    pipeline(
        build,
        schedule,
        lambda stage, action: block(stage, (action,)),
        Transfer(1, 1e-3),
        transfers=issue,
        pairs=block if together else None,
    )
    return build.program()


def check_same(program: Program, stages: list[Reference]) -> None:
    """Asserts that instances and links are those of the reference, in the same order."""
    first = program.instances.start.tolist()
    labels = [program.blocks[block].name for block in program.instances.block.tolist()]
    turns = [turn for stage in stages for turn in stage.turns]
    assert labels == [label for label, _, _ in turns]
    assert program.instances.microbatch.tolist() == [microbatch for _, microbatch, _ in turns]

    def port(turn: int, way: str, member: int) -> int:
        _, _, waits = turns[turn]
        ports = program.blocks[int(program.instances.block[turn])].ports
        return ports.get(f"{way} {member}" if len(waits) > 1 else way, 0)

    links = [
        (start + awaited, port(start + awaited, "out", of), start + turn, port(start + turn, "in", member), 0)
        for start, stage in zip(first, stages, strict=False)
        for turn, (_, _, waits) in enumerate(stage.turns)
        for member, needed in enumerate(waits)
        for awaited, of in needed
    ]
    table = program.links
    columns = (table.src_instance, table.src_op, table.dst_instance, table.dst_op, table.steps)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == links


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("issue", ["async", "batched"])
def test_turns_and_waits_are_those_of_the_reference(issue: str, together: bool) -> None:
    for schedule in schedules():
        if issue == "async" or schedule.name in BATCHED:
            check_same(written(schedule, issue, together), reference(schedule, issue, together))


def test_batched_slots_may_hold_several_actions() -> None:
    """Each message waits for all actions before it, and each action for all messages."""
    kinds = np.array([0, 0, 1, 1])
    rows = StageActions(np.array([0, 0, 1, 1]), kinds, np.array([0, 1, 0, 1]), np.zeros(4, np.int64))
    schedule = replace(make("gpipe", 2, 2), stage_actions=(rows, rows))
    for together in (False, True):
        check_same(written(schedule, "batched", together), reference(schedule, "batched", together))


@pytest.mark.parametrize("order", [[1, 0], [1]])
def test_a_stage_that_needs_what_it_has_not_run_is_refused(order: list[int]) -> None:
    kinds = np.array(order)
    slot, zero = np.arange(len(order)), np.zeros(len(order), np.int64)
    schedule = replace(make("1f1b", 1, 1), stage_actions=(StageActions(slot, kinds, zero, zero),))
    with pytest.raises(InputError) as error:
        script_of(schedule, "async", False)
    assert error.value.code == "invalid-schedule"


def test_scripts_are_kept_as_long_as_their_schedule() -> None:
    schedule = replace(make("1f1b", 2, 4), name="another")
    assert script_of(schedule, "async", False) is script_of(schedule, "async", False)
    column = weakref.ref(script_of(schedule, "async", False)[0].microbatch)
    del schedule
    gc.collect()
    assert column() is None
