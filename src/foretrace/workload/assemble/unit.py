"""The ops of one unit (a layer, or an end of the model) in one action, written once and repeated where it recurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import UNPRICED, Phase, label
from foretrace.program.dispatch import COPIES
from foretrace.program.kernels import kernel_text, kernels_text
from foretrace.program.program import Communicator, Source
from foretrace.workload.assemble.segments import Call, Detail, Part, Segment
from foretrace.workload.work import Compute

Sizes = Mapping[str, int]
"""Bytes by category of memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a unit takes when it begins and when its last op begins, and gives back when that ends."""

    at_first: Sizes = field(default_factory=dict)
    at_last: Sizes = field(default_factory=dict)
    freed: Sizes = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.at_first or self.at_last or self.freed)


@dataclass(frozen=True, slots=True)
class Host:
    """What a launch takes the host, and where that was learned; no time means that the host is left out."""

    launch_s: float
    source: Source


@dataclass(frozen=True, slots=True)
class Written:
    """Ops of a unit in a block.

    `entries` wait for what comes before the unit, those on the compute lane by their place in it. `first` and `last`
    are of the compute lane; `last_begin` is where the segment that `last` ends begins. `waits` are ops beside the last
    one that the next unit waits for; `joins` what only the action waits for."""

    block: BlockBuilder
    ops: range
    entries: tuple[int, ...]
    first: int
    last_begin: int
    last: int
    waits: tuple[int, ...]
    joins: tuple[int, ...]

    def moved_to(self, block: BlockBuilder, first: int) -> Written:
        """The same ops where they were repeated."""
        by = first - self.ops.start
        return Written(
            block,
            range(first, first + len(self.ops)),
            tuple(op + by for op in self.entries),
            self.first + by,
            self.last_begin + by,
            self.last + by,
            tuple(op + by for op in self.waits),
            tuple(op + by for op in self.joins),
        )


def draft_of(written: Written) -> Written:
    """A unit to repeat later: what is added to its block from now on is no part of it."""
    block, ops = written.block, written.ops
    draft = copy(block)
    draft.rows = list(block.rows)
    draft.deps = [dep for dep in block.deps if dep[1] in ops]
    draft.memory = [fact for fact in block.memory if fact[0] in ops]
    draft.sends = [fact for fact in block.sends if fact[0] in ops]
    draft.draws = [fact for fact in block.draws if fact[0] in ops]
    return replace(written, block=draft)


SYNC_LAUNCHES = 2
"""Launches' worth of time that a stream is dry where the host waits for it: a copy's end is noticed, then the next
kernel launched."""


class UnitWriter:
    """Appends the parts of one unit to a block."""

    def __init__(
        self,
        block: BlockBuilder,
        communicators: Mapping[str, Communicator],
        host: Host,
        detail: Detail,
        facts: Mapping[str, Any],
    ) -> None:
        self.block, self.communicators, self.host, self.detail = block, communicators, host, detail
        self.facts = dict(facts)
        self.start = len(block.rows)
        self.lane: list[OpRef] = []
        """Ops on the compute lane."""
        self.before: list[OpRef] = []
        """What the last of them waited for."""
        self.waits: list[OpRef] = []
        """What the next one waits for."""
        self.later: list[OpRef] = []
        """What the one after it waits for."""
        self.first = -1
        """The first op of the compute lane."""
        self.last_begin = -1
        self.entries: list[int] = []
        self.joins: list[OpRef] = []

    def write(self, parts: Sequence[Part], memory: Memory, phase: Phase) -> Written:
        """All parts, with the unit's memory at its ends. A unit without computation is an op of no time."""
        on_lane = [at for at, part in enumerate(parts) if isinstance(part, Segment) or part.beside == "nothing"]
        for at, part in enumerate(parts):
            if at not in on_lane:
                self._beside(part)  # type: ignore[arg-type]
                continue
            taken = dict(memory.at_first) if at == on_lane[0] else {}
            given: dict[str, int] = {}
            if at == on_lane[-1]:
                taken, given = _sum(taken, memory.at_last), dict(memory.freed)
            if isinstance(part, Segment):
                self._compute(part, taken, given)
                self._sync(part)
            else:
                self._append(self._collective(part, "compute", self._taken(), alloc=taken, free=given))
        if not on_lane:
            alloc = _sum(memory.at_first, memory.at_last)
            op = self.block.compute(
                "nothing", 0.0, phase=phase, after=self._taken(), alloc=alloc, free=memory.freed, **self.facts
            )
            self._append(op)
        return Written(
            self.block,
            range(self.start, len(self.block.rows)),
            tuple(self.entries),
            self.first,
            self.last_begin,
            self.lane[-1].op,
            tuple(ref.op for ref in (*self.waits, *self.later)),
            tuple(ref.op for ref in self.joins),
        )

    def _sync(self, segment: Segment) -> None:
        """Where the host waits for a segment, the stream runs dry until the next launch arrives."""
        if not segment.syncs_host or self.host.launch_s <= 0:
            return
        gap = SYNC_LAUNCHES * self.host.launch_s
        self._append(
            self.block.host("sync", gap, lane="compute", source=self.host.source, after=self._taken(), **self.facts)
        )

    def _compute(self, segment: Segment, taken: dict[str, int], given: dict[str, int]) -> None:
        after = self._taken()
        if self.detail == "kernel":
            self._kernels(segment, after, taken, given)
            return
        kernels, temporary = segment.kernels, _temporary(segment.temporary_bytes)
        self._append(
            self.block.compute(
                segment.name,
                UNPRICED if kernels else 0.0,
                phase=segment.phase,
                kernel=kernels_text(kernels) if kernels else None,
                flops=sum(count * kernel.flops for count, kernel in kernels),
                moved_bytes=sum(count * kernel.moved_bytes for count, kernel in kernels),
                after=after,
                alloc=_sum(taken, temporary),
                free=_sum(given, temporary),
                **self.facts,
            )
        )

    def _kernels(
        self,
        segment: Segment,
        after: list[OpRef],
        taken: dict[str, int],
        given: dict[str, int],
    ) -> None:
        """Every kernel as an op, named after its computation."""
        each: list[tuple[Compute, Any]] = [
            (item, kernel) for item in segment.items for count, kernel in item.kernels for _ in range(count)
        ]
        for at, (item, kernel) in enumerate(each):
            temporary = _temporary(item.temporary_bytes)
            op = self.block.compute(
                item.name,
                phase=item.phase,
                kernel=kernel_text(kernel),
                flops=kernel.flops,
                moved_bytes=kernel.moved_bytes,
                after=after if at == 0 else (),
                alloc=_sum(taken if at == 0 else {}, temporary),
                free=_sum(given if at == len(each) - 1 else {}, temporary),
                **self.facts,
            )
            self._append(op, first=at == 0)
        if not each:
            name = segment.name
            op = self.block.compute(name, 0.0, phase=segment.phase, after=after, alloc=taken, free=given, **self.facts)
            self._append(op)

    def _beside(self, call: Call) -> None:
        """A collective on a lane of its own."""
        if call.beside == "previous":
            op = self._collective(call, None, [*self.lane[-2:-1], *self.before])
            if len(self.lane) < 2:
                self.entries.append(op.op)
            self.waits.append(op)
            return
        op = self._collective(call, None, [*self.lane[-1:], *self.waits])
        if not self.lane:
            self.entries.append(op.op)
        (self.later if call.beside == "next" else self.joins).append(op)

    def _collective(self, call: Call, lane: str | None, after: Sequence[OpRef], **memory: Any) -> OpRef:
        item = call.item
        return self.block.collective(
            item.collective,
            self.communicators[item.axis],
            name=item.name or label(item.collective),
            lane=lane,
            bytes=item.bytes,
            phase=item.phase,
            sends=None if item.sends is None else dict(enumerate(item.sends)),
            kernel=COPIES if call.copied else item.way,
            after=after,
            **memory,
            **self.facts,
        )

    def _taken(self) -> list[OpRef]:
        """What the next op of the compute lane waits for, and no other need."""
        taken, self.waits, self.later = self.waits, self.later, []
        self.before = taken
        return taken

    def _append(self, op: OpRef, *, first: bool = True) -> None:
        if not self.lane:
            self.entries.append(op.op)
            self.first = op.op
        if first:
            self.lane.append(op)
            self.last_begin = op.op
        else:
            self.lane[-1] = op  # kernels of one segment count as one place of the lane


def _temporary(size: int) -> dict[str, int]:
    return {"temporaries": size} if size else {}


def _sum(one: Sizes, other: Sizes) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in (*one, *other)}
