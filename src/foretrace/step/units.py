"""Writes the ops of one unit in one action. A unit is written once and repeated wherever it recurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Literal

from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import UNPRICED, Kind, Phase, label
from foretrace.program.kernels import kernel_text, kernels_text
from foretrace.program.program import Communicator
from foretrace.step.memory_rules import NO_PART, BytesByCategory, Memory, add_bytes, lane_memory, temporaries
from foretrace.step.segments import Segment, UnitPart
from foretrace.step.spec import Call, Compute, HostWork, Launches

Detail = Literal["segment", "kernel"]
"""Whether kernels that run without a break between communications are one op, or each an op of its own."""

_SYNC_LAUNCHES = 1.4
"""Idle time of the GPU after a sync, in launches: (10.4 + 28) / 28 us on an H200's host."""


def sync_gap_s(launch_s: float) -> float:
    """Returns how long the GPU idles after the host has waited for it, where a launch takes `launch_s`.

    The host notices the end of a copy, which takes 10.4 us on an H200's host, and launches the next kernel
    (`benchmarks/gpu/experts`).
    """
    return _SYNC_LAUNCHES * launch_s


@dataclass(frozen=True, slots=True)
class WrittenUnit:
    """The ops of a unit in the block where it was first written, by number.

    Attributes:
        block: The block.
        ops: All of them.
        entries: Those that wait for what comes before the unit; ops on the compute lane do so by their place in it.
        first: The first one on the compute lane.
        last_begin: Where the segment that `last` ends begins.
        last: The last one on the compute lane.
        waits: Those next to the last one for which the next unit waits.
        reductions: Those for which only the end of the step waits.
    """

    block: BlockBuilder
    ops: range
    entries: tuple[int, ...]
    first: int
    last_begin: int
    last: int
    waits: tuple[int, ...]
    reductions: tuple[int, ...]

    def draft(self) -> WrittenUnit:
        """Returns the unit to be repeated later: ops that are added to its block from now on do not belong to it."""
        block, ops = self.block, self.ops
        kept = copy(block)
        kept.rows = list(block.rows)
        kept.deps = [dep for dep in block.deps if dep[1] in ops]
        kept.memory = [fact for fact in block.memory if fact[0] in ops]
        kept.sends = [fact for fact in block.sends if fact[0] in ops]
        kept.draws = [fact for fact in block.draws if fact[0] in ops]
        return replace(self, block=kept)


