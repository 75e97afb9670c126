"""Makes the end of a workload's step from the rows that happen once per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.inputs.aicb.calls import PASSES, CallReader, PassName
from foretrace.inputs.aicb.chunks import COMPUTE, NS
from foretrace.inputs.aicb.format import Workload, WorkloadRow
from foretrace.inputs.aicb.format.records import base_name
from foretrace.inputs.aicb.microbatches import Structure
from foretrace.inputs.option_values import Overlap
from foretrace.program.columns import Collective, Phase, label
from foretrace.step.buckets import Bucket, megatron_limit
from foretrace.step.end import even_megatron_buckets, gather, reduction
from foretrace.step.groups import group_size
from foretrace.step.spec import Call, ChunkSpec, Compute, EndItem

FIRST_STAGE_ONLY = "embedding_grads"

GRADIENT_BYTES, PARAMETER_BYTES = 4, 2
"""Bytes of each parameter as AICB counts them: fp32 gradients, bf16 parameters."""


@dataclass(slots=True)
class StepRows:
    """The rows that happen once per step, in the order in which they happen. Calls carry the name of their row."""

    reduces: list[Call] = field(default_factory=list)
    syncs: list[tuple[WorkloadRow, Call]] = field(default_factory=list)
    scalars: list[tuple[WorkloadRow, float, list[Call]]] = field(default_factory=list)
    """Rows of the optimizer: seconds of computation and the collectives after it."""
    updates: list[tuple[WorkloadRow, float]] = field(default_factory=list)
    gathers: list[Call] = field(default_factory=list)


def find_step_rows(
    workload: Workload, structure: Structure, calls: CallReader, copies: int
) -> tuple[StepRows, list[Diagnostic]]:
    """Sorts the rows that happen once per step; a rank that holds `copies` of a stage's parameters does them for
    each."""
    end = StepRows()
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
            call = replace(call, bytes=copies * call.bytes)
            (end.gathers if call.collective == Collective.ALL_GATHER else end.reduces).append(call)
        seconds = copies * _compute_s(row)
        if seconds > 0:
            end.updates.append((row, seconds))
    for row in structure.optimizer:
        row_calls = [call for which in PASSES if (call := calls.read(getattr(row, which), which, row.line))]
        end.scalars.append((row, _compute_s(row), [_named(call, row) for call in row_calls]))
    return end, notes


def step_call(row: WorkloadRow, which: PassName, calls: CallReader) -> Call | None:
    """The collective of a row that happens once per step: over dp where it gathers parameters."""
    call = calls.read(getattr(row, which), which, row.line)
    if call is None:
        return None
    axis = "dp" if which == "forward" and _gathers_parameters(row) else call.axis
    return replace(_named(call, row), axis=axis)


def _named(call: Call, row: WorkloadRow) -> Call:
    return replace(call, name=f"{row.name} {label(call.collective)}")


def _gathers_parameters(row: WorkloadRow) -> bool:
    """Whether a forward all-gather is that of the parameters: half the bytes of the gradients, 2 for 4 of each."""
    gathered, reduced = row.forward, row.weight_grad
    return (
        base_name(row.name) == "grad_norm"
        and gathered.collective.upper() == "ALLGATHER"
        and reduced.collective.upper() == "REDUCESCATTER"
        and 2 * gathered.size_bytes == reduced.size_bytes
    )


def _compute_s(row: WorkloadRow) -> float:
    return (row.forward.compute_ns + row.input_grad.compute_ns + row.weight_grad.compute_ns) * NS


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Makes the end of a stage's step from the rows that happen once per step."""

    rows: StepRows
    mesh: Mesh
    overlap: frozenset[Overlap]

    def scaled(self, layers: int, listed: int) -> StepEnd:
        """Returns the end of a stage that has `layers` instead of the `listed` ones; 0 layers change nothing."""
        if not layers or layers == listed:
            return self
        rows, share = self.rows, layers / listed
        return replace(
            self,
            rows=StepRows(
                [replace(call, bytes=round(call.bytes * share)) for call in rows.reduces],
                rows.syncs,
                rows.scalars,
                [(row, seconds * share) for row, seconds in rows.updates],
                [replace(call, bytes=round(call.bytes * share)) for call in rows.gathers],
            ),
        )

    def items(
        self, stage: int, finals: Sequence[tuple[int, ChunkSpec]], firsts: Sequence[tuple[int, ChunkSpec]], ends: bool
    ) -> tuple[EndItem, ...]:
        """Returns the end of a stage's step.

        Args:
            stage: The stage.
            finals: The chunks of the last backwards, in the order in which these end.
            firsts: The chunks of the first forwards, in the order in which these begin.
            ends: Whether the stage has the embedding's gradients.
        """
        end: list[EndItem] = []
        waits = self._reduce(end, stage, finals)
        for row, call in self.rows.syncs:
            if ends or base_name(row.name) != FIRST_STAGE_ONLY:
                end.append(EndItem(call))
        first_update = len(end)
        for row, seconds, calls in self.rows.scalars:
            if seconds > 0:
                end.append(EndItem(_update(row.name, seconds)))
            end += [EndItem(call) for call in calls]
        for row, seconds in self.rows.updates:
            if ends or base_name(row.name) != FIRST_STAGE_ONLY:
                end.append(EndItem(_update(row.name, seconds)))
        if len(end) == first_update and self.overlap & {Overlap.GRAD, Overlap.PARAM}:
            # The next step begins when all gradients are there, even where no row says what is done with them.
            end.append(EndItem(_update("step end", 0.0)))
        if len(end) > first_update:
            end[first_update] = replace(end[first_update], after=waits, after_reductions=True)
        self._gather(end, stage, firsts)
        return tuple(end)

    def _reduce(self, end: list[EndItem], stage: int, finals: Sequence[tuple[int, ChunkSpec]]) -> tuple[int, ...]:
        """Adds the reductions, whole or in buckets; returns those that the optimizer waits for."""
        waits: list[int] = []
        for call in self.rows.reduces:
            if Overlap.GRAD not in self.overlap:
                end.append(EndItem(call))
                continue
            buckets = self._buckets(call, stage, finals, GRADIENT_BYTES)
            end += [reduction(replace(call, bytes=bucket.size), bucket, overlap=True) for bucket in buckets]
            waits += [len(end) - 1] if buckets else []
        return tuple(waits)

    def _gather(self, end: list[EndItem], stage: int, firsts: Sequence[tuple[int, ChunkSpec]]) -> None:
        updated = len(end) - 1
        for call in self.rows.gathers:
            if Overlap.PARAM not in self.overlap:
                end.append(EndItem(call))
                continue
            buckets = self._buckets(call, stage, firsts, PARAMETER_BYTES)
            order = [chunk for chunk, _ in firsts]
            buckets.sort(key=lambda bucket: (order.index(bucket.chunk), bucket.first))
            end += [gather(replace(call, bytes=bucket.size), bucket, updated, overlap=True) for bucket in buckets]

    def _buckets(
        self, call: Call, stage: int, chunks: Sequence[tuple[int, ChunkSpec]], bytes_each: int
    ) -> list[Bucket]:
        return even_megatron_buckets(
            call.bytes, stage, chunks, bytes_each * megatron_limit(group_size(self.mesh, call.axis))
        )


def _update(name: str, seconds: float) -> Compute:
    return Compute(name, Phase.OPTIMIZER, seconds=seconds, source=COMPUTE)
