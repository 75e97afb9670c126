"""From a schedule to a program: the stages' blocks in the schedule's order, with the transfers between them.

A block holds what one action does: its ports `in` and `out` are the op that needs the activation (or gradient) and the
one that produces the next. Transfers are issued in one of two ways:

* **async** (torch pipelining; Megatron's overlapped interleaving): each channel has lanes of its own; a transfer runs
  beside whatever computes, and holds up only the action that needs it;
* **batched** (Megatron's plain 1F1B): one lane, and computation waits for it. A send and the receive that follows it
  with the same neighbour go out as one exchange, as `send_forward_recv_backward` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from foretrace.errors import InputError
from foretrace.program.block import After, BlockBuilder, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED
from foretrace.program.program import Communicator
from foretrace.program.role import Placement, RoleBuilder
from foretrace.schedules.schedule import Action, ActionKind, Schedule

Blocks = Callable[[int, Action], BlockBuilder]
"""What a stage does for an action: a block with ports `in` and `out`, or the ops first and last by default."""

PairBlocks = Callable[[int, tuple[Action, ...]], BlockBuilder]
"""What a stage does for actions that run at once: one block with ports `in 0`, `out 0`, `in 1`, `out 1`."""


BATCHED = ("1f1b", "gpipe")
"""Schedules whose stages send and receive in an order in which each can wait for its transfers."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What crosses a stage boundary for one microbatch, one way: bytes, and seconds where they are known."""

    bytes: int = 0
    duration_s: float = UNPRICED


class Message(NamedTuple):
    """An activation (forward) or gradient on its way from a piece of the model to the next (or the one before)."""

    forward: bool
    piece: int
    microbatch: int
    source: tuple[int, int]
    target: tuple[int, int]

    @property
    def channel(self) -> tuple[bool, tuple[int, int], tuple[int, int]]:
        """Messages of one channel leave and arrive in one order."""
        return self.forward, self.source, self.target

    @property
    def ends(self) -> tuple[int, int]:
        """The stages it goes from and to."""
        return self.source[0], self.target[0]

    @property
    def crosses(self) -> bool:
        """Whether it goes to another stage."""
        return self.source[0] != self.target[0]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The roles of the stages, and where each action was placed."""

    stages: tuple[RoleBuilder, ...]
    placed: dict[tuple[int, Action], Placement]


def pipeline(
    build: ProgramBuilder,
    schedule: Schedule,
    blocks: Blocks,
    transfer: Transfer | Callable[[int, int], Transfer],
    *,
    transfers: Literal["async", "batched"] = "async",
    pairs: PairBlocks | None = None,
) -> Pipeline:
    """Places the schedule's actions on the stages of the builder's mesh, one role per stage.

    `transfer` is what goes over every boundary, or a function of the stages it goes from and to.
    """
    if build.mesh.pp != schedule.stages:
        raise InputError(
            f"the schedule has {schedule.stages} stages, the mesh pp={build.mesh.pp}", hint="make them equal"
        )
    if transfers not in ("async", "batched"):
        raise InputError(f'transfers "{transfers}" are not known', hint="known: async, batched")
    if transfers == "batched" and schedule.name not in BATCHED:
        raise InputError(
            f"batched transfers would deadlock under {schedule.name}", hint=f"they work for {' and '.join(BATCHED)}"
        )
    roles = tuple(build.role(f"stage {stage}", build.mesh.where(pp=stage)) for stage in range(schedule.stages))
    writer = _Writer(build, schedule, roles, blocks, pairs, transfer)
    if transfers == "batched":
        fused = _fused(writer.routes)
        for stage in range(schedule.stages):
            writer.write_batched(stage, fused)
    else:
        for stage in range(schedule.stages):
            writer.write_async(stage)
    return Pipeline(roles, writer.placed)


class _Routes:
    """Where the messages of a schedule go."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.piece = schedule.piece.tolist()
        self.direction = schedule.direction.tolist()
        routes = [schedule.route(direction) for direction in range(schedule.directions)]
        self.homes = [list(zip(stage.tolist(), chunk.tolist(), strict=True)) for stage, chunk in routes]
        self.slots = [list(schedule.actions(stage)) for stage in range(schedule.stages)]

    def needed(self, stage: int, action: Action) -> Message | None:
        """What an action needs from the chunk before it."""
        piece, toward = self.piece[stage][action.chunk], _toward(action)
        return self._message(action, piece - toward, piece) if toward else None

    def made(self, stage: int, action: Action) -> Message | None:
        """What an action makes for the chunk after it."""
        piece, toward = self.piece[stage][action.chunk], _toward(action)
        return self._message(action, piece, piece + toward) if toward else None

    def gaps(self, stage: int) -> Iterator[tuple[list[Message], list[Message]]]:
        """Between consecutive slots: what the first sends to other stages and what the second receives from them."""
        for done, due in pairwise([(), *self.slots[stage], ()]):
            sends = [m for action in done if (m := self.made(stage, action)) and m.crosses]
            receives = [m for action in due if (m := self.needed(stage, action)) and m.crosses]
            yield sends, receives

    def _message(self, action: Action, first: int, second: int) -> Message | None:
        homes = self.homes[self.direction[action.microbatch]]
        if not (0 <= first < len(homes) and 0 <= second < len(homes)):
            return None
        forward = action.kind == ActionKind.FORWARD
        return Message(forward, first, action.microbatch, homes[first], homes[second])


