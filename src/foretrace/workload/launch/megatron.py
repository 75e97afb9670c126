"""Maps plans to the arguments of Megatron-LM, in both directions.

Names and defaults are those of megatron/training/arguments.py and of megatron/core/transformer/transformer_config.py,
whose fields Megatron-LM takes as arguments.
"""

from __future__ import annotations

from typing import Final, get_args

from foretrace.basics.errors import Diagnostic, InputError, shortened
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.models.model import Model
from foretrace.program.kernels import DTYPE_BYTES
from foretrace.workload.constraints import check_split
from foretrace.workload.job_file import PlanValue
from foretrace.workload.launch.megatron_memory import OFFLOAD_MODULES, OFFLOAD_OPTIMIZER, RECOMPUTE
from foretrace.workload.launch.megatron_model import read_model, unexpressed_parts
from foretrace.workload.launch.rules import (
    DIVISION,
    LaunchedJob,
    LaunchFormat,
    Options,
    Reading,
    Rule,
    count_rule,
    flag_rule,
    routing_rule,
    stack_rule,
)
from foretrace.workload.layout import Layout
from foretrace.workload.plan import (
    FULL_PRECISIONS,
    NARROW_PRECISIONS,
    WORD_LISTS,
    WORDS,
    GradDtype,
    MasterDtype,
    MomentDtype,
    Plan,
)
from foretrace.workload.setting import Setting

_TP: Final = "tensor-model-parallel-size"
_PP: Final = "pipeline-model-parallel-size"
_FP8_RECIPES: Final = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
_FP8_FORMATS: Final = {"fp8": "hybrid", "fp8_block": "e4m3", "mxfp8": "e4m3"}
"""Formats of 8-bit operands that Megatron-Bridge's recipes take (training/mixed_precision.py)."""
_UNREAD: Final = {
    "window-size": "windows of attention are not read: give attention: window",
    "spec": "a specification of layers in code is not read: its layers are taken as standard ones",
    "moe-expert-capacity-factor": "dropped and padded tokens are not modelled; routing says how busy experts are",
}
"""Options that change the work and are not followed."""
TORCHRUN: Final = (
    "rdzv-id",
    "rdzv-backend",
    "rdzv-endpoint",
    "master-addr",
    "master-port",
    "node-rank",
    "standalone",
    "m",
)
"""Options of torchrun that say where ranks meet."""
_HELPERS: Final = ("moe-grouped-gemm", "fp4-recipe", "cpu-offloading", "use-mcore-models", "transformer-impl")
"""Options that only enable what others, or the stack, say."""
_LAYOUT: Final = "pipeline-model-parallel-layout"
_CHUNKS: Final = "num-virtual-stages-per-pipeline-rank"
_ACCOUNT_FOR: Final = "account-for-{}-in-pipeline-split"
_END_STAGES: Final = {
    "first_stage_layers": "decoder-first-pipeline-num-layers",
    "last_stage_layers": "decoder-last-pipeline-num-layers",
}
"""Fields of a plan and the options that give layers to the first and last stage."""
_STRATEGIES: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Megatron-FSDP's sharding strategies, and the ZeRO stages that they are."""
_STATE_DTYPES: Final = {
    "main-grads-dtype": get_args(GradDtype),
    "main-params-dtype": get_args(MasterDtype),
    **dict.fromkeys(("exp-avg-dtype", "exp-avg-sq-dtype"), get_args(MomentDtype)),
}
"""Options of the precision-aware optimizer, and the dtypes they take."""
_MAPPED_ORDER: Final = "tp-cp-ep-pp-dp"
"""The order of `--use-tp-pp-dp-mapping`, the only other one that an option gives (training/initialize.py)."""
_SCHEDULES: Final = ("1f1b", "interleaved-1f1b")
"""The schedules of megatron/core/pipeline_parallel/schedules.py."""


def job_from_megatron(reading: Reading) -> LaunchedJob:
    """Returns the model and plan of Megatron's arguments."""
    return job_of_options(reading, MEGATRON_LM)


