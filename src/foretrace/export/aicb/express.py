"""Checks which parts of a plan an AICB file can express, and reports the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.basics.units import format_bytes
from foretrace.schedules import Schedule
from foretrace.step.spec import Call, ChunkSpec, Work
from foretrace.workload.setting import Setting
from foretrace.workload.step_spec import shares_embedding, tied_embedding


def check_expressible(setting: Setting, schedule: Schedule) -> None:
    """Raises an `InputError` for a plan that the rows of an AICB file have no place for."""
    plan, moe = setting.plan, setting.model.has_experts
    if setting.zero >= 2:
        what = "parameters gathered" if setting.splits_parameters else "gradients scattered"
        raise _cannot(f"zero {setting.zero}: {what} layer by layer", "its layers have no dp collective", 1)
    if plan.fp8_params:
        raise _cannot(
            "parameters gathered in 8 bits", "its rows have parameters of one size; take it without --fp8-params"
        )
    if plan.cp > 1:
        raise _cannot(f"cp {plan.cp}", "it knows the groups tp, ep, dp and dp/ep; take cp 1")
    if moe and plan.etp != plan.tp:
        raise _cannot(
            f"experts split over etp {plan.etp} beside tp {plan.tp}",
            f"its experts are split over tp, and its ep lies within dp; take --etp {plan.tp}",
        )
    if plan.rank_order != DEFAULT_ORDER:
        raise _cannot(f"rank_order {plan.rank_order}", f"its ranks are numbered as in {DEFAULT_ORDER}")
    if schedule.directions > 1:
        raise _cannot(
            f"{schedule.name}", "a file has one copy of a stage; take 1f1b, interleaved-1f1b or a zb schedule"
        )
    if setting.model.mtp and setting.mtp_chunk % len(setting.chunks) != len(setting.chunks) - 1:
        raise _cannot(
            f"layout {setting.layout}", "multi-token prediction is a row of the last stage; put m in the part of L"
        )
    if plan.offload_optimizer or plan.offload_layers or plan.offload_modules:
        raise _cannot("offloading to the host", "it has no copies between GPU and host")


def _cannot(what: str, why: str, zero: int | None = None) -> InputError:
    hint = f"{why}; take --zero {zero} or less" if zero is not None else why
    return InputError("not-expressible", f"an AICB file cannot express {what}", hint=hint)


def notes_of(
    setting: Setting,
    schedule: Schedule,
    pieces: Sequence[ChunkSpec],
    listed: Sequence[Work],
    *,
    left_out: bool = False,
) -> list[Diagnostic]:
    """Returns notes on what the file leaves out or says differently.

    Args:
        setting: The model and its plan.
        schedule: Its schedule.
        pieces: The pieces of the model.
        listed: The layers that the file has for every stage.
        left_out: Whether the file lacks collectives that run next to gradients.
    """
    notes = [*_layers(setting, schedule, len(listed)), *_stages(schedule, pieces), *_overlaps(setting)]
    notes += _hidden(setting, listed, left_out)
    plan, options = setting.plan, reading_options(setting, len(listed))
    if "schedule" in options:
        text = f"the file cannot name a schedule: simulate it with --schedule {setting.schedule}"
        notes.append(Diagnostic("note", "needs-option", text))
    if "vpp" in options:
        text = (
            f"vpp {schedule.chunks} means chunks, but equals the layers of a stage, which AICB writes there: "
            "simulate it with --vpp chunks"
        )
        notes.append(Diagnostic("note", "needs-option", text))
    if plan.pp > 1 and shares_embedding(setting):
        size = format_bytes(tied_embedding(setting).bytes)
        what = "tied embedding's gradient" if setting.model.tied else "embedding's gradient for its copy next to MTP"
        text = f"left out: the {what}, {size} between first and last stage: the format lacks a group for it"
        notes.append(Diagnostic("note", "lossy-format", text))
    return notes


def _layers(setting: Setting, schedule: Schedule, listed: int) -> list[Diagnostic]:
    """Stages that have fewer layers than the file gives each."""
    total, shown = len(setting.model.layers), listed * schedule.stages
    if shown == total:
        return []
    text = (
        f"{total} layers over {schedule.stages} stages: the file gives every stage {listed}, as the fullest has, "
        f"{shown - total} more than there are; simulate it with "
        f"--stage-layers {','.join(str(len(chunk)) for chunk in setting.chunks)} for the plan's own"
    )
    return [Diagnostic("note", "lossy-format", text)]


def _stages(schedule: Schedule, pieces: Sequence[ChunkSpec]) -> list[Diagnostic]:
    totals = [dense + expert for dense, expert in stage_parameters(schedule, pieces)]
    if min(totals) == max(totals):
        return []
    text = (
        f"stages hold {min(totals):,} to {max(totals):,} parameters a rank: "
        f"gradients and optimizer are those of the first, {totals[0]:,}"
    )
    return [Diagnostic("note", "lossy-format", text)]


def stage_parameters(schedule: Schedule, pieces: Sequence[ChunkSpec]) -> list[tuple[int, int]]:
    """Dense and expert parameters of a rank of each stage."""
    return [
        (sum(pieces[piece].parameters for piece in held), sum(pieces[piece].expert_parameters for piece in held))
        for held in schedule.piece.tolist()
    ]


def reading_options(setting: Setting, layers_per_stage: int) -> dict[str, Any]:
    """Returns the options with which a file is simulated as planned, where the file does not say them itself."""
    options: dict[str, Any] = {}
    if setting.plan.pp > 1 and setting.schedule not in ("1f1b", "interleaved-1f1b"):
        options["schedule"] = setting.schedule
    if setting.chunks_per_stage > 1 and layers_per_stage == setting.chunks_per_stage:
        options["vpp"] = "chunks"
    return options


def file_overlaps(setting: Setting) -> list[str]:
    """Returns what overlaps in a plan and can be overlapped when its file is simulated."""
    plan, replicas = setting.plan, setting.dp > 1
    overlaps = {
        "grad": setting.grad_overlap and replicas,
        "param": setting.param_overlap and setting.zero == 1 and replicas,
        "tp": plan.tp_overlap and plan.tp > 1,
        "pp": plan.pp_overlap and plan.pp > 1,
    }
    return [word for word, overlapped in overlaps.items() if overlapped]


def _overlaps(setting: Setting) -> list[Diagnostic]:
    """Returns notes on what runs next to computation in the plan: a file lists it, and has no word for when."""
    notes, overlaps = [], file_overlaps(setting)
    if overlaps:
        text = f"communication is overlapped in this plan: simulate the file with --overlap {','.join(overlaps)}"
        notes.append(Diagnostic("note", "needs-option", text))
    if setting.plan.moe_overlap and setting.mesh.ep > 1:
        text = "the file cannot say that ep collectives run next to computation"
        notes.append(Diagnostic("note", "lossy-format", text))
    return notes


def _hidden(setting: Setting, listed: Sequence[Work], left_out: bool) -> list[Diagnostic]:
    """Returns a note on collectives of a microbatch that the software runs next to gradients."""
    size = sum(
        item.bytes
        for work in listed
        for item in work.backward
        if isinstance(item, Call) and item.concurrent is not None and setting.mesh.size(item.axis) > 1
    )
    if not size:
        return []
    hidden = f"{format_bytes(size)} of tp a microbatch and stage run next to gradients in {setting.stack.name}"
    text = f"{hidden}; the file has no word for that, so they take their time (--exposed-only leaves them out)"
    return [Diagnostic("note", "lossy-format", f"{hidden}: left out" if left_out else text)]
