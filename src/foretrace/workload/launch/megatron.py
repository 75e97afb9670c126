"""Turns Megatron-LM's arguments into a model and the fields of a plan.

Defaults are those of megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.models import presets
from foretrace.models.compose import MAX_LAYERS, compose_layers
from foretrace.models.model import Activation, Experts, LatentAttention, Mlp, Model, PositionKind, SelfAttention
from foretrace.program.kernels import DTYPE_BYTES
from foretrace.workload.constraints import check_split
from foretrace.workload.job_file import PlanValue
from foretrace.workload.launch.arguments import MAX_COUNT, MegatronArgs, read_megatron_args
from foretrace.workload.plan import (
    FULL_PRECISIONS,
    NARROW_PRECISIONS,
    WORD_LISTS,
    GradDtype,
    MasterDtype,
    MomentDtype,
    Plan,
)

_POSITIONS: Final[dict[str, PositionKind]] = {
    **dict.fromkeys(("rope", "mrope", "yarn"), "rope"),
    "learned_absolute": "learned",
    "none": "none",
}
_FP8_RECIPES: Final = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
_COUNTS: Final = {
    "mbs": "micro-batch-size",
    "gbs": "global-batch-size",
    "seq_len": "seq-length",
    "tp": "tensor-model-parallel-size",
    "cp": "context-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "ep": "expert-model-parallel-size",
    "offload_layers": "cpu-offloading-num-layers",
}
"""Fields of a plan and the options that give them."""
_UNREAD: Final = {
    "window-size": "windows of attention are not read: give attention: window",
    "spec": "a specification of layers in code is not read: its layers are taken as standard ones",
    "moe-expert-capacity-factor": "dropped and padded tokens are not modelled: experts are taken as balanced",
}
"""Options that change the work and are not followed."""
_LAYOUT: Final = "pipeline-model-parallel-layout"
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


@dataclass(frozen=True, slots=True)
class MegatronJob:
    """A job as a launch script describes it.

    A model, fields of `Plan` by name, which of these are guessed and why, and notes on what else was guessed or left
    out.
    """

    model: Model
    plan: dict[str, PlanValue]
    plan_guesses: dict[str, str]
    diagnostics: tuple[Diagnostic, ...]


@dataclass(slots=True)
class _Reading:
    args: MegatronArgs
    notes: list[Diagnostic] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    plan_guesses: dict[str, str] = field(default_factory=dict)

    def say(self, code: str, message: str, name: str = "") -> None:
        self.notes.append(Diagnostic("note", code, message, self.args.where(name)))

    def has(self, *names: str) -> bool:
        self.asked.update(names)
        return any(name in self.args for name in names)

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT) -> int:
        self.asked.add(name)
        return self.args.count(name, default, least=least, most=most)

    def text(self, name: str, default: str) -> str:
        self.asked.add(name)
        return self.args.text(name, default)

    @property
    def unused(self) -> list[str]:
        """The options of the script that nothing was read from, in its order."""
        return [f"--{name}" for name in self.args.options if name not in self.asked]


def job_from_megatron(path: str | Path) -> MegatronJob:
    """The model and plan of a launch script or a file of arguments."""
    reading = _Reading(read_megatron_args(path))
    model = _model(reading)
    plan = {**_sizes(reading), **_stages(reading, model), **_habits(reading)}
    for name, consequence in _UNREAD.items():
        if reading.has(name):
            reading.say("field-ignored", f"--{name}: {consequence}", name)
    unknown = [
        Diagnostic(
            "warning",
            "field-ignored",
            f"--{name} has a value that is not in this file: left out",
            reading.args.where(name),
        )
        for name in sorted(reading.asked)
        if name in reading.args.options and name not in reading.args
    ]
    if reading.unused:
        reading.say("unused-flags", f"not used: {' '.join(reading.unused)}")
    guesses = [diagnostic for diagnostic in reading.args.diagnostics if diagnostic.level == "note"]
    return MegatronJob(model, plan, reading.plan_guesses, (*unknown, *guesses, *reading.notes))


def _model(reading: _Reading) -> Model:
    count, hidden = reading.count("num-layers", most=MAX_LAYERS), reading.count("hidden-size")
    rms = reading.text("normalization", "LayerNorm") == "RMSNorm"
    kind = _position_kind(reading)
    experts = _experts(reading, hidden)
    dense = _dense_layers(reading, count) if experts else frozenset()
    layers = compose_layers(count, _attention(reading, hidden, kind), _mlp(reading, hidden), experts, dense=dense)
    name = Path(reading.args.path).stem
    return Model(
        name=name,
        hidden=hidden,
        layers=layers,
        vocab=_vocab(reading),
        norm="rmsnorm" if rms else "layernorm",
        tied=not reading.has("untie-embeddings-and-output-weights"),
        positions=reading.count("max-position-embeddings") if kind == "learned" else 0,
        position_kind=kind,
        mtp=reading.count("mtp-num-layers", 0, least=0),
        dropout=_drops(reading),
        seq_len=reading.count("seq-length", 4096),
        title=name,
        sources=(reading.args.path,),
    )


def _drops(reading: _Reading) -> bool:
    if not reading.has("hidden-dropout") or not reading.has("attention-dropout"):
        reading.say("assumed", "--hidden-dropout or --attention-dropout is not given: Megatron's default, 0.1")
    try:
        return any(float(reading.text(name, "0.1")) > 0 for name in ("hidden-dropout", "attention-dropout"))
    except ValueError:
        raise InputError("bad-value", "a dropout is no number", where=reading.args.where("hidden-dropout")) from None


def _position_kind(reading: _Reading) -> PositionKind:
    if reading.has("use-rotary-position-embeddings"):
        return "rope"
    text = reading.text("position-embedding-type", "learned_absolute")
    if text not in _POSITIONS:
        problem = f'--position-embedding-type "{text}" is not known'
        raise InputError(
            "unknown-name", problem, where=reading.args.where("position-embedding-type"), hint=" ".join(_POSITIONS)
        )
    return _POSITIONS[text]


def _attention(reading: _Reading, hidden: int, kind: PositionKind) -> SelfAttention | LatentAttention:
    heads = reading.count("num-attention-heads")
    if reading.has("multi-latent-attention"):
        return LatentAttention(
            heads,
            reading.count("q-lora-rank") if reading.has("q-lora-rank") else None,
            reading.count("kv-lora-rank", 32),
            reading.count("qk-head-dim", 128),
            reading.count("qk-pos-emb-head-dim", 64),
            reading.count("v-head-dim", 128),
        )
    if hidden % heads and not reading.has("kv-channels"):
        problem = f"--hidden-size {hidden} is no multiple of --num-attention-heads {heads}"
        raise InputError("not-divisible", problem, where=reading.args.where("hidden-size"), hint="give --kv-channels")
    groups = reading.count("num-query-groups", 1) if reading.has("group-query-attention") else heads
    if heads % groups:
        problem = f"--num-attention-heads {heads} is no multiple of --num-query-groups {groups}"
        raise InputError("not-divisible", problem, where=reading.args.where("num-query-groups"))
    bias = not reading.has("disable-bias-linear")
    return SelfAttention(
        heads,
        groups,
        reading.count("kv-channels", hidden // heads),
        qkv_bias=bias or reading.has("add-qkv-bias"),
        out_bias=bias,
        qk_norm=reading.has("qk-layernorm"),
        rope=kind == "rope",
    )


def _activation(reading: _Reading) -> tuple[bool, Activation]:
    if reading.has("swiglu"):
        return True, "silu"
    return False, "relu2" if reading.has("squared-relu") else "gelu"


def _mlp(reading: _Reading, hidden: int) -> Mlp:
    gated, activation = _activation(reading)
    # Megatron keeps the size of three matrices near that of two, in multiples of 64.
    guess = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    ffn = reading.count("ffn-hidden-size", guess)
    if not reading.has("ffn-hidden-size"):
        reading.say("assumed", f"--ffn-hidden-size is not given: Megatron's default, {guess:,}")
    return Mlp(ffn, gated, activation, not reading.has("disable-bias-linear"))


def _experts(reading: _Reading, hidden: int) -> Experts | None:
    if not reading.has("num-experts"):
        return None
    gated, activation = _activation(reading)
    dense = _mlp(reading, hidden)
    bias = not reading.has("disable-bias-linear")
    count, topk = reading.count("num-experts"), reading.count("moe-router-topk", 2)
    if topk > count:
        where = reading.args.where("moe-router-topk")
        raise InputError("out-of-range", f"a token cannot go to {topk} of {count} experts", where=where)
    shared = reading.count("moe-shared-expert-intermediate-size", 0, least=0)
    groups = reading.count("moe-router-num-groups", 1)
    return Experts(
        count,
        topk,
        Mlp(reading.count("moe-ffn-hidden-size", dense.ffn), gated, activation, bias),
        Mlp(shared, gated, activation, bias) if shared else None,
        shared_gate=reading.has("moe-shared-expert-gate"),
        router_bias=reading.has("moe-router-enable-expert-bias"),
        groups=groups,
        topk_groups=reading.count("moe-router-group-topk", groups, most=groups),
    ).checked(reading.args.where("moe-router-num-groups"))


def _dense_layers(reading: _Reading, count: int) -> frozenset[int]:
    """Layers without experts: `--moe-layer-freq` 2 leaves out the odd ones, `([0]*3+[1]*58)` says each."""
    text = reading.text("moe-layer-freq", "1").replace(" ", "")
    if text.isdecimal() and int(text):
        return frozenset(number for number in range(count) if number % int(text))
    pattern: list[int] = []
    if re.fullmatch(r"\(?\[[01,]+\](\*\d{1,5})?(\+\[[01,]+\](\*\d{1,5})?)*\)?", text):
        for flags, times in re.findall(r"\[([01,]+)\](?:\*(\d+))?", text):
            pattern += [int(flag) for flag in flags.split(",") if flag] * int(times or 1)
    if len(pattern) != count:
        problem = f"--moe-layer-freq {text} does not say which of {count} layers have experts"
        raise InputError(
            "bad-value", problem, where=reading.args.where("moe-layer-freq"), hint="e.g. 1 or ([0]*3+[1]*58)"
        )
    return frozenset(number for number, has_experts in enumerate(pattern) if not has_experts)


def _vocab(reading: _Reading) -> int:
    if reading.has("vocab-size"):
        # The null tokenizer adds one token of its own.
        return reading.count("vocab-size") + (reading.text("tokenizer-type", "") == "NullTokenizer")
    if reading.has("padded-vocab-size"):
        return reading.count("padded-vocab-size")
    # pretrain_gpt.py takes GPT-2's tokenizer where none is named.
    tokenizer, named = reading.text("tokenizer-type", "GPT2BPETokenizer"), reading.text("tokenizer-model", "")
    if tokenizer == "GPT2BPETokenizer":
        size, why = 50257, "GPT-2's tokenizer"
    elif tokenizer == "Llama2Tokenizer":
        size, why = 32000, "Llama 2's tokenizer"
    elif named and presets.is_known(named):
        size, why = presets.model(named).vocab, f"that of {presets.model(named).name}"
    else:
        raise InputError(
            "missing-field",
            "--vocab-size is missing, and the tokenizer does not tell",
            where=reading.args.where("tokenizer-type"),
            hint="add --vocab-size to the script: the entries of the tokenizer",
        )
    reading.say("guessed", f"--vocab-size is not given: taken as {size:,}, {why}")
    return size


def _sizes(reading: _Reading) -> dict[str, PlanValue]:
    """Axes and batches; only what is given, or what a default of Megatron's makes different from a plan's."""
    plan: dict[str, PlanValue] = {}
    if reading.has("nproc-per-node") and reading.has("nnodes"):
        plan["gpus"] = reading.count("nproc-per-node") * reading.count("nnodes")
        reading.plan_guesses["gpus"] = "--nproc-per-node times --nnodes"
    for name, option in _COUNTS.items():
        if reading.has(option):
            plan[name] = reading.count(option)
    tp = reading.count(_COUNTS["tp"], 1)
    if reading.has("use-tp-pp-dp-mapping"):  # training/initialize.py: the only other order that an option gives
        plan["rank_order"] = "tp-cp-ep-pp-dp"
    if tp > 1:
        plan["sequence_parallel"] = reading.has("sequence-parallel")
    if reading.has("num-experts"):
        plan["etp"] = reading.count("expert-tensor-parallel-size", tp)
        if tp > 1 and not reading.has("expert-tensor-parallel-size"):
            reading.plan_guesses["etp"] = "--expert-tensor-parallel-size is not given: that of tensor parallelism"
    if reading.has("cp-comm-type"):
        kind = reading.text("cp-comm-type", "p2p")
        plan["cp_comm"] = kind if kind in ("p2p", "all_gather", "a2a") else "p2p"
        if kind != plan["cp_comm"]:
            reading.say("replaced-option", f"--cp-comm-type {kind} is taken as p2p", "cp-comm-type")
    return plan


def _stages(reading: _Reading, model: Model) -> dict[str, PlanValue]:
    """Returns how the layers are divided among stages and their chunks, checked as Megatron does."""
    plan: dict[str, PlanValue] = {}
    layers, pp = len(model.layers), reading.count(_COUNTS["pp"], 1)
    counted = tuple(end for end in ("embedding", "loss") if reading.has(_ACCOUNT_FOR.format(end)))
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
    elif reading.has("num-virtual-stages-per-pipeline-rank"):
        plan["vpp"] = reading.count("num-virtual-stages-per-pipeline-rank")
    given = next((name for name in (_LAYOUT, *_END_STAGES.values()) if reading.has(name)), "")
    try:
        check_split(model, Plan(pp, pp=pp, **plan))  # type: ignore[arg-type]  # fields by name
    except InputError as error:
        raise InputError(error.code, error.message, where=reading.args.where(given), hint=error.hint) from None
    return plan


def _recompute(reading: _Reading) -> dict[str, PlanValue]:
    """Returns what a plan recomputes: whole layers, those of a block, or parts of all."""
    granularity = reading.text("recompute-granularity", "selective" if reading.has("recompute-activations") else "none")
    if granularity not in ("none", "selective", "full"):
        where = reading.args.where("recompute-granularity")
        raise InputError(
            "unknown-name", f'--recompute-granularity "{granularity}" is not known', where=where, hint="selective full"
        )
    plan: dict[str, PlanValue] = {"recompute": granularity}
    if granularity == "full" and reading.text("recompute-method", "") == "block":
        plan["recompute_layers"] = reading.count("recompute-num-layers", 1)
    elif granularity == "full" and (count := reading.count("recompute-num-layers", 1)) > 1:
        text = f"--recompute-num-layers {count}: layers are recomputed one by one here, not {count} at a time"
        reading.say("not-modelled", text, "recompute-num-layers")
    modules = _modules(reading, "recompute_modules", granularity == "selective", "--recompute-granularity selective")
    if modules:
        plan["recompute_modules"] = modules
    elif modules is not None:
        plan["recompute"] = "none"
    return plan


def _modules(reading: _Reading, field: str, used: bool, needed: str) -> tuple[str, ...] | None:
    """Returns the modules that an option names and a plan has; None where Megatron does not look at them.

    Args:
        reading: The script.
        field: The field of a plan, whose option has the same name.
        used: Whether Megatron looks at the option.
        needed: The option without which it does not.
    """
    option = field.replace("_", "-")
    if not reading.has(option) or not (given := reading.args.options[option].values):
        return None
    if not used:
        reading.say("field-ignored", f"--{option} has no effect without {needed}", option)
        return None
    others = [module for module in given if module not in WORD_LISTS[field]]
    if others:
        reading.say("not-modelled", f"--{option}: {', '.join(others)} is not modelled; left out", option)
    return tuple(module for module in WORD_LISTS[field] if module in given)


def _habits(reading: _Reading) -> dict[str, PlanValue]:
    """Precision, recomputation, what is split over data-parallel ranks, what overlaps."""
    plan: dict[str, PlanValue] = {"precision": _precision(reading), "stack": "megatron-core"}
    plan["zero"] = _zero(reading)
    plan |= _dtypes(reading, str(plan["precision"]))
    plan |= _recompute(reading)
    offloads = reading.has("fine-grained-activation-offloading")
    if modules := _modules(reading, "offload_modules", offloads, "--fine-grained-activation-offloading"):
        plan["offload_modules"] = modules
    # Parts of gradients can only be kept where each backward reduces them (validate_args).
    plan["grad_overlap"] = reading.has("overlap-grad-reduce") or plan["zero"] in (2, 3)
    plan["param_overlap"] = reading.has("overlap-param-gather")
    backend = reading.text("moe-flex-dispatcher-backend", "deepep" if reading.has("moe-enable-deepep") else "")
    if backend in ("deepep", "hybridep"):
        plan["dispatcher"] = backend
    graphs = reading.text("cuda-graph-impl", "none")
    if reading.text("cuda-graph-scope", "") == "full_iteration":
        plan["cuda_graphs"] = "full"
    elif graphs != "none" or reading.has("enable-cuda-graph", "external-cuda-graph"):
        plan["cuda_graphs"] = "partial"
    for name, option in (
        ("tp_overlap", "tp-comm-overlap"),
        ("moe_overlap", "overlap-moe-expert-parallel-comm"),
        ("offload_optimizer", "optimizer-cpu-offload"),
        ("fp8_activation_input", "activation-func-fp8-input-store"),
    ):
        if reading.has(option):
            plan[name] = True
    if reading.has("optimizer-cpu-offload") and reading.text("optimizer-offload-fraction", "1.0") not in ("1", "1.0"):
        text = "--optimizer-offload-fraction: all of the optimizer's state is taken to be on the host"
        reading.say("not-modelled", text, "optimizer-offload-fraction")
    return plan


def _zero(reading: _Reading) -> int:
    """Returns what data-parallel ranks split: Megatron-FSDP's strategy, or the distributed optimizer."""
    # Both are asked for, so that neither is listed as unused.
    distributed, strategy = reading.has("use-distributed-optimizer"), "data-parallel-sharding-strategy"
    if reading.has("use-torch-fsdp2"):
        return 3
    if not reading.has("use-megatron-fsdp", "use-custom-fsdp"):
        return int(distributed)
    # Without a strategy Megatron splits nothing; FSDP is then meant as it is known.
    name = reading.text(strategy, "optim_grads_params")
    if name not in _STRATEGIES:
        where = reading.args.where(strategy)
        raise InputError("unknown-name", f'--{strategy} "{name}" is not known', where=where, hint=" ".join(_STRATEGIES))
    return _STRATEGIES[name]


