"""Writes a schedule into a program: the stages' blocks in the schedule's order, with the transfers between them.

A block holds what one action does: its ports `in` and `out` are the op that needs the activation (or gradient) and the
one that produces the next. Transfers are issued in one of two ways:

* **async** (torch pipelining; Megatron's overlapped interleaving): each channel has lanes of its own; a transfer runs
  next to whatever computes, and holds up only the action that needs it;
* **batched** (Megatron's plain 1F1B): one lane, and computation waits for it. A send and the receive that follows it
  with the same neighbour go out as one exchange, as `send_forward_recv_backward` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Literal

import numpy as np

from foretrace.basics.arrays import Ints, Longs, Mask
from foretrace.basics.errors import InputError, shown_value
from foretrace.basics.mesh import Mesh
from foretrace.program.block import BlockBuilder
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED
from foretrace.program.program import Communicator
from foretrace.program.role import BlockInstance, RoleBuilder
from foretrace.schedules.routes import PipeChannel
from foretrace.schedules.schedule import Action, Schedule, StageActions
from foretrace.schedules.script import How, StageScript, script_of

Blocks = Callable[[int, Action], BlockBuilder]
"""What a stage does for an action: a block with ports `in` and `out`, or the ops first and last by default."""

PairBlocks = Callable[[int, tuple[Action, ...]], BlockBuilder]
"""What a stage does for actions that run at once: one block with ports `in 0`, `out 0`, `in 1`, `out 1`."""

BlockTable = Callable[[StageActions], tuple[Sequence[BlockBuilder], Longs]]
"""What a stage does for all its actions: the blocks, and which of them each row of its actions runs."""

BATCHED = ("1f1b", "gpipe")
"""Schedules whose stages send and receive in an order in which each can wait for its transfers."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer across a stage boundary for one microbatch, one way: bytes, and seconds where they are known."""

    bytes: int = 0
    duration_s: float = UNPRICED

    def __post_init__(self) -> None:
        if isinstance(self.bytes, bool) or not isinstance(self.bytes, Integral) or self.bytes < 0:
            raise InputError("bad-value", f"bytes is {shown_value(self.bytes)}", where="Transfer")
        if isinstance(self.duration_s, bool) or not isinstance(self.duration_s, Real) or self.duration_s < 0:
            raise InputError("bad-value", f"duration_s is {shown_value(self.duration_s)}", where="Transfer")


@dataclass(frozen=True, slots=True)
class StagePart:
    """Ranks of a stage that do the same: all of them, or those whose experts receive the same."""

    stage: int
    name: str
    ranks: Iterable[int]
    blocks: BlockTable


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPart:
    """Where a part placed the actions of its stage.

    Attributes:
        role: The number of its role.
        first: The instance of its first turn.
        rows: The actions of its stage.
        turn_of: The turn of each of these.
        blocks: The blocks it runs.
        block: Which of them each turn runs.
    """

    role: int
    first: int
    rows: StageActions
    turn_of: Ints
    blocks: Sequence[BlockBuilder]
    block: Longs

    def __getitem__(self, row: int) -> BlockInstance:
        turn = int(self.turn_of[row])
        return BlockInstance(self.role, self.first + turn, self.blocks[self.block[turn]])

    def row(self, action: Action) -> int:
        """Returns the row of an action."""
        kind, microbatch, chunk = action
        rows = self.rows
        same = (rows.kind == kind) & (rows.microbatch == microbatch) & (rows.chunk == chunk)
        if not same.any():
            raise KeyError(action)
        return int(same.argmax())

    def first_and_last_rows(self) -> list[tuple[int, int]]:
        """Returns the first and the last row of each block that runs an action."""
        block, row = self.block[self.turn_of], np.arange(len(self.rows))
        first, last = np.full((2, len(self.blocks)), -1)
        # Among several rows of one block the one written last stays.
        first[block[::-1]], last[block] = row[::-1], row
        used = last >= 0
        return list(zip(first[used].tolist(), last[used].tolist(), strict=True))


