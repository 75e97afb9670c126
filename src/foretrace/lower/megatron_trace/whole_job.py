"""From what one microbatch takes on each kind of rank to the program of the whole job.

All ranks, all microbatches, in the order of a pipeline schedule; collectives inside forward and backward where the
trace has them; transfers between stages; gradient reductions and the optimizer. Communication carries bytes, not times,
unless it was recorded in a real run: it is priced on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Final

from foretrace.errors import Diagnostic, InputError
from foretrace.lower.megatron_trace.actions import Actions, Step, repeated_layers
from foretrace.lower.megatron_trace.calls import Call, group_size
from foretrace.lower.megatron_trace.corrections import HOST, compute_sources
from foretrace.lower.megatron_trace.work import RankWork, Stones
from foretrace.mesh import Mesh
from foretrace.program.block import BlockBuilder, OpRef, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import Kind, Phase
from foretrace.program.program import Communicator, Program
from foretrace.schedules.pipeline import BATCHED, Part, Pipeline, Transfer, pipeline
from foretrace.schedules.schedule import Action, ActionKind, Schedule

_PHASES: Final = {
    ActionKind.FORWARD: Phase.FORWARD,
    ActionKind.BACKWARD: Phase.BACKWARD,
    ActionKind.BACKWARD_INPUT: Phase.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Phase.BACKWARD_WEIGHT,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the whole job is like: its mesh, its schedule, and what crosses a stage boundary for a microbatch."""

    title: str
    mesh: Mesh
    schedule: Schedule
    transfer: Transfer
    tokens_per_step: float | None
    ex_situ: bool
    gap_s: float
    """What the host takes between two ops."""
    alone: bool
    """Whether it is one rank whose groups are not known."""


def whole_job(stones: Stones, plan: Plan, notes: Iterable[Diagnostic]) -> Program:
    """The program of a job built of these stones."""
    _check_schedule(plan.schedule)
    build = ProgramBuilder(
        plan.mesh, title=plan.title, repeats=False, tokens_per_step=plan.tokens_per_step, diagnostics=notes
    )
    writer = _Writer(build, stones, plan)
    kinds = [(stage, expert) for stage in range(plan.mesh.pp) for expert in range(plan.mesh.ep)]
    parts = [writer.part(*kind) for kind in kinds]
    batched = plan.schedule.name in BATCHED
    stages = pipeline(build, plan.schedule, parts, plan.transfer, transfers="batched" if batched else "async")
    for number, kind in enumerate(kinds):
        writer.end_step(stages, number, stones.work[kind])
    return build.program(checked=False)


def _check_schedule(schedule: Schedule) -> None:
    """Traces have embedding and loss on the first and last stage: schedules that put them elsewhere do not fit."""
    ends = int(schedule.piece[0].min()), int(schedule.piece[-1].max())
    if schedule.directions > 1 or ends != (0, schedule.pieces - 1):
        raise InputError(
            "invalid-schedule",
            f"{schedule.name} puts the ends of the model on other stages than the traces have them",
            hint="choose 1f1b, gpipe, interleaved-1f1b, looped-bfs or zb-h1",
        )


