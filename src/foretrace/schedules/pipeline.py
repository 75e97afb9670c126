"""Writes a schedule into a program: the stages' blocks in the schedule's order, with the transfers between them.

A block holds what one action does: its ports `in` and `out` are the op that needs the activation (or gradient) and the
one that produces the next. Transfers are issued in one of two ways:

* **async** (torch pipelining; Megatron's overlapped interleaving): each channel has lanes of its own; a transfer runs
  next to whatever computes, and holds up only the action that needs it;
* **batched** (Megatron's plain 1F1B): one lane, and computation waits for it. A send and the receive that follows it
  with the same neighbour go out as one exchange, as `send_forward_recv_backward` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from foretrace.basics.errors import InputError
from foretrace.program.block import After, BlockBuilder, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED
from foretrace.program.program import Communicator
from foretrace.program.role import BlockInstance, RoleBuilder
from foretrace.schedules.routes import Message
from foretrace.schedules.schedule import Action, Schedule
from foretrace.schedules.script import StageScript, Turn, Wait, script_of

Blocks = Callable[[int, Action], BlockBuilder]
"""What a stage does for an action: a block with ports `in` and `out`, or the ops first and last by default."""

PairBlocks = Callable[[int, tuple[Action, ...]], BlockBuilder]
"""What a stage does for actions that run at once: one block with ports `in 0`, `out 0`, `in 1`, `out 1`."""


BATCHED = ("1f1b", "gpipe")
"""Schedules whose stages send and receive in an order in which each can wait for its transfers."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer across a stage boundary for one microbatch, one way: bytes, and seconds where they are known."""

    bytes: int = 0
    duration_s: float = UNPRICED


