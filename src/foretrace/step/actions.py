"""Writes the ops of one action as a block: the forward or the backward of a chunk for one microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace.program.block import After, BlockBuilder, OpRef
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED, Kind, label
from foretrace.program.kernels import Copy, kernel_text
from foretrace.schedules import ActionKind
from foretrace.step.contract import ContractedUnits, Contraction, join_units
from foretrace.step.groups import Groups
from foretrace.step.memory_rules import Memory, MemoryRules
from foretrace.step.segments import CLOSES, OPENS, PHASES, UnitPart, count_launches, cut_parts, items_of, parts_of
from foretrace.step.sharding import GRADIENT_BUFFERS, ShardedUnits
from foretrace.step.spec import ChunkSpec, CudaGraphs, Cut, Item, StepSpec, Unit, Work
from foretrace.step.units import Detail, UnitWriter, WrittenUnit, needs_begin

_NONE = -1


@dataclass(slots=True)
class Marks:
    """Ops of a block that others wait for, by number.

    They are the first and the last op of each unit in the order of the model, and reductions. `beside` has the calls
    that begin together with the first op of a unit.
    """

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)
    beside: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def begins(self, unit: int) -> tuple[int, ...]:
        """Returns the ops with which a unit begins."""
        first = self.first[unit]
        return (first, *self.beside.get(first, ()))

    def skip(self) -> None:
        """Adds a unit that has no ops."""
        self.first.append(_NONE)
        self.last.append(_NONE)

    def join(self) -> None:
        """Adds a unit that is written as one op with the one before it."""
        self.first.append(self.first[-1])
        self.last.append(self.last[-1])

    def close(self, entry: int, end: int, *, forward: bool) -> None:
        """Gives units without ops those next to them, and puts all in the order of the model.

        Such a unit begins with the next op of the block, and is done when the one before it is.
        """
        for at, op in enumerate(self.last):
            if op == _NONE:
                self.last[at] = self.last[at - 1] if at else entry
        for at in reversed(range(len(self.first))):
            if self.first[at] == _NONE:
                self.first[at] = self.first[at + 1] if at + 1 < len(self.first) else end
        if not forward:
            self.first.reverse()
            self.last.reverse()


class ActionWriter:
    """Writes actions as blocks with the ports `in` and `out`, and remembers which of their ops others wait for."""

    def __init__(
        self,
        build: ProgramBuilder,
        spec: StepSpec,
        groups: Groups,
        detail: Detail,
        contraction: Contraction | None = None,
    ) -> None:
        self.build, self.spec, self.groups, self.detail, self.contraction = build, spec, groups, detail, contraction
        self.marks: dict[int, Marks] = {}
        self.sharded = ShardedUnits(spec.sharding, groups) if spec.sharding else None
        self.rules = MemoryRules(self.sharded, spec.gradient_bytes)
        self.units: dict[tuple[object, ...], WrittenUnit] = {}
        self.blocks: dict[tuple[ActionKind, int, int, bool, int, frozenset[int]], BlockBuilder] = {}
        """The blocks of actions: by kind, number and id of the chunk, and what else tells actions apart."""
        self._items: dict[tuple[int, ActionKind], Sequence[Item]] = {}
        self._parts: dict[tuple[int, ActionKind], list[UnitPart]] = {}
        self._contracted: dict[tuple[int, ActionKind], list[UnitPart] | None] = {}
        self._launches: dict[tuple[int, ActionKind], float] = {}

    def block(
        self,
        kind: ActionKind,
        number: int,
        chunk: ChunkSpec,
        cuts: tuple[Cut, ...] = (),
        *,
        first: bool = False,
        tied: frozenset[int] = frozenset(),
    ) -> BlockBuilder:
        """Returns the block of an action. Actions that do the same share it.

        Args:
            kind: Forward or backward.
            number: The number of the chunk on its stage.
            chunk: The units to run.
            cuts: Items that run within it, if it is the last backward of its chunk.
            first: Whether it is the first microbatch of its chunk.
            tied: The units to which the end of the step is tied, which are not contracted to one op with others.
        """
        allocates = first and kind in CLOSES and self.spec.gradient_bytes > 0
        key = (kind, number, id(chunk), allocates, id(cuts) if cuts else 0, tied)
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = _BlockWriter(self, kind, number, allocates).write(chunk, cuts, tied)
        return block

    def items(self, work: Work, kind: ActionKind) -> Sequence[Item]:
        """Returns what a work does in an action."""
        key = id(work), kind
        if key not in self._items:
            items = items_of(work, kind)
            self._items[key] = items if self.sharded is None else self.sharded.with_copies(work, kind, items)
        return self._items[key]

    def parts(self, work: Work, kind: ActionKind) -> list[UnitPart]:
        """Returns the ops that a work becomes in an action."""
        key = id(work), kind
        if key not in self._parts:
            self._parts[key] = parts_of(self.items(work, kind))
        return self._parts[key]

    def contracted_parts(self, work: Work, kind: ActionKind) -> list[UnitPart] | None:
        """Returns the same with all that follows itself on the compute lane as one; None where that is not possible."""
        key = id(work), kind
        if key not in self._contracted:
            contraction, items = self.contraction, self.items(work, kind)
            self._contracted[key] = None if contraction is None else contraction.parts(work, kind, items)
        return self._contracted[key]

    def launches(self, work: Work, kind: ActionKind, graphs: CudaGraphs) -> float:
        """Counts the host's launches of a work in an action."""
        key = id(work), kind
        if key not in self._launches:
            self._launches[key] = count_launches(self.items(work, kind), graphs)
        return self._launches[key]


