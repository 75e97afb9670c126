"""Maps plans to torchtitan's configuration, in both directions: options of a command line, and TOML of older checkouts.

Names are those of torchtitan/config/configs.py (command line) and torchtitan/config/job_config.py (TOML).
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final

from foretrace.basics.errors import InputError, shortened
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.models import presets
from foretrace.models.model import Model
from foretrace.workload.job_file import PlanValue
from foretrace.workload.launch.megatron import TORCHRUN, read_gpus
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
from foretrace.workload.plan import FULL_PRECISIONS
from foretrace.workload.setting import Setting
from foretrace.workload.stacks import FSDP_COMPILE_2025

_TP: Final = "parallelism.tensor_parallel_degree"
_CP: Final = "parallelism.context_parallel_degree"
_PP: Final = "parallelism.pipeline_parallel_degree"
_REPLICATE: Final = "parallelism.data_parallel_replicate_degree"
_SHARD: Final = "parallelism.data_parallel_shard_degree"
_RESHARD: Final = "parallelism.fsdp_reshard_after_forward"
_SCHEDULE: Final = "parallelism.pipeline_parallel_schedule"
_PER_PART: Final = "parallelism.pipeline_parallel_layers_per_stage"
_FIRST_LESS: Final = "parallelism.pipeline_parallel_first_stage_less_layers"
_LAST_LESS: Final = "parallelism.pipeline_parallel_last_stage_less_layers"
_MODULES: Final = "parallelism.module_fqns_per_model_part"
_MICROBATCH: Final = "parallelism.pipeline_parallel_microbatch_size"
_LOCAL: Final = "training.local_batch_size"
_OLD_LOCAL: Final = "training.batch_size"
_GLOBAL: Final = "training.global_batch_size"
_SEQUENCE: Final = "parallelism.enable_sequence_parallel"
_ETP: Final = "parallelism.expert_tensor_parallel_degree"
_BACKEND: Final = "parallelism.expert_parallel_comm_backend"
_PARAM_DTYPE: Final = "training.mixed_precision_param"
_CONVERTERS: Final = "model.converters"
_MODE: Final = "activation_checkpoint.mode"
_SELECTIVE: Final = "activation_checkpoint.selective_ac_option"
_COMPILE: Final = "compile.enable"
_COMPONENTS: Final = "compile.components"
_OLD_COMPILE: Final = "training.compile"
CONFIG_FILE: Final = "job.config-file"

_SCHEDULES: Final = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""Our schedules as torch/distributed/pipelining/schedules.py names them."""
_SINGLE: Final = ("gpipe", "1f1b")
"""Schedules with one part of the model on each stage; others have two unless told otherwise."""
_ROTATIONS: Final = {"all_gather": "allgather", "p2p": "alltoall"}
"""torch/distributed/tensor/experimental: `alltoall` passes keys and values on to the next rank, as a ring does."""
_DTYPES: Final = {"bf16": "bfloat16", "fp32": "float32"}
_CONVERTED: Final = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}
_OLD_CONVERTERS: Final = {"float8": "fp8", "mx": "mxfp8"}
_BACKENDS: Final = {"alltoall": "standard", "deepep": "deepep", "hybridep": "hybridep"}
_MODELS: Final = {
    "llama3-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3.1-405b": ("llama3", "405B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
}
"""Models as torchtitan/models/ names them: a folder and a flavor, which together are the name of a configuration."""
QUANTIZED: Final = ("405B", "671B")
"""Flavors whose configurations in code quantize linear layers to 8 bits (config_registry.py of each)."""
SECTIONS: Final = ("parallelism", "training", "activation_checkpoint", "compile", "model", "job")
_UNREAD: Final = {
    "training.enable_cpu_offload": "parameters, gradients and the optimizer are not taken to be on the host",
}


def torchtitan_model(model: Model) -> tuple[str, str] | None:
    """Returns the folder and flavor of a model in torchtitan; None where it has none that is known here."""
    return _MODELS.get(model.name)


def job_from_torchtitan(reading: Reading) -> LaunchedJob:
    """Returns the model and plan of torchtitan's options."""
    if reading.model is None:
        reading.model = _read_model(reading)
    reading.has("model.name", "model.flavor", "module", "config")
    plan = {"stack": "fsdp"} | TORCHTITAN_TOML.read(reading)
    for name, consequence in _UNREAD.items():
        if reading.flag(name):
            reading.say("not-modelled", f"{name}: {consequence}", name)
    reading.ignore(*TORCHRUN, CONFIG_FILE)
    return LaunchedJob(reading.model, plan, reading.plan_guesses, reading.diagnostics)


def _read_model(reading: Reading) -> Model:
    name, flavor = reading.text("model.name", ""), reading.text("model.flavor", "")
    config = reading.text("config", f"{name}_{flavor}").lower()
    for preset, (folder, size) in _MODELS.items():
        if config == f"{folder}_{size}".lower() and presets.is_known(preset):
            return presets.model(preset)
    plain = config.replace("_", "-")
    if plain != "-" and presets.is_known(plain):
        return presets.model(plain)
    what = f'the model "{shortened(config)}" is not known' if config != "_" else "the file does not say the model"
    raise InputError("missing-field", what, where=reading.args.path, hint="give it: --model llama3-8b")


def part_layers(layers: int, parts: int, first_less: int, last_less: int) -> tuple[int, ...] | None:
    """Returns the layers of every part as torchtitan divides them; None where it refuses.

    torchtitan/distributed/pipeline_parallel.py: the ends of the model count as some layers, and the first parts have
    one more where the sum does not divide.
    """
    each, more = divmod(layers + first_less + last_less, parts)
    if parts == 1 or each < max(1, first_less, last_less):
        return (layers,) if parts == 1 else None
    counts = [each + (part < more) for part in range(parts)]
    counts[0] -= first_less
    counts[-1] -= last_less
    return tuple(counts)


def _division(setting: Setting) -> tuple[int, int, int] | None:
    """Returns the options that divide the layers as a setting does: layers of a part, and less at either end."""
    counts, layers = tuple(map(len, setting.chunks)), len(setting.model.layers)
    for first, last in ((0, 0), (1, 1), (1, 0), (0, 1)):
        each = -(-(layers + first + last) // len(counts))
        same_parts = -(-(layers + first + last) // each) == len(counts)
        if same_parts and part_layers(layers, len(counts), first, last) == counts:
            return each, first, last
    return None


def _write_division(setting: Setting) -> Options:
    division = _division(setting)
    if setting.plan.pp == 1 or division is None:
        return {_PER_PART: None}
    return dict(zip((_PER_PART, _FIRST_LESS, _LAST_LESS), division, strict=True))


def _lack_of_division(setting: Setting) -> str | None:
    if setting.plan.pp == 1 or (_division(setting) is not None and not setting.model.mtp):
        return None
    if setting.model.mtp:
        return "torchtitan has no multi-token prediction"
    return "torchtitan's options do not divide the layers so; module_fqns_per_model_part in code does"


def _read_division(reading: Reading) -> dict[str, PlanValue]:
    assert reading.model is not None
    layers, pp = len(reading.model.layers), reading.count(_PP, 1)
    per_part = reading.count(_PER_PART) if reading.has(_PER_PART) else None
    first, last = (reading.count(name, 1, least=0) for name in (_FIRST_LESS, _LAST_LESS))
    given = reading.values(_MODULES)
    if pp == 1:
        return {}
    schedule = _read_schedule(reading)["schedule"]
    parts = pp if schedule in _SINGLE else 2 * pp
    if per_part is not None:
        parts = -(-(layers + first + last) // per_part)
    counts = part_layers(layers, parts, first, last)
    if given:
        counts = tuple(len(re.findall(r"\blayers\.\d+", part)) for part in given)
    if counts is None or len(counts) % pp or sum(counts) != layers:
        problem = f"{layers} layers cannot be divided among {len(counts or given) or parts} parts of {pp} stages"
        raise InputError("not-divisible", problem, where=reading.args.where(_PER_PART))
    plan: dict[str, PlanValue] = {"stage_layers": counts}
    if schedule not in (*_SINGLE, "zb-v", "dualpipe-v"):
        plan["vpp"] = len(counts) // pp
    return plan


def _write_schedule(setting: Setting) -> Options:
    return {_SCHEDULE: _SCHEDULES[setting.schedule] if setting.plan.pp > 1 else None}


def _lack_of_schedule(setting: Setting) -> str | None:
    return None if setting.schedule in _SCHEDULES else f"PyTorch has {', '.join(_SCHEDULES.values())}"


def _read_schedule(reading: Reading) -> dict[str, PlanValue]:
    plain = {name.lower(): own for own, name in _SCHEDULES.items()}
    if reading.count(_PP, 1) == 1:
        reading.has(_SCHEDULE)
        return {}
    name = reading.text(_SCHEDULE, "1F1B")
    if name.lower() not in plain:
        problem = f'{reading.args.shown(_SCHEDULE)} "{shortened(name)}" is not known'
        where = reading.args.where(_SCHEDULE)
        raise InputError("unknown-name", problem, where=where, hint=" ".join(_SCHEDULES.values()))
    return {"schedule": plain[name.lower()]}


def _write_batch(setting: Setting) -> Options:
    """Returns the batches: a pipeline divides the local batch, otherwise gradients of local batches accumulate."""
    plan = setting.plan
    if plan.pp == 1:
        return {_LOCAL: plan.mbs, _GLOBAL: setting.gbs}
    return {_LOCAL: plan.mbs * setting.microbatches, _GLOBAL: setting.gbs, _MICROBATCH: plan.mbs}


def _read_batch(reading: Reading) -> dict[str, PlanValue]:
    local = reading.count(_LOCAL, reading.count(_OLD_LOCAL, 8))
    microbatch = reading.count(_MICROBATCH, 1)
    plan: dict[str, PlanValue] = {"mbs": microbatch if reading.count(_PP, 1) > 1 else local}
    if not reading.has(_LOCAL, _OLD_LOCAL):
        reading.plan_guesses["mbs"] = f"{_LOCAL} is not given: torchtitan's default"
    if reading.has(_GLOBAL) and reading.text(_GLOBAL, "") != "-1":
        plan["gbs"] = reading.count(_GLOBAL)
    elif ranks := _ranks(reading):
        plan["gbs"] = local * (ranks // reading.count(_CP, 1))
    return plan


def _read_gpus(reading: Reading) -> dict[str, PlanValue]:
    """Returns the GPUs of torchrun, or the product of all degrees where each is given."""
    given = read_gpus(reading)
    if given or not reading.has(_SHARD) or reading.text(_SHARD, "-1") == "-1":
        return given
    reading.plan_guesses["gpus"] = "the product of all degrees"
    others = [reading.count(name, 1) for name in (_REPLICATE, _TP, _CP, _PP)]
    return {"gpus": reading.count(_SHARD) * math.prod(others)}


def _ranks(reading: Reading) -> int:
    """Returns the ranks of dp and cp; 0 where the GPUs are not known."""
    gpus = _read_gpus(Reading(reading.args)).get("gpus", 0)
    assert isinstance(gpus, int)
    return gpus // (reading.count(_TP, 1) * reading.count(_PP, 1))


def _write_shard(setting: Setting) -> Options:
    if setting.zero == 0 or setting.dp * setting.plan.cp == 1:
        return {_REPLICATE: setting.dp, _SHARD: 1}
    return {_REPLICATE: setting.dp * setting.plan.cp // setting.shard, _SHARD: setting.shard // setting.plan.cp}


def _lack_of_shard(setting: Setting) -> str | None:
    plan = setting.plan
    if setting.zero == 3 or setting.dp * plan.cp == 1:
        return None
    if setting.zero == 0 and plan.tp * plan.cp * plan.pp == 1:
        return None  # DDP, which torchtitan does not combine with other parallelism
    return "torchtitan splits parameters (zero 3), or replicates them on one axis alone"


def _read_shard(reading: Reading) -> dict[str, PlanValue]:
    replicate, cp = reading.count(_REPLICATE, 1), reading.count(_CP, 1)
    given = reading.has(_SHARD) and reading.text(_SHARD, "-1") != "-1"
    ranks = _ranks(reading)
    shard = reading.count(_SHARD) if given else max(ranks // (replicate * cp), 1)
    if replicate > 1 and shard * cp == 1 and (given or ranks):
        return {"zero": 0}
    return {"zero": 3} if replicate == 1 else {"zero": 3, "shard": shard * cp}


def _read_reshard(reading: Reading) -> dict[str, PlanValue]:
    """Returns the policy; by default parameters stay gathered where there is a pipeline."""
    policy = reading.word(_RESHARD, "default", ("default", "always", "never"))
    reshards = policy == "always" or (policy == "default" and reading.count(_PP, 1) == 1)
    return {} if reshards else {"reshard": False}


def _read_sequence_parallel(reading: Reading) -> dict[str, PlanValue]:
    given = reading.flag(_SEQUENCE, True)
    return {"sequence_parallel": given} if reading.count(_TP, 1) > 1 else {}


def _read_cp_comm(reading: Reading) -> dict[str, PlanValue]:
    option = "parallelism.context_parallel_rotate_method"
    kinds = {name: own for own, name in _ROTATIONS.items()}
    kind = kinds[reading.word(option, "allgather", kinds)]
    return {"cp_comm": kind} if reading.count(_CP, 1) > 1 else {}


def _lack_of_cp_comm(setting: Setting) -> str | None:
    return None if setting.plan.cp_comm in _ROTATIONS else f"torchtitan has {' and '.join(_ROTATIONS)}"


def _write_precision(setting: Setting) -> Options:
    return {_PARAM_DTYPE: "float32" if setting.plan.precision in FULL_PRECISIONS else "bfloat16"}


def _lack_of_precision(setting: Setting) -> str | None:
    precision = setting.plan.precision
    if precision in _DTYPES:
        return None
    return "converters are in the code of a configuration" if precision in _CONVERTED else "torchtitan has no such one"


def _read_precision(reading: Reading) -> dict[str, PlanValue]:
    dtypes = {name: own for own, name in _DTYPES.items()}
    precision = dtypes[reading.word(_PARAM_DTYPE, "bfloat16", dtypes)]
    converted = {name: own for own, name in _CONVERTED.items()} | _OLD_CONVERTERS
    for name in (part for text in reading.values(_CONVERTERS) for part in text.split(",")):
        if name in converted:
            precision = converted[name]
        else:
            reading.say("not-modelled", f"{_CONVERTERS}: {shortened(name)} is not modelled; left out", _CONVERTERS)
    return {"precision": precision}


def _read_recompute(reading: Reading) -> dict[str, PlanValue]:
    mode = reading.word(_MODE, "selective", ("none", "selective", "full"))
    if mode == "selective" and (option := reading.text(_SELECTIVE, "op")) != "op":
        text = f"{_SELECTIVE} {shortened(option)}: taken as op, every second product of every layer"
        reading.say("replaced-option", text, _SELECTIVE)
    if not reading.has(_MODE):
        reading.plan_guesses["recompute"] = f"{_MODE} is not given: torchtitan's default"
    return {"recompute": mode}


def _lack_of_recompute(setting: Setting) -> str | None:
    plan = setting.plan
    if plan.recompute == "full" and plan.recompute_layers is not None:
        return "torchtitan recomputes all layers"
    return "torchtitan has no modules to choose" if plan.recompute_modules is not None else None


def _read_dispatcher(reading: Reading) -> dict[str, PlanValue]:
    names = {name: own for own, name in _BACKENDS.items()}
    name = names[reading.word(_BACKEND, "standard", names)]
    return {} if name == "alltoall" else {"dispatcher": name}


def _read_stack(reading: Reading) -> dict[str, PlanValue]:
    """Reads what is compiled. Without `components`, torchtitan compiles model and loss; its older option knows none."""
    compiles = reading.flag(_COMPILE)
    components = [word for value in reading.values(_COMPONENTS) for word in value.split(",")]
    compiles_loss = compiles and (not components or "loss" in components)
    if compiles and components and "model" not in components:
        reading.say("replaced-option", f"compiled is {' and '.join(components)} alone: taken as eager", _COMPONENTS)
        return {"stack": "fsdp"}
    if not (reading.flag(_OLD_COMPILE) or compiles):
        return {"stack": "fsdp"}
    return {"stack": f"fsdp-compile@{FSDP_COMPILE_2025.version}" if compiles_loss else "fsdp-compile"}


def _compiles(setting: Setting) -> bool:
    return setting.stack.pointwise == "compiled"


def _write_stack(setting: Setting) -> Options:
    if not _compiles(setting):
        return {_COMPILE: False}
    return {_COMPILE: True, _COMPONENTS: ("model", "loss") if setting.stack.loss == "compiled" else ("model",)}


def _lack_of_stack(setting: Setting) -> str | None:
    if setting.stack.name in _STACKS and setting.stack.fp8_scales == "rows":
        return "torchao's recipe rowwise is not among the options that are written"
    if setting.stack.label == FSDP_COMPILE_2025.label:  # the components that are compiled say so
        return None
    return stack_rule("fsdp", _STACKS).lack(setting)


def _lack_of_grad_overlap(setting: Setting) -> str | None:
    return None if setting.grad_overlap else "DDP reduces gradients under the backward"


_STACKS: Final = {
    "fsdp": "torchtitan",
    **dict.fromkeys(("fsdp-compile", "fsdp-compile-rowwise"), "torchtitan with torch.compile"),
}
"""The stacks that torchtitan is, with what runs."""

TORCHTITAN: Final = LaunchFormat(
    name="torchtitan",
    title="torchtitan",
    stacks=tuple(_STACKS),
    reads_as="fsdp",
    rules=(
        Rule(("gpus",), lambda _: {}, _read_gpus),  # torchrun's, which the launcher writes
        Rule(("mbs", "gbs"), _write_batch, _read_batch),
        count_rule("seq_len", "training.seq_len"),
        count_rule("tp", _TP),
        count_rule("cp", _CP),
        count_rule("pp", _PP),
        count_rule("ep", "parallelism.expert_parallel_degree"),
        Rule(("zero", "shard"), _write_shard, _read_shard, _lack_of_shard),
        Rule(
            ("reshard",),
            lambda setting: {_RESHARD: "always" if setting.plan.reshard else "never"},
            _read_reshard,
        ),
        Rule(
            ("sequence_parallel",),
            lambda setting: {_SEQUENCE: setting.sequence_parallel} if setting.plan.tp > 1 else {},
            _read_sequence_parallel,
        ),
        Rule(
            ("cp_comm",),
            lambda setting: {"parallelism.context_parallel_rotate_method": _ROTATIONS[setting.plan.cp_comm]},
            _read_cp_comm,
            _lack_of_cp_comm,
        ),
        Rule(("schedule",), _write_schedule, _read_schedule, _lack_of_schedule),
        Rule(("vpp", *DIVISION), _write_division, _read_division, _lack_of_division),
        Rule(
            ("precision",),
            _write_precision,
            _read_precision,
            _lack_of_precision,
            _write_precision,  # the precision that operands are quantized from
        ),
        Rule(
            ("recompute", "recompute_layers", "recompute_modules"),
            lambda setting: {_MODE: setting.plan.recompute},
            _read_recompute,
            _lack_of_recompute,
        ),
        flag_rule("tp_overlap", "parallelism.enable_async_tensor_parallel"),
        Rule(
            ("dispatcher",),
            lambda _: {},
            _read_dispatcher,
            lambda setting: None if setting.plan.dispatcher == "alltoall" else "it is in the code of a configuration",
        ),
        routing_rule("debug.moe_force_load_balance", "training.debug_moe_force_load_balance"),
        Rule(("grad_overlap",), lambda _: {}, lambda _: {}, _lack_of_grad_overlap),
        Rule(
            ("stack",),
            _write_stack,
            _read_stack,
            _lack_of_stack,
            lambda setting: _write_stack(setting) if _compiles(setting) else {},
        ),
    ),
    fixed={
        "etp": 1,
        "rank_order": DEFAULT_ORDER,
        "prefetch": 1,
        "param_overlap": True,
        "grad_dtype": "fp32",
        "master_dtype": None,
        "moment_dtype": "fp32",
        "fp8_params": False,
        "fp8_activation_input": False,
        "moe_overlap": False,
        "pp_overlap": False,
        "cuda_graphs": "none",
        "offload_optimizer": False,
        "offload_layers": 0,
        "offload_modules": (),
        "documents": None,
    },
)
"""Options of `torchtitan.train`, on top of a configuration in code."""


def _older(rule: Rule) -> Rule:
    """Returns the rule of older checkouts: converters are options, and sequence parallelism always is on."""
    if rule.fields == ("precision",):
        return replace(
            rule,
            write=lambda setting: {
                **_write_precision(setting),
                _CONVERTERS: (_CONVERTED[setting.plan.precision],) if setting.plan.precision in _CONVERTED else (),
            },
            lack=lambda setting: (
                None if setting.plan.precision in _DTYPES | _CONVERTED else "torchtitan has no such one"
            ),
        )
    if rule.fields == ("sequence_parallel",):
        return replace(
            rule,
            write=lambda _: {},
            lack=lambda setting: None if setting.sequence_parallel else "older checkouts always split norms over tp",
        )
    if rule.fields == ("dispatcher",):
        return replace(
            rule,
            write=lambda setting: {_BACKEND: _BACKENDS[setting.plan.dispatcher]} if setting.plan.ep > 1 else {},
            lack=lambda setting: None if setting.plan.dispatcher in _BACKENDS else f"it has {', '.join(_BACKENDS)}",
        )
    if rule.fields == ("recompute", "recompute_layers", "recompute_modules"):
        return replace(rule, write=lambda setting: rule.write(setting) | _older_selective(setting))
    return rule


def _older_selective(setting: Setting) -> Options:
    return {_SELECTIVE: "op"} if setting.plan.recompute == "selective" else {}


def _read_etp(reading: Reading) -> dict[str, PlanValue]:
    return {"etp": reading.count(_ETP)} if reading.has(_ETP) else {}


TORCHTITAN_TOML: Final = replace(
    TORCHTITAN,
    name="torchtitan-toml",
    title="torchtitan with TOML",
    rules=(
        *map(_older, TORCHTITAN.rules),
        Rule(("etp",), lambda setting: {_ETP: setting.plan.etp} if setting.plan.etp > 1 else {}, _read_etp),
    ),
    fixed={name: value for name, value in TORCHTITAN.fixed.items() if name != "etp"},
)
"""The TOML that checkouts of 2024 and 2025 read."""