@dataclass(frozen=True, slots=True)
class StagePart:
    """Ranks of a stage that do the same: all of them, or those whose experts receive the same."""

    stage: int
    name: str
    ranks: Iterable[int]
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The roles of the parts, one per stage unless there are several, and where each placed each action."""

    stages: tuple[RoleBuilder, ...]
    placed: dict[tuple[int, Action], BlockInstance]


def pipeline(
    build: ProgramBuilder,
    schedule: Schedule,
    blocks: Blocks | Sequence[StagePart],
    transfer: Transfer | Callable[[int, int], Transfer],
    *,
    transfers: Literal["async", "batched"] = "async",
    pairs: PairBlocks | None = None,
) -> Pipeline:
    """Places the schedule's actions on the stages of the builder's mesh, one role per stage, or per part of one.

    `transfer` is what goes over every boundary, or a function of the stages it goes from and to.
    """
    if build.mesh.pp != schedule.stages:
        raise InputError(
            "invalid-schedule",
            f"the schedule has {schedule.stages} stages, the mesh pp={build.mesh.pp}",
            hint="make them equal",
        )
    if transfers not in ("async", "batched"):
        raise InputError("unknown-name", f'transfers "{transfers}" are not known', hint="known: async, batched")
    if transfers == "batched" and schedule.name not in BATCHED:
        raise InputError(
            "deadlock",
            f"batched transfers would deadlock under {schedule.name}",
            hint=f"they work for {' and '.join(BATCHED)}",
        )
    parts = blocks
    if callable(parts):
        parts = [
            StagePart(stage, f"stage {stage}", build.mesh.where(pp=stage), parts) for stage in range(schedule.stages)
        ]
    roles = tuple(build.role(part.name, part.ranks) for part in parts)
    writer = _Writer(build, roles, parts, pairs, transfer, lanes_of_their_own=transfers == "async")
    scripts = script_of(schedule, transfers, pairs is not None)
    for number, part in enumerate(parts):
        writer.write(number, scripts[part.stage])
    return Pipeline(roles, writer.placed)


class _Writer:
    """Writes the stages of one pipeline into a builder."""

    def __init__(
        self,
        build: ProgramBuilder,
        roles: tuple[RoleBuilder, ...],
        parts: Sequence[StagePart],
        pairs: PairBlocks | None,
        transfer: Transfer | Callable[[int, int], Transfer],
        *,
        lanes_of_their_own: bool,
    ) -> None:
        self.build, self.roles, self.parts, self.pairs = build, roles, parts, pairs
        self.transfer = (lambda _source, _target: transfer) if isinstance(transfer, Transfer) else transfer
        self.lanes_of_their_own = lanes_of_their_own
        self.placed: dict[tuple[int, Action], BlockInstance] = {}
        self._messages: dict[tuple[object, ...], BlockBuilder] = {}

    def write(self, number: int, script: StageScript) -> None:
        """Places all turns of a part."""
        role, part = self.roles[number], self.parts[number]
        messages = [self._message_block(part.stage, turn) for turn in script.channels]
        if script.alone is None:
            self._write_at_once(number, script, messages)
            return
        blocks = [
            messages[channel] if channel >= 0 else part.blocks(part.stage, turn.actions[0])
            for turn, channel in zip(script.turns, script.channel, strict=True)
        ]
        first = role.place_all(blocks, script.microbatches, script.alone)
        for place, turn in enumerate(script.turns):
            if turn.actions:
                self.placed[number, turn.actions[0]] = BlockInstance(role.number, first + place, blocks[place])

    def _write_at_once(self, number: int, script: StageScript, messages: list[BlockBuilder]) -> None:
        """A part some of whose actions run at once, in one block with a port for each."""
        role, part, instances = self.roles[number], self.parts[number], list[BlockInstance]()

        def output(wait: Wait) -> PlacedOp:
            place, which = wait
            several = len(script.turns[place].actions) > 1
            return instances[place][f"out {which}" if several else "out"]

        for turn, channel in zip(script.turns, script.channel, strict=True):
            waits = [[output(wait) for wait in needed] for needed in turn.waits]
            if len(turn.actions) > 1 and self.pairs:
                ports: dict[str | int, After] = {f"in {i}": ops for i, ops in enumerate(waits)}
                placed = role.place(self.pairs(part.stage, turn.actions), microbatch=turn.microbatch, after=ports)
            else:
                block = messages[channel] if channel >= 0 else part.blocks(part.stage, turn.actions[0])
                placed = role.place(block, microbatch=turn.microbatch, after=waits[0])
            instances.append(placed)
            self.placed.update(((number, action), placed) for action in turn.actions)

    def _message_block(self, stage: int, turn: Turn) -> BlockBuilder:
        """The block of a message, which all parts of a stage share."""
        assert turn.message is not None
        key = (stage, *turn.channel)
        if key not in self._messages:
            if turn.how == "exchange":
                self._messages[key] = self._exchange(stage, turn.message)
            else:
                self._messages[key] = self._one_way(turn.message, turn.how == "send")
        return self._messages[key]

    def _one_way(self, message: Message, sends: bool) -> BlockBuilder:
        """One end of a message, on the lane of all or on one of its channel's own."""
        name = f"{'send' if sends else 'receive'} {'forward' if message.forward else 'backward'}"
        chunk = (message.source if sends else message.target)[1] if self.lanes_of_their_own else 0
        lane = (f"pp {name} {chunk}" if chunk else f"pp {name}") if self.lanes_of_their_own else "pp"
        block = self.build.block(f"{name} {message.source[0]}→{message.target[0]}")
        what, pair = self.transfer(*message.ends), self._channel(message)
        to = 1 if sends else None
        block.transfer(name, pair, what.duration_s, to=to, bytes=what.bytes, lane=lane, chunk=chunk)
        return block

    def _exchange(self, stage: int, sent: Message) -> BlockBuilder:
        """One call that sends and receives; the lower stage is position 0 of the pair."""
        low, high = sorted(sent.ends)
        ways = ("forward", "backward") if sent.forward else ("backward", "forward")
        name = f"send {ways[0]}, receive {ways[1]}"
        block = self.build.block(f"{name} {low}↔{high}")
        pair = self.build.pair("pp", low, high, name=f"pp {low}↔{high}")
        there, back = self.transfer(*sent.ends), self.transfer(*reversed(sent.ends))
        to = {1 if stage == low else 0: there.bytes}
        block.exchange(name, pair, max(there.duration_s, back.duration_s), sends=to, lane="pp")
        return block

    def _channel(self, message: Message) -> Communicator:
        (source, source_chunk), (target, target_chunk) = message.source, message.target
        what = "activation" if message.forward else "gradient"
        name = f"pp {source}.{source_chunk}→{target}.{target_chunk} {what}"
        return self.build.pair("pp", source, target, name=name)
