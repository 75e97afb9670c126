"""From what one microbatch takes on each kind of rank to the program of the whole job.

All ranks, all microbatches, in the order of a pipeline schedule; collectives inside forward and backward where the
trace has them; transfers between stages; gradient reductions and the optimizer. Communication carries bytes, not times,
unless it was recorded in a real run: it is priced on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isnan, sqrt
from typing import Any, Final

from foretrace.errors import Diagnostic, InputError
from foretrace.lower.megatron_trace.calls import Call, group_size
from foretrace.lower.megatron_trace.routing import Exchange, exchange
from foretrace.lower.megatron_trace.work import RankWork, Stones, Work, all_to_alls
from foretrace.mesh import Mesh
from foretrace.program.block import BlockBuilder, OpRef, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED, Collective, Kind, Phase
from foretrace.program.program import Communicator, Program, Source
from foretrace.program.role import RoleBuilder
from foretrace.schedules.pipeline import BATCHED, Part, Transfer, pipeline
from foretrace.schedules.schedule import Action, ActionKind, Schedule

HOST_GAP_S: Final = 0.12e-3
"""Between two ops of a rank the host prepares the next: the median gap of the real run traces/dense8 (TP 2, PP 4 of
GPT-13B), which has no ex-situ counterpart and is compared with no prediction. Gaps of ex-situ traces are the tracer's
own."""

HOST: Final = Source("host", 0.5, 2.0)
"""What the host does between ops; the band is a judgement: gaps of one real run differ by as much."""

PLACEHOLDER_GAIN: Final = 295 / 257
"""How much faster a power-limited GPU multiplies matrices of nothing. Ex situ an all-to-all is replaced by memory that
nobody wrote, so experts compute on it, draw less power and clock higher. 295 TFLOP/s on zeros against 257 on random
numbers: an A100, 8192³ bf16 (H. He, "Strangely, matrix multiplications on GPUs run faster when given 'predictable'
data!", 2024). benchmarks/gpu/placeholder_data.py finds 1.15 for experts on an H200 in bursts. How much of it a traced
microbatch enjoys is unknown: the middle is taken, and the band holds none and all of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the whole job is like: its mesh, its schedule, and what crosses a stage boundary for a microbatch."""

    title: str
    mesh: Mesh
    schedule: Schedule
    transfer: Transfer
    tokens_per_step: float | None
    ex_situ: bool
    """Whether experts computed on memory that nobody wrote."""
    gap_s: float
    alone: bool
    """Whether it is one rank whose groups are not known."""


def whole_job(stones: Stones, plan: Plan, notes: Iterable[Diagnostic]) -> Program:
    """The program of a job built of these stones."""
    build = ProgramBuilder(
        plan.mesh, title=plan.title, repeats=False, tokens_per_step=plan.tokens_per_step, diagnostics=notes
    )
    writer = _Writer(build, stones, plan)
    parts = [writer.part(stage, expert) for stage in range(plan.mesh.pp) for expert in range(plan.mesh.ep)]
    batched = plan.schedule.name in BATCHED
    stages = pipeline(build, plan.schedule, parts, plan.transfer, transfers="batched" if batched else "async")
    for role, part in zip(stages.stages, parts, strict=True):
        writer.end_step(role, stones.work[part.stage, writer.expert_of[part.name]])
    return build.program(checked=False)


class _Writer:
    """Writes blocks, each distinct one once."""

    def __init__(self, build: ProgramBuilder, stones: Stones, plan: Plan) -> None:
        self.build, self.stones, self.plan = build, stones, plan
        self.expert_of: dict[str, int] = {}
        self.sources = _sources(stones, plan)
        self._blocks: dict[tuple[object, ...], BlockBuilder] = {}
        self._communicators: dict[str, Communicator] = {}
        self._exchanges: dict[tuple[int, str], dict[int, Exchange]] = {}

    def part(self, stage: int, expert: int) -> Part:
        """The ranks of a stage with the same experts."""
        mesh, several = self.plan.mesh, self.plan.mesh.ep > 1
        name = f"stage {stage}, experts {expert}" if several else f"stage {stage}"
        self.expert_of[name] = expert
        ranks = mesh.where(pp=stage, ep=expert) if several else mesh.where(pp=stage)
        work = self.stones.work[stage, expert]
        known: dict[tuple[ActionKind, int], BlockBuilder] = {}

        def block(_stage: int, action: Action) -> BlockBuilder:
            key = action.kind, action.chunk
            if key not in known:
                known[key] = self._block(stage, expert, work, *key)
            return known[key]

        return Part(stage, name, ranks, block)

    def _block(self, stage: int, expert: int, work: RankWork, kind: ActionKind, chunk: int) -> BlockBuilder:
        ops = self._ops(stage, expert, work, kind, chunk)
        key = (kind, chunk, tuple(ops))
        if key not in self._blocks:
            self._blocks[key] = self._write(kind, chunk, ops)
        return self._blocks[key]

    def _ops(self, stage: int, expert: int, work: RankWork, kind: ActionKind, chunk: int) -> list[_Op]:
        """What an action does, one after the other."""
        schedule = self.plan.schedule
        piece = int(schedule.piece[stage][chunk])
        first, last = piece == 0, piece == schedule.pieces - 1
        gap = [_Op("gap", self.plan.gap_s, host=True)] if self.plan.gap_s else []
        if kind == ActionKind.FORWARD:
            ops = [] if first else list(gap)
            if work.get_batch_s is not None and (first or last):
                ops += [_Op("get_batch", work.get_batch_s, host=True), *gap]
            ops += [*self._pass("forward_step", stage, expert, work.forward, chunk, 1.0), *gap]
            if last and work.loss:
                ops += [*self._pass("loss_func", stage, expert, work.loss, None, 1.0), *gap]
            return ops
        if kind == ActionKind.BACKWARD_WEIGHT:
            parts = self._pass("backward_step", stage, expert, work.backward, chunk, 0.5)
            return [_Op("weight gradients", sum(op.seconds for op in parts if op.call is None)), *gap]
        part = 0.5 if kind == ActionKind.BACKWARD_INPUT else 1.0
        ops = [] if last else list(gap)
        return [*ops, *self._pass("backward_step", stage, expert, work.backward, chunk, part), *gap]

    def _pass(
        self, name: str, stage: int, expert: int, works: Sequence[Work], chunk: int | None, part: float
    ) -> list[_Op]:
        exchanges = self._exchanges_of(stage, name)
        gain = sqrt(PLACEHOLDER_GAIN) if self.plan.ex_situ else 1.0
        ops = []
        for number in self._of_chunk(works, chunk, backward=name == "backward_step"):
            work = works[number]
            seconds = part * work.compute_s * (gain if work.rows is not None else 1.0)
            ops.append(_Op(name, seconds, layer=work.layer, experts=work.rows is not None))
            if work.call is not None:
                even = exchanges.get(number)
                sends = None if even is None else tuple(int(one) for one in even.bytes[expert])
                size = work.call.bytes if even is None else even.even_bytes
                ops.append(_Op(work.call.name, 0.0, call=work.call, size=size, sends=sends, layer=work.layer))
        return ops

    def _of_chunk(self, works: Sequence[Work], chunk: int | None, *, backward: bool) -> range:
        """Which works are of a chunk: its share of the layers, and what lies before the first or after the last."""
        chunks = self.plan.schedule.chunks
        if chunk is None or chunks == 1:
            return range(len(works))
        layers = max((work.layer for work in works), default=-1) + 1
        if layers < 1 or layers % chunks:
            raise InputError(
                f"{layers or 'an unknown number of'} layers a stage do not divide into {chunks} chunks",
                hint="choose a schedule with one chunk per stage, such as 1f1b or zb-h1",
            )
        each = layers // chunks
        turn = chunks - 1 - chunk if backward else chunk
        bounds = [0, *(self._first_of(works, number * each) for number in range(1, chunks)), len(works)]
        return range(bounds[turn], bounds[turn + 1])

    @staticmethod
    def _first_of(works: Sequence[Work], layer: int) -> int:
        return next(number for number, work in enumerate(works) if work.layer == layer)

    def _exchanges_of(self, stage: int, name: str) -> dict[int, Exchange]:
        """The all-to-alls of a stage's pass, by number of the work they end."""
        if (stage, name) in self._exchanges:
            return self._exchanges[stage, name]
        found: dict[int, Exchange] = {}
        which = {"forward_step": "forward", "backward_step": "backward"}.get(name)
        if which is not None and self.plan.mesh.ep > 1:
            each: list[Sequence[Work]] = [
                getattr(self.stones.work[stage, expert], which) for expert in range(self.plan.mesh.ep)
            ]
            if len({len(works) for works in each}) > 1:
                raise InputError(f"ranks of stage {stage} differ in how often they communicate in {name}")
            numbers = all_to_alls(each[0])
            for place, number in enumerate(numbers):
                back = numbers[place ^ 1] if len(numbers) % 2 == 0 else number
                sent, received = ([_bytes(works[one]) for works in each] for one in (number, back))
                found[number] = exchange(sent, received)
        self._exchanges[stage, name] = found
        return found

    def _write(self, kind: ActionKind, chunk: int, ops: Sequence[_Op]) -> BlockBuilder:
        """A block of ops one after the other; a call beside computation holds up what comes after that."""
        block = self.build.block("forward_step" if kind == ActionKind.FORWARD else "backward_step")
        facts: dict[str, Any] = {"phase": _PHASES[kind], "chunk": chunk}
        beside: list[OpRef] = []
        waits: list[OpRef] = []
        repeated = _repeated(ops)
        number, last = 0, OpRef(block.number, -1)
        while number < len(ops):
            op = ops[number]
            if number in repeated and not beside and not waits:
                # A layer like the one before it is not written again.
                size = repeated[number]
                block.repeat(block, range(len(block.rows) - size, len(block.rows)), op.layer)
                number, last = number + size, OpRef(block.number, len(block.rows) - 1)
                continue
            number, last = number + 1, OpRef(block.number, len(block.rows) - 1)
            if op.call is not None and op.call.beside:
                beside = [self._call(block, op, [last, *waits], facts)]
                waits = []
                continue
            if op.host:
                last = self._host(block, op.name, op.seconds, [*waits, *beside])
                beside = []
            elif op.call is None:
                source = self.sources[op.experts]
                last = block.compute(op.name, op.seconds, layer=op.layer, source=source, after=waits, **facts)
            else:
                last = self._call(block, op, [*waits, *beside], facts)
                beside = []
            waits, beside = beside, []
        block.port("out", last)
        return block

    @staticmethod
    def _host(block: BlockBuilder, name: str, seconds: float, after: Sequence[OpRef]) -> OpRef:
        """What the CPU does while the GPU waits: on the compute lane, in its turn."""
        return block.add(Kind.HOST, name, seconds, "compute", "compute", source=HOST, after=after)

    def _call(self, block: BlockBuilder, op: _Op, after: Sequence[OpRef], facts: dict[str, Any]) -> OpRef:
        call = op.call
        assert call is not None
        return block.collective(
            call.collective,
            self._communicator(call.axis),
            0.0 if self.plan.alone and isnan(call.duration_s) else call.duration_s,
            name=op.name,
            lane=None if call.beside else "compute",
            bytes=op.size,
            layer=op.layer,
            sends=None if op.sends is None else dict(enumerate(op.sends)),
            after=after,
            **facts,
        )

    def _communicator(self, axis: str) -> Communicator:
        if axis not in self._communicators:
            mesh = self.plan.mesh
            if self.plan.alone:
                found = self.build.groups(axis, [[0]])
            elif axis == "embd":
                found = self.build.pair("pp", 0, mesh.pp - 1, name="embd", axis="embd")
            else:
                found = self.build.communicator(axis)
            self._communicators[axis] = found
        return self._communicators[axis]

    def end_step(self, role: RoleBuilder, work: RankWork) -> None:
        """Gradients scaled and reduced, then the optimizer."""
        key = ("end", work.gradients, work.optimizer_s)
        if key not in self._blocks:
            self._blocks[key] = self._write_end(work)
        # What was issued last may be a transfer, for which the rank waits.
        last = PlacedOp(role.number, len(role.blocks) - 1, 0)
        role.place(self._blocks[key], after=[last])

    def _write_end(self, work: RankWork) -> BlockBuilder:
        block = self.build.block("step end")
        for call in work.gradients:
            if call.axis != "embd" and not self.plan.alone and isnan(call.duration_s):
                # Megatron multiplies gradients by 1/dp before it reduces them: read once, written once.
                block.compute(f"scale {call.name}", UNPRICED, moved_bytes=2.0 * call.bytes)
            if self.plan.alone or group_size(self.plan.mesh, call.axis) > 1:
                self._call(block, _Op(call.name, 0.0, call=call, size=call.bytes), (), {})
            if self.plan.gap_s:
                self._host(block, "gap", self.plan.gap_s, ())
        block.compute("optimizer_step", work.optimizer_s, phase="optimizer", source=self.sources[False])
        return block


@dataclass(frozen=True, slots=True)
class _Op:
    """One op of a block."""

    name: str
    seconds: float
    host: bool = False
    call: Call | None = None
    size: int = 0
    sends: tuple[int, ...] | None = None
    layer: int = -1
    experts: bool = False


def _repeated(ops: Sequence[_Op]) -> dict[int, int]:
    """Where a layer begins that is as the one before it, and how many ops it has; those with calls beside computation
    are left out, for what they hold up lies in the next layer."""
    starts = [number for number in range(1, len(ops)) if ops[number].layer != ops[number - 1].layer]
    bounds = [*starts, len(ops)]
    found: dict[int, int] = {}
    for first, second, third in zip(bounds, bounds[1:], bounds[2:], strict=False):
        size = third - second
        if ops[second].layer < 0 or size != second - first:
            continue
        alike = all(
            replace(one, layer=other.layer) == other
            for one, other in zip(ops[first:second], ops[second:third], strict=True)
        )
        if alike and not any(op.call is not None and op.call.beside for op in ops[second:third]):
            found[second] = size
    return found


_PHASES: Final = {
    ActionKind.FORWARD: Phase.FORWARD,
    ActionKind.BACKWARD: Phase.BACKWARD,
    ActionKind.BACKWARD_INPUT: Phase.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Phase.BACKWARD_WEIGHT,
}


def _bytes(work: Work) -> int:
    assert work.call is not None and work.call.collective == Collective.ALL_TO_ALL
    return work.call.bytes


def _sources(stones: Stones, plan: Plan) -> tuple[Source, Source]:
    """Where computation's times come from: of experts (second) and of all else, each with its band."""
    pools = stones.pools
    name = "ex-situ computation" if plan.ex_situ else "traced computation"
    experts = {
        work.key for one in stones.work.values() for work in (*one.forward, *one.backward) if work.rows is not None
    }
    low, high = pools.spread(lambda key: key not in experts)
    below, above = pools.spread(lambda key: key in experts)
    if plan.ex_situ:
        off = sqrt(PLACEHOLDER_GAIN)
        below, above = 1 - sqrt((1 - below) ** 2 + (1 - 1 / off) ** 2), 1 + sqrt((above - 1) ** 2 + (off - 1) ** 2)
    return Source(name, low, high), Source(f"{name} of experts", below, above)
