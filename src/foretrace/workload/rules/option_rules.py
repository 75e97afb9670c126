"""States which dtypes, recomputation and offloading a stack offers, and which of them exclude each other."""

from __future__ import annotations

from typing import Final

from foretrace.models.model import Experts
from foretrace.workload.plan import FULL_PRECISIONS, NARROW_PRECISIONS
from foretrace.workload.routing import max_routing
from foretrace.workload.rules.constraint import Constraint
from foretrace.workload.rules.sizes import JobSizes, PlanSizes, implies, negated


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
    if not sizes.plan.fp8_activation_input or sizes.facts.is_swiglu:
        return None
    return f"fp8_activation_input is on, but {sizes.model.name} has another activation than SwiGLU"


def _at_most_all_layers(field: str) -> Constraint:
    def words(sizes: PlanSizes) -> str:
        return f"{field} is {sizes.number(field)}, but {sizes.model.name} has {sizes.layers} layers"

    name = f"{field.replace('_', ' ')} of the model"
    return Constraint(name, "bad-plan", (field,), lambda sizes: sizes.number(field) <= sizes.layers, words)


def _routing(sizes: PlanSizes) -> str | None:
    routing, layers = sizes.plan.routing, sizes.layers
    if not isinstance(routing, tuple) or len(routing) == layers:
        return None
    return f"routing is of {len(routing)} layers, {sizes.model.name} has {layers}"


def _routing_of_ranks(sizes: PlanSizes) -> str | None:
    """Returns the problem if a routing factor exceeds what one expert rank can receive."""
    given, ranks = sizes.plan.routing, sizes.plan.ep
    if given is None or ranks == 1:
        return None
    layers = [layer.feed_forward for layer in sizes.model.layers]
    factors = given if isinstance(given, tuple) else (given,) * len(layers)
    for factor, moe in zip(factors, layers, strict=False):
        if isinstance(moe, Experts) and factor > max_routing(moe, ranks):
            most = f"{max_routing(moe, ranks):g} times the mean"
            return f"routing is {factor!r}, but the busiest of {ranks} expert ranks receives {most} at most"
    return None


def _layers_of_full_recompute(sizes: JobSizes) -> bool:
    given = sizes.each(lambda plan_sizes: plan_sizes.plan.recompute_layers is not None, "recompute_layers")
    holds: bool = implies(given, sizes.is_word("recompute", "full"))
    return holds


_STACK: Final = ("stack", "zero")
"""The fields that name the software."""

DTYPE_CONSTRAINTS: Final = (
    Constraint.worded(
        "dtype of gradients", "bad-plan", ("grad_dtype",), _gradients, ("grad_dtype", "precision", *_STACK)
    ),
    Constraint.worded(
        "dtype of the optimizer's copy", "bad-plan", ("master_dtype",), _master, ("master_dtype", *_STACK)
    ),
    Constraint.worded(
        "dtype of moments",
        "bad-plan",
        ("moment_dtype",),
        _moments,
        ("moment_dtype", "master_dtype", "precision", *_STACK),
    ),
    Constraint.worded(
        "dtypes of the distributed optimizer",
        "bad-plan",
        ("zero", "moment_dtype", "master_dtype"),
        _precision_aware,
        ("moment_dtype", "master_dtype", "precision", *_STACK),
        "only the distributed optimizer, zero 1 and more, may keep its state in other dtypes than fp32",
    ),
    Constraint.worded(
        "parameters in 8 bits",
        "bad-plan",
        ("zero", "fp8_params"),
        _narrow_parameters,
        ("fp8_params", "precision", *_STACK),
        "parameters in 8 bits need products in 8 bits and the distributed optimizer",
    ),
)
"""Constraints about dtypes, in the order in which they are checked."""

OPTION_CONSTRAINTS: Final = (
    Constraint(
        "recompute layers of full recompute",
        "bad-plan",
        ("recompute", "recompute_layers"),
        _layers_of_full_recompute,
        lambda sizes: f"recompute_layers is {sizes.plan.recompute_layers}, but recompute is {sizes.plan.recompute}",
        "whole layers are recomputed under recompute full",
    ),
    _at_most_all_layers("recompute_layers"),
    Constraint.worded(
        "recompute modules of selective recompute",
        "bad-plan",
        ("recompute_modules",),
        _modules_of_whole_layers,
        ("recompute_modules", "recompute"),
        "parts of a layer are recomputed under recompute selective",
    ),
    Constraint.worded(
        "recompute modules of the stack",
        "bad-plan",
        ("recompute_modules",),
        _stack_modules,
        ("recompute_modules", *_STACK),
    ),
    Constraint.worded(
        "offload modules of the stack",
        "bad-plan",
        ("offload_modules",),
        _offloading_stack,
        ("offload_modules", *_STACK),
    ),
    Constraint.worded(
        "offloaded projection",
        "bad-plan",
        ("offload_modules",),
        _offloaded_projection,
        ("offload_modules",),
        "the input of attn_proj is the output of core_attn, whose backward needs it too",
    ),
    Constraint(
        "offload modules or layers",
        "bad-plan",
        ("offload_layers", "offload_modules"),
        # Megatron-core, `TransformerConfig.__post_init__`: not with cpu_offloading.
        lambda sizes: negated(sizes.given("offload_modules") & (sizes.number("offload_layers") > 0)),
        lambda sizes: f"offload_modules are given, and offload_layers is {sizes.plan.offload_layers}",
    ),
    Constraint.worded(
        "offload in recomputed experts",
        "bad-plan",
        ("offload_modules", "recompute_modules"),
        _offloaded_in_recomputed,
        ("offload_modules", "recompute_modules"),
    ),
    Constraint.worded(
        "activation input in 8 bits of the stack",
        "bad-plan",
        ("fp8_activation_input",),
        _narrowing_stack,
        ("fp8_activation_input", *_STACK),
    ),
    Constraint.worded(
        "activation input in 8 bits of SwiGLU",
        "bad-plan",
        ("fp8_activation_input",),
        _narrow_swiglu,
        ("fp8_activation_input",),
    ),
    _at_most_all_layers("offload_layers"),
    Constraint.worded(
        "routing of all layers",
        "bad-plan",
        ("routing",),
        _routing,
        ("routing",),
        "routing is one number for all layers, or one for each; those of layers without experts do not count",
    ),
    Constraint.worded(
        "routing of expert ranks",
        "bad-plan",
        ("routing", "ep"),
        _routing_of_ranks,
        ("routing", "ep"),
        "a rank receives no more than all tokens, and a token once for each expert",
    ),
)
"""Constraints about options, in the order in which they are checked."""