class _Writer:
    """Writes blocks, each distinct one once."""

    def __init__(self, build: ProgramBuilder, stones: Stones, plan: Plan) -> None:
        self.build, self.stones, self.plan = build, stones, plan
        self.actions = Actions(stones, plan.mesh, plan.schedule, gap_s=plan.gap_s, ex_situ=plan.ex_situ)
        self.sources = compute_sources(stones, plan.ex_situ)
        self._blocks: dict[tuple[object, ...], BlockBuilder] = {}
        self._buckets: dict[int, list[int]] = {}
        """The ops of a block that reduce buckets of gradients."""
        self._communicators: dict[str, Communicator] = {}

    def part(self, stage: int, expert: int) -> Part:
        """The ranks of a stage with the same experts."""
        mesh, several = self.plan.mesh, self.plan.mesh.ep > 1
        name = f"stage {stage}, experts {expert}" if several else f"stage {stage}"
        ranks = mesh.where(pp=stage, ep=expert) if several else mesh.where(pp=stage)
        bucketed = bool(self.stones.work[stage, expert].buckets)
        finals = _last_backwards(self.plan.schedule, stage) if bucketed else frozenset()
        known: dict[tuple[ActionKind, int, bool], BlockBuilder] = {}

        def block(_stage: int, action: Action) -> BlockBuilder:
            key = action.kind, action.chunk, action in finals
            if key not in known:
                known[key] = self._block(stage, expert, *key)
            return known[key]

        return Part(stage, name, ranks, block)

    def _block(self, stage: int, expert: int, kind: ActionKind, chunk: int, final: bool) -> BlockBuilder:
        steps = self.actions.steps(stage, expert, kind, chunk, final)
        key = (kind, chunk, tuple(steps))
        if key not in self._blocks:
            self._blocks[key] = self._write(kind, chunk, steps)
        return self._blocks[key]

    def _write(self, kind: ActionKind, chunk: int, steps: Sequence[Step]) -> BlockBuilder:
        """A block of steps one after the other; a call beside computation holds up what comes after that."""
        block = self.build.block("forward_step" if kind == ActionKind.FORWARD else "backward_step")
        facts: dict[str, Any] = {"phase": _PHASES[kind], "chunk": chunk}
        beside: list[OpRef] = []
        waits: list[OpRef] = []
        repeated = repeated_layers(steps)
        number, last = 0, OpRef(block.number, -1)
        while number < len(steps):
            step = steps[number]
            if number in repeated and not beside and not waits:
                size = repeated[number]
                block.repeat(block, range(len(block.rows) - size, len(block.rows)), step.layer)
                number, last = number + size, OpRef(block.number, len(block.rows) - 1)
                continue
            number += 1
            if step.call is not None and (step.apart or step.call.beside):
                issued = self._call(block, step, [last, *waits] if last.op >= 0 else waits, facts)
                if step.apart:
                    self._buckets.setdefault(block.number, []).append(issued.op)
                else:
                    beside = [issued]
                continue
            if step.kind == "compute":
                last = self._compute(block, step, waits, facts)
                waits, beside = beside, []
            else:
                add = self._host if step.kind == "host" else self._call
                last = add(block, step, [*waits, *beside], facts)
                waits, beside = [], []
        block.port("out", last)
        return block

    def _compute(self, block: BlockBuilder, step: Step, after: Sequence[OpRef], facts: dict[str, Any]) -> OpRef:
        source = None if step.moved_bytes else self.sources[step.experts]
        return block.compute(
            step.name,
            step.seconds,
            moved_bytes=step.moved_bytes,
            layer=step.layer,
            source=source,
            after=after,
            **facts,
        )

    @staticmethod
    def _host(block: BlockBuilder, step: Step, after: Sequence[OpRef], _facts: dict[str, Any]) -> OpRef:
        """What the CPU does while the GPU waits: on the compute lane, in its turn."""
        return block.add(Kind.HOST, step.name, step.seconds, "compute", "compute", source=HOST, after=after)

    def _call(self, block: BlockBuilder, step: Step, after: Sequence[OpRef], facts: dict[str, Any]) -> OpRef:
        call = step.call
        assert call is not None
        return block.collective(
            call.collective,
            self._communicator(call, step.apart),
            0.0 if self.plan.alone and isnan(call.duration_s) else call.duration_s,
            name=step.name,
            lane=call.axis if call.beside or step.apart else "compute",
            bytes=step.size,
            layer=step.layer,
            sends=None if step.sends is None else dict(enumerate(step.sends)),
            dtype=call.dtype,
            after=after,
            **facts,
        )

    def _communicator(self, call: Call, apart: bool) -> Communicator:
        """Buckets that run beside other collectives of their axis have a communicator of their own, as in Megatron."""
        name = f"{call.axis} buckets" if apart else call.axis
        if name not in self._communicators:
            mesh, axis = self.plan.mesh, call.axis
            if self.plan.alone:
                found = self.build.groups(name, [[0]], axis=axis)
            elif axis == "embd":
                found = self.build.pair("pp", 0, mesh.pp - 1, name=name, axis=axis)
            else:
                found = self.build.communicator(axis, name=name)
            self._communicators[name] = found
        return self._communicators[name]

    def end_step(self, stages: Pipeline, number: int, work: RankWork) -> None:
        """Gradients scaled and reduced, then the optimizer, which waits for buckets that are still under way."""
        role = stages.stages[number]
        key = ("end", work.gradients, work.optimizer_s)
        if key not in self._blocks:
            self._blocks[key] = self._write_end(work)
        block = self._blocks[key]
        # What was issued last may be a transfer, for which the rank waits.
        placed = role.place(block, after=[PlacedOp(role.number, len(role.blocks) - 1, 0)])
        for action in sorted(_last_backwards(self.plan.schedule, number // self.plan.mesh.ep) if work.buckets else ()):
            final = stages.placed[number, action]
            for op in self._buckets.get(final.block.number, []):
                role.link(placed["out"], after=final[op])

    def _write_end(self, work: RankWork) -> BlockBuilder:
        block = self.build.block("step end")
        for call in work.gradients:
            meets = self.plan.alone or group_size(self.plan.mesh, call.axis) > 1
            scales = call.axis != "embd" and not self.plan.alone
            # Megatron multiplies gradients by 1/dp before it reduces them: read once, written once. What a real run
            # took for a reduction has that in it.
            if scales and not (meets and not isnan(call.duration_s)):
                block.compute(f"scale {call.name}", call.duration_s, moved_bytes=2.0 * call.bytes)
            if meets:
                self._call(block, Step("call", call.name, call=call, size=call.bytes), (), {})
            for step in self.actions.gap:
                self._host(block, step, (), {})
        block.compute("optimizer_step", work.optimizer_s, phase="optimizer", source=self.sources[False])
        return block


def _last_backwards(schedule: Schedule, stage: int) -> frozenset[Action]:
    """The actions of a stage that complete the gradients of its chunks."""
    last: dict[int, Action] = {}
    for slot in schedule.actions(stage):
        for action in slot:
            if action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT):
                last[action.chunk] = action
    return frozenset(last.values())
