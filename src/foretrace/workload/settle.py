"""Settles a plan: every open choice made, every size checked, and reported where it changes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import DEFAULT_ORDER, Mesh
from foretrace.models.model import Experts, Model
from foretrace.schedules.pipeline import BATCHED
from foretrace.schedules.registry import make, resolve
from foretrace.schedules.schedule import Schedule
from foretrace.workload.check_plan import check_plan, check_size
from foretrace.workload.constraints import PlanSizes, check_constraints
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.stack import Stack

MAX_LAYER_RUNS: Final = 400_000
"""Layers times microbatches of a step: some ten million ops, half a minute and gigabytes."""


def settle(model: Model, plan: Plan, stack: Stack | None = None) -> Setting:
    """The plan with every choice made. `stack` is the software where it is not one of the plan's by name."""
    plan = check_plan(plan)
    sizes = PlanSizes.of(model, plan, stack)
    check_constraints(sizes)
    chosen, dp, zero, seq_len, gbs = sizes.stack, sizes.dp, sizes.zero, sizes.seq_len, sizes.gbs
    microbatches = sizes.microbatches
    _check_documents(plan, seq_len)
    shard = _shard(plan, dp, zero)
    _check_layers(model, plan)
    _check_routing(model, plan)
    _check_length(model, plan, microbatches)
    schedule = _schedule(plan, microbatches)
    chunks, uneven = split_layers(len(model.layers), schedule.pieces, plan.stage_layers)
    setting = Setting(
        model=model,
        plan=plan,
        stack=chosen,
        mesh=_mesh(model, plan, dp, shard),
        dp=dp,
        seq_len=seq_len,
        gbs=gbs,
        microbatches=microbatches,
        vocab=_padded(model.vocab, chosen.padded_vocab, plan.tp),
        sequence_parallel=sizes.sequence_parallel,
        zero=zero,
        shard=shard,
        grad_overlap=chosen.grad_overlap if plan.grad_overlap is None else plan.grad_overlap,
        param_overlap=chosen.param_overlap if plan.param_overlap is None else plan.param_overlap,
        schedule=schedule.name,
        chunks=chunks,
        chunks_per_stage=schedule.chunks,
    )
    return replace(setting, diagnostics=tuple(_notes(setting, uneven)))


def _check_routing(model: Model, plan: Plan) -> None:
    layers = len(model.layers)
    if isinstance(plan.routing, tuple) and len(plan.routing) != layers:
        raise InputError(
            "bad-plan",
            f"routing is of {len(plan.routing)} layers, {model.name} has {layers}",
            hint="give one number for all layers, or one for each; those of layers without experts do not count",
        )


def schedule_of(setting: Setting) -> Schedule:
    """The pipeline schedule of a setting."""
    return make(setting.schedule, setting.plan.pp, setting.microbatches, setting.chunks_per_stage)


def _check_layers(model: Model, plan: Plan) -> None:
    for name in ("recompute_layers", "offload_layers"):
        if (getattr(plan, name) or 0) > len(model.layers):
            raise InputError(
                "bad-plan",
                f"{name} is {getattr(plan, name)}, but {model.name} has {len(model.layers)} layers",
                hint="expected a number of layers",
            )


def _check_length(model: Model, plan: Plan, microbatches: int) -> None:
    """Whether the schedule can be written down at all, before it is."""
    layers, pieces = len(model.layers), plan.pp * plan.vpp
    if pieces > layers + 2:
        split_layers(layers, pieces, plan.stage_layers)
    if microbatches * max(layers, pieces) > MAX_LAYER_RUNS:
        raise InputError(
            "too-large",
            f"{microbatches:,} microbatches of {layers:,} layers are more than can be run",
            hint="take a smaller gbs: once the pipeline is full, the step grows in proportion to it",
        )


def _check_documents(plan: Plan, seq_len: int) -> None:
    check_size("seq_len", seq_len)
    if plan.documents is not None and sum(plan.documents) != seq_len:
        raise InputError(
            "bad-plan",
            f"documents add up to {sum(plan.documents)} tokens, seq_len is {seq_len}",
            hint="give the documents of one packed sequence",
        )


def _shard(plan: Plan, dp: int, zero: int) -> int:
    """Ranks among which state is split."""
    ranks = dp * plan.cp
    if plan.shard is None:
        return ranks if zero else 1
    if zero != 3:
        raise InputError(
            "bad-plan", f"shard is {plan.shard}, but zero is {zero}", hint="shard is a choice of zero 3 (HSDP)"
        )
    return plan.shard


