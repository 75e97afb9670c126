"""Maps plans to DeepSpeed's JSON configuration, in both directions.

Names are those of docs/_pages/config-json.md of DeepSpeed, deepspeed/runtime/zero/config.py (`mics_shard_size`) and
deepspeed/__init__.py (`data_parallel_size` and `sequence_parallel_size` together are a mesh). A training script decides
the rest: the model, its sequences, pipeline stages, experts and recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from foretrace.basics.documents import Document
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.workload.job_file import PlanValue
from foretrace.workload.launch.arguments import Argument, Arguments, commands
from foretrace.workload.launch.rules import (
    DIVISION,
    LaunchedJob,
    LaunchFormat,
    Options,
    Reading,
    Rule,
    count_rule,
    routing_rule,
    stack_rule,
)
from foretrace.workload.launch.shell_words import Script, Word
from foretrace.workload.plan import NARROW_PRECISIONS
from foretrace.workload.setting import Setting

if TYPE_CHECKING:
    import yaml

_EXAMPLE: Final = '{"train_batch_size": 512, "zero_optimization": {"stage": 3}}'
_BATCH: Final = "train_batch_size"
_MICROBATCH: Final = "train_micro_batch_size_per_gpu"
_ACCUMULATION: Final = "gradient_accumulation_steps"
_STAGE: Final = "zero_optimization.stage"
_SHARD: Final = "zero_optimization.mics_shard_size"
_OVERLAP: Final = "zero_optimization.overlap_comm"
_OFFLOAD: Final = "zero_optimization.offload_optimizer.device"
_TP: Final = "tensor_parallel.autotp_size"
_CP: Final = "sequence_parallel_size"
_DP: Final = "data_parallel_size"
_GRADIENTS: Final = "data_types.grad_accum_dtype"
_BF16: Final = "bf16.enabled"
_FP16: Final = "fp16.enabled"
_NARROW_MASTER: Final = "bf16.bf16_master_weights_and_grads"
_NARROW_MOMENTS: Final = "bf16.bf16_optimizer_states"
_SECTIONS: Final = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16")
_CONFIG_WORDS: Final = ("--deepspeed_config", "--deepspeed-config", "--deepspeed")
_UNREAD: Final = {
    "zero_optimization.offload_param.device": "parameters are not taken to be on the host",
    "zero_optimization.zero_hpz_partition_size": "a second copy of parameters within nodes is not modelled",
    "zero_optimization.zero_quantized_weights": "quantized communication is not modelled",
    "zero_optimization.zero_quantized_gradients": "quantized communication is not modelled",
    "activation_checkpointing.partition_activations": "the script decides what is recomputed: give recompute",
}
"""Options that change the work and are not followed."""


def job_from_deepspeed(reading: Reading) -> LaunchedJob:
    """Returns the plan of DeepSpeed's options, for a model that is given apart."""
    if reading.model is None:
        hint = "give it: --model llama3-8b"
        raise InputError("missing-field", "a DeepSpeed file does not say the model", where=reading.args.path, hint=hint)
    plan = DEEPSPEED.read(reading)
    reading.plan_guesses["stack"] = "PyTorch's own kernels, which DeepSpeed leaves as they are"
    for name, consequence in _UNREAD.items():
        if reading.has(name) and reading.text(name, "") not in ("none", "1", "false"):
            reading.say("not-modelled", f"{name}: {consequence}", name)
    reading.ignore("deepspeed-config", "deepspeed", "hostfile", "launcher")
    return LaunchedJob(reading.model, plan, reading.plan_guesses, reading.diagnostics)


