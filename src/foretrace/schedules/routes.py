"""Finds the messages between stages that a pipeline's actions need, and how stages batch them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import NamedTuple

from foretrace.schedules.schedule import Action, ActionKind, Schedule


class Message(NamedTuple):
    """An activation (forward) or gradient on its way from a piece of the model to the next (or the one before)."""

    forward: bool
    piece: int
    microbatch: int
    source: tuple[int, int]
    target: tuple[int, int]

    @property
    def ends(self) -> tuple[int, int]:
        """The stages it goes from and to."""
        return self.source[0], self.target[0]

    @property
    def crosses(self) -> bool:
        """Whether it goes to another stage."""
        return self.source[0] != self.target[0]


Gap = tuple[list[Message], list[Message]]
"""What a stage sends to other stages between two slots, and what it receives from them."""

Batch = tuple[Message | None, tuple[Message, ...]]
"""What it sends by an exchange, or else the messages it issues one by one."""


class StageRoutes:
    """Where the messages of a schedule go, worked out once for each of its actions."""

    def __init__(self, schedule: Schedule) -> None:
        self.slots = [list(schedule.actions(stage)) for stage in range(schedule.stages)]
        self.needed: dict[tuple[int, Action], Message | None] = {}
        """What an action needs from the chunk before it."""
        self.made: dict[tuple[int, Action], Message | None] = {}
        """What an action makes for the chunk after it."""
        routes = [schedule.route(direction) for direction in range(schedule.directions)]
        homes = [list(zip(stage.tolist(), chunk.tolist(), strict=True)) for stage, chunk in routes]
        pieces, direction = schedule.piece.tolist(), schedule.direction.tolist()
        for stage, slots in enumerate(self.slots):
            for action in chain.from_iterable(slots):
                kind, microbatch, chunk = action
                piece, home, toward = pieces[stage][chunk], homes[direction[microbatch]], _TOWARD[kind]
                key = stage, action
                self.needed[key] = _message(kind, microbatch, piece - toward, piece, home)
                self.made[key] = _message(kind, microbatch, piece, piece + toward, home)
        gaps = [list(self._gaps(stage)) for stage in range(schedule.stages)]
        fused = _fused(gaps)
        self.batches = [[_batch(sends, receives, fused) for sends, receives in of_stage] for of_stage in gaps]
        """Between consecutive slots of a stage: the messages it issues, or the one it sends by an exchange."""

    def _gaps(self, stage: int) -> Iterator[Gap]:
        for done, due in pairwise([(), *self.slots[stage], ()]):
            sends = [m for action in done if (m := self.made[stage, action]) and m.crosses]
            receives = [m for action in due if (m := self.needed[stage, action]) and m.crosses]
            yield sends, receives


def _fused(gaps: list[list[Gap]]) -> set[tuple[Message, Message]]:
    """The pairs of messages, in both orders, that both neighbours issue as one exchange."""
    exchanges = {
        (sends[0], receives[0])
        for sends, receives in chain.from_iterable(gaps)
        if len(sends) == len(receives) == 1 and sends[0].target[0] == receives[0].source[0]
    }
    return {(sent, received) for sent, received in exchanges if (received, sent) in exchanges}


def _batch(sends: list[Message], receives: list[Message], fused: set[tuple[Message, Message]]) -> Batch:
    if len(sends) == len(receives) == 1 and (sends[0], receives[0]) in fused:
        return sends[0], ()
    return None, (*sends, *receives)


_TOWARD = {
    ActionKind.FORWARD: 1,
    ActionKind.BACKWARD: -1,
    ActionKind.BACKWARD_INPUT: -1,
    ActionKind.BACKWARD_WEIGHT: 0,
}
"""Which way along the model an action's result goes; a weight gradient goes nowhere."""


def _message(
    kind: ActionKind, microbatch: int, first: int, second: int, homes: list[tuple[int, int]]
) -> Message | None:
    """Returns the message from one piece of the model to another; None where there is no other."""
    if first == second or not (0 <= first < len(homes) and 0 <= second < len(homes)):
        return None
    return Message(kind == ActionKind.FORWARD, first, microbatch, homes[first], homes[second])