def job_of_options(reading: Reading, layout: LaunchFormat) -> LaunchedJob:
    """Returns the model and plan of options that are spelled as Megatron's; `layout` says what they mean."""
    if reading.model is None:
        reading.model = read_model(reading)
    elif reading.has("num-layers"):
        _compare_models(reading, reading.model)
    plan = layout.read(reading)
    for name, consequence in _UNREAD.items():
        if reading.has(name):
            reading.say("field-ignored", f"{reading.args.shown(name)}: {consequence}", name)
    reading.ignore(*TORCHRUN, *_HELPERS)
    return LaunchedJob(reading.model, plan, reading.plan_guesses, reading.diagnostics)


def _compare_models(reading: Reading, model: Model) -> None:
    """Reports where arguments describe another model than the given one, which is taken."""
    described = Reading(reading.args)
    parts = unexpressed_parts(model, read_model(described))
    reading.ignore(*described.asked)
    if parts:
        text = f"the model is {model.name}, as asked; the arguments describe another: {', '.join(parts)} differ"
        reading.notes.append(Diagnostic("warning", "conflicting-values", text, reading.args.where("num-layers")))


def read_gpus(reading: Reading) -> dict[str, PlanValue]:
    """Returns the GPUs that torchrun starts ranks on."""
    if not reading.has("nproc-per-node") or not reading.has("nnodes"):
        return {}
    reading.plan_guesses["gpus"] = "--nproc-per-node times --nnodes"
    return {"gpus": reading.count("nproc-per-node") * reading.count("nnodes")}


def _read_sequence_parallel(reading: Reading) -> dict[str, PlanValue]:
    given = reading.has("sequence-parallel")
    return {"sequence_parallel": given} if reading.count(_TP, 1) > 1 else {}


def _write_expert_axes(setting: Setting) -> Options:
    plan = setting.plan
    if not setting.model.has_experts:
        return {}
    return {"expert-model-parallel-size": plan.ep, "expert-tensor-parallel-size": plan.etp}


def _read_expert_axes(reading: Reading) -> dict[str, PlanValue]:
    plan: dict[str, PlanValue] = {}
    if reading.has("expert-model-parallel-size"):
        plan["ep"] = reading.count("expert-model-parallel-size")
    option, tp = "expert-tensor-parallel-size", reading.count(_TP, 1)
    if reading.model is not None and reading.model.has_experts:
        plan["etp"] = reading.count(option, tp)
        if tp > 1 and not reading.has(option):
            reading.plan_guesses["etp"] = f"{reading.args.shown(option)} is not given: that of tensor parallelism"
    return plan


def _read_cp_comm(reading: Reading) -> dict[str, PlanValue]:
    if not reading.has("cp-comm-type"):
        return {}
    kind = reading.text("cp-comm-type", "p2p")
    if kind in WORDS["cp_comm"]:
        return {"cp_comm": kind}
    reading.say("replaced-option", f"{reading.args.shown('cp-comm-type')} {kind} is taken as p2p", "cp-comm-type")
    return {"cp_comm": "p2p"}


