"""The ops of one action: a piece's units forwards or backwards, as a block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED, Kind, Phase, label
from foretrace.program.kernels import DTYPE_BYTES, Copy, kernel_text
from foretrace.program.program import Source
from foretrace.schedules import ActionKind
from foretrace.workload.assemble.groups import Groups, axes_in_use
from foretrace.workload.assemble.pieces import Piece, Unit
from foretrace.workload.assemble.segments import Detail, Part, Rules, parts_of
from foretrace.workload.assemble.sharded import Sharding
from foretrace.workload.assemble.unit import Host, Memory, UnitWriter, Written, draft_of
from foretrace.workload.setting import Setting
from foretrace.workload.work import Communicate, Item, Work

_PHASES = {
    ActionKind.FORWARD: Phase.FORWARD,
    ActionKind.BACKWARD: Phase.BACKWARD,
    ActionKind.BACKWARD_INPUT: Phase.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Phase.BACKWARD_WEIGHT,
}
_OPENS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
_CLOSES = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


@dataclass(slots=True)
class Marks:
    """Ops of a block that others wait for: the first and the last of each unit, in the order of the model, and the
    collectives that reduce its gradients."""

    first: list[OpRef] = field(default_factory=list)
    last: list[OpRef] = field(default_factory=list)
    reduces: list[OpRef] = field(default_factory=list)


class BlockWriter:
    """Writes actions as blocks, and remembers which of their ops others wait for."""

    def __init__(self, build: ProgramBuilder, setting: Setting, groups: Groups, detail: Detail) -> None:
        plan, stack = setting.plan, setting.stack
        self.build, self.setting, self.groups, self.detail = build, setting, groups, detail
        self.marks: dict[int, Marks] = {}
        self.sharding = Sharding(setting, groups) if setting.zero == 3 else None
        self.rules = Rules(plan.tp_overlap, plan.moe_overlap, plan.cuda_graphs)
        launch_s = 0.0 if plan.cuda_graphs == "full" else stack.launch_s
        self.host = Host(launch_s, Source(stack.launch_source or f"host launches of {stack.name}", 0.7, 1.4))
        self._sizes = axes_in_use(setting.mesh)
        self._blocks: dict[tuple[object, ...], BlockBuilder] = {}
        self._units: dict[tuple[object, ...], Written] = {}
        self._parts: dict[tuple[int, ActionKind], list[Part]] = {}

    def block(self, kind: ActionKind, chunk: int, piece: Piece, *, first: bool) -> BlockBuilder:
        """The block of an action; pieces that do the same share it. `first` is whether it is of the chunk's first
        microbatch."""
        appear = first and kind in _CLOSES and not self.keeps_gradients
        key = (kind, chunk, piece.key, appear)
        if key not in self._blocks:
            self._blocks[key] = _ActionWriter(self, kind, chunk, appear).write(piece)
        return self._blocks[key]

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients have a place of their own all the time, as Megatron's buffers; else they appear in the
        first backward of a step and are dropped after the update."""
        return self.setting.stack.fused_gradient_accumulation or self.setting.zero == 3

    def parts(self, work: Work, kind: ActionKind) -> list[Part]:
        """What a unit does in an action, in the ops it becomes."""
        key = (id(work), kind)
        if key not in self._parts:
            self._parts[key] = parts_of(self._items(work, kind), self.rules)
        return self._parts[key]

    def _items(self, work: Work, kind: ActionKind) -> list[Item]:
        if kind == ActionKind.FORWARD:
            items: list[Item] = list(work.forward)
        else:
            items = list(work.recompute) if kind in _OPENS else []
            weight = kind == ActionKind.BACKWARD_WEIGHT
            items += [
                item
                for item in work.backward
                if kind == ActionKind.BACKWARD or (item.phase == Phase.BACKWARD_WEIGHT) == weight
            ]
        found = [item for item in items if not isinstance(item, Communicate) or self._sizes[item.axis] > 1]
        return found if self.sharding is None else self.sharding.with_copies(work, kind, found)

    def memory(self, unit: Unit, kind: ActionKind, appear: bool) -> Memory:
        """What a unit takes and gives back in an action."""
        work, sharding = unit.work, self.sharding
        gathered = sharding.gathered_bytes(unit) if sharding else 0
        first, last, freed = dict[str, int](), dict[str, int](), dict[str, int]()
        if kind == ActionKind.FORWARD:
            last["activations"] = work.saved_bytes
            if sharding and sharding.released(unit):
                freed["buffers"] = gathered
        if kind in _OPENS:
            first["activations"] = work.recomputed_bytes
            first["buffers"] = gathered  # the gradients of whole parameters, until they are scattered
        if kind in _CLOSES:
            freed = {"activations": work.saved_bytes + work.recomputed_bytes, "buffers": gathered}
            if appear:
                size = int(DTYPE_BYTES[self.setting.stack.gradient_dtype])
                last["gradients"] = size * (work.parameters + work.expert_parameters)
        return Memory(_nonzero(first), _nonzero(last), _nonzero(freed))