class UnitWriter:
    """Appends the parts of one unit to a block."""

    def __init__(
        self,
        block: BlockBuilder,
        communicators: Mapping[str, Communicator],
        launches: Launches | None,
        detail: Detail,
        facts: Mapping[str, Any],
    ) -> None:
        self.block, self.communicators, self.launches, self.detail = block, communicators, launches, detail
        self.facts = dict(facts)
        self.start = len(block.rows)
        self.lane: list[OpRef] = []
        """Ops on the compute lane."""
        self.before: list[OpRef] = []
        """Ops that the last of them waited for."""
        self.waits: list[OpRef] = []
        """Ops that the next one waits for."""
        self.later: list[OpRef] = []
        """Ops that the one after it waits for."""
        self.phase: list[OpRef] = []
        """Collectives of the present phase, next to which the lane goes on."""
        self.phase_begin = -1
        """How many ops the lane had when that phase began."""
        self.first = self.last_begin = -1
        self.entries: list[int] = []
        self.reductions: list[OpRef] = []

    def write(self, parts: Sequence[UnitPart], memory: Memory, phase: Phase) -> WrittenUnit:
        """Writes all parts, with the unit's memory at its ends. A unit without computation is an op of no time."""
        takes = lane_memory(parts, memory)
        for at, part in enumerate(parts):
            if at not in takes:
                assert isinstance(part, Call)
                self._concurrent(part)
                continue
            allocated, freed = takes[at]
            if isinstance(part, Segment):
                self._segment(part, allocated, freed)
                self._sync(part)
            elif isinstance(part, Call):
                self._append(self._collective(part, "compute", self._all_waits(), alloc=allocated, free=freed))
            else:
                self._host(part, allocated, freed)
        if not self.lane:
            alloc, freed = takes[NO_PART]
            op = self.block.compute(
                "nothing", 0.0, phase=phase, after=self._waits(), alloc=alloc, free=freed, **self.facts
            )
            self._append(op)
        return WrittenUnit(
            self.block,
            range(self.start, len(self.block.rows)),
            tuple(self.entries),
            self.first,
            self.last_begin,
            self.lane[-1].op,
            tuple([ref.op for ref in (*self.waits, *self.later, *self.phase)]),
            tuple([ref.op for ref in self.reductions]),
        )

    def _sync(self, segment: Segment) -> None:
        """Adds the time during which the compute lane is empty after the host has waited for a segment."""
        launches = self.launches
        if launches is None or not segment.items[-1].syncs_host:
            return
        gap = sync_gap_s(launches.seconds)
        sync = self.block.host("sync", gap, lane="compute", source=launches.source, after=self._waits(), **self.facts)
        self._append(sync)

    def _host(self, work: HostWork, allocated: BytesByCategory, freed: BytesByCategory) -> None:
        op = self.block.add(
            Kind.HOST,
            work.name,
            work.seconds,
            "compute",
            "compute",
            source=work.source,
            phase=work.phase,
            after=self._all_waits(),
            alloc=allocated,
            free=freed,
            **self.facts,
        )
        self._append(op)

    def _segment(self, segment: Segment, allocated: BytesByCategory, freed: BytesByCategory) -> None:
        if self.detail == "kernel" and segment.items[0].kernels:
            self._kernels(segment, allocated, freed)
            return
        temporary = temporaries(segment.temporary_bytes)
        memory = {"alloc": add_bytes(allocated, temporary), "free": add_bytes(freed, temporary)}
        # A part of a divided computation waits for nothing that the first part has not waited for.
        divided = [] if self.lane else self.waits
        after = divided if segment.continues else self._waits()
        begins = not (segment.continues and self.lane)
        self._append(compute_op(self.block, segment, after=after, **memory, **self.facts), begins=begins)

    def _kernels(self, segment: Segment, allocated: BytesByCategory, freed: BytesByCategory) -> None:
        """Writes every kernel as an op, named after its computation."""
        each: list[tuple[Compute, Any]] = [
            (item, kernel) for item in segment.items for count, kernel in item.kernels for _ in range(count)
        ]
        after = self._waits()
        for at, (item, kernel) in enumerate(each):
            temporary = temporaries(item.temporary_bytes)
            op = self.block.compute(
                item.name,
                phase=item.phase,
                kernel=kernel_text(kernel),
                flops=kernel.flops,
                moved_bytes=kernel.moved_bytes,
                after=after if at == 0 else (),
                alloc=add_bytes(allocated if at == 0 else {}, temporary),
                free=add_bytes(freed if at == len(each) - 1 else {}, temporary),
                **self.facts,
            )
            self._append(op, begins=at == 0)

    def _concurrent(self, call: Call) -> None:
        """Writes a collective on a lane of its own."""
        if call.concurrent == "previous":
            op = self._collective(call, None, [*self.lane[-2:-1], *self.before])
            if len(self.lane) < 2:
                self.entries.append(op.op)
            self.waits.append(op)
            return
        # A reduction of gradients needs the computation before it, not collectives that run next to that.
        waits = [] if call.concurrent == "step" else self.waits
        op = self._collective(call, None, [*self.lane[-1:], *waits])
        if not self.lane:
            self.entries.append(op.op)
        if call.concurrent == "phase":
            if self.phase_begin != len(self.lane):
                self.waits = [*self.waits, *self.phase]
                self.phase, self.phase_begin = [], len(self.lane)
            self.phase.append(op)
            return
        (self.reductions if call.concurrent == "step" else self.later).append(op)

    def _collective(self, call: Call, lane: str | None, after: Sequence[OpRef], **memory: Any) -> OpRef:
        return collective_op(self.block, call, self.communicators[call.axis], lane, after=after, **memory, **self.facts)

    def _waits(self) -> list[OpRef]:
        """Returns what the next computation waits for, which nothing after it needs to wait for again."""
        self.before, self.waits, self.later = self.waits, self.later, []
        return self.before

    def _all_waits(self) -> list[OpRef]:
        """Returns what a collective or the host waits for: also what would run next to a computation."""
        self.before, self.waits, self.later = [*self.waits, *self.later], [], []
        return self.before

    def _append(self, op: OpRef, *, begins: bool = True) -> None:
        if not self.lane:
            self.entries.append(op.op)
            self.first = op.op
        if begins:
            self.lane.append(op)
            self.last_begin = op.op
        else:
            self.lane[-1] = op  # kernels of one segment, and parts of a divided one, count as one place of the lane


def needs_begin(parts: Sequence[UnitPart]) -> bool:
    """Returns whether a unit has a concurrent call that nothing on its compute lane comes before."""
    on_lane = 0
    for part in parts:
        if isinstance(part, Call) and part.concurrent is not None:
            if not on_lane or (part.concurrent == "previous" and on_lane < 2):
                return True
        elif not (isinstance(part, Segment) and part.continues and on_lane):
            on_lane += 1
    return False


def compute_op(block: BlockBuilder, segment: Segment, **facts: Any) -> OpRef:
    """Appends a segment as one op."""
    item = segment.items[0]
    if not item.kernels and len(segment.items) == 1:
        duration_s = 0.0 if isnan(item.seconds) and not item.moved_bytes else item.seconds
        facts |= {"moved_bytes": item.moved_bytes, "source": item.source}
        return block.compute(item.name, duration_s, phase=item.phase, **facts)
    kernels = segment.kernels
    return block.compute(
        segment.name,
        UNPRICED if kernels else 0.0,
        phase=segment.phase,
        kernel=kernels_text(kernels) if kernels else None,
        flops=sum(count * kernel.flops for count, kernel in kernels),
        moved_bytes=sum(count * kernel.moved_bytes for count, kernel in kernels),
        **facts,
    )


def collective_op(block: BlockBuilder, call: Call, over: Communicator, lane: str | None, **facts: Any) -> OpRef:
    """Appends a collective; without a lane it runs on that of its axis."""
    return block.collective(
        call.collective,
        over,
        call.seconds,
        name=call.name or label(call.collective),
        lane=lane,
        bytes=call.bytes,
        phase=call.phase,
        sends=None if call.sends is None else dict(enumerate(call.sends)),
        kernel=call.way,
        dtype=call.dtype,
        **facts,
    )