def _write_division(setting: Setting) -> Options:
    """Returns how layers are divided among stages and their chunks; a layout says the number of chunks too."""
    plan, pp = setting.plan, setting.plan.pp
    options: Options = {_LAYOUT: None, _CHUNKS: None, **dict.fromkeys(_END_STAGES.values())}
    options |= {_ACCOUNT_FOR.format(end): False for end in WORD_LISTS["account_for"]}
    if pp == 1:
        return options
    if setting.chunks_per_stage > 1:
        options[_CHUNKS] = setting.chunks_per_stage
    ends = {option: getattr(plan, name) for name, option in _END_STAGES.items() if getattr(plan, name) is not None}
    if plan.account_for:
        return options | {_ACCOUNT_FOR.format(end): True for end in plan.account_for}
    if ends:
        return options | ends
    parts = len(setting.chunks)
    even = str(Layout.of([len(setting.model.layers) // parts] * parts, setting.model.mtp))
    return options if setting.layout == even else options | {_LAYOUT: setting.layout, _CHUNKS: None}


def _read_division(reading: Reading) -> dict[str, PlanValue]:
    """Returns how the layers are divided among stages and their chunks, checked as Megatron does."""
    plan: dict[str, PlanValue] = {}
    assert reading.model is not None
    layers, pp = len(reading.model.layers), reading.count(_PP, 1)
    counted = tuple(end for end in WORD_LISTS["account_for"] if reading.has(_ACCOUNT_FOR.format(end)))
    ends = {name: reading.count(option) for name, option in _END_STAGES.items() if reading.has(option)}
    if pp > 1:
        plan |= {"account_for": counted} if counted else {}
        plan |= ends
    if reading.has(_LAYOUT):
        plan["layout"] = reading.text(_LAYOUT, "")
    if reading.has("num-layers-per-virtual-pipeline-stage"):
        each, slots = reading.count("num-layers-per-virtual-pipeline-stage"), layers + len(counted)
        if slots % (pp * each):
            problem = f"{slots} layers are no multiple of {pp} stages with {each} layers in each chunk"
            raise InputError(
                "not-divisible", problem, where=reading.args.where("num-layers-per-virtual-pipeline-stage")
            )
        plan["vpp"] = slots // (pp * each)
    elif reading.has(_CHUNKS):
        plan["vpp"] = reading.count(_CHUNKS)
    given = next((name for name in (_LAYOUT, *_END_STAGES.values()) if reading.has(name)), "")
    try:
        check_split(reading.model, Plan(pp, pp=pp, **plan))  # type: ignore[arg-type]  # fields by name
    except InputError as error:
        raise InputError(error.code, error.message, where=reading.args.where(given), hint=error.hint) from None
    return plan


def _lack_of_schedule(setting: Setting) -> str | None:
    if setting.schedule in _SCHEDULES:
        return None
    return f"Megatron-core runs {' and '.join(_SCHEDULES)} only"


def _lack_of_order(setting: Setting) -> str | None:
    if setting.mesh.order in (DEFAULT_ORDER, _MAPPED_ORDER):
        return None
    return f"Megatron-LM has {DEFAULT_ORDER}, and {_MAPPED_ORDER} as --use-tp-pp-dp-mapping"


def _write_zero(setting: Setting) -> Options:
    """Returns what data-parallel ranks split: the distributed optimizer, or Megatron-FSDP's strategy and groups."""
    splits = setting.zero > 1
    strategy = next(name for name, zero in _STRATEGIES.items() if zero == setting.zero)
    groups = setting.dp * setting.plan.cp // setting.shard if setting.zero == 3 else 1
    return {
        "use-distributed-optimizer": setting.zero > 0,
        "use-megatron-fsdp": splits,
        "data-parallel-sharding-strategy": strategy if splits else None,
        "num-distributed-optimizer-instances": groups if groups > 1 else None,
    }


def _read_zero(reading: Reading) -> dict[str, PlanValue]:
    zero, groups = _zero(reading), "num-distributed-optimizer-instances"
    count = reading.count(groups, 1)
    if count == 1:
        return {"zero": zero}
    ranks = read_gpus(reading).get("gpus", 0)
    assert isinstance(ranks, int)
    ranks //= reading.count(_TP, 1) * reading.count(_PP, 1)
    if zero == 3 and ranks and ranks % count == 0:
        return {"zero": zero, "shard": ranks // count}
    text = f"{reading.args.shown(groups)} {count}: state is taken to be split over all data-parallel ranks"
    reading.say("not-modelled", text, groups)
    return {"zero": zero}


def _zero(reading: Reading) -> int:
    # All are asked for, so that none is listed as unused.
    distributed, strategy = reading.has("use-distributed-optimizer"), "data-parallel-sharding-strategy"
    reading.has(strategy)
    if reading.has("use-torch-fsdp2"):
        return 3
    if not reading.has("use-megatron-fsdp", "use-custom-fsdp"):
        return int(distributed)
    # Without a strategy Megatron splits nothing; FSDP is then meant as it is known.
    return _STRATEGIES[reading.word(strategy, "optim_grads_params", _STRATEGIES)]


def _write_precision(setting: Setting) -> Options:
    precision = setting.plan.precision
    recipe = next((name for name, entry in _FP8_RECIPES.items() if entry == precision), None)
    return {
        "bf16": precision == "bf16" or precision in NARROW_PRECISIONS,
        "fp16": precision == "fp16",
        "fp8-format": _FP8_FORMATS.get(precision),
        "fp8-recipe": recipe,
        "fp4-format": "e2m1" if precision == "nvfp4" else None,
        "fp4-recipe": "nvfp4" if precision == "nvfp4" else None,
    }


def _lack_of_precision(setting: Setting) -> str | None:
    return "Megatron-LM has no option for products in TF32" if setting.plan.precision == "tf32" else None


def _precision(reading: Reading) -> str:
    base = "bf16" if reading.has("bf16") else "fp16" if reading.has("fp16") else "fp32"
    if reading.has("fp4-format"):
        return "nvfp4"
    if not reading.has("fp8-format", "fp8-hybrid", "fp8-e4m3"):
        return base
    return _FP8_RECIPES[reading.word("fp8-recipe", "delayed", _FP8_RECIPES)]


def _write_dtypes(setting: Setting) -> Options:
    """Returns the dtypes of gradients and of the optimizer's state.

    An optimizer on the host has to be the precision-aware one (`validate_args`).
    """
    stack = setting.stack
    master = stack.master_dtype if stack.master_weights else "fp32"
    aware = stack.optimizer_state_dtype != "fp32" or master != "fp32" or setting.plan.offload_optimizer
    narrow = stack.gradient_dtype == "bf16"
    return {
        "grad-reduce-in-bf16": narrow,
        "accumulate-allreduce-grads-in-fp32": not narrow,
        "use-precision-aware-optimizer": aware,
        "main-grads-dtype": stack.gradient_dtype if aware else None,
        "main-params-dtype": master if aware else None,
        "exp-avg-dtype": stack.optimizer_state_dtype if aware else None,
        "exp-avg-sq-dtype": stack.optimizer_state_dtype if aware else None,
        "fp8-param-gather": setting.plan.fp8_params,
    }


def _lack_of_dtypes(setting: Setting) -> str | None:
    stack = setting.stack
    if stack.gradient_dtype == "bf16" and setting.plan.precision in (*FULL_PRECISIONS, "fp16"):
        return "Megatron-LM keeps gradients in bf16 only where parameters are"
    if stack.gradient_dtype == "fp16":
        return "gradients in fp16 are not read back"
    if stack.optimizer_state_dtype != "fp32" and not setting.zero:
        return "only the distributed optimizer is precision-aware"
    return None


def _read_dtypes(reading: Reading) -> dict[str, PlanValue]:
    """Returns the dtypes of gradients and of the optimizer's state, where they are not the stack's.

    Gradients of bf16 parameters are in fp32 unless told otherwise (`validate_args`).
    """
    plan: dict[str, PlanValue] = {}
    precision, shown = _precision(reading), reading.args.shown
    aware = reading.has("use-precision-aware-optimizer")
    options = ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    grads, params, first, second = (reading.word(name, "fp32", _STATE_DTYPES[name]) for name in options)
    wide = reading.has("accumulate-allreduce-grads-in-fp32") and not reading.has(
        "no-accumulate-allreduce-grads-in-fp32"
    )
    if precision == "fp16" and not wide:
        option = shown("accumulate-allreduce-grads-in-fp32")
        reading.say("replaced-option", f"gradients are taken as fp32: without {option} they are in fp16", "fp16")
    narrow = reading.has("grad-reduce-in-bf16") or (aware and grads == "bf16" and not wide)
    if narrow and precision not in (*FULL_PRECISIONS, "fp16"):
        plan["grad_dtype"] = "bf16"
    if aware:
        if first != second:
            text = f"{shown('exp-avg-dtype')} {first} and {shown('exp-avg-sq-dtype')} {second}: both are the wider here"
            reading.say("replaced-option", text, "exp-avg-dtype")
        plan["moment_dtype"] = max(first, second, key=DTYPE_BYTES.__getitem__)
        plan["master_dtype"] = params
    elif reading.has(*options):
        given = " ".join(shown(name) for name in options if reading.has(name))
        needed = shown("use-precision-aware-optimizer")
        reading.say("field-ignored", f"{given}: without effect unless {needed}", options[0])
    if reading.has("fp8-param-gather") and precision in NARROW_PRECISIONS:
        plan["fp8_params"] = True
    return plan


def _lack_of_grad_overlap(setting: Setting) -> str | None:
    """Parts of gradients can only be kept where each backward reduces them (`validate_args`)."""
    return None if setting.grad_overlap or setting.zero < 2 else "Megatron-FSDP reduces gradients under the backward"


def _lack_of_param_overlap(setting: Setting) -> str | None:
    """`validate_args`: --overlap-param-gather needs --overlap-grad-reduce and the distributed optimizer."""
    if not setting.param_overlap or not setting.zero or setting.grad_overlap:
        return None
    return "Megatron-LM gathers parameters under the forward only if it reduces gradients under the backward"


_ROUTER_SCOPE: Final = ("moe_router", "moe_preprocess")
_LARGER_SCOPES: Final = {
    "full": "partial: attention and routers",
    "mlp": "partial: dense feed-forward parts are launched",
    "moe": "partial: experts are launched",
    "mamba": "partial: such layers are not modelled",
}
"""Scopes that no value of `cuda_graphs` is, with what is taken."""
_SCOPES: Final = ("full_iteration", "attn", *_ROUTER_SCOPE, *_LARGER_SCOPES)


def _write_cuda_graphs(setting: Setting) -> Options:
    kind = setting.plan.cuda_graphs
    router = _ROUTER_SCOPE if setting.model.has_experts else ()
    scope = {"none": (), "router": router, "partial": ("attn", *router), "full": ("full_iteration",)}[kind]
    implementation = "local" if kind == "full" else "transformer_engine" if scope else "none"
    return {"cuda-graph-impl": implementation, "cuda-graph-scope": scope or None}


def _read_cuda_graphs(reading: Reading) -> dict[str, PlanValue]:
    """Reads what CUDA graphs replay. Newer releases name the modules of a layer by an option of their own."""
    graphs = reading.word("cuda-graph-impl", "none", ("none", "local", "transformer_engine", "full_iteration"))
    older = reading.has("enable-cuda-graph", "external-cuda-graph")
    options = [name for name in ("cuda-graph-scope", "cuda-graph-modules") if reading.has(name)]
    words = [(word, name) for name in options for value in reading.values(name) for word in value.split(",")]
    scope = [word for word, _ in words]
    if graphs == "none" and not older:
        for name in options:
            reading.say("field-ignored", "cuda-graph-impl is none: nothing is replayed", name)
        return {}
    for word, name in words:
        if word not in _SCOPES:
            problem = f'scope "{shortened(word)}" of CUDA graphs is not known'
            hint = f"known: {', '.join(_SCOPES)}"
            raise InputError("unknown-name", problem, where=reading.args.where(name), hint=hint)
        if word in _LARGER_SCOPES:
            reading.say("replaced-option", f"graphs of {word} are taken as {_LARGER_SCOPES[word]}", name)
    if graphs == "full_iteration" or "full_iteration" in scope:
        return {"cuda_graphs": "full"}
    if scope and set(scope) <= set(_ROUTER_SCOPE):
        return {"cuda_graphs": "router"}
    routes = reading.model is not None and reading.model.has_experts
    if not scope or (routes and not set(scope) & {*_ROUTER_SCOPE, *_LARGER_SCOPES}):
        text = f"graphs of {' and '.join(scope) or 'whole layers'} are taken as partial: attention and routers"
        reading.say("replaced-option", text, "cuda-graph-impl")
    return {"cuda_graphs": "partial"}


def _write_dispatcher(setting: Setting) -> Options:
    if not setting.model.has_experts:
        return {}
    name = setting.plan.dispatcher
    backend = None if name == "alltoall" else name
    return {"moe-token-dispatcher-type": "flex" if backend else name, "moe-flex-dispatcher-backend": backend}


def _lack_of_dispatcher(setting: Setting) -> str | None:
    known = ("alltoall", "deepep", "hybridep")
    return None if setting.plan.dispatcher in known else f"Megatron-core has {', '.join(known)}"


_DISPATCHERS: Final = ("alltoall", "allgather", "alltoall_seq", "flex")


def _read_dispatcher(reading: Reading) -> dict[str, PlanValue]:
    """Reads how tokens go to experts: the backend counts only where the type of dispatcher is flex."""
    usual = "deepep" if reading.has("moe-enable-deepep") else ""
    backend = reading.word("moe-flex-dispatcher-backend", usual, ("", "deepep", "hybridep"))
    kind = "flex" if backend else "alltoall"
    if backend and not reading.has("moe-token-dispatcher-type"):
        reading.plan_guesses["dispatcher"] = "moe-token-dispatcher-type is not given: taken as flex"
    if reading.model is None or reading.model.has_experts:
        kind = reading.word("moe-token-dispatcher-type", kind, _DISPATCHERS)
    if kind in ("allgather", "alltoall_seq"):
        reading.say("replaced-option", f"dispatcher {kind}: taken as alltoall", "moe-token-dispatcher-type")
    if kind != "flex":
        return {}
    return {"dispatcher": backend or "deepep"}


def _lack_of_tp_overlap(setting: Setting) -> str | None:
    if not setting.plan.tp_overlap or setting.sequence_parallel:
        return None
    return "Megatron-LM overlaps tp collectives only under sequence parallelism"


MEGATRON_LM: Final = LaunchFormat(
    name="megatron-lm",
    title="Megatron-LM",
    stacks=("megatron-core",),
    reads_as="megatron-core",
    rules=(
        Rule(("gpus",), lambda _: {}, read_gpus),  # torchrun's, which the launcher writes
        count_rule("mbs", "micro-batch-size"),
        count_rule("gbs", "global-batch-size"),
        count_rule("seq_len", "seq-length"),
        count_rule("tp", _TP),
        count_rule("cp", "context-parallel-size"),
        count_rule("pp", _PP),
        count_rule("offload_layers", "cpu-offloading-num-layers", least=0, off=0),
        Rule(
            ("sequence_parallel",),
            lambda setting: {"sequence-parallel": setting.sequence_parallel},
            _read_sequence_parallel,
        ),
        Rule(("ep", "etp"), _write_expert_axes, _read_expert_axes),
        Rule(
            ("cp_comm",),
            lambda setting: {"cp-comm-type": setting.plan.cp_comm if setting.plan.cp > 1 else None},
            _read_cp_comm,
        ),
        Rule(("vpp", *DIVISION), _write_division, _read_division),
        Rule(("schedule",), lambda _: {}, lambda _: {}, _lack_of_schedule),  # follows from the chunks
        Rule(
            ("rank_order",),
            lambda setting: {"use-tp-pp-dp-mapping": setting.mesh.order == _MAPPED_ORDER},
            lambda reading: {"rank_order": _MAPPED_ORDER} if reading.has("use-tp-pp-dp-mapping") else {},
            _lack_of_order,
        ),
        Rule(
            ("precision",),
            _write_precision,
            lambda reading: {"precision": _precision(reading)},
            _lack_of_precision,
            _write_precision,  # of products in TF32: parameters in fp32
        ),
        stack_rule("megatron-core", {"megatron-core": "Megatron-core"}),
        Rule(("zero", "shard"), _write_zero, _read_zero),
        Rule(
            ("grad_dtype", "master_dtype", "moment_dtype", "fp8_params"), _write_dtypes, _read_dtypes, _lack_of_dtypes
        ),
        RECOMPUTE,
        OFFLOAD_MODULES,
        Rule(
            ("grad_overlap",),
            lambda setting: {"overlap-grad-reduce": setting.grad_overlap or setting.zero > 1},
            lambda reading: {"grad_overlap": reading.has("overlap-grad-reduce") or _zero(reading) > 1},
            _lack_of_grad_overlap,
        ),
        Rule(
            ("param_overlap",),
            lambda setting: {"overlap-param-gather": setting.param_overlap and setting.zero > 0},
            lambda reading: {"param_overlap": reading.has("overlap-param-gather")},
            _lack_of_param_overlap,
        ),
        Rule(("dispatcher",), _write_dispatcher, _read_dispatcher, _lack_of_dispatcher),
        routing_rule("moe-router-force-load-balancing"),
        Rule(("cuda_graphs",), _write_cuda_graphs, _read_cuda_graphs),
        flag_rule("tp_overlap", "tp-comm-overlap", _lack_of_tp_overlap),
        flag_rule("moe_overlap", "overlap-moe-expert-parallel-comm"),
        OFFLOAD_OPTIMIZER,
        flag_rule("fp8_activation_input", "activation-func-fp8-input-store"),
    ),
    fixed={"reshard": True, "prefetch": 1, "pp_overlap": False, "documents": None},
)
"""Megatron-LM's arguments as `pretrain_gpt.py` takes them."""