def _read_gpus(reading: Reading) -> dict[str, PlanValue]:
    """Returns the GPUs of the launcher, or as many as the batches need."""
    if reading.has("num-nodes") and reading.has("num-gpus"):
        reading.plan_guesses["gpus"] = "--num_nodes times --num_gpus"
        return {"gpus": reading.count("num-nodes") * reading.count("num-gpus")}
    if not reading.has(_BATCH) or not reading.has(_MICROBATCH) or not reading.has(_ACCUMULATION):
        return {}
    each = reading.count(_MICROBATCH) * reading.count(_ACCUMULATION)
    if reading.count(_BATCH) % each:
        problem = f"{_BATCH} {reading.count(_BATCH)} is not a multiple of {_MICROBATCH} times {_ACCUMULATION}, {each}"
        raise InputError("not-divisible", problem, where=reading.args.where(_BATCH))
    reading.plan_guesses["gpus"] = "as many as the batches need"
    return {"gpus": reading.count(_BATCH) // each * reading.count(_TP, 1) * reading.count(_CP, 1)}


def _write_batch(setting: Setting) -> Options:
    return {_BATCH: setting.gbs, _MICROBATCH: setting.plan.mbs, _ACCUMULATION: setting.microbatches}


def _read_batch(reading: Reading) -> dict[str, PlanValue]:
    plan: dict[str, PlanValue] = {}
    reading.has(_ACCUMULATION)  # follows from the batches where both are given
    if reading.has(_MICROBATCH):
        plan["mbs"] = reading.count(_MICROBATCH)
    if reading.has(_BATCH):
        plan["gbs"] = reading.count(_BATCH)
    elif (gpus := _read_gpus(reading).get("gpus")) and reading.has(_MICROBATCH):
        assert isinstance(gpus, int)
        dp = gpus // (reading.count(_TP, 1) * reading.count(_CP, 1))
        plan["gbs"] = dp * reading.count(_MICROBATCH) * reading.count(_ACCUMULATION, 1)
    return plan


def _lack_of_tp(setting: Setting) -> str | None:
    """Returns why tp is not trained (docs/_tutorials/autotp-training.md: under stages 0, 1 and 2)."""
    both = setting.plan.tp > 1 and setting.zero == 3
    return "DeepSpeed's AutoTP trains under ZeRO 0, 1 and 2" if both else None


def _write_cp(setting: Setting) -> Options:
    return {_CP: setting.plan.cp, _DP: setting.dp} if setting.plan.cp > 1 else {}


def _read_cp(reading: Reading) -> dict[str, PlanValue]:
    reading.has(_DP)
    return {"cp": reading.count(_CP), "cp_comm": "a2a"} if reading.count(_CP, 1) > 1 else {}


def _zero(reading: Reading) -> int:
    return reading.count(_STAGE, 0, least=0, most=3)


def _write_zero(setting: Setting) -> Options:
    groups = setting.zero == 3 and setting.shard < setting.dp * setting.plan.cp
    options: Options = {_STAGE: setting.zero}
    return options | ({_SHARD: setting.shard} if groups else {})


def _read_zero(reading: Reading) -> dict[str, PlanValue]:
    zero = _zero(reading)
    has_groups = zero == 3 and reading.has(_SHARD) and reading.text(_SHARD, "-1") != "-1"
    plan: dict[str, PlanValue] = {"zero": zero}
    return plan | ({"shard": reading.count(_SHARD)} if has_groups else {})


def _lack_of_grad_overlap(setting: Setting) -> str | None:
    return (
        "DeepSpeed reduces gradients after the backward in stage 0"
        if not setting.zero and setting.grad_overlap
        else None
    )


def _read_grad_overlap(reading: Reading) -> dict[str, PlanValue]:
    zero = _zero(reading)
    overlaps = reading.flag(_OVERLAP, zero == 3)
    return {"grad_overlap": overlaps and zero > 0}


def _write_precision(setting: Setting) -> Options:
    precision = setting.plan.precision
    return {_BF16: precision == "bf16" or precision in NARROW_PRECISIONS, _FP16: precision == "fp16"}


def _lack_of_precision(setting: Setting) -> str | None:
    return None if setting.plan.precision in ("bf16", "fp16", "fp32") else "DeepSpeed has bf16, fp16 and fp32"


def _precision(reading: Reading) -> str:
    bf16, fp16 = reading.flag(_BF16), reading.flag(_FP16)
    if bf16 and fp16:
        problem = f"{_BF16} and {_FP16} are both on"
        raise InputError("conflicting-values", problem, where=reading.args.where(_FP16), hint="turn one of them off")
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


def _is_narrow(setting: Setting) -> bool:
    """Returns whether the optimizer updates parameters in 16 bits, without a copy of them in fp32."""
    return setting.plan.precision in ("bf16", *NARROW_PRECISIONS) and setting.stack.optimizer_state_dtype == "bf16"


def _write_state_dtypes(setting: Setting) -> Options:
    return {_NARROW_MASTER: True, _NARROW_MOMENTS: True} if _is_narrow(setting) else {}


def _lack_of_state_dtypes(setting: Setting) -> str | None:
    stack = setting.stack
    if _is_narrow(setting):
        if stack.master_weights:
            return "DeepSpeed keeps moments in bf16 only where it has no copy of parameters in fp32"
        return None if setting.zero else "DeepSpeed keeps states in bf16 only under ZeRO"
    if stack.optimizer_state_dtype != "fp32" or (stack.master_weights and stack.master_dtype != "fp32"):
        return "DeepSpeed keeps states in fp32, or all in bf16"
    return None


def _read_state_dtypes(reading: Reading) -> dict[str, PlanValue]:
    precision = _precision(reading)
    narrow = [reading.flag(name) for name in (_NARROW_MASTER, _NARROW_MOMENTS)]
    if any(narrow) and not all(narrow):
        text = f"{_NARROW_MASTER} and {_NARROW_MOMENTS} differ: states are taken to be in fp32"
        reading.say("replaced-option", text, _NARROW_MASTER)
    return {} if precision == "fp32" or (precision == "bf16" and all(narrow)) else {"master_dtype": "fp32"}


def _write_gradients(setting: Setting) -> Options:
    return {_GRADIENTS: setting.stack.gradient_dtype} if setting.zero > 1 else {}


def _lack_of_gradients(setting: Setting) -> str | None:
    stack = setting.stack
    if stack.gradient_dtype == "fp16" or (setting.zero < 2 and stack.gradient_dtype != stack.parameter_dtype):
        return "gradients are taken to have the dtype of parameters here"
    if setting.zero < 2 and setting.plan.precision != "fp32" and stack.parameter_dtype != "bf16":
        return "DeepSpeed holds parameters in 16 bits"
    return None


def _read_gradients(reading: Reading) -> dict[str, PlanValue]:
    if not reading.has(_GRADIENTS):
        return {}
    dtype = reading.word(_GRADIENTS, "fp32", ("fp32", "bf16", "fp16"))
    if _zero(reading) > 1 and dtype != "fp16":
        return {"grad_dtype": dtype}
    reading.say("not-modelled", f"{_GRADIENTS}: gradients are taken to have the dtype of parameters", _GRADIENTS)
    return {}


def _write_offload(setting: Setting) -> Options:
    return {_OFFLOAD: "cpu"} if setting.plan.offload_optimizer else {}


def _lack_of_offload(setting: Setting) -> str | None:
    return "DeepSpeed offloads under ZeRO only" if setting.plan.offload_optimizer and not setting.zero else None


def _read_offload(reading: Reading) -> dict[str, PlanValue]:
    device = reading.word(_OFFLOAD, "none", ("none", "cpu", "nvme"))
    if device == "nvme":
        reading.say("replaced-option", f"{_OFFLOAD}: nvme is taken as the host's memory", _OFFLOAD)
    return {} if device == "none" else {"offload_optimizer": True}


def _nothing(_reading: Reading) -> dict[str, PlanValue]:
    return {}


DEEPSPEED: Final = LaunchFormat(
    name="deepspeed",
    title="DeepSpeed",
    stacks=(),
    reads_as="torch-eager",
    rules=(
        Rule(("gpus",), lambda _: {}, _read_gpus),  # the launcher's
        Rule(("mbs", "gbs"), _write_batch, _read_batch),
        Rule(
            ("seq_len",),
            lambda _: {},
            _nothing,
            lambda setting: None if setting.seq_len == setting.model.seq_len else "an option of the training script",
        ),
        replace(count_rule("tp", _TP, off=1), lack=_lack_of_tp),
        Rule(("cp",), _write_cp, _read_cp),
        Rule(
            ("cp_comm",),
            lambda _: {},
            _nothing,
            lambda setting: None if setting.plan.cp_comm == "a2a" else "DeepSpeed exchanges heads (a2a)",
        ),
        Rule(
            ("pp", "vpp", "schedule", *DIVISION),
            lambda _: {},
            _nothing,
            lambda setting: "stages are in the code of a PipelineModule" if setting.plan.pp > 1 else None,
        ),
        Rule(("zero", "shard"), _write_zero, _read_zero),
        Rule(
            ("grad_overlap",),
            lambda setting: {_OVERLAP: setting.grad_overlap} if setting.zero else {},
            _read_grad_overlap,
            _lack_of_grad_overlap,
        ),
        Rule(
            ("precision",),
            _write_precision,
            lambda reading: {"precision": _precision(reading)},
            _lack_of_precision,
            _write_precision,  # the precision that operands are quantized from
        ),
        Rule(("master_dtype", "moment_dtype"), _write_state_dtypes, _read_state_dtypes, _lack_of_state_dtypes),
        Rule(("grad_dtype",), _write_gradients, _read_gradients, _lack_of_gradients),
        Rule(("offload_optimizer",), _write_offload, _read_offload, _lack_of_offload),
        Rule(
            ("recompute", "recompute_layers", "recompute_modules"),
            lambda _: {},
            _nothing,
            lambda setting: "the training script decides" if setting.plan.recompute != "none" else None,
        ),
        stack_rule("torch-eager", {"torch-eager": "PyTorch, eager"}),
        routing_rule(),
    ),
    fixed={
        "sequence_parallel": False,
        "ep": 1,
        "etp": 1,
        "rank_order": DEFAULT_ORDER,
        "reshard": True,
        "prefetch": 1,
        "param_overlap": False,
        "fp8_params": False,
        "fp8_activation_input": False,
        "tp_overlap": False,
        "moe_overlap": False,
        "pp_overlap": False,
        "cuda_graphs": "none",
        "offload_layers": 0,
        "offload_modules": (),
        "dispatcher": "alltoall",
        "documents": None,
    },
)
"""DeepSpeed's configuration and launcher; no stack of ours is it, so that it has to be asked for."""


def config_of(script: Script) -> str | None:
    """Returns the configuration that a command line of DeepSpeed names."""
    texts = [word.text for words in commands(script) for word in [*words, Word("", 0)]]
    for text, after in pairwise([*texts, ""]):
        name, equals, value = text.partition("=")
        path = value if equals else after
        if name in _CONFIG_WORDS and path and not path.startswith("-") and "$" not in path:
            return path
    return None


def json_arguments(text: str, path: str) -> Arguments:
    """Returns the values of a DeepSpeed configuration as options, by the names on the way to them.

    Raises:
        InputError: The text is not JSON, is not an object, or has nothing of DeepSpeed's.
    """
    document = Document(path, "DeepSpeed configuration", f"expected JSON: {_EXAMPLE}", _EXAMPLE)
    given = dict(_flat(document, document.compose(text)))
    open_names = [name for name, argument in given.items() if argument.values == ("auto",)]
    options = {name: argument for name, argument in given.items() if argument.values not in (("auto",), ("null",))}
    message = f"left to the training script (auto): {' '.join(open_names)}"
    notes = [Diagnostic("note", "unused-flags", message, path)] if open_names else []
    if not any(name.partition(".")[0] in _SECTIONS for name in given):
        problem = "this JSON is not a configuration of DeepSpeed"
        raise InputError("wrong-format", problem, where=path, hint=f"for example {_EXAMPLE}")
    return Arguments(path, options, tuple(notes), prefix="")


def _flat(document: Document, node: yaml.Node, above: str = "") -> Iterator[tuple[str, Argument]]:
    import yaml

    for name, (key, value) in document.entries(node, "an object with the options of DeepSpeed").items():
        line = key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode):
            yield from _flat(document, value, f"{above}{name}.")
        elif isinstance(value, yaml.SequenceNode):
            words = tuple(item.value for item in value.value if isinstance(item, yaml.ScalarNode))
            yield f"{above}{name}", Argument(words, line)
        else:
            yield f"{above}{name}", Argument((str(value.value),), line)