class _ActionWriter:
    """Writes one block."""

    def __init__(self, owner: BlockWriter, kind: ActionKind, chunk: int, appear: bool) -> None:
        self.owner, self.kind, self.chunk, self.appear = owner, kind, chunk, appear
        self.block = owner.build.block(label(kind))
        self.marks = owner.marks[self.block.number] = Marks()
        self.facts: dict[str, Any] = {"chunk": chunk}
        self.phase = _PHASES[kind]
        self.exits: list[OpRef] = []
        """The last op of each unit on the compute lane."""
        self.open: list[OpRef] = []
        """Ops beside it that the next unit waits for."""
        self.joins: list[OpRef] = []
        self.gathered: dict[int, list[OpRef]] = {}
        self.reloaded: dict[int, list[OpRef]] = {}

    def write(self, piece: Piece) -> BlockBuilder:
        """All units, in the order of the action."""
        forward = self.kind == ActionKind.FORWARD
        units = piece.units if forward else piece.units[::-1]
        launch = self._launches(units)
        begin = [self.block.compute("begin", 0.0, phase=self.phase, **self.facts)] if self._fetches(units) else []
        ahead = self.owner.setting.plan.prefetch if forward or self.owner.setting.stack.backward_prefetch else 0
        entry, ending = None, -1
        for at in range(-ahead, len(units)):
            self._fetch(units, at + ahead, at, begin)
            if at < 0:
                continue
            written = self._unit(units[at], at)
            if entry is None:
                entry = OpRef(self.block.number, written.first)
                self.block.deps += [(ref.op, entry.op) for ref in launch[:1]]
            ending = written.last_begin
            self._after(units[at])
        if not forward:
            self.marks.first.reverse()
            self.marks.last.reverse()
        if entry is None or self.open or self.joins:
            waits = [*self.open, *self.joins]
            self.exits.append(self.block.compute("join", 0.0, phase=self.phase, after=waits, **self.facts))
        # In a pipeline it is enough that the next action's launches come after these: half as many chains of ops.
        if entry and launch and ending != entry.op and self.owner.setting.plan.pp == 1:
            self.block.deps.append((launch[-1].op, ending))
        self.block.port("in", entry or self.exits[0])
        # What comes next needs what was computed, not gradients that are still being reduced.
        self.block.port("out", self.exits[-1])
        return self.block

    def _launches(self, units: tuple[Unit, ...]) -> list[OpRef]:
        """The host's launches of an action: the first, for which its first op waits, and all others, for which its last
        one does. Launches run ahead of what they launch, so what lies between waits for neither."""
        owner, host = self.owner, self.owner.host
        count = sum(part.launches for unit in units for part in owner.parts(unit.work, self.kind))
        if host.launch_s <= 0 or not count:
            return []
        facts: dict[str, Any] = {"source": host.source, "phase": self.phase, **self.facts}
        first = self.block.host("launch", host.launch_s, **facts)
        return [first, self.block.host("launches", (count - 1) * host.launch_s, **facts)]

    def _fetches(self, units: tuple[Unit, ...]) -> bool:
        return self.owner.sharding is not None or any(self._offloaded(unit) for unit in units)

    def _fetch(self, units: tuple[Unit, ...], which: int, current: int, begin: list[OpRef]) -> None:
        """Fetches what a unit ahead needs, as soon as the unit before the current one is done: so much, and no more,
        is there at once."""
        if which >= len(units):
            return
        unit, after = units[which], self.exits[current - 1 : current] if current > 0 else begin
        sharding, kept = self.owner.sharding, not (self.owner.sharding and self.owner.sharding.released(units[which]))
        if sharding and (self.kind == ActionKind.FORWARD or (self.kind in _OPENS and not kept)):
            self.gathered[which] = sharding.gather(self.block, unit, list(after), self.phase, self.chunk)
        if self.kind in _OPENS and self._offloaded(unit):
            self.reloaded[which] = [self._copy(unit, "gpu", list(after))]

    def _unit(self, unit: Unit, at: int) -> Written:
        """Writes a unit, or repeats one that does the same."""
        owner, block = self.owner, self.block
        key = (id(unit.work), self.kind, self.chunk, self.appear, unit.end)
        known = owner._units.get(key)
        if known is None:
            facts = {**self.facts, "layer": unit.layer}
            writer = UnitWriter(block, owner.groups, owner.host, owner.detail, facts)
            memory = owner.memory(unit, self.kind, self.appear)
            written = writer.write(owner.parts(unit.work, self.kind), memory, self.phase)
            owner._units[key] = draft_of(written)
        else:
            written = known.moved_to(block, block.repeat(known.block, known.ops, unit.layer))
        waits = [*self.open, *self.gathered.pop(at, []), *self.reloaded.pop(at, [])]
        for entry in written.entries:
            last = [] if entry == written.first else self.exits[-1:]
            block.deps += [(ref.op, entry) for ref in (*waits, *last)]
        number = block.number
        self.exits.append(OpRef(number, written.last))
        self.open = [OpRef(number, op) for op in written.waits]
        self.joins += [OpRef(number, op) for op in written.joins]
        self.marks.first.append(OpRef(number, written.first))
        self.marks.last.append(self.exits[-1])
        return written

    def _after(self, unit: Unit) -> None:
        """What follows a unit beside the computation: its gradients reduced, its activations copied away."""
        sharding = self.owner.sharding
        if sharding and self.kind in _CLOSES:
            self.marks.reduces += sharding.reduce(self.block, unit, self.exits[-1:], self.chunk)
        if self.kind == ActionKind.FORWARD and self._offloaded(unit):
            self._copy(unit, "host", self.exits[-1:])

    def _offloaded(self, unit: Unit) -> bool:
        return 0 <= unit.layer < self.owner.setting.plan.offload_layers and unit.work.saved_bytes > 0

    def _copy(self, unit: Unit, to: str, after: list[OpRef]) -> OpRef:
        """A unit's activations to the host or back: a copy engine's work, beside computation."""
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
            layer=unit.layer,
            after=after,
            free={"activations": size} if to == "host" else None,
            alloc={"activations": size} if to == "gpu" else None,
            **self.facts,
        )


def _nonzero(sizes: dict[str, int]) -> dict[str, int]:
    return {category: size for category, size in sizes.items() if size}
