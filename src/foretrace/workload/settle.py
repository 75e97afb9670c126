"""Settles a plan: every open choice made, every size checked, and reported where it changes the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from foretrace.basics.errors import Diagnostic
from foretrace.models.model import Experts, Model
from foretrace.schedules.registry import make
from foretrace.schedules.schedule import Schedule
from foretrace.workload.check_plan import check_plan, check_size
from foretrace.workload.layers import dropped_share, offloaded_share, recomputed_modules
from foretrace.workload.layout import layout_of
from foretrace.workload.nearest_plans import check_constraints
from foretrace.workload.plan import FULL_PRECISIONS, NARROW_PRECISIONS, Plan, RecomputeModule
from foretrace.workload.routing import assumed_routing
from foretrace.workload.rules.idle_fields import IDLE
from foretrace.workload.rules.sizes import BOTH_ENDS, PlanSizes
from foretrace.workload.setting import Setting
from foretrace.workload.stack import Stack
from foretrace.workload.stacks import VERSIONS, nearest_version

MIN_DROPPED: Final = 0.01
"""Share of a layer's kept activations that a recomputed part must drop to be worth it: fused attention drops the
statistics of its softmax, about a thousandth."""
_NO_GAIN: Final[dict[RecomputeModule, str]] = {
    "core_attn": "fused attention keeps nothing for its backward but what other layers keep as well",
    "layernorm": "every norm is inside the linear layer behind it",
    "mla_up_proj": "the model has no latent attention",
    "mlp": "the model has no dense feed-forward layer",
    "moe": "the model has no experts",
    "moe_act": "the model has no experts",
    "shared_experts": "the model has no shared experts",
}


def settle(model: Model, plan: Plan, stack: Stack | None = None) -> Setting:
    """The plan with every choice made. `stack` is the software where it is not one of the plan's by name."""
    sizes = PlanSizes.of(model, _as_meant(check_plan(plan)), stack)
    check_size("seq_len", sizes.seq_len)
    check_constraints(sizes)
    setting, uneven = _setting(sizes)
    return replace(setting, diagnostics=tuple(_notes(setting, uneven, sizes)))


def settle_allowed(sizes: PlanSizes, plan: Plan) -> Setting:
    """Returns a plan with every choice made, where it is known to be allowed: without checks or diagnostics.

    Args:
        sizes: Those of any plan of the same model, with the same software where that is given apart.
        plan: The plan.
    """
    return _setting(sizes.with_plan(_as_meant(plan)))[0]


def _as_meant(plan: Plan) -> Plan:
    """Returns a plan in which parts that it names for recomputation are recomputed."""
    return replace(plan, recompute="selective") if plan.recompute_modules and plan.recompute == "none" else plan


def _setting(sizes: PlanSizes) -> tuple[Setting, str | None]:
    """Returns the setting of allowed sizes, and why its stages are not equal where they are not."""
    model, plan, chosen = sizes.model, sizes.plan, _with_dtypes(sizes)
    dp, zero, microbatches, vpp = sizes.dp, sizes.zero, sizes.microbatches, sizes.vpp
    name = "1f1b" if plan.pp == 1 else sizes.schedule
    schedule = make(name, plan.pp, microbatches, vpp if vpp > 1 else None)
    if vpp != plan.vpp:
        plan = replace(plan, vpp=vpp)
    layout, uneven = layout_of(plan, len(model.layers), model.mtp, schedule.pieces)
    setting = Setting(
        model=model,
        plan=plan,
        stack=chosen,
        mesh=sizes.mesh,
        dp=dp,
        seq_len=sizes.seq_len,
        gbs=sizes.gbs,
        microbatches=microbatches,
        vocab=_padded(model.vocab, chosen.padded_vocab, plan.tp),
        sequence_parallel=sizes.sequence_parallel,
        zero=zero,
        shard=sizes.shard,
        grad_overlap=chosen.grad_overlap if plan.grad_overlap is None else plan.grad_overlap,
        param_overlap=chosen.param_overlap if plan.param_overlap is None else plan.param_overlap,
        schedule=schedule.name,
        chunks=layout.chunks,
        mtp_chunk=layout.mtp_part,
        routing=_routing(sizes),
        layout=str(layout),
        chunks_per_stage=schedule.chunks,
    )
    return setting, uneven


def _routing(sizes: PlanSizes) -> float | tuple[float, ...]:
    """Returns how uneven tokens go to expert ranks; one rank that has all experts receives the mean."""
    if sizes.ep == 1:
        return 1.0
    given = sizes.plan.routing
    if given is None:
        return assumed_routing(sizes.facts.experts, sizes.ep)
    if not isinstance(given, tuple):
        return given
    # Layers without experts have none; multi-token prediction takes the most uneven of the others.
    layers = zip(given, sizes.model.layers, strict=True)
    return tuple(factor if isinstance(layer.feed_forward, Experts) else 1.0 for factor, layer in layers)