class _BlockWriter:
    """Writes one block."""

    def __init__(self, owner: ActionWriter, kind: ActionKind, chunk: int, allocates_gradients: bool) -> None:
        self.owner, self.kind, self.chunk, self.allocates_gradients = owner, kind, chunk, allocates_gradients
        self.block = owner.build.block(label(kind))
        self.marks = owner.marks[self.block.number] = Marks()
        self.phase = PHASES[kind]
        self.facts: dict[str, Any] = {"chunk": chunk}
        self.exits: list[int] = []
        """The last op of each unit on the compute lane."""
        self.open: list[int] = []
        """Ops next to it for which the next unit waits."""
        self.begin: list[int] = []
        """An op of no time for which concurrent calls at the beginning wait."""
        self.fetched: dict[int, list[int]] = {}
        self.leaving: tuple[Unit, OpRef] | None = None
        """A unit whose activations are on their way to the host, and the copy."""

    def write(self, chunk: ChunkSpec, cuts: tuple[Cut, ...], tied: frozenset[int]) -> BlockBuilder:
        """Writes all units in the order of the action."""
        forward = self.kind == ActionKind.FORWARD
        units = chunk.units if forward else chunk.units[::-1]
        cut = cut_parts([self.owner.items(unit.work, self.kind) for unit in units], cuts) if cuts else None
        launch = self._launches(units)
        # In a pipeline it is enough that the next action's launches come after these: half as many chains of ops.
        waits_for_launches = bool(launch) and self.owner.spec.mesh.pp == 1
        contracted = None if cut else self._contracted(units, tied, last_whole=waits_for_launches)
        sharded = self.owner.sharded
        gathers = sharded is not None and sharded.spec.gathers
        fetches = gathers or (self.kind in OPENS and any(unit.offloaded_bytes for unit in units))
        start = [self._instant("begin")] if gathers else []
        ahead = self.owner.spec.prefetch[0 if forward else 1] if fetches else 0
        entry = ending = -1
        for at in range(-ahead, len(units)):
            if fetches:
                self._fetch(units, at + ahead, at, start)
            if at < 0:
                continue
            parts = self.owner.parts(units[at].work, self.kind) if cut is None else cut[at]
            reduces = self.kind in CLOSES and sharded is not None and sharded.reduces(units[at])
            if not (parts or fetches or reduces or self._memory(units[at])):
                self.marks.skip()
                self._release()
                continue
            if contracted is not None:
                if at in contracted.joined:
                    self.marks.join()
                    continue
                parts = contracted.parts.get(at, parts)
            if entry < 0:
                self.begin = [self._instant("begin").op] if needs_begin(parts) else []
            whole = cut is None and (contracted is None or at not in contracted.parts)
            first, ending = self._unit(units[at], at, parts, repeatable=whole)
            if entry < 0:
                entry = first
                self.block.deps += [(ref.op, entry) for ref in launch[:1]]
            self._release()
            if at == len(units) - 1 and self.open and sharded is not None and not sharded.spec.overlap:
                self._join()  # what another stage waits for, before reductions that come next on the compute lane
            self._after(units[at], at)
        if entry < 0 or self.open:
            self._join()
        self._release()
        self.marks.close(self.exits[0] if entry < 0 else entry, self.exits[-1], forward=forward)
        if entry >= 0 and ending != entry and waits_for_launches:
            self.block.deps.append((launch[-1].op, ending))
        self.block.ports["in"] = self.begin[0] if self.begin else entry if entry >= 0 else self.exits[0]
        # The next action needs the activations, not gradients that are still being reduced.
        self.block.ports["out"] = self.exits[-1]
        return self.block

    def _contracted(self, units: tuple[Unit, ...], tied: frozenset[int], *, last_whole: bool) -> ContractedUnits | None:
        """Returns the contracted parts of units in the order of the action.

        Args:
            units: The units.
            tied: The numbers, in the order of the model, of those that others wait for or that wait for others.
            last_whole: Whether the last op of the action waits for the host, so that it must be an op of its own.
        """
        owner, kind = self.owner, self.kind
        if owner.contraction is None:
            return None
        parts = [owner.contracted_parts(unit.work, kind) for unit in units]
        present = [bool(owner.items(unit.work, kind) or self._memory(unit)) for unit in units]
        sharded = owner.sharded
        # A unit that something is fetched for, or whose gradients or activations go elsewhere, stays an op of its own.
        apart = any(
            unit.offloaded_bytes
            or (sharded is not None and (sharded.gathers(unit, kind) or (kind in CLOSES and sharded.reduces(unit))))
            for unit in units
        )
        order = tied if kind == ActionKind.FORWARD else {len(units) - 1 - number for number in tied}
        if any(present):
            first, last = present.index(True), len(units) - 1 - present[::-1].index(True)
            if last_whole:
                parts[last] = None
            # A call at the very beginning of a unit does not wait for the host, for gathered parameters or for what
            # else comes between two units on the compute lane, as the first computation does.
            waiting = range(len(units)) if apart else {first, *(order if kind == ActionKind.FORWARD else ())}
            for at in waiting:
                if needs_begin(owner.parts(units[at].work, kind)):
                    parts[at] = None
        if apart:
            return ContractedUnits({at: own for at, own in enumerate(parts) if own is not None}, frozenset())
        return join_units(parts, present, order, kind)

    def _instant(self, name: str, after: Sequence[OpRef] = (), **facts: Any) -> OpRef:
        return self.block.compute(name, 0.0, phase=self.phase, after=after, **self.facts, **facts)

    def _join(self) -> None:
        """Ends the action with an op that waits for calls next to its last unit."""
        self.exits.append(self._instant("join", self._refs(self.open)).op)
        self.open = []

    def _refs(self, ops: Sequence[int]) -> list[OpRef]:
        return [OpRef(self.block.number, op) for op in ops]

    def _launches(self, units: tuple[Unit, ...]) -> list[OpRef]:
        """Writes the host's launches of an action.

        Its first op waits for the first launch, its last op for all others. Launches run ahead of what they launch, so
        the ops between wait for neither.
        """
        owner, launches = self.owner, self.owner.spec.launches
        if launches is None:
            return []
        count = sum(owner.launches(unit.work, self.kind, launches.graphs) for unit in units)
        if not count:
            return []
        facts: dict[str, Any] = {"source": launches.source, "phase": self.phase, **self.facts}
        first = self.block.host("launch", launches.seconds, **facts)
        return [first, self.block.host("launches", (count - 1) * launches.seconds, **facts)]

    def _fetch(self, units: tuple[Unit, ...], number: int, current: int, start: list[OpRef]) -> None:
        """Fetches what unit `number` needs, as soon as the unit before the current one is done.

        So the data of no more units than that is there at once.
        """
        if number >= len(units):
            return
        unit, after = units[number], self._refs(self.exits[current - 1 : current]) if current > 0 else start
        sharded, fetched = self.owner.sharded, list[OpRef]()
        if sharded and sharded.gathers(unit, self.kind):
            fetched += sharded.gather(self.block, unit, self.kind, after, phase=self.phase, **self.facts)
        if self.kind in OPENS and (size := unit.offloaded_bytes):
            # It is in the lane after the unit before the current one, whose memory may be used again.
            room = self._instant("prefetch", layer=unit.layer, alloc={"activations": size})
            fetched.append(self._copy(unit, "gpu", room))
        self.fetched.setdefault(number, []).extend(ref.op for ref in fetched)

    def _unit(self, unit: Unit, at: int, parts: list[UnitPart], *, repeatable: bool) -> tuple[int, int]:
        """Writes the parts of a unit; a repeatable one that does the same as another is repeated.

        Returns the first op on the compute lane, and where the segment that ends the unit begins.
        """
        owner, block = self.owner, self.block
        key = (id(unit.work), self.kind, self.chunk, self.allocates_gradients, unit.layer < 0)
        written, moved = owner.units.get(key) if repeatable else None, 0
        if written is None:
            writer = UnitWriter(block, owner.groups, owner.spec.launches, owner.detail, self._facts(unit))
            # At the level of actions only times count.
            memory = self._memory(unit) if owner.contraction is None else Memory()
            written = writer.write(parts, memory, self.phase)
            if repeatable:
                owner.units[key] = written.draft()
        else:
            moved = block.repeat(written.block, written.ops, unit.layer) - written.ops.start
        waits = [*self.open, *self.fetched.pop(at, ())] if self.fetched else self.open
        for entry in written.entries:
            last = [] if entry == written.first else self.exits[-1:] or self.begin
            block.deps += [(op, entry + moved) for op in (*waits, *last)]
        first, end = written.first + moved, written.last + moved
        self.exits.append(end)
        self.open = [op + moved for op in written.waits]
        self.marks.first.append(first)
        if len(written.entries) > 1:
            self.marks.beside[first] = tuple(op + moved for op in written.entries if op != written.first)
        self.marks.last.append(end)
        self.marks.reductions += [op + moved for op in written.reductions]
        return first, written.last_begin + moved

    def _memory(self, unit: Unit) -> Memory:
        return self.owner.rules.unit(unit, self.kind, allocates_gradients=self.allocates_gradients)

    def _facts(self, unit: Unit) -> dict[str, Any]:
        return {**self.facts, "layer": unit.layer}

    def _after(self, unit: Unit, at: int) -> None:
        """Writes what follows unit `at` next to the computation: gradients reduced, activations copied away."""
        sharded = self.owner.sharded
        if sharded and self.kind in CLOSES:
            scattered, replicated = sharded.reduce(self.block, unit, self._refs(self.exits[-1:]), self.chunk)
            self.marks.reductions += [ref.op for ref in (*scattered, *replicated)]
            self.fetched.setdefault(at + GRADIENT_BUFFERS, []).extend(ref.op for ref in scattered)
        if self.kind == ActionKind.FORWARD and unit.offloaded_bytes:
            self.leaving = unit, self._copy(unit, "host", self._refs(self.exits[-1:]))

    def _release(self) -> None:
        """Frees the activations that were copied next to the unit just written, for which computation waits.

        Transformer Engine does so (`synchronize_on_group_commit_forward` of its double-buffered offload handler): the
        compute stream waits for the copy stream before the tensors go back to the allocator.
        """
        if self.leaving is None:
            return
        (unit, copied), self.leaving = self.leaving, None
        self._instant("release", [copied], layer=unit.layer, free={"activations": unit.offloaded_bytes})

    def _copy(self, unit: Unit, to: str, after: After) -> OpRef:
        """Copies a unit's activations to the host or back, by a copy engine next to computation."""
        size = unit.offloaded_bytes
        return self.block.add(
            Kind.COMPUTE,
            f"activations to {to}",
            UNPRICED,
            f"copy to {to}",
            "communication",
            kernel=kernel_text(Copy(size, to)),
            moved_bytes=float(size),
            phase=self.phase,
            after=after,
            **self._facts(unit),
        )