def _dtypes(reading: _Reading, precision: str) -> dict[str, PlanValue]:
    """Returns the dtypes of gradients and of the optimizer's state, where they are not the stack's.

    Gradients of bf16 parameters are in fp32 unless told otherwise (`validate_args`).
    """
    plan: dict[str, PlanValue] = {}
    aware = reading.has("use-precision-aware-optimizer")
    options = ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    grads, params, first, second = (_dtype(reading, name) for name in options)
    wide = reading.has("accumulate-allreduce-grads-in-fp32") and not reading.has(
        "no-accumulate-allreduce-grads-in-fp32"
    )
    if precision == "fp16" and not wide:
        text = "gradients are taken as fp32: without --accumulate-allreduce-grads-in-fp32 they are in fp16"
        reading.say("replaced-option", text, "fp16")
    narrow = reading.has("grad-reduce-in-bf16") or (aware and grads == "bf16" and not wide)
    if narrow and precision not in (*FULL_PRECISIONS, "fp16"):
        plan["grad_dtype"] = "bf16"
    if aware:
        if first != second:
            text = f"--exp-avg-dtype {first} and --exp-avg-sq-dtype {second}: both are taken as the wider"
            reading.say("replaced-option", text, "exp-avg-dtype")
        plan["moment_dtype"] = max(first, second, key=DTYPE_BYTES.__getitem__)
        plan["master_dtype"] = params
    elif reading.has(*options):
        given = " ".join(f"--{name}" for name in options if reading.has(name))
        reading.say("field-ignored", f"{given}: without effect unless --use-precision-aware-optimizer", options[0])
    if reading.has("fp8-param-gather") and precision in NARROW_PRECISIONS:
        plan["fp8_params"] = True
    return plan


def _dtype(reading: _Reading, name: str) -> str:
    text = reading.text(name, "fp32")
    known = _STATE_DTYPES[name]
    if text not in known:
        where = reading.args.where(name)
        raise InputError("unknown-name", f'--{name} "{text}" is not known', where=where, hint=" ".join(known))
    return text


def _precision(reading: _Reading) -> str:
    base = "bf16" if reading.has("bf16") else "fp16" if reading.has("fp16") else "fp32"
    if reading.has("fp4-format"):
        return "nvfp4"
    if not reading.has("fp8-format", "fp8-hybrid", "fp8-e4m3"):
        return base
    recipe = reading.text("fp8-recipe", "delayed")
    if recipe not in _FP8_RECIPES:
        where = reading.args.where("fp8-recipe")
        raise InputError(
            "unknown-name", f'--fp8-recipe "{recipe}" is not known', where=where, hint=" ".join(_FP8_RECIPES)
        )
    return _FP8_RECIPES[recipe]