def _with_dtypes(sizes: PlanSizes) -> Stack:
    """Returns the software with the dtypes that a plan gives its parameters, gradients and optimizer.

    Products in fp32 or tf32 read parameters in fp32, of which the optimizer needs no copy (Megatron's FP32Optimizer).
    """
    stack, plan = sizes.stack, sizes.plan
    full = plan.precision in FULL_PRECISIONS
    parameters: Literal["fp32", "bf16", "fp16"] = "fp32" if full else stack.parameter_dtype
    gradients = plan.grad_dtype or ("fp32" if full else stack.gradient_dtype)
    if not stack.fused_gradient_accumulation and not sizes.splits_parameters:
        gradients = parameters  # autograd's own
    # PyTorch's optimizers keep moments in the dtype of what they update.
    copied = plan.master_dtype is not None and not stack.master_weights
    return replace(
        stack,
        parameter_dtype=parameters,
        gradient_dtype=gradients,
        master_weights=parameters != "fp32" and (stack.master_weights or copied),
        master_dtype=plan.master_dtype or stack.master_dtype,
        optimizer_state_dtype=plan.moment_dtype or ("fp32" if full or copied else stack.optimizer_state_dtype),
    )


def schedule_of(setting: Setting) -> Schedule:
    """The pipeline schedule of a setting."""
    return make(setting.schedule, setting.plan.pp, setting.microbatches, setting.chunks_per_stage)