class PlacedActions(Mapping[tuple[int, Action], BlockInstance]):
    """Where each part placed each action: `placed[part, action]`."""

    def __init__(self, parts: Sequence[PlacedPart]) -> None:
        self.parts = parts

    def __getitem__(self, part_and_action: tuple[int, Action]) -> BlockInstance:
        number, action = part_and_action
        part = self.parts[number]
        return part[part.row(action)]

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        for number, part in enumerate(self.parts):
            yield from ((number, part.rows.action(row)) for row in range(len(part.rows)))

    def __len__(self) -> int:
        return sum(len(part.rows) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The roles of the parts, one per stage unless there are several, and where each placed each action."""

    stages: tuple[RoleBuilder, ...]
    placed: PlacedActions
    messages: Mapping[tuple[int, How, PipeChannel], BlockBuilder]
    """The blocks of messages: by the stage that issues one, how, and over which channel."""


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
    parts = _parts(build.mesh, schedule, blocks, pairs) if callable(blocks) else blocks
    roles = tuple(build.role(part.name, part.ranks) for part in parts)
    scripts = script_of(schedule, transfers, pairs is not None)
    writer = _Writer(build, transfer, lanes_of_their_own=transfers == "async")
    placed = [
        writer.write(role, part, scripts[part.stage], schedule.stage_actions[part.stage])
        for role, part in zip(roles, parts, strict=True)
    ]
    return Pipeline(roles, PlacedActions(placed), writer.messages)


def _parts(mesh: Mesh, schedule: Schedule, blocks: Blocks, pairs: PairBlocks | None) -> list[StagePart]:
    """Returns a part for each stage, whose blocks are asked for slot by slot."""

    def table(stage: int, _rows: StageActions) -> tuple[list[BlockBuilder], Longs]:
        by_row: list[BlockBuilder] = []
        for slot in schedule.actions(stage):
            if pairs is not None and len(slot) > 1:
                by_row += [pairs(stage, slot)] * len(slot)
            else:
                by_row += [blocks(stage, action) for action in slot]
        if not all(isinstance(block, BlockBuilder) for block in by_row):
            hint = "return what build.block(NAME) makes"
            raise InputError("bad-value", f"blocks returns something else than a block for stage {stage}", hint=hint)
        distinct = {block.number: block for block in by_row}
        place = {number: at for at, number in enumerate(distinct)}
        return list(distinct.values()), np.array([place[block.number] for block in by_row], dtype=np.int64)

    return [
        StagePart(stage, f"stage {stage}", mesh.where(pp=stage), partial(table, stage))
        for stage in range(schedule.stages)
    ]


class _Writer:
    """Writes the stages of one pipeline into a builder."""

    def __init__(
        self,
        build: ProgramBuilder,
        transfer: Transfer | Callable[[int, int], Transfer],
        *,
        lanes_of_their_own: bool,
    ) -> None:
        self.build = build
        self.transfer = (lambda _source, _target: transfer) if isinstance(transfer, Transfer) else transfer
        self.lanes_of_their_own = lanes_of_their_own
        self.messages: dict[tuple[int, How, PipeChannel], BlockBuilder] = {}

    def write(self, role: RoleBuilder, part: StagePart, script: StageScript, rows: StageActions) -> PlacedPart:
        """Places all turns of a part."""
        messages = [self._message_block(part.stage, how, channel) for how, channel in script.channels]
        actions, which = part.blocks(rows)
        blocks = [*messages, *actions]
        block = np.where(script.channel >= 0, script.channel, len(messages) + which[script.row])
        awaited, wait = block[script.awaited], block[script.wait]
        if script.together is None:
            out = np.array([each.port_op("out") for each in blocks])[awaited]
            into = np.array([each.port_op("in") for each in blocks])[wait]
        else:
            out = _ports("out", blocks, awaited, script.together[script.awaited], script.awaited_member)
            into = _ports("in", blocks, wait, script.together[script.wait], script.wait_member)
        numbers = np.array([each.number for each in blocks])[block]
        links = np.stack([script.awaited, out, script.wait, into], axis=1)
        first = role.place_all(numbers, script.microbatch, links)
        return PlacedPart(role.number, first, rows, script.turn_of, blocks, block)

    def _message_block(self, stage: int, how: How, channel: PipeChannel) -> BlockBuilder:
        """The block of a message, which all parts of a stage share."""
        key = stage, how, channel
        if key not in self.messages:
            if how == "exchange":
                self.messages[key] = self._exchange(stage, channel)
            else:
                self.messages[key] = self._one_way(channel, how == "send")
        return self.messages[key]

    def _one_way(self, channel: PipeChannel, sends: bool) -> BlockBuilder:
        """One end of a message, on the lane of all or on one of its channel's own."""
        name = f"{'send' if sends else 'receive'} {'forward' if channel.forward else 'backward'}"
        chunk = (channel.source if sends else channel.target)[1] if self.lanes_of_their_own else 0
        lane = (f"pp {name} {chunk}" if chunk else f"pp {name}") if self.lanes_of_their_own else "pp"
        block = self.build.block(f"{name} {channel.source[0]}→{channel.target[0]}")
        what, pair = self.transfer(*channel.ends), self._communicator(channel)
        to = 1 if sends else None
        block.transfer(name, pair, what.duration_s, to=to, bytes=what.bytes, lane=lane, chunk=chunk)
        return block

    def _exchange(self, stage: int, sent: PipeChannel) -> BlockBuilder:
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

    def _communicator(self, channel: PipeChannel) -> Communicator:
        (source, source_chunk), (target, target_chunk) = channel.source, channel.target
        what = "activation" if channel.forward else "gradient"
        name = f"pp {source}.{source_chunk}→{target}.{target_chunk} {what}"
        return self.build.pair("pp", source, target, name=name)


def _ports(way: str, blocks: Sequence[BlockBuilder], which: Longs, together: Mask, member: Ints | None) -> Longs:
    """Returns the op of a port of each block in `which`; each of several actions that run at once has its own port."""
    assert member is not None
    columns = zip(which.tolist(), together.tolist(), member.tolist(), strict=True)
    ports = [blocks[block].port_op(f"{way} {number}" if several else way) for block, several, number in columns]
    return np.array(ports, dtype=np.int64)
