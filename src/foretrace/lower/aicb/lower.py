"""From a workload to a program."""

from __future__ import annotations

from pathlib import Path

from foretrace.errors import Diagnostic, InputError
from foretrace.formats.aicb import Workload
from foretrace.formats.aicb.notes import is_missing_key
from foretrace.lower.aicb.blocks import BlockWriter, Stretches
from foretrace.lower.aicb.groups import Calls
from foretrace.lower.aicb.microbatches import Structure, find_structure
from foretrace.lower.aicb.oddities import oddities
from foretrace.lower.aicb.options import WorkloadOptions
from foretrace.lower.aicb.plan import Plan, make_plan
from foretrace.lower.aicb.step_end import StepEndWriter, Turns, find_step_end
from foretrace.lower.options import Overlap
from foretrace.program.block import BlockBuilder, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.collector import collector_paused
from foretrace.program.program import Program
from foretrace.program.role import Placement
from foretrace.schedules import Action, ActionKind, Schedule
from foretrace.schedules.pipeline import BATCHED, Pipeline, Transfer, pipeline


def lower_workload(workload: Workload, options: WorkloadOptions = WorkloadOptions()) -> Program:  # noqa: B008
    """The program of a workload, its communication not yet priced; what was guessed is among its diagnostics."""
    with collector_paused():
        return _lower(workload, options)


def _lower(workload: Workload, options: WorkloadOptions) -> Program:
    _refuse_cut_short(workload)
    structure = find_structure(workload)
    plan = make_plan(workload, structure, options)
    calls = Calls(workload, plan.mesh)
    end, odd_end = find_step_end(workload, structure, calls, plan.schedule.directions)
    notes = [
        Diagnostic(
            "warning",
            "as-recorded",
            "computation takes what the file says, on any GPU: only communication is priced on the cluster "
            "(scale it with --what-if compute=1.5x)",
            workload.at_header,
        ),
        *(one for one in workload.diagnostics if not is_missing_key(one)),
        *structure.diagnostics,
        *plan.diagnostics,
        *odd_end,
        *oddities(workload, structure, plan.mesh),
    ]
    notes += _overlap_notes(workload, plan, options)
    build = ProgramBuilder(
        plan.mesh,
        title=_title(workload, plan),
        repeats=plan.trains,
        tokens_per_step=plan.tokens_per_step,
        diagnostics=notes,
    )
    writer = BlockWriter(build, calls, options.overlap)
    stages = _write_pipeline(build, writer, structure, plan, options)
    if plan.trains:
        ends = StepEndWriter(build, end, writer)
        beside = bool(options.overlap & {Overlap.GRAD, Overlap.PARAM})
        for stage, role in enumerate(stages.stages):
            turns = _turns(stages, plan.schedule, stage, writer) if beside else Turns([], [], [])
            ends.write(role, turns, stage == 0 or options.ends == "every-stage")
    # All groups but pairs of stages lie within one stage, whose ranks all do the same, and pairs follow the schedule.
    return build.program(checked=False)


def _refuse_cut_short(workload: Workload) -> None:
    declared, found = workload.declared_rows, len(workload.rows)
    if declared > found:
        raise InputError(
            "truncated-file",
            f"{declared:,} rows declared, {found:,} found: the file is cut short",
            where=workload.at_count,
            hint=f"get the whole file, or write {found} there if nothing is missing",
        )


def _title(workload: Workload, plan: Plan) -> str:
    count = plan.schedule.microbatches
    what = f"{plan.schedule.name}, {count} microbatch{'' if count == 1 else 'es'}"
    if plan.schedule.chunks > 1:
        what += f", {plan.schedule.chunks} chunks"
    return f"{Path(workload.path).name} · {what}"


def _overlap_notes(workload: Workload, plan: Plan, options: WorkloadOptions) -> list[Diagnostic]:
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


def _write_pipeline(
    build: ProgramBuilder, writer: BlockWriter, structure: Structure, plan: Plan, options: WorkloadOptions
) -> Pipeline:
    schedule, everywhere = plan.schedule, options.ends == "every-stage"
    stretches, listed = Stretches(structure.microbatches), len(structure.microbatches)
    piece, last_piece = schedule.piece.tolist(), schedule.pieces - 1
    parts = [_part(schedule, chunk) for chunk in range(schedule.chunks)]
    blocks: dict[tuple[object, ...], BlockBuilder] = {}

    def block(stage: int, action: Action) -> BlockBuilder:
        chunk, place = action.chunk, piece[stage][action.chunk]
        part, count = parts[chunk]
        first = part == 0 if everywhere else place == 0
        last = part == count - 1 if everywhere else place == last_piece
        rows = stretches.key(action.microbatch % listed, first, last)
        key = (action.kind, chunk, rows)
        if key not in blocks:
            blocks[key] = writer.write(action.kind, chunk, stretches.stretch(rows, part, count))
        return blocks[key]

    waits = schedule.name in BATCHED and Overlap.PP not in options.overlap
    transfer = Transfer(bytes=plan.transfer_bytes)
    return pipeline(build, schedule, block, transfer, transfers="batched" if waits else "async")


def _part(schedule: Schedule, chunk: int) -> tuple[int, int]:
    """Which part of a stage's layers a chunk has, of how many; a schedule of two directions has all of them in each."""
    direction = schedule.chunk_direction.tolist()
    serving = [one for one, way in enumerate(direction) if way == direction[chunk]]
    return serving.index(chunk), len(serving)


def _turns(stages: Pipeline, schedule: Schedule, stage: int, writer: BlockWriter) -> Turns:
    """What the end of a stage's step is tied to."""
    firsts: dict[int, Placement] = {}
    finals: dict[int, Placement] = {}
    gradients: dict[str, PlacedOp] = {}
    for slot in schedule.actions(stage):
        for action in slot:
            placed = stages.placed[stage, action]
            if action.kind == ActionKind.FORWARD:
                firsts.setdefault(action.chunk, placed)
            elif action.kind != ActionKind.BACKWARD_INPUT:
                finals[action.chunk] = placed
            marks = writer.marks[placed.block.number]
            gradients |= {axis: placed[op] for axis, op in marks.gradients.items()}
    in_order = sorted(finals.values(), key=lambda one: one.number)
    return Turns(in_order, list(firsts.values()), list(gradients.values()))
