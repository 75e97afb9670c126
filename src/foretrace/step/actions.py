"""The ops of one action, which is the forward or the backward of a chunk for one microbatch, as a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED, Kind, Phase, label
from foretrace.program.kernels import Copy, kernel_text
from foretrace.schedules import ActionKind
from foretrace.step.groups import Groups
from foretrace.step.segments import Part, count_launches, parts_of
from foretrace.step.sharding import ShardedUnits
from foretrace.step.spec import Call, ChunkSpec, Compute, Cut, Item, StepSpec, Unit, Work
from foretrace.step.units import Detail, Memory, UnitWriter, WrittenUnit

_PHASES = {
    ActionKind.FORWARD: Phase.FORWARD,
    ActionKind.BACKWARD: Phase.BACKWARD,
    ActionKind.BACKWARD_INPUT: Phase.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Phase.BACKWARD_WEIGHT,
}
_OPENS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
"""Actions with which the backward of a microbatch begins."""
_CLOSES = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
"""Actions with which it ends."""


@dataclass(slots=True)
class Marks:
    """Ops of a block that others wait for, by number.

    They are the first and the last op of each unit in the order of the model, and reductions.
    """

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)


class ActionWriter:
    """Writes actions as blocks with the ports `in` and `out`, and remembers which of their ops others wait for."""

    def __init__(self, build: ProgramBuilder, spec: StepSpec, groups: Groups, detail: Detail) -> None:
        self.build, self.spec, self.groups, self.detail = build, spec, groups, detail
        self.marks: dict[int, Marks] = {}
        self.sharded = ShardedUnits(spec.sharding, groups) if spec.sharding else None
        self.units: dict[tuple[object, ...], WrittenUnit] = {}
        self._blocks: dict[tuple[object, ...], BlockBuilder] = {}
        self._items: dict[tuple[int, ActionKind], Sequence[Item]] = {}
        self._parts: dict[tuple[int, ActionKind], list[Part]] = {}

    def block(
        self, kind: ActionKind, number: int, chunk: ChunkSpec, cuts: tuple[Cut, ...] = (), *, first: bool = False
    ) -> BlockBuilder:
        """Returns the block of an action. Actions that do the same share it.

        Args:
            kind: Forward or backward.
            number: Of the chunk on its stage.
            chunk: What it runs.
            cuts: What runs within it, if it is the last backward of its chunk.
            first: Whether it is the first microbatch of its chunk.
        """
        appear = first and kind in _CLOSES and self.spec.gradient_bytes > 0
        key = (kind, number, id(chunk), appear, id(cuts) if cuts else 0)
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _BlockWriter(self, kind, number, appear).write(chunk, cuts)
        return block

    def items(self, work: Work, kind: ActionKind) -> Sequence[Item]:
        """Returns what a work does in an action."""
        key = id(work), kind
        if key not in self._items:
            items = _items(work, kind)
            self._items[key] = items if self.sharded is None else self.sharded.with_copies(work, kind, items)
        return self._items[key]

    def parts(self, work: Work, kind: ActionKind) -> list[Part]:
        """Returns the ops that a work becomes in an action."""
        key = id(work), kind
        if key not in self._parts:
            self._parts[key] = parts_of(self.items(work, kind))
        return self._parts[key]

    def memory(self, unit: Unit, kind: ActionKind, appear: bool) -> Memory:
        """Returns what a unit takes and gives back in an action."""
        work, sharded = unit.work, self.sharded
        gathered = sharded.gathered_bytes(unit) if sharded else 0
        first, last, freed = dict[str, int](), dict[str, int](), dict[str, int]()
        if kind == ActionKind.FORWARD:
            last["activations"] = work.saved_bytes
            if sharded and sharded.releases(unit):
                freed["buffers"] = gathered
        if kind in _OPENS:
            first["activations"] = work.recomputed_bytes
            first["buffers"] = gathered  # the gradients of whole parameters, until they are scattered
        if kind in _CLOSES:
            freed = {"activations": work.saved_bytes + work.recomputed_bytes, "buffers": gathered}
            if appear:
                last["gradients"] = self.spec.gradient_bytes * (work.parameters + work.expert_parameters)
        return Memory(_nonzero(first), _nonzero(last), _nonzero(freed))


class _BlockWriter:
    """Writes one block."""

    def __init__(self, owner: ActionWriter, kind: ActionKind, chunk: int, appear: bool) -> None:
        self.owner, self.kind, self.chunk, self.appear = owner, kind, chunk, appear
        self.block = owner.build.block(label(kind))
        self.marks = owner.marks[self.block.number] = Marks()
        self.phase = _PHASES[kind]
        self.facts: dict[str, Any] = {"chunk": chunk}
        self.exits: list[int] = []
        """The last op of each unit on the compute lane."""
        self.open: list[int] = []
        """Ops next to it for which the next unit waits."""
        self.joins: list[int] = []
        self.fetched: dict[int, list[int]] = {}

    def write(self, chunk: ChunkSpec, cuts: tuple[Cut, ...]) -> BlockBuilder:
        """Writes all units in the order of the action."""
        forward = self.kind == ActionKind.FORWARD
        units = chunk.units if forward else chunk.units[::-1]
        cut = self._cut(units, cuts) if cuts else None
        launch = self._launches(units)
        fetches = self.owner.sharded is not None or any(unit.offloaded for unit in units)
        begin = [self.block.compute("begin", 0.0, phase=self.phase, **self.facts)] if fetches else []
        ahead = self.owner.spec.prefetch[0 if forward else 1] if fetches else 0
        entry = ending = -1
        for at in range(-ahead, len(units)):
            if fetches:
                self._fetch(units, at + ahead, at, begin)
            if at < 0:
                continue
            first, ending = self._unit(units[at], at, None if cut is None else cut[at])
            if entry < 0:
                entry = first
                self.block.deps += [(ref.op, entry) for ref in launch[:1]]
            self._after(units[at])
        if not forward:
            self.marks.first.reverse()
            self.marks.last.reverse()
        if entry < 0 or self.open or self.joins:
            waits = self._refs([*self.open, *self.joins])
            self.exits.append(self.block.compute("join", 0.0, phase=self.phase, after=waits, **self.facts).op)
        # In a pipeline it is enough that the next action's launches come after these: half as many chains of ops.
        if entry >= 0 and launch and ending != entry and self.owner.spec.mesh.pp == 1:
            self.block.deps.append((launch[-1].op, ending))
        self.block.ports["in"] = entry if entry >= 0 else self.exits[0]
        # What comes next needs what was computed, not gradients that are still being reduced.
        self.block.ports["out"] = self.exits[-1]
        return self.block

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
        count = sum(count_launches(owner.items(unit.work, self.kind), launches.graphs) for unit in units)
        if not count:
            return []
        facts: dict[str, Any] = {"source": launches.source, "phase": self.phase, **self.facts}
        first = self.block.host("launch", launches.seconds, **facts)
        return [first, self.block.host("launches", (count - 1) * launches.seconds, **facts)]

    def _fetch(self, units: tuple[Unit, ...], number: int, current: int, begin: list[OpRef]) -> None:
        """Fetches what unit `number` needs, as soon as the unit before the current one is done.

        So the data of no more units than that is there at once.
        """
        if number >= len(units):
            return
        unit, after = units[number], self._refs(self.exits[current - 1 : current]) if current > 0 else begin
        sharded, fetched = self.owner.sharded, list[OpRef]()
        if sharded and (self.kind == ActionKind.FORWARD or (self.kind in _OPENS and sharded.releases(unit))):
            fetched += sharded.gather(self.block, unit, after, phase=self.phase, **self.facts)
        if self.kind in _OPENS and unit.offloaded:
            fetched.append(self._copy(unit, "gpu", after))
        self.fetched[number] = [ref.op for ref in fetched]

    def _unit(self, unit: Unit, at: int, items: list[Item] | None) -> tuple[int, int]:
        """Writes a unit, with `items` of its own if there are any, or repeats one that does the same.

        Returns the first op on the compute lane, and where the segment that ends the unit begins.
        """
        owner, block = self.owner, self.block
        key = (id(unit.work), self.kind, self.chunk, self.appear, unit.layer < 0)
        written, moved = owner.units.get(key) if items is None else None, 0
        if written is None:
            writer = UnitWriter(block, owner.groups, owner.spec.launches, owner.detail, self._facts(unit))
            parts = owner.parts(unit.work, self.kind) if items is None else parts_of(items)
            written = writer.write(parts, owner.memory(unit, self.kind, self.appear), self.phase)
            if items is None:
                owner.units[key] = written.draft()
        else:
            moved = block.repeat(written.block, written.ops, unit.layer) - written.ops.start
        waits = [*self.open, *self.fetched.pop(at, ())]
        for entry in written.entries:
            last = [] if entry == written.first else self.exits[-1:]
            block.deps += [(op, entry + moved) for op in (*waits, *last)]
        first, end = written.first + moved, written.last + moved
        self.exits.append(end)
        self.open = [op + moved for op in written.waits]
        self.joins += [op + moved for op in written.joins]
        self.marks.first.append(first)
        self.marks.last.append(end)
        self.marks.reductions += [op + moved for op in written.reductions]
        return first, written.last_begin + moved

    def _facts(self, unit: Unit) -> dict[str, Any]:
        return {**self.facts, "layer": unit.layer}

    def _after(self, unit: Unit) -> None:
        """Writes what follows a unit next to the computation: gradients reduced, activations copied away."""
        sharded = self.owner.sharded
        if sharded and self.kind in _CLOSES:
            reduced = sharded.reduce(self.block, unit, self._refs(self.exits[-1:]), self.chunk)
            self.marks.reductions += [ref.op for ref in reduced]
        if self.kind == ActionKind.FORWARD and unit.offloaded:
            self._copy(unit, "host", self._refs(self.exits[-1:]))

    def _copy(self, unit: Unit, to: str, after: list[OpRef]) -> OpRef:
        """Copies a unit's activations to the host or back, by a copy engine next to computation."""
        size = unit.work.saved_bytes
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
            free={"activations": size} if to == "host" else None,
            alloc={"activations": size} if to == "gpu" else None,
            **self._facts(unit),
        )

    def _cut(self, units: tuple[Unit, ...], cuts: tuple[Cut, ...]) -> list[list[Item]]:
        """Returns the items of each unit with those of cuts between them, each after its share of all computation."""
        each = [self.owner.items(unit.work, self.kind) for unit in units]
        computed = [item.seconds for items in each for item in items if isinstance(item, Compute)]
        total, left, done = sum(computed), len(computed), 0.0
        waiting = sorted(cuts, key=lambda cut: cut.share)
        result: list[list[Item]] = []
        for items in each:
            merged: list[Item] = []
            for item in items:
                if not isinstance(item, Compute):
                    merged.append(item)
                    continue
                while waiting and waiting[0].share * total < done + item.seconds:
                    before = max(waiting[0].share * total - done, 0.0)
                    merged += [replace(item, seconds=before), *_concurrent(waiting.pop(0))]
                    item = replace(item, seconds=item.seconds - before)
                    done += before
                merged.append(item)
                done, left = done + item.seconds, left - 1
                if not left:
                    merged += [one for cut in waiting for one in _concurrent(cut)]
            result.append(merged)
        return result