def _padded(vocab: int, multiple: int, tp: int) -> int:
    """The vocabulary as it is split: Megatron's make_vocab_size_divisible_by times tp, or tp alone."""
    step = multiple * tp
    return -(-vocab // step) * step


def _notes(setting: Setting, uneven: str | None, sizes: PlanSizes) -> list[Diagnostic]:
    """Returns notes on what was chosen for the user and changes the answer."""
    plan, stack = setting.plan, setting.stack
    chosen = [] if plan.stack else [f"software as {stack.title or stack.name}"]
    if stack.version and "@" not in (plan.stack or ""):
        chosen.append(f"{stack.name} {stack.version}")
    chosen += [] if plan.seq_len else [f"seq_len {setting.seq_len}, the model's own"]
    if plan.gbs is None:
        chosen.append(f"gbs {setting.gbs}, {setting.microbatches} microbatch{'es' * (setting.microbatches > 1)} a rank")
    if setting.dp * plan.cp > 1:
        chosen += [] if plan.zero is not None else [f"zero {setting.zero}"]
        overlaps = [("gradients", plan.grad_overlap, setting.grad_overlap)]
        if setting.zero in (1, 2):
            overlaps.append(("parameters", plan.param_overlap, setting.param_overlap))
        if not setting.splits_parameters:
            chosen += [f"{what} {'' if on else 'not '}overlapped" for what, choice, on in overlaps if choice is None]
    if plan.tp > 1 and plan.sequence_parallel is None:
        chosen.append(f"sequence parallelism {'on' if setting.sequence_parallel else 'off'}")
    if plan.schedule is None and plan.pp > 1:
        chosen.append(f"schedule {setting.schedule}")
    if plan.routing is None and setting.routing_of() > 1:
        chosen.append(f"--routing {setting.routing_of():g}x, tokens of the busiest expert rank over the mean")
    notes = [Diagnostic("note", "assumed", f"not given, taken: {'; '.join(chosen)}")] if chosen else []
    asked = None if plan.stack is None else nearest_version(plan.stack)
    if asked is not None:
        known = ", ".join(version.version for version in VERSIONS[stack.name])
        text = f"version {asked} of {stack.name} is not known: taken as {stack.version} (known: {known})"
        notes.append(Diagnostic("warning", "nearest-version", text))
    notes += [Diagnostic("note", "uneven-stages", uneven)] if uneven else []
    if plan.schedule is not None and plan.pp > 1 and plan.vpp not in (1, setting.chunks_per_stage):
        notes.append(
            Diagnostic("note", "replaced-option", f"{setting.schedule} has {setting.chunks_per_stage} chunks a stage")
        )
    if setting.vocab != setting.model.vocab:
        text = f"vocabulary padded from {setting.model.vocab:,} to {setting.vocab:,}"
        notes.append(Diagnostic("note", "vocabulary-padded", text))
    moe = setting.model.has_experts
    if setting.routing_of() > 1:
        most = "up to " * isinstance(setting.routing, tuple) + f"{setting.routing_of():g} times the mean"
        text = f"every expert rank is taken to be as busy as the busiest, {most}: memory is an upper bound"
        if plan.routing is None:
            text += "; the factor is scaled from one run of DeepSeek-V3"
            most_uneven = max(setting.least_even_routing)
            text += f", a band reaches up to {most_uneven:g}" * (most_uneven > setting.routing_of())
        notes.append(Diagnostic("note", "assumed", text))
    if plan.moe_overlap and moe and plan.ep > 1:
        text = (
            "all-to-alls run next to computation in phases, and are taken to be as fast as alone (moe overlap): a "
            "measured gain was smaller (docs/experts.md)"
        )
        notes.append(Diagnostic("note", "not-modelled", text))
    if setting.model.mtp and setting.mtp_chunk % plan.pp != plan.pp - 1 and setting.schedule not in BOTH_ENDS:
        text = "the gradients of the embedding and of the copy that multi-token prediction has are not added up"
        notes.append(Diagnostic("note", "not-modelled", text))
    if stack.keeps_quantized_weights and plan.precision in NARROW_PRECISIONS and not setting.splits_parameters:
        where = " (8-bit scales of tensors: as on Hopper; Blackwell needs one)" * (plan.precision == "fp8")
        text = f"quantized weights are taken to be kept over the step, for both directions of products{where}"
        notes.append(Diagnostic("note", "assumed", text))
    if setting.schedule in ("dualpipe", "dualpipe-v") and moe and plan.ep > 1 and not plan.moe_overlap:
        text = f"{setting.schedule}: all-to-alls wait for each other; --overlap moe runs them next to computation"
        notes.append(Diagnostic("note", "assumed", text))
    if setting.schedule == "dualpipe":
        notes.append(
            Diagnostic("note", "not-modelled", "dualpipe: gradients of a stage's two copies are reduced over dp only")
        )
    idle = _idle(setting, sizes)
    if idle:
        notes.append(Diagnostic("note", "field-ignored", f"without effect in this job: {'; '.join(idle)}"))
    return [*_warnings(setting), *notes]


def _warnings(setting: Setting) -> list[Diagnostic]:
    """Returns where the answer is known to be too good, and what costs time for nothing."""
    warnings: list[Diagnostic] = []
    for module in recomputed_modules(setting):
        if dropped_share(setting, module) < MIN_DROPPED:
            text = f"recomputing {module} saves nothing here: {_no_gain(setting, module)}"
            warnings.append(Diagnostic("warning", "recompute-saves-nothing", text))
    if setting.has_slow_ring:
        text = "published runs with PyTorch's ring over 4 ranks or more took 1.4 times as long (docs/accuracy.md)"
        warnings.append(Diagnostic("warning", "uncertain", text))
    return warnings


def _no_gain(setting: Setting, module: RecomputeModule) -> str:
    """Returns why recomputing a module saves nothing."""
    if module in ("moe_act", "shared_experts") and "moe" in (setting.plan.recompute_modules or ()):
        return "moe runs it again already"
    if module == "moe_act" and setting.plan.fp8_activation_input and setting.model.has_experts:
        return "its input is then kept in 16 bits instead of 8"
    return _NO_GAIN[module]


def _idle(setting: Setting, sizes: PlanSizes) -> list[str]:
    """Returns the settings of the plan that have no effect in this job."""
    plan, moe = setting.plan, setting.model.has_experts
    layers = setting.stage_layers
    stated_routing = plan.routing_of() or 1.0
    fetches = setting.splits_parameters or plan.offload_layers or plan.offload_modules
    checks = [
        (plan.cp_comm != "p2p" and IDLE["cp_comm"](sizes), f"cp_comm {plan.cp_comm} (cp is 1)"),
        (plan.prefetch != 1 and not fetches, f"prefetch {plan.prefetch} (zero is {setting.zero})"),
        (not plan.reshard and setting.zero != 3, f"reshard off (zero is {setting.zero})"),
        (
            stated_routing > 1 and IDLE["routing"](sizes),
            f"routing {stated_routing:g}x ({'ep is 1' if moe else 'no experts'})",
        ),
        (plan.dispatcher != "alltoall" and IDLE["dispatcher"](sizes), f"dispatcher {plan.dispatcher} (ep is 1)"),
        (plan.cuda_graphs == "router" and not moe, "cuda_graphs router (no experts)"),
        (plan.moe_overlap and IDLE["moe_overlap"](sizes), f"moe overlap ({'ep is 1' if moe else 'no experts'})"),
        (
            setting.stack.fp8_scales == "rows" and plan.precision != "fp8",
            f"row-wise scales (precision is {plan.precision})",
        ),
        (plan.schedule is not None and IDLE["schedule"](sizes), f"schedule {plan.schedule} (pp is 1)"),
        (plan.sequence_parallel is True and IDLE["sequence_parallel"](sizes), "sequence parallelism (tp is 1)"),
        *(
            (count > layers, f"{field} beyond {layers}, the layers of a stage")
            for field, count in (
                ("offload_layers", plan.offload_layers),
                ("recompute_layers", plan.recompute_layers or 0),
            )
        ),
        (plan.pp_overlap and plan.pp == 1, "pp overlap (pp is 1)"),
        (bool(plan.account_for) and plan.pp == 1, f"account_for {', '.join(plan.account_for or ())} (pp is 1)"),
        *(
            (offloaded_share(setting, module) <= 0, f"offload {module} (it keeps nothing of its own)")
            for module in plan.offload_modules
        ),
        (
            plan.master_dtype is not None and not setting.stack.master_weights,
            f"master_dtype {plan.master_dtype} (parameters are in {setting.stack.parameter_dtype})",
        ),
        (
            plan.pp_overlap and plan.pp > 1 and IDLE["pp_overlap"](sizes),
            f"pp overlap ({setting.schedule} never waits for transfers)",
        ),
    ]
    return [text for asked, text in checks if asked]
