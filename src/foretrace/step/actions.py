"""Writes the ops of one action as a block: the forward or the backward of a chunk for one microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from foretrace.basics.errors import InputError
from foretrace.program.block import After, BlockBuilder, OpRef
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED, Kind, Phase, label
from foretrace.program.kernels import Copy, kernel_text
from foretrace.schedules import ActionKind
from foretrace.step.groups import Groups
from foretrace.step.segments import Segment, UnitPart, count_launches, parts_of
from foretrace.step.sharding import ShardedUnits
from foretrace.step.spec import Call, ChunkSpec, Compute, Cut, Item, StepSpec, Unit, Work
from foretrace.step.units import Detail, Memory, UnitWriter, WrittenUnit, needs_begin

_PHASES = {
    ActionKind.FORWARD: Phase.FORWARD,
    ActionKind.BACKWARD: Phase.BACKWARD,
    ActionKind.BACKWARD_INPUT: Phase.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Phase.BACKWARD_WEIGHT,
}
OPENS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
"""Actions with which the backward of a microbatch begins."""
CLOSES = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
"""Actions with which it ends."""
_NONE = -1
CUT_SLACK = 1e-12
"""The share of a backward within which a cut is at the end of a computation, and not within the next."""


@dataclass(slots=True)
class Marks:
    """Ops of a block that others wait for, by number.

    They are the first and the last op of each unit in the order of the model, and reductions.
    """

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)

    def skip(self) -> None:
        """Adds a unit that has no ops."""
        self.first.append(_NONE)
        self.last.append(_NONE)

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

    def __init__(self, build: ProgramBuilder, spec: StepSpec, groups: Groups, detail: Detail) -> None:
        self.build, self.spec, self.groups, self.detail = build, spec, groups, detail
        self.marks: dict[int, Marks] = {}
        self.sharded = ShardedUnits(spec.sharding, groups) if spec.sharding else None
        self.units: dict[tuple[object, ...], WrittenUnit] = {}
        self._blocks: dict[tuple[object, ...], BlockBuilder] = {}
        self._items: dict[tuple[int, ActionKind], Sequence[Item]] = {}
        self._parts: dict[tuple[int, ActionKind], list[UnitPart]] = {}

    def block(
        self, kind: ActionKind, number: int, chunk: ChunkSpec, cuts: tuple[Cut, ...] = (), *, first: bool = False
    ) -> BlockBuilder:
        """Returns the block of an action. Actions that do the same share it.

        Args:
            kind: Forward or backward.
            number: The number of the chunk on its stage.
            chunk: The units to run.
            cuts: Items that run within it, if it is the last backward of its chunk.
            first: Whether it is the first microbatch of its chunk.
        """
        allocates = first and kind in CLOSES and self.spec.gradient_bytes > 0
        key = (kind, number, id(chunk), allocates, id(cuts) if cuts else 0)
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _BlockWriter(self, kind, number, allocates).write(chunk, cuts)
        return block

    def items(self, work: Work, kind: ActionKind) -> Sequence[Item]:
        """Returns what a work does in an action."""
        key = id(work), kind
        if key not in self._items:
            items = _items(work, kind)
            self._items[key] = items if self.sharded is None else self.sharded.with_copies(work, kind, items)
        return self._items[key]

    def parts(self, work: Work, kind: ActionKind) -> list[UnitPart]:
        """Returns the ops that a work becomes in an action."""
        key = id(work), kind
        if key not in self._parts:
            self._parts[key] = parts_of(self.items(work, kind))
        return self._parts[key]

    def memory(self, unit: Unit, kind: ActionKind, allocates_gradients: bool) -> Memory:
        """Returns the memory that a unit takes and gives back in an action."""
        work, sharded = unit.work, self.sharded
        gathered = sharded.gathered_bytes(unit) if sharded else 0
        first, last, freed = dict[str, int](), dict[str, int](), dict[str, int]()
        if kind == ActionKind.FORWARD:
            last["activations"] = work.saved_bytes
            if sharded and sharded.releases(unit):
                freed["buffers"] = gathered
        if kind in OPENS:
            first["activations"] = work.recomputed_bytes
            first["buffers"] = gathered  # the gradients of whole parameters, until they are scattered
        if kind in CLOSES:
            freed = {"activations": work.saved_bytes + work.recomputed_bytes, "buffers": gathered}
            if allocates_gradients:
                last["gradients"] = self.spec.gradient_bytes * (work.parameters + work.expert_parameters)
        return Memory(_nonzero(first), _nonzero(last), _nonzero(freed))


class _BlockWriter:
    """Writes one block."""

    def __init__(self, owner: ActionWriter, kind: ActionKind, chunk: int, allocates_gradients: bool) -> None:
        self.owner, self.kind, self.chunk, self.allocates_gradients = owner, kind, chunk, allocates_gradients
        self.block = owner.build.block(label(kind))
        self.marks = owner.marks[self.block.number] = Marks()
        self.phase = _PHASES[kind]
        self.facts: dict[str, Any] = {"chunk": chunk}
        self.exits: list[int] = []
        """The last op of each unit on the compute lane."""
        self.open: list[int] = []
        """Ops next to it for which the next unit waits."""
        self.begin: list[int] = []
        """An op of no time for which concurrent calls at the beginning wait."""
        self.joins: list[int] = []
        self.fetched: dict[int, list[int]] = {}
        self.leaving: tuple[Unit, OpRef] | None = None
        """A unit whose activations are on their way to the host, and the copy."""

    def write(self, chunk: ChunkSpec, cuts: tuple[Cut, ...]) -> BlockBuilder:
        """Writes all units in the order of the action."""
        forward = self.kind == ActionKind.FORWARD
        units = chunk.units if forward else chunk.units[::-1]
        cut = self._cut(units, cuts) if cuts else None
        launch = self._launches(units)
        sharded = self.owner.sharded is not None
        fetches = sharded or (self.kind in OPENS and any(unit.offloaded_bytes for unit in units))
        start = [self._instant("begin")] if sharded else []
        ahead = self.owner.spec.prefetch[0 if forward else 1] if fetches else 0
        entry = ending = -1
        for at in range(-ahead, len(units)):
            if fetches:
                self._fetch(units, at + ahead, at, start)
            if at < 0:
                continue
            parts = self.owner.parts(units[at].work, self.kind) if cut is None else cut[at]
            if not parts and not fetches and not self.owner.memory(units[at], self.kind, self.allocates_gradients):
                self.marks.skip()
                self._release()
                continue
            if entry < 0:
                self.begin = [self._instant("begin").op] if needs_begin(parts) else []
            first, ending = self._unit(units[at], at, parts, repeatable=cut is None)
            if entry < 0:
                entry = first
                self.block.deps += [(ref.op, entry) for ref in launch[:1]]
            self._release()
            self._after(units[at])
        if entry < 0 or self.open or self.joins:
            self.exits.append(self._instant("join", self._refs([*self.open, *self.joins])).op)
        self._release()
        self.marks.close(self.exits[0] if entry < 0 else entry, self.exits[-1], forward=forward)
        # In a pipeline it is enough that the next action's launches come after these: half as many chains of ops.
        if entry >= 0 and launch and ending != entry and self.owner.spec.mesh.pp == 1:
            self.block.deps.append((launch[-1].op, ending))
        self.block.ports["in"] = self.begin[0] if self.begin else entry if entry >= 0 else self.exits[0]
        # The next action needs the activations, not gradients that are still being reduced.
        self.block.ports["out"] = self.exits[-1]
        return self.block

    def _instant(self, name: str, after: Sequence[OpRef] = (), **facts: Any) -> OpRef:
        return self.block.compute(name, 0.0, phase=self.phase, after=after, **self.facts, **facts)

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

    def _fetch(self, units: tuple[Unit, ...], number: int, current: int, start: list[OpRef]) -> None:
        """Fetches what unit `number` needs, as soon as the unit before the current one is done.

        So the data of no more units than that is there at once.
        """
        if number >= len(units):
            return
        unit, after = units[number], self._refs(self.exits[current - 1 : current]) if current > 0 else start
        sharded, fetched = self.owner.sharded, list[OpRef]()
        if sharded and (self.kind == ActionKind.FORWARD or (self.kind in OPENS and sharded.releases(unit))):
            fetched += sharded.gather(self.block, unit, after, phase=self.phase, **self.facts)
        if self.kind in OPENS and (size := unit.offloaded_bytes):
            # It is in the lane after the unit before the current one, whose memory may be used again.
            room = self._instant("prefetch", layer=unit.layer, alloc={"activations": size})
            fetched.append(self._copy(unit, "gpu", room))
        self.fetched[number] = [ref.op for ref in fetched]

    def _unit(self, unit: Unit, at: int, parts: list[UnitPart], *, repeatable: bool) -> tuple[int, int]:
        """Writes the parts of a unit; a repeatable one that does the same as another is repeated.

        Returns the first op on the compute lane, and where the segment that ends the unit begins.
        """
        owner, block = self.owner, self.block
        key = (id(unit.work), self.kind, self.chunk, self.allocates_gradients, unit.layer < 0)
        written, moved = owner.units.get(key) if repeatable else None, 0
        if written is None:
            writer = UnitWriter(block, owner.groups, owner.spec.launches, owner.detail, self._facts(unit))
            written = writer.write(parts, owner.memory(unit, self.kind, self.allocates_gradients), self.phase)
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
        if sharded and self.kind in CLOSES:
            reduced = sharded.reduce(self.block, unit, self._refs(self.exits[-1:]), self.chunk)
            self.marks.reductions += [ref.op for ref in reduced]
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

    def _cut(self, units: tuple[Unit, ...], cuts: tuple[Cut, ...]) -> list[list[UnitPart]]:
        """Returns the parts of each unit with the items of cuts between them.

        A cut comes after its share of all computation: within a computation, which it divides, or after it, where what
        runs next to that computation is listed.
        """
        each = [self.owner.items(unit.work, self.kind) for unit in units]
        computed = [item.seconds for items in each for item in items if isinstance(item, Compute)]
        if any(map(isnan, computed)):
            problem = "a cut comes after a share of a backward whose computations have no seconds"
            raise InputError("invalid-program", problem, hint="give them seconds, or reduce after units")
        total, left, done = sum(computed), len(computed), 0.0
        slack = CUT_SLACK * total
        waiting = sorted(cuts, key=lambda cut: cut.share)
        units_parts: list[list[UnitPart]] = []
        for items in each:
            parts: list[UnitPart] = []
            at = 0
            while at < len(items):
                item, at = items[at], at + 1
                if not isinstance(item, Compute):
                    parts.append(item)
                    continue
                end, left, continues = done + item.seconds, left - 1, False
                while not done and waiting and waiting[0].share * total <= slack:
                    parts += _parts_of_cut(waiting.pop(0))
                while waiting and waiting[0].share * total < end - slack and waiting[0].share * total > done + slack:
                    before = waiting[0].share * total - done
                    parts += [Segment((replace(item, seconds=before),), continues), *_parts_of_cut(waiting.pop(0))]
                    item, done, continues = replace(item, seconds=item.seconds - before), done + before, True
                parts.append(Segment((item,), continues))
                done = end
                while at < len(items) and isinstance(call := items[at], Call) and call.concurrent == "previous":
                    parts.append(call)
                    at += 1
                while waiting and (not left or waiting[0].share * total <= min(done, total - 2 * slack) + slack):
                    parts += _parts_of_cut(waiting.pop(0))
            units_parts.append(parts)
        if waiting:  # nothing is computed
            units_parts[-1] += [part for cut in waiting for part in _parts_of_cut(cut)]
        return units_parts


def _items(work: Work, kind: ActionKind) -> Sequence[Item]:
    """Returns what a work does in an action, before parameters are split."""
    if kind == ActionKind.FORWARD:
        return work.forward
    recompute = work.recompute if kind in OPENS else ()
    if kind == ActionKind.BACKWARD:
        return [*recompute, *work.backward] if recompute else work.backward
    if work.weight_share is not None:
        return [*recompute, *_share_of(work.backward, kind, work.weight_share)]
    weight = kind == ActionKind.BACKWARD_WEIGHT
    return [*recompute, *(item for item in work.backward if (item.phase == Phase.BACKWARD_WEIGHT) == weight)]


def _share_of(items: Sequence[Item], kind: ActionKind, weight_share: float) -> list[Item]:
    """Returns the part of a backward that gives input or weight gradients.

    Weight gradients take `weight_share` of the computation; collectives and the host belong to input gradients.
    """
    inputs, phase = kind == ActionKind.BACKWARD_INPUT, _PHASES[kind]
    share = 1 - weight_share if inputs else weight_share
    shared: list[Item] = []
    for item in items:
        if not isinstance(item, Compute):
            shared += [replace(item, phase=phase)] if inputs else []
        elif item.kernels or isnan(item.seconds):
            problem = f"{item.name} has no seconds that a schedule could divide into input and weight gradients"
            raise InputError("invalid-program", problem, hint="list both, told apart by phase")
        else:
            shared.append(replace(item, seconds=share * item.seconds, phase=phase))
    return shared


def _parts_of_cut(cut: Cut) -> list[UnitPart]:
    """Returns the parts of a cut: its computations within what it divides, its calls next to the rest of the step."""
    return [
        Segment((item,), continues=True)
        if isinstance(item, Compute)
        else replace(item, concurrent="step")
        if isinstance(item, Call)
        else item
        for item in cut.items
    ]


def _nonzero(sizes: dict[str, int]) -> dict[str, int]:
    return {category: size for category, size in sizes.items() if size}