def _mesh(model: Model, plan: Plan, dp: int, shard: int) -> Mesh:
    mesh = Mesh(
        tp=plan.tp,
        cp=plan.cp,
        dp=dp,
        pp=plan.pp,
        ep=plan.ep,
        etp=plan.etp if _has_experts(model) else None,
        # Megatron and torchtitan split state over dp and cp together; the mesh names the part of dp.
        shard=shard // plan.cp if plan.shard is not None and shard < dp * plan.cp else None,
        order=plan.rank_order,
    )
    _check_order(mesh)
    return mesh


def _check_order(mesh: Mesh) -> None:
    """Raises an error where stages are not outermost and experts have other replicas than the rest of the model.

    Megatron-core's `initialize_model_parallel` (core/parallel_state.py) asserts it, also for models without experts.
    """
    if mesh.pp > 1 and not mesh.order.endswith("pp") and mesh.edp != mesh.dp:
        raise InputError(
            "bad-mesh",
            f"rank_order {mesh.order} does not end with pp, but experts have {mesh.edp} replicas and dp is {mesh.dp}",
            hint=f"put pp last, as in {DEFAULT_ORDER}, or make ep·etp equal to tp·cp",
        )


def _has_experts(model: Model) -> bool:
    return any(isinstance(layer.feed_forward, Experts) for layer in dict.fromkeys(model.layers))


def _schedule(plan: Plan, microbatches: int) -> Schedule:
    name = plan.schedule or ("interleaved-1f1b" if plan.vpp > 1 else "1f1b")
    if plan.pp == 1:
        resolve(name)
        return make("1f1b", 1, microbatches)
    return make(name, plan.pp, microbatches, plan.vpp if plan.vpp > 1 else None)


