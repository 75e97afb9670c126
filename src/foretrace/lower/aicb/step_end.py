"""What a stage does once per step: gradients reduced, the optimizer, parameters gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from foretrace.errors import Diagnostic
from foretrace.formats.aicb import Row, Workload
from foretrace.formats.aicb.records import base_name
from foretrace.lower.aicb.blocks import COMPUTE, NS, BlockWriter
from foretrace.lower.aicb.groups import PASSES, Call, Calls, PassName
from foretrace.lower.aicb.microbatches import Structure
from foretrace.lower.options import Overlap
from foretrace.program.block import After, BlockBuilder, OpRef, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import Collective, label
from foretrace.program.role import Placement, RoleBuilder

FIRST_STAGE_ONLY = "embedding_grads"

LEAST_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
"""Parameters of a bucket: max(40 M, 1 M · dp), as Megatron-core's DistributedDataParallel has it."""
GRADIENT_BYTES, PARAMETER_BYTES = 4, 2
"""Of each parameter, as AICB counts them: fp32 gradients, bf16 parameters."""


@dataclass(slots=True)
class StepEnd:
    """The collectives and computations of a step's end, in the order in which they happen."""

    reduces: list[tuple[Row, Call]] = field(default_factory=list)
    syncs: list[tuple[Row, Call]] = field(default_factory=list)
    scalars: list[tuple[Row, float, list[Call]]] = field(default_factory=list)
    """Rows of the optimizer: seconds of computation and the collectives after it."""
    updates: list[tuple[Row, float]] = field(default_factory=list)
    gathers: list[tuple[Row, Call]] = field(default_factory=list)


def find_step_end(
    workload: Workload, structure: Structure, calls: Calls, copies: int
) -> tuple[StepEnd, list[Diagnostic]]:
    """Sorts the rows that happen once per step; a rank that holds `copies` of a stage's parameters does them for
    each."""
    end = StepEnd()
    notes: list[Diagnostic] = []
    if copies > 1:
        text = f"every rank holds {copies} stages: gradients, optimizer and gathers are {copies} times the file's"
        notes.append(Diagnostic("note", "assumed", text, workload.at_header))
    for row in structure.step:
        for which in PASSES:
            call = step_call(row, which, calls)
            if call is None:
                continue
            if which == "forward" and _gathers_parameters(row):
                text = (
                    f"{row.name} gathers parameters in the forward column, which is the tp group; taken as dp, "
                    "over which its gradients are reduced"
                )
                notes.append(Diagnostic("warning", "odd-input", text, workload.at(row.line)))
            if call.axis not in ("dp", "edp"):
                end.syncs.append((row, call))
                continue
            call = Call(call.collective, call.axis, copies * call.bytes)
            if call.collective == Collective.ALL_GATHER:
                end.gathers.append((row, call))
            else:
                end.reduces.append((row, call))
        seconds = copies * _compute_s(row)
        if seconds > 0:
            end.updates.append((row, seconds))
    for row in structure.optimizer:
        found = [call for which in PASSES if (call := calls.read(getattr(row, which), which, row.line))]
        end.scalars.append((row, _compute_s(row), found))
    return end, notes


def step_call(row: Row, which: PassName, calls: Calls) -> Call | None:
    """The collective of a row that happens once per step: over dp where it gathers parameters."""
    call = calls.read(getattr(row, which), which, row.line)
    if call is not None and which == "forward" and _gathers_parameters(row):
        return Call(call.collective, "dp", call.bytes)
    return call


def _gathers_parameters(row: Row) -> bool:
    """Whether a forward all-gather is that of the parameters: half the bytes of the gradients, 2 for 4 of each."""
    gather, reduce = row.forward, row.weight_grad
    return (
        base_name(row.name) == "grad_norm"
        and gather.collective.upper() == "ALLGATHER"
        and reduce.collective.upper() == "REDUCESCATTER"
        and 2 * gather.size_bytes == reduce.size_bytes
    )


def _compute_s(row: Row) -> float:
    return (row.forward.compute_ns + row.input_grad.compute_ns + row.weight_grad.compute_ns) * NS