def _toward(action: Action) -> int:
    """Which way along the model an action's result goes; a weight gradient goes nowhere."""
    if action.kind == ActionKind.BACKWARD_WEIGHT:
        return 0
    return 1 if action.kind == ActionKind.FORWARD else -1


def _fused(routes: _Routes) -> set[tuple[Message, Message]]:
    """The pairs of messages, in both orders, that both neighbours issue as one exchange."""
    wanted: set[tuple[Message, Message]] = set()
    for stage in range(routes.schedule.stages):
        for sends, receives in routes.gaps(stage):
            if len(sends) == len(receives) == 1 and sends[0].target[0] == receives[0].source[0]:
                wanted.add((sends[0], receives[0]))
    return {(sent, received) for sent, received in wanted if (received, sent) in wanted}


class _Writer:
    """Writes the stages of one pipeline into a builder."""

    def __init__(
        self,
        build: ProgramBuilder,
        schedule: Schedule,
        roles: tuple[RoleBuilder, ...],
        blocks: Blocks,
        pairs: PairBlocks | None,
        transfer: Transfer | Callable[[int, int], Transfer],
    ) -> None:
        self.build, self.schedule, self.roles = build, schedule, roles
        self.blocks, self.pairs = blocks, pairs
        self.transfer = (lambda _source, _target: transfer) if isinstance(transfer, Transfer) else transfer
        self.routes = _Routes(schedule)
        self.placed: dict[tuple[int, Action], Placement] = {}
        self._ends: dict[tuple[int, Action], str] = {}
        self._single: dict[tuple[object, ...], BlockBuilder] = {}

    def write_async(self, stage: int) -> None:
        """A stage whose transfers run beside its computation."""
        for slot in self.routes.slots[stage]:
            arrived = {action: self._arrival(stage, action) for action in slot}
            self._place(stage, slot, arrived)
            for action in slot:
                made = self.routes.made(stage, action)
                if made and made.crosses:
                    self._send(stage, made, self.output(stage, action))

    def write_batched(self, stage: int, fused: set[tuple[Message, Message]]) -> None:
        """A stage that computes nothing while it communicates."""
        slots = self.routes.slots[stage]
        outputs: list[PlacedOp] = []
        for index, (sends, receives) in enumerate(self.routes.gaps(stage)):
            if len(sends) == len(receives) == 1 and (sends[0], receives[0]) in fused:
                issued = [self._exchange(stage, sends[0], outputs)]
            else:
                issued = [self._one_way(stage, message, outputs) for message in (*sends, *receives)]
            if index < len(slots):
                slot = slots[index]
                local = {action: [*self._arrival(stage, action, local=True), *issued] for action in slot}
                self._place(stage, slot, local)
                outputs = [self.output(stage, action) for action in slot]

    def output(self, stage: int, action: Action) -> PlacedOp:
        """The op that completes an action."""
        return self.placed[stage, action][self._ends[stage, action]]

    def _place(self, stage: int, slot: tuple[Action, ...], after: dict[Action, list[PlacedOp]]) -> None:
        role = self.roles[stage]
        if len(slot) > 1 and self.pairs:
            block = self.pairs(stage, slot)
            waits: dict[str | int, After] = {f"in {i}": after[action] for i, action in enumerate(slot)}
            placement = role.place(block, microbatch=slot[0].microbatch, after=waits)
            for i, action in enumerate(slot):
                self.placed[stage, action], self._ends[stage, action] = placement, f"out {i}"
            return
        for action in slot:
            block = self.blocks(stage, action)
            self.placed[stage, action] = role.place(block, microbatch=action.microbatch, after=after[action])
            self._ends[stage, action] = "out"

    def _arrival(self, stage: int, action: Action, *, local: bool = False) -> list[PlacedOp]:
        """What an action waits for: a message, the chunk before it on the same stage, or its own forward."""
        needed = self.routes.needed(stage, action)
        if needed is None:
            if action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
                return [self.output(stage, Action(ActionKind.FORWARD, action.microbatch, action.chunk))]
            return []
        if needed.crosses:
            return [] if local else [self._receive(stage, needed)]
        kinds = (ActionKind.FORWARD,) if needed.forward else (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
        for kind in kinds:
            before = Action(kind, action.microbatch, needed.source[1])
            if (stage, before) in self.placed:
                return [self.output(stage, before)]
        raise InputError(f"stage {stage}: {action} comes before what it needs")

    def _send(self, stage: int, message: Message, after: PlacedOp) -> None:
        way = "forward" if message.forward else "backward"
        name = f"send {way}"
        block = self._transfer_block(message, name, f"pp {name}", message.source[1], to=1)
        self.roles[stage].place(block, microbatch=message.microbatch, after=after)

    def _receive(self, stage: int, message: Message) -> PlacedOp:
        way = "forward" if message.forward else "backward"
        name = f"receive {way}"
        block = self._transfer_block(message, name, f"pp {name}", message.target[1], to=None)
        return self.roles[stage].place(block, microbatch=message.microbatch)[0]

    def _one_way(self, stage: int, message: Message, after: list[PlacedOp]) -> PlacedOp:
        sends = message.source[0] == stage
        name = f"{'send' if sends else 'receive'} {'forward' if message.forward else 'backward'}"
        block = self._transfer_block(message, name, "pp", 0, to=1 if sends else None)
        return self.roles[stage].place(block, microbatch=message.microbatch, after=after)[0]

    def _transfer_block(self, message: Message, name: str, lane: str, chunk: int, *, to: int | None) -> BlockBuilder:
        lane += f" {chunk}" if chunk else ""
        key = (message.channel, name, lane)
        if key not in self._single:
            block = self.build.block(f"{name} {message.source[0]}→{message.target[0]}")
            what = self.transfer(*message.ends)
            pair = self._channel(message)
            block.transfer(name, pair, what.duration_s, to=to, bytes=what.bytes, lane=lane, chunk=chunk)
            self._single[key] = block
        return self._single[key]

    def _channel(self, message: Message) -> Communicator:
        (source, source_chunk), (target, target_chunk) = message.source, message.target
        what = "activation" if message.forward else "gradient"
        name = f"pp {source}.{source_chunk}→{target}.{target_chunk} {what}"
        return self.build.pair("pp", source, target, name=name)

    def _exchange(self, stage: int, sent: Message, after: list[PlacedOp]) -> PlacedOp:
        """One call that sends and receives; the lower stage is position 0 of the pair."""
        low, high = sorted((sent.source[0], sent.target[0]))
        ways = ("forward", "backward") if sent.forward else ("backward", "forward")
        name = f"send {ways[0]}, receive {ways[1]}"
        key = ("exchange", stage, low, high, name)
        if key not in self._single:
            block = self.build.block(f"{name} {low}↔{high}")
            pair = self.build.pair("pp", low, high, name=f"pp {low}↔{high}")
            there, back = self.transfer(*sent.ends), self.transfer(*reversed(sent.ends))
            to = {1 if stage == low else 0: there.bytes}
            block.exchange(name, pair, max(there.duration_s, back.duration_s), sends=to, lane="pp")
            self._single[key] = block
        return self.roles[stage].place(self._single[key], microbatch=sent.microbatch, after=after)[0]