def _items(work: Work, kind: ActionKind) -> Sequence[Item]:
    """Returns what a work does in an action, before parameters are split."""
    if kind == ActionKind.FORWARD:
        return work.forward
    if work.weight_share is not None:
        return _shared(work.backward, kind, work.weight_share)
    recompute = work.recompute if kind in _OPENS else ()
    if kind == ActionKind.BACKWARD:
        return [*recompute, *work.backward] if recompute else work.backward
    weight = kind == ActionKind.BACKWARD_WEIGHT
    return [*recompute, *(item for item in work.backward if (item.phase == Phase.BACKWARD_WEIGHT) == weight)]


def _shared(items: Sequence[Item], kind: ActionKind, share: float) -> Sequence[Item]:
    """Returns a backward, or its part that gives input or weight gradients.

    Weight gradients take `share` of the computation; collectives and the host belong to input gradients.
    """
    if kind == ActionKind.BACKWARD:
        return items
    part, phase = (1 - share, Phase.BACKWARD_INPUT) if kind == ActionKind.BACKWARD_INPUT else (share, _PHASES[kind])
    return [
        replace(item, seconds=part * item.seconds, phase=phase)
        if isinstance(item, Compute)
        else replace(item, phase=phase)
        for item in items
        if isinstance(item, Compute) or kind == ActionKind.BACKWARD_INPUT
    ]


def _concurrent(cut: Cut) -> list[Item]:
    """Returns the items of a cut, its calls next to the rest of the step."""
    return [replace(item, concurrent="step") if isinstance(item, Call) else item for item in cut.items]


def _nonzero(sizes: dict[str, int]) -> dict[str, int]:
    return {category: size for category, size in sizes.items() if size}
