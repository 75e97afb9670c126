"""From a setting to the program of its step."""

from __future__ import annotations

from foretrace.program.block import BlockBuilder
from foretrace.program.build import ProgramBuilder
from foretrace.program.collector import collector_paused
from foretrace.program.program import Program
from foretrace.program.role import Placement
from foretrace.schedules import Action, ActionKind, Schedule
from foretrace.schedules.pipeline import BATCHED, Pipeline, Transfer, pipeline
from foretrace.workload.assemble import optimizer
from foretrace.workload.assemble.blocks import BlockWriter
from foretrace.workload.assemble.groups import Groups
from foretrace.workload.assemble.pieces import Piece, Works, pieces_of, works_of
from foretrace.workload.assemble.segments import Detail
from foretrace.workload.assemble.step_end import StepEndWriter, Turns
from foretrace.workload.setting import Setting
from foretrace.workload.settle import schedule_of


def program_of(setting: Setting, *, detail: Detail = "segment", works: Works | None = None) -> Program:
    """The program of a training step, its kernels and collectives not yet priced.

    `detail` says whether kernels that run without a break between communications are one op, or each an op of its own;
    the step is the same. `works` is what layers do, where that is not the setting's own.
    """
    with collector_paused():
        return _assemble(setting, detail, works or works_of(setting))


def _assemble(setting: Setting, detail: Detail, works: Works) -> Program:
    schedule, pieces = schedule_of(setting), pieces_of(setting, works)
    build = ProgramBuilder(
        setting.mesh,
        title=_title(setting, schedule),
        tokens_per_step=float(setting.gbs * setting.seq_len),
        diagnostics=setting.diagnostics,
    )
    writer = BlockWriter(build, setting, Groups(build), detail)
    held = schedule.piece.tolist()
    direction = schedule.direction.tolist()
    first_microbatch = [direction.index(way) for way in schedule.chunk_direction.tolist()]

    def block(stage: int, action: Action) -> BlockBuilder:
        chunk = action.chunk
        first = action.microbatch == first_microbatch[chunk]
        return writer.block(action.kind, chunk, pieces[held[stage][chunk]], first=first)

    sent = next((work.output_bytes for work in works.layers), 0)
    batched = schedule.name in BATCHED
    stages = pipeline(build, schedule, block, Transfer(bytes=sent), transfers="batched" if batched else "async")
    ends = StepEndWriter(build, writer)
    for stage, role in enumerate(stages.stages):
        mine: list[tuple[int, Piece]] = [(chunk, pieces[number]) for chunk, number in enumerate(held[stage])]
        share = ends.write(role, stage, mine, _turns(stages, schedule, stage))
        role.resident(
            weights=optimizer.weight_bytes(setting, share),
            gradients=optimizer.gradient_bytes(setting, share) if writer.keeps_gradients else 0,
            optimizer=optimizer.state_bytes(setting, share),
            # What a stage has received and not yet used, each way.
            buffers=2 * sent if schedule.stages > 1 else 0,
        )
    # All groups but those of first and last stage lie within a stage, whose ranks do the same.
    return build.program(checked=False)


def _title(setting: Setting, schedule: Schedule) -> str:
    plan, count = setting.plan, setting.microbatches
    sizes = {
        "tp": plan.tp,
        "cp": plan.cp,
        "pp": plan.pp,
        "dp": setting.dp,
        "ep": plan.ep,
        "etp": plan.etp if plan.ep > 1 else 1,
    }
    axes = " · ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
    what = [setting.model.title or setting.model.name] + ([axes] if axes else [])
    if schedule.stages > 1:
        what.append(schedule.name + (f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""))
    return " · ".join([*what, f"{count} microbatch{'' if count == 1 else 'es'}"])


def _turns(stages: Pipeline, schedule: Schedule, stage: int) -> Turns:
    """The first forward and the last backward of each chunk of a stage."""
    firsts: dict[int, Placement] = {}
    finals: dict[int, Placement] = {}
    for slot in schedule.actions(stage):
        for action in slot:
            if action.kind == ActionKind.FORWARD:
                firsts.setdefault(action.chunk, stages.placed[stage, action])
            elif action.kind != ActionKind.BACKWARD_INPUT:
                finals[action.chunk] = stages.placed[stage, action]
    return Turns(finals, firsts)
