"""`build_step`: the only function that writes a pipelined training step as a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from foretrace.basics.arrays import Longs, first_uses
from foretrace.basics.collector import collector_paused
from foretrace.program.block import After, BlockBuilder, OpRef, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import Kind
from foretrace.program.program import Program
from foretrace.program.role import BlockInstance, RoleBuilder
from foretrace.schedules import StageActions
from foretrace.schedules.pipeline import BATCHED, Pipeline, PlacedPart, StagePart, pipeline
from foretrace.step.actions import ActionWriter, Marks
from foretrace.step.check import check_spec
from foretrace.step.contract import Contraction, UnitSeconds, contractible
from foretrace.step.end import Turns, turns_of
from foretrace.step.groups import Groups
from foretrace.step.segments import Segment
from foretrace.step.spec import Call, Compute, Cut, EndItem, RoleSpec, StepSpec
from foretrace.step.units import Detail, collective_op, compute_op


def build_step(spec: StepSpec, *, detail: Detail = "segment", seconds: UnitSeconds | None = None) -> Program:
    """Writes a step as a program; kernels, bytes and collectives without seconds are not priced yet.

    With `seconds` the step is written at the level of actions: ops that only the compute lane orders are one op, which
    takes the sum of their seconds. Such a program takes as long as the whole one without overlap cost. It has no memory
    of activations and no kernels of layers. A step in which several roles share a stage is written in full, because a
    rank may then wait for another within a contracted collective.

    Args:
        spec: The step.
        detail: Whether kernels that run without a break between communications are one op, or each an op of its own.
            The time of the step is the same.
        seconds: The seconds of each unit's work.

    Raises:
        InputError: The parts of the spec do not fit together.
    """
    check_spec(spec)
    with collector_paused():
        build = ProgramBuilder(
            spec.mesh,
            title=spec.title,
            repeats=spec.repeats,
            tokens_per_step=spec.tokens_per_step,
            diagnostics=spec.diagnostics,
        )
        contraction = None if seconds is None or not contractible(spec) else Contraction(spec, seconds)
        TrainingStepWriter(build, spec, detail, contraction).write()
        # Ranks of a stage do the same or, where it has several roles, what their producer has compared.
        return build.program(checked=False)


class TrainingStepWriter:
    """Writes the roles of one step."""

    def __init__(
        self, build: ProgramBuilder, spec: StepSpec, detail: Detail, contraction: Contraction | None = None
    ) -> None:
        self.build, self.spec, self.groups = build, spec, Groups(build)
        self.actions = ActionWriter(build, spec, self.groups, detail, contraction)
        self._ends: dict[int, tuple[BlockBuilder, list[OpRef]]] = {}
        self._cuts: dict[tuple[int, int], tuple[Cut, ...]] = {}

    def write(self) -> Pipeline:
        """Writes every stage in the order of the schedule, then the end of its step."""
        spec = self.spec
        parts = [self._part(role) for role in spec.roles]
        stages = pipeline(self.build, spec.schedule, parts, spec.transfer, transfers=transfers_of(spec))
        for number, (role, built) in enumerate(zip(spec.roles, stages.stages, strict=True)):
            built.resident(**role.resident)
            if role.end:
                self._end(number, role, built, stages)
        return stages

    def end_block(self, items: Sequence[EndItem]) -> BlockBuilder:
        """Returns the block of a step's end."""
        return self._end_block(items)[0]

    def _part(self, role: RoleSpec) -> StagePart:
        """Returns a role with the table of its blocks: a block for all actions that do the same."""
        spec = self.spec
        variants, direction = np.array(spec.variants), spec.schedule.direction.tolist()
        first = np.array([direction.index(way) for way in spec.schedule.chunk_direction.tolist()])

        turns, contracts = turns_of(spec.schedule)[role.stage], self.actions.contraction is not None
        tied = self._tied_units(role, turns) if contracts else {}
        allocates = spec.gradient_bytes > 0 and not contracts
        pairs = any(chunk.unpaired is not None for each in role.chunks for chunk in each)

        def table(rows: StageActions) -> tuple[list[BlockBuilder], Longs]:
            code, finals = rows.kind * spec.schedule.chunks + rows.chunk, set[int]()
            # All microbatches of a chunk do the same unless they have variants, cuts, gradients to allocate, units to
            # which the end of the step is tied, or an action of another microbatch to run next to.
            if len(variants) > 1 or role.cuts or allocates or tied:
                begins = rows.microbatch == first[rows.chunk] if allocates else np.zeros(len(rows), dtype=np.bool_)
                apart = np.zeros(len(rows), dtype=np.bool_)
                if role.cuts:
                    finals = set(turns.finals.values())
                apart[[*finals, *tied]] = True
                code = ((code * len(variants) + rows.microbatch % len(variants)) * 2 + begins) * 2 + apart
            unpaired = ~spec.schedule.paired(role.stage) if pairs else np.zeros(len(rows), dtype=np.bool_)
            examples, which = first_uses(code * 2 + unpaired)
            blocks = []
            for row in examples.tolist():
                kind, microbatch, chunk = rows.action(row)
                cuts = self._cuts_of(role, chunk) if row in finals else ()
                what = role.chunks[chunk][spec.variants[microbatch % len(variants)]]
                if unpaired[row] and what.unpaired is not None:
                    what = what.unpaired
                begun = allocates and microbatch == int(first[chunk])
                block = self.actions.block(kind, chunk, what, cuts, first=begun, tied=tied.get(row, frozenset()))
                blocks.append(block)
            return blocks, which

        return StagePart(role.stage, role.name, role.ranks, table)

    def _tied_units(self, role: RoleSpec, turns: Turns) -> dict[int, frozenset[int]]:
        """Returns the rows of actions whose units the end of the step is tied to, with these units."""
        tied: dict[int, set[int]] = {}
        for item in role.end:
            for place, rows in ((item.when, turns.finals), (item.before, turns.firsts)):
                if place is not None:
                    tied.setdefault(rows[place[0]], set()).add(place[1])
        return {row: frozenset(units) for row, units in tied.items()}

    def _cuts_of(self, role: RoleSpec, chunk: int) -> tuple[Cut, ...]:
        """Returns the cuts of a chunk as one object, so that roles with the same cuts share a block."""
        key = id(role.cuts), chunk
        if key not in self._cuts:
            self._cuts[key] = tuple(cut for cut in role.cuts if cut.chunk == chunk)
        return self._cuts[key]

    def _end(self, number: int, role: RoleSpec, built: RoleBuilder, stages: Pipeline) -> None:
        """Places the end of a role's step, tied to the actions before it and to those of the next step."""
        turns, placed_actions = turns_of(self.spec.schedule)[role.stage], stages.placed.parts[number]
        block, ops = self._end_block(role.end)
        after: dict[str | int, After] = {}
        if self.spec.end_waits_for_transfers:
            after[block.port_op("in")] = [PlacedOp(built.number, len(built.blocks) - 1, 0)]
        for item, op in zip(role.end, ops, strict=True):
            if item.when is None and not item.after_reductions:
                continue
            waits: list[PlacedOp] = list(after.get(op.op, ()))  # type: ignore[arg-type]
            if item.when is not None:
                chunk, unit = item.when
                final = placed_actions[turns.finals[chunk]]
                waits.append(final[self._marks(final).last[unit]])
            if item.after_reductions:
                waits += self._reductions(placed_actions)
            after[op.op] = waits
        placed = built.place(block, after=after)
        for item, op in zip(role.end, ops, strict=True):
            if item.before is not None:
                chunk, unit = item.before
                first = placed_actions[turns.firsts[chunk]]
                for begin in self._marks(first).begins(unit):
                    built.link(first[begin], after=placed[op], steps=1)
            if item.before_item is not None:
                built.link(placed[ops[item.before_item]], after=placed[op], steps=1)

    def _reductions(self, placed: PlacedPart) -> list[PlacedOp]:
        """Returns the last call on each lane of those that only the end of the step waits for."""
        if not any(marks.reductions for marks in self.actions.marks.values()):
            return []
        rows = placed.first_and_last_rows()
        last: dict[float, PlacedOp] = {}
        # Lanes are listed in the order of their first calls.
        for row in (*sorted(first for first, _ in rows), *sorted(final for _, final in rows)):
            instance = placed[row]
            for op in self._marks(instance).reductions:
                last[instance.block.rows[op]["lane"]] = instance[op]
        return list(last.values())

    def _marks(self, placed: BlockInstance) -> Marks:
        return self.actions.marks[placed.block.number]

    def _end_block(self, items: Sequence[EndItem]) -> tuple[BlockBuilder, list[OpRef]]:
        """Returns the block of a step's end, which roles with the same end share, and the op of each item."""
        if id(items) not in self._ends:
            block, ops = self.build.block("step end"), list[OpRef]()
            for item in items:
                ops.append(end_op(block, item, self.groups, [ops[number] for number in item.after]))
            self._ends[id(items)] = block, ops
        return self._ends[id(items)]


def transfers_of(spec: StepSpec) -> Literal["batched", "async"]:
    """Returns whether stages wait for their transfers."""
    return "batched" if spec.schedule.name in BATCHED and not spec.pp_overlap else "async"


def end_op(block: BlockBuilder, end: EndItem, groups: Groups, after: Sequence[OpRef] = ()) -> OpRef:
    """Appends an item of a step's end, which is one op."""
    item, facts = end.item, dict[str, Any](after=after, alloc=end.takes, free=end.frees, chunk=end.chunk)
    if isinstance(item, Compute):
        return compute_op(block, Segment((item,)), **facts)
    if isinstance(item, Call):
        return collective_op(block, item, groups[item.axis], end.lane, **facts)
    kind: Literal["compute", "host"] = "compute" if end.lane == "compute" else "host"
    facts |= {"source": item.source, "phase": item.phase}
    return block.add(Kind.HOST, item.name, item.seconds, end.lane or "host", kind, **facts)
