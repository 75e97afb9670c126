"""Declares what a plan must satisfy for its software to run it, as data: `settle` refuses what breaks a constraint.

Each constraint names the fields of a plan that may be changed to satisfy it. `nearest_plans` searches their values for
the plans that a hint names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.models.model import Model
from foretrace.workload.layout import layout_problem, parse_layout, stage_counts
from foretrace.workload.plan import FULL_PRECISIONS, NARROW_PRECISIONS, Plan
from foretrace.workload.setting import BOTH_ENDS, PlanSizes, facts_of

MAX_LAYER_RUNS: Final = 400_000
"""Layers times microbatches of a step: some ten million ops, half a minute and gigabytes."""

Problem = Callable[[PlanSizes], str | None]
"""Returns in words what is wrong with sizes; None: nothing."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule of the software about plans.

    Attributes:
        code: The code of the error where a plan breaks it.
        fields: The fields of the plan that may be changed to satisfy it.
        problem: The predicate: what is wrong, in words; None where the rule holds.
        why: Why the software has the rule, where that is not plain.
    """

    code: str
    fields: tuple[str, ...]
    problem: Problem
    why: str = ""


def broken(sizes: PlanSizes) -> Iterator[Constraint]:
    """Yields the constraints that a plan breaks, in the order in which they are checked; none where it runs."""
    return (constraint for constraint in CONSTRAINTS if constraint.problem(sizes) is not None)


def check_split(model: Model, plan: Plan) -> None:
    """Raises an `InputError` where the way in which a plan divides the layers is one that Megatron refuses."""
    sizes = PlanSizes.of(model, plan)
    for constraint in SPLIT_CONSTRAINTS:
        problem = constraint.problem(sizes)
        if problem is not None:
            raise InputError(constraint.code, problem, hint=constraint.why)


def _indivisible(what: str, count: int, axis: str, size: int) -> str | None:
    return f"{what} {count} cannot be divided by {axis} {size}" if count % size else None


def _first(problems: Iterator[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _gpus(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    fixed = plan.tp * plan.cp * plan.pp
    if plan.gpus % fixed == 0:
        return None
    return f"gpus {plan.gpus} cannot be divided by tp·cp·pp = {plan.tp}·{plan.cp}·{plan.pp} = {fixed}"


def _batch(sizes: PlanSizes) -> str | None:
    mbs, dp = sizes.plan.mbs, sizes.dp
    if sizes.gbs % (mbs * dp) == 0:
        return None
    return f"gbs {sizes.gbs} cannot be divided by mbs·dp = {mbs}·{dp} = {mbs * dp}"


def _heads(sizes: PlanSizes) -> str | None:
    return _first(_indivisible("attention heads", heads, "tp", sizes.plan.tp) for heads, _ in sizes.heads)


def _kv_heads(sizes: PlanSizes) -> str | None:
    """Megatron-core from 0.16 on copies keys and values where tp is a multiple of their heads; others divide them."""
    tp = sizes.plan.tp
    for _, kv_heads in sizes.heads:
        if kv_heads % tp and not (sizes.stack.copies_kv_heads and tp % kv_heads == 0):
            rule = "neither divides the other" if sizes.stack.copies_kv_heads else "tp does not divide them"
            return f"heads of keys and values {kv_heads}, tp {tp}: {rule}"
    return None


def _a2a_heads(sizes: PlanSizes) -> str | None:
    """Transformer Engine, `AttnFuncWithCPAndQKVOA2A`: heads of a rank, and those of its keys, are multiples of cp."""
    plan = sizes.plan
    if plan.cp == 1 or plan.cp_comm != "a2a":
        return None
    for heads, kv_heads in sizes.heads:
        if heads // plan.tp % plan.cp:
            return f"attention heads {heads} cannot be divided by tp·cp {plan.tp * plan.cp} (cp_comm a2a)"
        if max(kv_heads // plan.tp, 1) % plan.cp:
            return f"heads of keys and values {kv_heads} cannot be divided by tp·cp {plan.tp * plan.cp} (cp_comm a2a)"
    return None


def _ffn(sizes: PlanSizes) -> str | None:
    return _first(_indivisible(what, ffn, "tp", sizes.plan.tp) for what, ffn in sizes.dense_ffns)


def _expert_count(sizes: PlanSizes) -> str | None:
    return _first(_indivisible("experts", each.count, "ep", sizes.plan.ep) for each in sizes.experts)


def _expert_ffn(sizes: PlanSizes) -> str | None:
    return _first(_indivisible("expert ffn", each.expert.ffn, "etp", sizes.plan.etp) for each in sizes.experts)


def _no_experts(axis: str) -> Problem:
    def problem(sizes: PlanSizes) -> str | None:
        if sizes.experts or getattr(sizes.plan, axis) == 1:
            return None
        return f"ep is {sizes.plan.ep} and etp {sizes.plan.etp}, but {sizes.model.name} has no experts"

    return problem


def _expert_ranks(axis: str) -> Problem:
    def problem(sizes: PlanSizes) -> str | None:
        plan = sizes.plan
        dense = plan.tp * plan.cp * sizes.dp
        size, whole = (plan.etp, dense) if axis == "etp" else (plan.ep, dense // plan.etp)
        over = f" over etp={plan.etp}" if axis == "ep" and plan.etp > 1 else ""
        return f"{axis}={size} does not divide tp·cp·dp={dense}{over}" if sizes.experts and whole % size else None

    return problem


def _context_parts(sizes: PlanSizes) -> str | None:
    parts = 2 * sizes.plan.cp
    return _indivisible("seq_len", sizes.seq_len, "2·cp =", parts) if sizes.plan.cp > 1 else None


def _sequence_parts(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    if not sizes.sequence_parallel or sizes.seq_len // plan.cp % plan.tp == 0:
        return None
    return f"seq_len {sizes.seq_len} over cp {plan.cp} cannot be divided by tp {plan.tp}, as sequence parallelism asks"


def _documents(sizes: PlanSizes) -> str | None:
    documents = sizes.plan.documents
    if documents is None or sum(documents) == sizes.seq_len:
        return None
    return f"documents add up to {sum(documents)} tokens, seq_len is {sizes.seq_len}"


def _shard_without_zero(sizes: PlanSizes) -> str | None:
    shard, zero = sizes.plan.shard, sizes.zero
    return f"shard is {shard}, but zero is {zero}" if shard is not None and zero != 3 else None


def _shard(sizes: PlanSizes) -> str | None:
    plan, ranks = sizes.plan, sizes.dp * sizes.plan.cp
    if plan.shard is None or (ranks % plan.shard == 0 and plan.shard % plan.cp == 0):
        return None
    return f"shard {plan.shard} does not split dp·cp = {sizes.dp}·{plan.cp}"


def _gradients(sizes: PlanSizes) -> str | None:
    """Autograd gives a gradient the dtype of its parameter. Buffers may be in fp32 instead (Megatron-core's
    DistributedDataParallel), and FSDP reduces in the dtype of its mixed-precision policy."""
    given, stack = sizes.plan.grad_dtype, sizes.stack
    own = sizes.parameter_dtype
    if given is None or given == own or (sizes.splits_parameters and not stack.fused_gradient_accumulation):
        return None
    if stack.fused_gradient_accumulation:
        return None if given == "fp32" else f"grad_dtype is {given}; {stack.name} keeps gradients in fp32 or {own} here"
    return f"grad_dtype is {given}, but {stack.name} gives gradients the dtype of parameters, {own}"


def _master(sizes: PlanSizes) -> str | None:
    given, stack = sizes.plan.master_dtype, sizes.stack
    if given in (None, "fp32") or stack.precision_aware_optimizer:
        return None
    return f"master_dtype is {given}, which the optimizer of {stack.name} does not have"


def _moments(sizes: PlanSizes) -> str | None:
    """PyTorch's optimizers keep moments in the dtype of what they update; Transformer Engine's FusedAdam in any."""
    given, stack = sizes.plan.moment_dtype, sizes.stack
    if given is None or stack.precision_aware_optimizer:
        return None
    kept = stack.optimizer_state_dtype if stack.master_weights else sizes.updated_dtype
    return None if given == kept else f"moment_dtype is {given}, but the optimizer of {stack.name} keeps {kept} here"


def _precision_aware(sizes: PlanSizes) -> str | None:
    """Megatron-core, `OptimizerConfig`: only the distributed optimizer is precision-aware."""
    plan = sizes.plan
    if sizes.zero or not sizes.stack.precision_aware_optimizer or plan.precision in FULL_PRECISIONS:
        return None
    defaults = (("master_dtype", plan.master_dtype, "fp32"), ("moment_dtype", plan.moment_dtype, "fp32"))
    changed = next((f"{name} is {given}" for name, given, usual in defaults if given not in (None, usual)), None)
    return f"{changed}, but zero is 0" if changed else None


def _narrow_parameters(sizes: PlanSizes) -> str | None:
    """Transformer Engine has 8-bit parameters; Megatron-core asks for the distributed optimizer or FSDP with them."""
    plan, stack = sizes.plan, sizes.stack
    if not plan.fp8_params:
        return None
    if not stack.keeps_quantized_weights:
        return f"fp8_params is on, but {stack.name} has no parameters in 8 bits"
    if plan.precision not in NARROW_PRECISIONS or plan.precision == "nvfp4":
        return f"fp8_params is on, but precision is {plan.precision}"
    return None if sizes.zero else "fp8_params is on, but zero is 0"


END_STAGES: Final = ("first_stage_layers", "last_stage_layers")
_SPLITS: Final = ("stage_layers", "layout", "account_for", *END_STAGES)
"""Fields that divide the layers among parts."""


def _given_splits(plan: Plan) -> list[str]:
    """Returns which fields divide the layers; no end that counts (`account_for` without words) is not a division."""
    return [name for name in _SPLITS if getattr(plan, name) is not None and getattr(plan, name) != ()]


def _both(first: str, second: str) -> Problem:
    def problem(sizes: PlanSizes) -> str | None:
        given = _given_splits(sizes.plan)
        return f"{first} and {second} both divide the layers" if first in given and second in given else None

    return problem


def _pieces(sizes: PlanSizes) -> str | None:
    """Parts may differ by a layer (Megatron-core: `pipeline_model_parallel_layout`), but each has one.

    The first part may have the embedding alone, if the last has the head alone, or MTP with it.
    """
    layers, pieces, plan = len(sizes.model.layers), sizes.pieces, sizes.plan
    given = _given_splits(plan) or plan.account_for is not None
    if given or layers >= pieces or layers + 2 == pieces or (sizes.model.mtp and layers + 1 == pieces):
        return None
    return f"{layers} layers cannot fill {pieces} parts of a pipeline (pp times chunks)"


def _stage_layers(sizes: PlanSizes) -> str | None:
    given, layers, pieces = sizes.plan.stage_layers, len(sizes.model.layers), sizes.pieces
    if given is None or (len(given) == pieces and sum(given) == layers):
        return None
    parts = f"{pieces} part{'s' * (pieces > 1)}"
    return (
        f"stage_layers has {len(given)} parts of {sum(given)} layers in all; the model has {layers} layers in {parts}"
    )


def _layout_chunks(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    if plan.layout is None:
        return None
    parts = len(parse_layout(plan.layout).parts)
    if parts % plan.pp:
        return f"layout has {parts} parts, which pp {plan.pp} does not divide"
    if plan.vpp not in (1, sizes.vpp):
        return f"layout has {parts} parts, {sizes.vpp} for each of {plan.pp} stages, but vpp is {plan.vpp}"
    most = facts_of(sizes.schedule).max_chunks
    if parts == sizes.pieces and (parts == plan.pp or most in (None, sizes.vpp)):
        return None
    return f"layout has {parts} parts, too many or too few for {sizes.schedule} on {plan.pp} stages"


def _layout(sizes: PlanSizes) -> str | None:
    if sizes.plan.layout is None:
        return None
    layout = parse_layout(sizes.plan.layout)
    return layout_problem(layout, len(sizes.model.layers), sizes.model.mtp, sizes.plan.pp)


def _account_for(sizes: PlanSizes) -> str | None:
    """Megatron-core, `get_num_layers_to_build`: layers and counted ends are a multiple of all parts."""
    counted, layers = sizes.plan.account_for, len(sizes.model.layers)
    if counted is None or (counted == () and _given_splits(sizes.plan)) or (layers + len(counted)) % sizes.pieces == 0:
        return None
    ends = f" with {' and '.join(counted)}" if counted else ""
    return f"{layers} layers{ends} cannot be divided among {sizes.pieces} parts (pp times chunks)"


def _end_stage(field: str) -> Problem:
    """Returns the problem of a number of layers of the first or last stage; without the number there is none."""
    return lambda sizes: None if getattr(sizes.plan, field) is None else end_stages_problem(sizes)


def end_stages_problem(sizes: PlanSizes) -> str | None:
    """Returns what is wrong with the layers of the first and last stage; None where nothing is, or none are given.

    Megatron-core, `get_num_layers_to_build`: stages in the middle are equal, and so are the chunks of a stage.
    """
    plan, layers = sizes.plan, len(sizes.model.layers)
    given = [name for name in END_STAGES if getattr(plan, name) is not None]
    if not given:
        return None
    if plan.pp == 1 or sizes.schedule in BOTH_ENDS:
        return f"{given[0]} is given, but {'pp is 1' if plan.pp == 1 else f'{sizes.schedule} has no such stage'}"
    counts = stage_counts(plan, layers)
    if counts is None:
        ends = " and ".join(str(getattr(plan, name)) for name in given)
        return f"{layers} layers less {ends} cannot be divided among {plan.pp - len(given)} stages"
    chunks = sizes.pieces // plan.pp
    if any(count % chunks for count in counts):
        words = ", ".join(map(str, sorted(set(counts))))
        return f"stages of {words} layers cannot be divided into {chunks} chunks"
    return None


def _whole_groups(sizes: PlanSizes) -> str | None:
    """Megatron-core, `get_forward_backward_func`: the last group of microbatches must be as large as the pipeline."""
    stages, count = sizes.plan.pp, sizes.microbatches
    if stages == 1 or sizes.schedule not in ("interleaved-1f1b", "interleaved-zb") or count % stages == 0:
        return None
    return f"{sizes.schedule} needs microbatches to be a multiple of its {stages} stages, not {count}"


def _chunks(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    if plan.layout is not None:  # it says how many chunks there are: `_layout_chunks`
        return None
    if plan.pp == 1 or plan.vpp == 1:
        return f"vpp is {plan.vpp}, but pp is 1" if plan.vpp > 1 else None
    facts = facts_of(sizes.schedule)
    if facts.max_chunks is None or facts.max_chunks == plan.vpp:
        return None
    return f"{facts.name} has {facts.max_chunks} chunks per stage, not {plan.vpp}"


def _both_ways(sizes: PlanSizes) -> str | None:
    """DualPipe fills its pipeline from both ends, DualPipeV from both ends of a V."""
    stages, count = sizes.plan.pp, sizes.microbatches
    odd = count % 2 == 1 and sizes.schedule == "dualpipe"
    if stages == 1 or not sizes.schedule.startswith("dualpipe") or (count >= 2 * stages and not odd):
        return None
    even = "an even number of microbatches" if sizes.schedule == "dualpipe" else "microbatches"
    return f"{sizes.schedule} needs {even}, at least twice its {stages} stages, not {count}"


def _even_stages(sizes: PlanSizes) -> str | None:
    odd = sizes.plan.pp > 1 and sizes.plan.pp % 2 == 1 and sizes.schedule == "dualpipe"
    return f"dualpipe needs an even number of stages, not {sizes.plan.pp}" if odd else None


def _recompute(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    if plan.recompute_layers is None or plan.recompute == "full":
        return None
    return f"recompute_layers is {plan.recompute_layers}, but recompute is {plan.recompute}"


def _modules_of_whole_layers(sizes: PlanSizes) -> str | None:
    if not sizes.plan.recompute_modules or sizes.plan.recompute != "full":
        return None
    return f"recompute_modules are {', '.join(sizes.plan.recompute_modules)}, but recompute is full"


def _stack_modules(sizes: PlanSizes) -> str | None:
    stack = sizes.stack
    unknown = [module for module in sizes.plan.recompute_modules or () if module not in stack.recompute_modules]
    if not unknown:
        return None
    known = ", ".join(stack.recompute_modules)
    has = f"it has {known}" if known else "it recomputes layers by a policy of its own, --recompute selective"
    return f"{stack.name} does not recompute {', '.join(unknown)} by name: {has}"


def _offloading_stack(sizes: PlanSizes) -> str | None:
    if not sizes.plan.offload_modules or sizes.stack.offloads_modules:
        return None
    return f"{sizes.stack.name} does not offload parts of a layer"


def _offloaded_projection(sizes: PlanSizes) -> str | None:
    """Megatron-core, `TransformerConfig.__post_init__`."""
    modules = sizes.plan.offload_modules
    alone = "attn_proj" in modules and "core_attn" not in modules
    return "offload_modules has attn_proj without core_attn" if alone else None


def _offloaded_twice(sizes: PlanSizes) -> str | None:
    """Megatron-core, `TransformerConfig.__post_init__`: not with cpu_offloading."""
    plan = sizes.plan
    if not plan.offload_modules or not plan.offload_layers:
        return None
    return f"offload_modules are given, and offload_layers is {plan.offload_layers}"


def _offloaded_in_recomputed(sizes: PlanSizes) -> str | None:
    """Megatron-core, `TransformerConfig.__post_init__`: nothing is kept inside of a recomputed mixture."""
    inside = [module for module in sizes.plan.offload_modules if module in ("expert_fc1", "moe_act")]
    if not inside or "moe" not in (sizes.plan.recompute_modules or ()):
        return None
    return f"offload_modules has {' and '.join(inside)}, but recompute_modules has all of moe"


def _narrowing_stack(sizes: PlanSizes) -> str | None:
    if not sizes.plan.fp8_activation_input or sizes.stack.narrows_activation_input:
        return None
    return f"{sizes.stack.name} does not keep the input of activations in 8 bits"


def _narrow_swiglu(sizes: PlanSizes) -> str | None:
    """Megatron-core, `TransformerConfig.__post_init__`."""
    if not sizes.plan.fp8_activation_input or sizes.is_swiglu:
        return None
    return f"fp8_activation_input is on, but {sizes.model.name} has another activation than SwiGLU"


def _at_most_all_layers(field: str) -> Problem:
    def problem(sizes: PlanSizes) -> str | None:
        count, layers = getattr(sizes.plan, field), len(sizes.model.layers)
        return f"{field} is {count}, but {sizes.model.name} has {layers} layers" if (count or 0) > layers else None

    return problem


def _routing(sizes: PlanSizes) -> str | None:
    routing, layers = sizes.plan.routing, len(sizes.model.layers)
    if not isinstance(routing, tuple) or len(routing) == layers:
        return None
    return f"routing is of {len(routing)} layers, {sizes.model.name} has {layers}"


def _rank_order(sizes: PlanSizes) -> str | None:
    """Megatron-core, `initialize_model_parallel`: stages are outermost, or experts have as many replicas as the rest.

    It asserts that also for models without experts. `Mesh` refuses an order that numbers stages in two ways.
    """
    plan = sizes.plan
    if plan.rank_order == DEFAULT_ORDER:
        return None
    try:
        mesh = sizes.mesh
    except InputError as error:
        return error.message
    if plan.pp == 1 or plan.rank_order.endswith("pp") or mesh.edp == mesh.dp:
        return None
    return f"rank_order {mesh.order} does not end with pp, but experts have {mesh.edp} replicas and dp is {mesh.dp}"


def _length(sizes: PlanSizes) -> str | None:
    layers, count = len(sizes.model.layers), sizes.microbatches
    if count <= max_microbatches(sizes):
        return None
    return f"{count:,} microbatches of {layers:,} layers are more than can be run"


def max_microbatches(sizes: PlanSizes) -> int:
    """Returns how many microbatches of a step can be run."""
    return MAX_LAYER_RUNS // max(len(sizes.model.layers), sizes.pieces)


SPLIT_CONSTRAINTS: Final = (
    # Megatron-core: a layout excludes all others, and layers of end stages exclude ends that count as layers.
    *(
        Constraint("conflicting-options", pair, _both(*pair), "one of them is enough")
        for pair in combinations(_SPLITS, 2)
        if pair != END_STAGES
    ),
    Constraint(
        "bad-plan", ("vpp", "pp", "schedule", "layout"), _layout_chunks, "a layout says how many chunks a stage has"
    ),
    Constraint("bad-plan", ("layout",), _layout, "layouts are those of Megatron-core"),
    Constraint("not-divisible", ("account_for", "vpp", "pp"), _account_for, "as Megatron asks of all parts"),
    *(
        Constraint(
            "not-divisible",
            (*fields, "vpp"),
            _end_stage(fields[0]),
            "Megatron divides the other layers evenly among the other stages, and those of a stage among its chunks",
        )
        for fields in (END_STAGES, END_STAGES[::-1])
    ),
    Constraint("bad-plan", ("vpp", "pp", "stage_layers"), _stage_layers, "stage_layers has a number for each part"),
)
"""Constraints about how a plan divides the layers, in the order in which they are checked."""

CONSTRAINTS: Final = (
    Constraint("not-divisible", ("cp", "pp", "tp", "gpus"), _gpus),
    Constraint("not-divisible", ("gbs", "mbs"), _batch),
    Constraint("not-divisible", ("tp",), _heads),
    Constraint("not-divisible", ("tp",), _kv_heads),
    Constraint("not-divisible", ("cp", "tp"), _a2a_heads),
    Constraint("not-divisible", ("tp",), _ffn),
    Constraint("not-divisible", ("ep",), _expert_count),
    Constraint("not-divisible", ("etp",), _expert_ffn),
    Constraint("bad-plan", ("ep",), _no_experts("ep")),
    Constraint("bad-plan", ("etp",), _no_experts("etp")),
    Constraint("not-divisible", ("etp",), _expert_ranks("etp")),
    Constraint("not-divisible", ("ep", "etp"), _expert_ranks("ep")),
    Constraint(
        "not-divisible",
        ("seq_len", "cp"),
        _context_parts,
        "each rank takes a part from the front and one from the back, so that causal attention is balanced",
    ),
    Constraint("not-divisible", ("seq_len", "tp", "cp"), _sequence_parts),
    Constraint("bad-plan", ("seq_len", "documents"), _documents, "documents are those of one packed sequence"),
    Constraint("bad-plan", ("zero", "shard"), _shard_without_zero, "shard is a choice of zero 3 (HSDP)"),
    Constraint("not-divisible", ("shard",), _shard),
    Constraint("bad-plan", ("grad_dtype",), _gradients),
    Constraint("bad-plan", ("master_dtype",), _master),
    Constraint("bad-plan", ("moment_dtype",), _moments),
    Constraint(
        "bad-plan",
        ("zero", "moment_dtype", "master_dtype"),
        _precision_aware,
        "only the distributed optimizer, zero 1 and more, may keep its state in other dtypes than fp32",
    ),
    Constraint(
        "bad-plan",
        ("zero", "fp8_params"),
        _narrow_parameters,
        "parameters in 8 bits need products in 8 bits and the distributed optimizer",
    ),
    Constraint("invalid-schedule", ("vpp", "schedule"), _chunks),
    Constraint("invalid-schedule", ("pp",), _even_stages),
    Constraint("bad-plan", ("pp", "vpp"), _pieces),
    *SPLIT_CONSTRAINTS,
    Constraint("not-divisible", ("gbs", "pp"), _whole_groups),
    Constraint("invalid-schedule", ("gbs", "pp"), _both_ways),
    Constraint(
        "bad-plan", ("recompute", "recompute_layers"), _recompute, "whole layers are recomputed under recompute full"
    ),
    Constraint("bad-plan", ("recompute_layers",), _at_most_all_layers("recompute_layers")),
    Constraint(
        "bad-plan",
        ("recompute_modules",),
        _modules_of_whole_layers,
        "parts of a layer are recomputed under recompute selective",
    ),
    Constraint("bad-plan", ("recompute_modules",), _stack_modules),
    Constraint("bad-plan", ("offload_modules",), _offloading_stack),
    Constraint(
        "bad-plan",
        ("offload_modules",),
        _offloaded_projection,
        "the input of attn_proj is the output of core_attn, whose backward needs it too",
    ),
    Constraint("bad-plan", ("offload_layers", "offload_modules"), _offloaded_twice),
    Constraint("bad-plan", ("offload_modules", "recompute_modules"), _offloaded_in_recomputed),
    Constraint("bad-plan", ("fp8_activation_input",), _narrowing_stack),
    Constraint("bad-plan", ("fp8_activation_input",), _narrow_swiglu),
    Constraint("bad-plan", ("offload_layers",), _at_most_all_layers("offload_layers")),
    Constraint(
        "bad-plan",
        ("routing",),
        _routing,
        "routing is one number for all layers, or one for each; those of layers without experts do not count",
    ),
    Constraint("bad-mesh", ("rank_order", "ep", "etp"), _rank_order),
    Constraint(
        "too-large", ("gbs",), _length, "once the pipeline is full, the step grows in proportion to the microbatches"
    ),
)
"""All constraints, in the order in which they are checked."""
