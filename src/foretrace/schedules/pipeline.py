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
from functools import lru_cache
from itertools import chain, pairwise
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
        for stage in range(schedule.stages):
            writer.write_batched(stage)
    else:
        for stage in range(schedule.stages):
            writer.write_async(stage)
    return Pipeline(roles, writer.placed)


Gap = tuple[list[Message], list[Message]]
"""What a stage sends to other stages between two slots, and what it receives from them."""

Batch = tuple[Message | None, tuple[Message, ...]]
"""What it sends by an exchange, or else the messages it issues one by one."""


class _Routes:
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
    wanted = {
        (sends[0], receives[0])
        for sends, receives in chain.from_iterable(gaps)
        if len(sends) == len(receives) == 1 and sends[0].target[0] == receives[0].source[0]
    }
    return {(sent, received) for sent, received in wanted if (received, sent) in wanted}


def _batch(sends: list[Message], receives: list[Message], fused: set[tuple[Message, Message]]) -> Batch:
    if len(sends) == len(receives) == 1 and (sends[0], receives[0]) in fused:
        return sends[0], ()
    return None, (*sends, *receives)


@lru_cache(maxsize=8)
def _routes(schedule: Schedule) -> _Routes:
    return _Routes(schedule)


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
    """What goes from one piece of the model to another; None where there is no other."""
    if first == second or not (0 <= first < len(homes) and 0 <= second < len(homes)):
        return None
    return Message(kind == ActionKind.FORWARD, first, microbatch, homes[first], homes[second])


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
        self.routes = _routes(schedule)
        self.placed: dict[tuple[int, Action], Placement] = {}
        self.output: dict[tuple[int, Action], PlacedOp] = {}
        """The op that completes an action."""
        self._single: dict[tuple[object, ...], BlockBuilder] = {}

    def write_async(self, stage: int) -> None:
        """A stage whose transfers run beside its computation."""
        for slot in self.routes.slots[stage]:
            arrived = [self._arrival(stage, action) for action in slot]
            outputs = self._place(stage, slot, arrived)
            for action, output in zip(slot, outputs, strict=True):
                made = self.routes.made[stage, action]
                if made and made.crosses:
                    block = self._transfer_block(made, sends=True, lane="")
                    self.roles[stage].place(block, microbatch=made.microbatch, after=output)

    def write_batched(self, stage: int) -> None:
        """A stage that computes nothing while it communicates."""
        slots = self.routes.slots[stage]
        outputs: list[PlacedOp] = []
        for index, (exchanged, messages) in enumerate(self.routes.batches[stage]):
            if exchanged:
                issued = [self._exchange(stage, exchanged, outputs)]
            else:
                issued = [self._one_way(stage, message, outputs) for message in messages]
            if index < len(slots):
                slot = slots[index]
                waits = [[*self._arrival(stage, action, local=True), *issued] for action in slot]
                outputs = self._place(stage, slot, waits)

    def _place(self, stage: int, slot: tuple[Action, ...], after: list[list[PlacedOp]]) -> list[PlacedOp]:
        """Places a slot's actions, each after what it waits for, and returns the op that completes each."""
        role, outputs = self.roles[stage], []
        if len(slot) > 1 and self.pairs:
            block = self.pairs(stage, slot)
            waits: dict[str | int, After] = {f"in {i}": ops for i, ops in enumerate(after)}
            placement = role.place(block, microbatch=slot[0].microbatch, after=waits)
            for i, action in enumerate(slot):
                outputs.append(placement[f"out {i}"])
                self.placed[stage, action], self.output[stage, action] = placement, outputs[-1]
        else:
            for action, ops in zip(slot, after, strict=True):
                placement = role.place(self.blocks(stage, action), microbatch=action.microbatch, after=ops)
                outputs.append(placement["out"])
                self.placed[stage, action], self.output[stage, action] = placement, outputs[-1]
        return outputs

    def _arrival(self, stage: int, action: Action, *, local: bool = False) -> list[PlacedOp]:
        """What an action waits for: a message, the chunk before it on the same stage, or its own forward."""
        needed = self.routes.needed[stage, action]
        if needed is None:
            if action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
                return [self.output[stage, Action(ActionKind.FORWARD, action.microbatch, action.chunk)]]
            return []
        if needed.crosses:
            return [] if local else [self._receive(stage, needed)]
        kinds = (ActionKind.FORWARD,) if needed.forward else (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
        for kind in kinds:
            before = Action(kind, action.microbatch, needed.source[1])
            if (stage, before) in self.output:
                return [self.output[stage, before]]
        raise InputError(f"stage {stage}: {action} comes before what it needs")

    def _receive(self, stage: int, message: Message) -> PlacedOp:
        block = self._transfer_block(message, sends=False, lane="")
        return self.roles[stage].place(block, microbatch=message.microbatch)[0]

    def _one_way(self, stage: int, message: Message, after: list[PlacedOp]) -> PlacedOp:
        block = self._transfer_block(message, sends=message.source[0] == stage, lane="pp")
        return self.roles[stage].place(block, microbatch=message.microbatch, after=after)[0]

    def _transfer_block(self, message: Message, *, sends: bool, lane: str) -> BlockBuilder:
        """One end of a message on a lane, or on one of its channel's own."""
        key = message.forward, message.source, message.target, sends
        if key not in self._single:
            name = f"{'send' if sends else 'receive'} {'forward' if message.forward else 'backward'}"
            chunk = 0 if lane else (message.source if sends else message.target)[1]
            lane = lane or (f"pp {name} {chunk}" if chunk else f"pp {name}")
            block = self.build.block(f"{name} {message.source[0]}→{message.target[0]}")
            what = self.transfer(*message.ends)
            to = 1 if sends else None
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
        key = sent.forward, *sent.ends
        if key not in self._single:
            low, high = sorted(sent.ends)
            ways = ("forward", "backward") if sent.forward else ("backward", "forward")
            name = f"send {ways[0]}, receive {ways[1]}"
            block = self.build.block(f"{name} {low}↔{high}")
            pair = self.build.pair("pp", low, high, name=f"pp {low}↔{high}")
            there, back = self.transfer(*sent.ends), self.transfer(*reversed(sent.ends))
            to = {1 if stage == low else 0: there.bytes}
            block.exchange(name, pair, max(there.duration_s, back.duration_s), sends=to, lane="pp")
            self._single[key] = block
        return self.roles[stage].place(self._single[key], microbatch=sent.microbatch, after=after)[0]