def _padded(vocab: int, multiple: int, tp: int) -> int:
    """The vocabulary as it is split: Megatron's make_vocab_size_divisible_by times tp, or tp alone."""
    step = multiple * tp
    return -(-vocab // step) * step


def _notes(setting: Setting, uneven: str | None) -> list[Diagnostic]:
    """Returns notes on what was chosen for the user and changes the answer."""
    plan, stack = setting.plan, setting.stack
    chosen = [] if plan.stack else [f"software as {stack.title or stack.name}"]
    chosen += [] if plan.seq_len else [f"seq_len {setting.seq_len}, the model's own"]
    if plan.gbs is None:
        chosen.append(f"gbs {setting.gbs}, {setting.microbatches} microbatch{'es' * (setting.microbatches > 1)} a rank")
    if setting.dp * plan.cp > 1:
        chosen += [] if plan.zero is not None else [f"zero {setting.zero}"]
        overlaps = [("gradients", plan.grad_overlap, setting.grad_overlap)]
        if setting.zero in (1, 2):
            overlaps.append(("parameters", plan.param_overlap, setting.param_overlap))
        if setting.zero < 3:
            chosen += [f"{what} {'' if on else 'not '}overlapped" for what, choice, on in overlaps if choice is None]
    if plan.tp > 1 and plan.sequence_parallel is None:
        chosen.append(f"sequence parallelism {'on' if setting.sequence_parallel else 'off'}")
    if plan.schedule is None and plan.pp > 1:
        chosen.append(f"schedule {setting.schedule}")
    notes = [Diagnostic("note", "assumed", f"not given, taken: {'; '.join(chosen)}")] if chosen else []
    notes += [Diagnostic("note", "uneven-stages", uneven)] if uneven else []
    if plan.schedule is not None and plan.pp > 1 and plan.vpp not in (1, setting.chunks_per_stage):
        notes.append(
            Diagnostic("note", "replaced-option", f"{setting.schedule} has {setting.chunks_per_stage} chunks a stage")
        )
    if setting.vocab != setting.model.vocab:
        text = f"vocabulary padded from {setting.model.vocab:,} to {setting.vocab:,}"
        notes.append(Diagnostic("note", "vocabulary-padded", text))
    moe = _has_experts(setting.model)
    if plan.routing_of() > 1 and moe:
        most = "up to " * isinstance(plan.routing, tuple) + f"{plan.routing_of():g} times the mean"
        notes.append(Diagnostic("note", "assumed", f"every expert rank is taken to be as busy as the busiest, {most}"))
    if plan.moe_overlap and moe:
        text = "all-to-alls are taken to run beside computation wherever it is long enough (moe overlap)"
        notes.append(Diagnostic("note", "assumed", text))
    if setting.schedule == "dualpipe":
        notes.append(
            Diagnostic("note", "not-modelled", "dualpipe: gradients of a stage's two copies are reduced over dp only")
        )
    idle = _idle(setting, moe)
    if idle:
        notes.append(Diagnostic("note", "field-ignored", f"without effect in this job: {'; '.join(idle)}"))
    return [*_warnings(setting), *notes]


def _warnings(setting: Setting) -> list[Diagnostic]:
    """Returns where the answer is known to be too good, and what costs time for nothing."""
    plan = setting.plan
    warnings: list[Diagnostic] = []
    if setting.zero == 2 and setting.microbatches > 1 and setting.dp * plan.cp > 1:
        text = (
            "zero 2: gradients are reduced once a step, as under zero 1; software that keeps only its part of them "
            f"reduces in each of {setting.microbatches} microbatches, which takes longer"
        )
        warnings.append(Diagnostic("warning", "not-modelled", text))
    stack = setting.stack
    if plan.recompute == "selective" and stack.selective == "core" and stack.attention != "unfused":
        text = (
            "recompute selective saves nothing: it runs core attention again, and fused attention keeps nothing for "
            "its backward but what other layers keep as well"
        )
        warnings.append(Diagnostic("warning", "recompute-saves-nothing", text))
    if plan.cp >= 4:
        text = "cp of 4 and more came out a third too fast against the measured runs there are (docs/accuracy.md)"
        warnings.append(Diagnostic("warning", "uncertain", text))
    return warnings


def _idle(setting: Setting, moe: bool) -> list[str]:
    """Returns the settings of the plan that have no effect in this job."""
    plan = setting.plan
    checks = [
        (plan.cp_comm != "p2p" and plan.cp == 1, f"cp_comm {plan.cp_comm} (cp is 1)"),
        (plan.prefetch != 1 and setting.zero != 3, f"prefetch {plan.prefetch} (zero is {setting.zero})"),
        (not plan.reshard and setting.zero != 3, f"reshard off (zero is {setting.zero})"),
        (plan.routing_of() > 1 and not moe, f"routing {plan.routing_of():g} (no experts)"),
        (plan.dispatcher != "alltoall" and plan.ep == 1, f"dispatcher {plan.dispatcher} (ep is 1)"),
        (plan.schedule is not None and plan.pp == 1, f"schedule {plan.schedule} (pp is 1)"),
        (plan.sequence_parallel is True and plan.tp == 1, "sequence parallelism (tp is 1)"),
        (plan.pp_overlap and plan.pp == 1, "pp overlap (pp is 1)"),
        (
            plan.pp_overlap and plan.pp > 1 and setting.schedule not in BATCHED,
            f"pp overlap ({setting.schedule} never waits for transfers)",
        ),
    ]
    return [text for asked, text in checks if asked]


def split_layers(
    layers: int, pieces: int, given: Sequence[int] | None
) -> tuple[tuple[tuple[int, ...], ...], str | None]:
    """Returns the layers of every piece of the model by number, in order, and a note where pieces differ in size.

    Where the layers do not divide but two more would, the embedding and the head count as a layer each, as under
    Megatron's account-for-embedding-in-pipeline-split and -loss- (Llama 3 405B: 126 layers).
    """
    counts, note = _layer_counts(layers, pieces, given)
    bounds = accumulate(counts, initial=0)
    return tuple(tuple(range(first, last)) for first, last in pairwise(bounds)), note


def _layer_counts(layers: int, pieces: int, given: Sequence[int] | None) -> tuple[list[int], str | None]:
    if given is not None:
        if len(given) != pieces or sum(given) != layers or min(given) < 0:
            raise InputError(
                "bad-plan",
                f"stage_layers has {len(given)} parts of {sum(given)} layers in all; the model has {layers} layers "
                f"in {pieces} part{'s' * (pieces > 1)}",
                hint=f"give {pieces} numbers that add up to {layers}",
            )
        return list(given), None
    if layers % pieces == 0:
        return [layers // pieces] * pieces, None
    each, left = divmod(layers + 2, pieces)
    if left == 0 and pieces > 1:
        note = f"{layers} layers on {pieces} parts: embedding and head count as a layer each, {each} to a part"
        return [each - 1, *([each] * (pieces - 2)), each - 1], note
    if layers < pieces:
        raise InputError(
            "bad-plan",
            f"{layers} layers cannot fill {pieces} parts of a pipeline (pp times chunks)",
            hint=f"at most {layers} parts, or stage_layers with zeros",
        )
    each, left = divmod(layers, pieces)
    note = f"{layers} layers on {pieces} parts: {each} in each, one more in the first{f' {left}' if left > 1 else ''}"
    return [each + (piece < left) for piece in range(pieces)], note
