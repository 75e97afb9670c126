"""Turns a workload into the description of its step, and that into a program."""

from __future__ import annotations

from pathlib import Path

from foretrace.basics.collector import collector_paused
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.aicb.calls import CallReader
from foretrace.inputs.aicb.chunks import ChunkPlace, Chunks
from foretrace.inputs.aicb.format import Workload
from foretrace.inputs.aicb.format.notes import is_missing_key
from foretrace.inputs.aicb.microbatches import find_structure
from foretrace.inputs.aicb.oddities import oddities
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.plan import WorkloadPlan, make_plan
from foretrace.inputs.aicb.step_end import StepEnd, StepRows, find_step_rows
from foretrace.inputs.option_values import Overlap
from foretrace.program.program import Program
from foretrace.schedules import Schedule
from foretrace.schedules.pipeline import Transfer
from foretrace.step import build_step
from foretrace.step.end import turns_of
from foretrace.step.spec import ChunkSpec, EndItem, RoleSpec, StepSpec


def lower_workload(workload: Workload, options: WorkloadOptions = WorkloadOptions()) -> Program:  # noqa: B008
    """Builds the program of a workload, its communication not yet priced."""
    with collector_paused():
        return build_step(workload_spec(workload, options))


def workload_spec(workload: Workload, options: WorkloadOptions = WorkloadOptions()) -> StepSpec:  # noqa: B008
    """Describes the step of a workload; what was guessed is among its diagnostics."""
    _refuse_cut_short(workload)
    structure = find_structure(workload)
    plan = make_plan(workload, structure, options)
    calls = CallReader(workload, plan.mesh)
    rows, odd_rows = find_step_rows(workload, structure, calls, plan.schedule.directions)
    notes = [
        Diagnostic(
            "warning",
            "as-recorded",
            "computation takes what the file says, on any GPU: only communication is priced on the cluster "
            "(scale it with --what-if compute=1.5x)",
            workload.at_header,
        ),
        *(diagnostic for diagnostic in workload.diagnostics if not is_missing_key(diagnostic)),
        *structure.diagnostics,
        *plan.diagnostics,
        *odd_rows,
        *oddities(workload, structure, plan.mesh),
        *_overlap_notes(workload, plan, options),
    ]
    chunks = Chunks(structure.microbatches, calls, plan.schedule, options.overlap)
    return StepSpec(
        title=_title(workload, plan),
        mesh=plan.mesh,
        schedule=plan.schedule,
        roles=_roles(plan, chunks, rows, options),
        transfer=Transfer(bytes=plan.transfer_bytes),
        pp_overlap=Overlap.PP in options.overlap,
        variants=chunks.variants,
        repeats=plan.trains,
        tokens_per_step=plan.tokens_per_step,
        diagnostics=tuple(notes),
    )


def _refuse_cut_short(workload: Workload) -> None:
    declared, present = workload.declared_rows, len(workload.rows)
    if declared > present:
        raise InputError(
            "truncated-file",
            f"{declared:,} rows declared, {present:,} found: the file is cut short",
            where=workload.at_count,
            hint=f"get the whole file, or write {present} there if nothing is missing",
        )


def _title(workload: Workload, plan: WorkloadPlan) -> str:
    count = plan.schedule.microbatches
    what = f"{plan.schedule.name}, {count} microbatch{'' if count == 1 else 'es'}"
    if plan.schedule.chunks > 1:
        what += f", {plan.schedule.chunks} chunks"
    return f"{Path(workload.path).name} · {what}"


def _overlap_notes(workload: Workload, plan: WorkloadPlan, options: WorkloadOptions) -> list[Diagnostic]:
    if not plan.trains:
        return []
    chosen = ", ".join(sorted(options.overlap))
    text = (
        f"{chosen} overlapped with computation"
        if chosen
        else "nothing overlaps with computation (choose with --overlap)"
    )
    return [
        Diagnostic("note", "assumed", text, workload.at_header),
        Diagnostic("note", "not-modelled", "memory is not predicted: the file does not hold it", workload.at_header),
    ]


def _roles(plan: WorkloadPlan, chunks: Chunks, rows: StepRows, options: WorkloadOptions) -> tuple[RoleSpec, ...]:
    schedule, everywhere = plan.schedule, options.ends == "every-stage"
    end, last_piece = StepEnd(rows, plan.mesh, options.overlap), schedule.pieces - 1
    parts = [_chunk_share(schedule, chunk) for chunk in range(schedule.chunks)]
    ends: dict[object, tuple[EndItem, ...]] = {}
    roles, ranks = [], plan.mesh.stage_ranks()
    for stage, pieces in enumerate(schedule.piece.tolist()):
        held = []
        for piece, (part, count) in zip(pieces, parts, strict=True):
            first = part == 0 if everywhere else piece == 0
            last = part == count - 1 if everywhere else piece == last_piece
            layers = None if options.stage_layers is None else options.stage_layers[piece]
            held.append(chunks.chunk(ChunkPlace(part, count, layers, first=first, last=last)))
        items: tuple[EndItem, ...] = ()
        if plan.trains:
            has_ends = stage == 0 or everywhere
            finals, firsts = _tied_chunks(schedule, stage, held, chunks.variants)
            layers = sum(options.stage_layers[piece] for piece in pieces) if options.stage_layers else 0
            # Without overlap the end is tied to no layer.
            tied = [(chunk, id(spec)) for chunk, spec in (*finals, *firsts)] if options.overlap else []
            key = (has_ends, layers, stage == 0 and bool(tied), *tied)
            if key not in ends:
                ends[key] = end.scaled(layers, plan.layers * schedule.directions).items(stage, finals, firsts, has_ends)
            items = ends[key]
        roles.append(RoleSpec(stage, f"stage {stage}", ranks[stage], tuple(held), items))
    return tuple(roles)


def _tied_chunks(
    schedule: Schedule, stage: int, held: list[tuple[ChunkSpec, ...]], variants: tuple[int, ...]
) -> tuple[list[tuple[int, ChunkSpec]], list[tuple[int, ChunkSpec]]]:
    """Returns what the last backward and the first forward of each chunk run, by chunk."""
    turns = turns_of(schedule)[stage]
    finals, firsts = (
        [(chunk, held[chunk][variants[turns.rows.microbatch[row] % len(variants)]]) for chunk, row in rows.items()]
        for rows in (turns.finals, turns.firsts)
    )
    return finals, firsts


def _chunk_share(schedule: Schedule, chunk: int) -> tuple[int, int]:
    """Returns the number of a chunk among those of its direction, and how many these are.

    They divide the stage's layers; each direction has all of them.
    """
    direction = schedule.chunk_direction.tolist()
    serving = [number for number, way in enumerate(direction) if way == direction[chunk]]
    return serving.index(chunk), len(serving)
