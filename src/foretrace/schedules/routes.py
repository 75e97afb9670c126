"""Finds the messages between stages that a pipeline's actions need, and which of them neighbours exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretrace.basics.arrays import Longs, Mask
from foretrace.basics.errors import InputError
from foretrace.schedules.schedule import ActionKind, Schedule
from foretrace.schedules.slots import SlotTable, awaited_rows


class PipeChannel(NamedTuple):
    """The way of activations (forward) or gradients from a chunk of a stage to a chunk of another."""

    forward: bool
    source: tuple[int, int]
    target: tuple[int, int]

    @property
    def ends(self) -> tuple[int, int]:
        """The stages it goes from and to."""
        return self.source[0], self.target[0]


@dataclass(frozen=True, slots=True, eq=False)
class StageRoutes:
    """The messages of a schedule: one row for each action of its `SlotTable`.

    A message is numbered by its channel and its microbatch; -1 means that there is none from or to another stage.

    Attributes:
        received: The message from another stage that an action needs.
        sent: The message that an action makes for another stage.
        awaited: The action of the same stage that an action needs; the number of rows means none.
        microbatches: The number of microbatches of the schedule.
        channels: All channels; the channel of a message is its number divided by `microbatches`.
    """

    received: Longs
    sent: Longs
    awaited: Longs
    microbatches: int
    channels: tuple[PipeChannel, ...]

    def channel(self, message: Longs) -> Longs:
        """Returns the number of the channel of each message."""
        return message // self.microbatches

    def neighbour(self, message: Longs, *, sender: bool) -> Longs:
        """Returns the stage that sends, or receives, each message."""
        ends = np.array([channel.ends[0 if sender else 1] for channel in self.channels], dtype=np.int64)
        return ends[self.channel(message)]


def find_routes(schedule: Schedule, rows: SlotTable) -> StageRoutes:
    """Finds where the result of every action goes.

    Raises:
        InputError: A stage runs an action before another one of its own that it needs.
    """
    pieces, microbatches = schedule.pieces, schedule.microbatches
    homes = [schedule.route(direction) for direction in range(schedule.directions)]
    stage_of = np.stack([stage for stage, _ in homes])
    piece, toward = schedule.piece[rows.stage, rows.chunk], _TOWARD[rows.kind]
    direction = schedule.direction[rows.microbatch]
    way = (rows.kind == ActionKind.FORWARD) * schedule.directions + direction

    def messages(first: Longs, second: Longs) -> Longs:
        """Returns the message from a piece to another of another stage."""
        there = (first != second) & (first >= 0) & (second >= 0) & (first < pieces) & (second < pieces)
        crosses = there & (stage_of[direction, first % pieces] != stage_of[direction, second % pieces])
        return np.where(crosses, (way * pieces + first) * microbatches + rows.microbatch, -1)

    received = messages(piece - toward, piece)
    sent = messages(piece, piece + toward)
    awaited = _awaited_locally(rows, piece, awaited_rows(schedule, rows), received)
    channels = []
    for forward in (False, True):
        for stages, chunks in homes:
            places = list(zip(stages.tolist(), chunks.tolist(), strict=True))
            # The ends of the model send nothing beyond it; their channels are never looked up.
            following = [*places[1:], places[-1]] if forward else [places[0], *places[:-1]]
            channels += [PipeChannel(forward, source, target) for source, target in zip(places, following, strict=True)]
    return StageRoutes(received, sent, awaited, microbatches, tuple(channels))


def exchanges(routes: StageRoutes, sent: Longs, received: Longs) -> Mask:
    """Returns which pairs of a sent and a received message both neighbours issue as one call.

    Args:
        routes: The messages of a schedule.
        sent: The only message that a stage sends between two slots.
        received: The only message that it receives there.
    """
    same = routes.neighbour(sent, sender=False) == routes.neighbour(received, sender=True)
    count = len(routes.channels) * routes.microbatches
    both, reverse = sent * count + received, received * count + sent
    fused: Mask = same & np.isin(reverse, both[same])
    return fused


_TOWARD = np.array([1, -1, -1, 0])
"""Which way along the model an action's result goes, by kind; a weight gradient goes nowhere."""
_NEVER = 1 << 62
"""The slot of an action that no stage runs."""


def _awaited_locally(rows: SlotTable, piece: Longs, awaited: Longs, received: Longs) -> Longs:
    """Returns the row of the same stage that each row needs, if any."""
    none = len(awaited)
    begins = (rows.kind == ActionKind.FORWARD) & (piece == 0)
    # A weight gradient follows the input gradient in the order of its stage, which needs no wait.
    needs = (received < 0) & ~begins & (rows.kind != ActionKind.BACKWARD_WEIGHT)
    local = np.where(needs, awaited, none)
    early = np.flatnonzero(needs & (np.append(rows.slot, _NEVER)[local] >= rows.slot))
    if early.size:
        row = int(early[0])
        raise InputError("invalid-schedule", f"stage {rows.stage[row]}: {rows.action(row)} comes before what it needs")
    return local