@dataclass(slots=True)
class _Written:
    """The block of a step's end, and which of its ops wait for gradients of a layer, for those of all, or gather
    parameters of a layer."""

    block: BlockBuilder
    reduces: list[tuple[OpRef, int]] = field(default_factory=list)
    update: OpRef | None = None
    gathers: list[tuple[OpRef, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Turns:
    """What the end of a stage's step is tied to: its last backward of each chunk, in order; its first forward of each;
    and the last collective on each axis that reduces gradients beside its backwards."""

    finals: Sequence[Placement]
    firsts: Sequence[Placement]
    gradients: Sequence[PlacedOp]


class StepEndWriter:
    """Writes the end of the step of each stage."""

    def __init__(self, build: ProgramBuilder, end: StepEnd, writer: BlockWriter) -> None:
        self.end, self.writer, self.overlap = end, writer, writer.overlap
        self._build = build
        self._blocks: dict[tuple[bool, int, int], _Written] = {}

    def write(self, role: RoleBuilder, turns: Turns, first: bool) -> None:
        """The end of a stage's step; `first` is whether it has what only the first stage has."""
        marks, finals, firsts = self.writer.marks, turns.finals, turns.firsts
        ready = [placed[op] for placed in finals for op in _by_layer(marks[placed.block.number].last, True)]
        users = [placed[op] for placed in firsts for op in _by_layer(marks[placed.block.number].first, False)]
        key = (first, len(ready), len(users))
        if key not in self._blocks:
            self._blocks[key] = self._write(*key)
        written = self._blocks[key]
        if not written.block.rows:
            return
        after: dict[str | int, After] = {op.op: ready[layer] for op, layer in written.reduces}
        if written.update is not None and turns.gradients:
            after[written.update.op] = turns.gradients
        placed = role.place(written.block, after=after)
        for op, layer in written.gathers:
            role.link(users[layer], after=placed[op], steps=1)

    def _write(self, first: bool, ready: int, users: int) -> _Written:
        """The block for a stage that has so many layers to wait for and to gather for."""
        written = _Written(self._build.block("step end"))
        waits = self._reduce(written, ready, first)
        for row, seconds, calls in self.end.scalars:
            if seconds > 0:
                waits = self._update(written, row.name, seconds, waits)
            for call in calls:
                op = self._collective(written.block, row, call, "compute", waits)
                written.update = written.update or op
                waits = []
        for row, seconds in self.end.updates:
            if first or base_name(row.name) != FIRST_STAGE_ONLY:
                waits = self._update(written, row.name, seconds, waits)
        if written.update is None and (ready or users):
            # The next step begins when all gradients are there, even where no row says what is done with them.
            waits = self._update(written, "step end", 0.0, waits)
        updated = [OpRef(written.block.number, len(written.block.rows) - 1)]
        for row, call in self.end.gathers:
            if Overlap.PARAM in self.overlap and users:
                for part, layers in self._parts(call, users, PARAMETER_BYTES):
                    op = self._collective(written.block, row, part, None, updated)
                    written.gathers.append((op, layers[0]))
            else:
                self._collective(written.block, row, call, "compute", waits)
        return written

    def _reduce(self, written: _Written, ready: int, first: bool) -> list[OpRef]:
        """The reductions, whole or in parts, as soon as the gradients of the layers of a part are there; what the
        optimizer waits for besides."""
        waits: list[OpRef] = []
        for row, call in self.end.reduces:
            if Overlap.GRAD in self.overlap and ready:
                for part, layers in self._parts(call, ready, GRADIENT_BYTES):
                    op = self._collective(written.block, row, part, None, ())
                    written.reduces.append((op, layers[-1]))
                waits.append(op)
            else:
                self._collective(written.block, row, call, "compute", ())
        for row, call in self.end.syncs:
            if first or base_name(row.name) != FIRST_STAGE_ONLY:
                self._collective(written.block, row, call, "compute", ())
        return waits

    def _parts(self, call: Call, layers: int, bytes_each: int) -> list[tuple[Call, range]]:
        """A call in buckets of parameters as Megatron makes them, at most one for each layer, and their layers."""
        bucket = bytes_each * max(LEAST_BUCKET, BUCKET_PER_RANK * self.writer.size[call.axis])
        count = min(max(call.bytes // bucket, 1), layers)
        bytes_at = [call.bytes * i // count for i in range(count + 1)]
        layer_at = [layers * i // count for i in range(count + 1)]
        return [
            (Call(call.collective, call.axis, high - low), range(first, last))
            for (low, high), (first, last) in zip(pairwise(bytes_at), pairwise(layer_at), strict=True)
        ]

    def _update(self, written: _Written, name: str, seconds: float, waits: Sequence[OpRef]) -> list[OpRef]:
        op = written.block.compute(name, seconds, phase="optimizer", source=COMPUTE, after=waits)
        written.update = written.update or op
        return []

    def _collective(self, block: BlockBuilder, row: Row, call: Call, lane: str | None, after: Sequence[OpRef]) -> OpRef:
        return block.collective(
            call.collective,
            self.writer.communicators[call.axis],
            name=f"{row.name} {label(call.collective)}",
            lane=lane,
            bytes=call.bytes,
            after=after,
        )


def _by_layer(marks: dict[int, OpRef], backward: bool) -> list[OpRef]:
    """The marks of layers in the order in which they come."""
    return [marks[layer] for layer in sorted(marks, reverse=backward)]
