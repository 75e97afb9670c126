"""Maps plans to the overrides of Megatron-Bridge's `ConfigContainer`, as `key=value` words.

Bridge's settings are Megatron's under other names, so a plan is mapped by the rules of `megatron` and only the names
are translated here: docs/megatron-lm-to-megatron-bridge.md and src/megatron/bridge/training/ of Megatron-Bridge. A run
starts from a recipe, which sets more than a script does. Every option is therefore written, at its off state too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, shortened
from foretrace.workload.job_file import PlanValue
from foretrace.workload.launch.arguments import (
    Argument,
    Arguments,
    commands,
    is_parted_number,
    script_arguments,
)
from foretrace.workload.launch.megatron import MEGATRON_LM, job_of_options
from foretrace.workload.launch.rules import (
    LaunchedJob,
    LaunchFormat,
    Options,
    OptionValue,
    Reading,
    Rule,
    stack_rule,
)
from foretrace.workload.launch.shell_words import Script, Word
from foretrace.workload.setting import Setting


@dataclass(frozen=True, slots=True)
class _Key:
    """The keys of an option, all of which are written; `inverted` ones are on where the option is off."""

    names: tuple[str, ...]
    inverted: bool = False
    off: str | None = "null"
    """The value of an option that is off; None: the key is left out, since no value turns it off."""


def _same(group: str, *options: str) -> dict[str, _Key]:
    return {option: _Key((f"{group}.{option.replace('-', '_')}",)) for option in options}


_PRECISION: Final = "mixed_precision"
_PLAN_KEYS: Final[dict[str, _Key]] = {
    **_same("train", "micro-batch-size", "global-batch-size"),
    "seq-length": _Key(("model.seq_length", "dataset.seq_length")),
    **_same(
        "model",
        *("tensor-model-parallel-size", "context-parallel-size", "pipeline-model-parallel-size", "sequence-parallel"),
        *("expert-model-parallel-size", "expert-tensor-parallel-size", "cp-comm-type"),
        *("pipeline-model-parallel-layout", "activation-func-fp8-input-store"),
        *("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"),
        *("recompute-granularity", "recompute-method", "recompute-num-layers", "recompute-modules"),
        *(
            "fine-grained-activation-offloading",
            "offload-modules",
            "cuda-graph-impl",
            "cuda-graph-scope",
            "cuda-graph-modules",
        ),
        "moe-token-dispatcher-type",
    ),
    "moe-router-force-load-balancing": _Key(("model.moe_router_force_load_balancing",), off=None),
    "moe-flex-dispatcher-backend": _Key(("model.moe_flex_dispatcher_backend",), off=None),
    "cpu-offloading-num-layers": _Key(("model.cpu_offloading_num_layers",), off="0"),
    "num-virtual-stages-per-pipeline-rank": _Key(("model.virtual_pipeline_model_parallel_size",)),
    "decoder-first-pipeline-num-layers": _Key(("model.num_layers_in_first_pipeline_stage",)),
    "decoder-last-pipeline-num-layers": _Key(("model.num_layers_in_last_pipeline_stage",)),
    **_same("dist", "use-tp-pp-dp-mapping"),
    **_same("ddp", "overlap-grad-reduce", "overlap-param-gather"),
    "data-parallel-sharding-strategy": _Key(("ddp.data_parallel_sharding_strategy",), off="no_shard"),
    "num-distributed-optimizer-instances": _Key(("ddp.num_distributed_optimizer_instances",), off="1"),
    "use-distributed-optimizer": _Key(("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")),
    "use-megatron-fsdp": _Key(("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")),
    **_same("optimizer", "use-precision-aware-optimizer", "optimizer-cpu-offload"),
    **_same("comm_overlap", "tp-comm-overlap", "overlap-moe-expert-parallel-comm"),
    **_same(_PRECISION, "bf16", "fp16", "fp8-param-gather"),
    "fp8-recipe": _Key((f"{_PRECISION}.fp8_recipe",), off=None),
    "fp4-recipe": _Key((f"{_PRECISION}.fp4_recipe",), off=None),
    "fp8-format": _Key((f"{_PRECISION}.fp8",)),
    "fp4-format": _Key((f"{_PRECISION}.fp4",)),
    "accumulate-allreduce-grads-in-fp32": _Key((f"{_PRECISION}.grad_reduce_in_fp32",)),
}
"""Options of plans and their keys. `optimizer.exp_avg_dtype` and its like are torch dtypes, which no word on
a command line can be."""
_MODEL_KEYS: Final[dict[str, _Key]] = {
    **_same(
        "model",
        *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels"),
        *("normalization", "position-embedding-type", "max-position-embeddings", "vocab-size", "add-qkv-bias"),
        *("qk-layernorm", "multi-latent-attention", "q-lora-rank", "kv-lora-rank", "qk-head-dim"),
        *("qk-pos-emb-head-dim", "v-head-dim", "hidden-dropout", "attention-dropout", "mtp-num-layers"),
        *("moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-shared-expert-gate"),
        *("moe-router-enable-expert-bias", "moe-router-num-groups", "moe-router-group-topk", "moe-layer-freq"),
        *("moe-grouped-gemm",),
    ),
    "swiglu": _Key(("model.gated_linear_unit",)),
    "num-experts": _Key(("model.num_moe_experts",)),
    "disable-bias-linear": _Key(("model.add_bias_linear",), inverted=True),
    "untie-embeddings-and-output-weights": _Key(("model.share_embeddings_and_output_weights",), inverted=True),
}
_KEYS: Final = _PLAN_KEYS | _MODEL_KEYS
_OTHER_KEYS: Final = {
    "dataset.sequence_length": "seq-length",
    "model.activation_func": "activation-func",
    "model.cpu_offloading": "cpu-offloading",
}
"""Keys of older versions, and keys that are read in another way."""
_OPTION_OF: Final = {key: option for option, keys in _KEYS.items() for key in keys.names} | _OTHER_KEYS
_DERIVED: Final = ("grad-reduce-in-bf16", "group-query-attention", "squared-relu")
"""Options that others say in Bridge."""
_STATE_DTYPES: Final = ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")

_RECIPES: Final[dict[str, dict[str, str]]] = {
    "bf16_mixed": {"bf16": "true", "accumulate-allreduce-grads-in-fp32": "true"},
    "fp16_mixed": {"fp16": "true"},
    "bf16_with_fp8_delayed_scaling_mixed": {
        "fp8-format": "hybrid",
        "fp8-recipe": "delayed",
        "fp8-param-gather": "true",
    },
    "bf16_with_fp8_current_scaling_mixed": {
        "fp8-format": "hybrid",
        "fp8-recipe": "tensorwise",
        "fp8-param-gather": "true",
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {"fp8-format": "hybrid", "fp8-recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8", "fp8-param-gather": "true"},
    "bf16_with_nvfp4_mixed": {"fp4-format": "e2m1"},
}
"""Recipes of training/mixed_precision.py, as options."""
_OFF: Final = ("null", "none", "None", "false", "False", "~")
_OVERRIDE: Final = re.compile(r"\+{0,2}([a-z_]+(?:\.[A-Za-z_]\w*)+|mixed_precision)=(.*)", re.DOTALL)
_LIST: Final = re.compile(r"[\[(](.*)[\])]", re.DOTALL)


def _lack(rule: Rule, setting: Setting) -> str | None:
    """Returns why Bridge has no key for an option that is on; dtypes other than fp32 are such."""
    if (reason := rule.lack(setting)) is not None:
        return reason
    options = rule.write(setting)
    for name, value in options.items():
        usual = name in _STATE_DTYPES and value == "fp32"
        if value and name not in _KEYS and name not in _DERIVED and not usual:
            return f"Megatron-Bridge's overrides cannot say {name.replace('-', '_')}"
    return None


def _read_dtypes(reading: Reading, rule: Rule) -> dict[str, PlanValue]:
    """Returns the dtypes that Megatron's rule reads, and that gradients are in fp32 where the file says so.

    That is Megatron-LM's default and not that of Bridge's performance recipes, which reduce in bf16.
    """
    plan = rule.read(reading)
    if "grad_dtype" not in plan and reading.has("accumulate-allreduce-grads-in-fp32", "fp16"):
        plan["grad_dtype"] = "fp32"
    return plan


def _of_bridge(rule: Rule) -> Rule:
    """Returns a rule of Megatron-LM as Bridge has it."""
    if rule.fields == ("stack",):
        return stack_rule("megatron-bridge", {"megatron-bridge": "Megatron-Bridge"})
    own = replace(rule, lack=lambda setting: _lack(rule, setting))
    if "grad_dtype" not in rule.fields:
        return own
    return replace(own, read=lambda reading: _read_dtypes(reading, rule))


MEGATRON_BRIDGE: Final = LaunchFormat(
    name="megatron-bridge",
    title="Megatron-Bridge",
    stacks=("megatron-bridge",),
    reads_as="megatron-bridge",
    rules=tuple(map(_of_bridge, MEGATRON_LM.rules)),
    fixed=MEGATRON_LM.fixed,
)
"""Overrides of Megatron-Bridge, on top of a recipe."""


def job_from_bridge(reading: Reading) -> LaunchedJob:
    """Returns the model and plan of overrides, which `bridge_arguments` spells as options of Megatron."""
    return job_of_options(reading, MEGATRON_BRIDGE)


def overrides(options: Options) -> list[str]:
    """Returns options of Megatron as words of Bridge."""
    words = [
        f"{name}={_KEYS[option].off if value is None else _text(_key_value(option, value))}"
        for option, value in options.items()
        if option in _KEYS and (value is not None or _KEYS[option].off is not None)
        for name in _KEYS[option].names
    ]
    if "swiglu" in options:
        name = "silu" if options["swiglu"] else "squared_relu" if options.get("squared-relu") else "gelu"
        words.append(f"model.activation_func={name}")
    if options.get("cpu-offloading-num-layers"):
        words.append("model.cpu_offloading=true")
    return words


def _key_value(option: str, value: OptionValue) -> OptionValue:
    """Returns the value that the keys of an option have; a pattern of layers is written out."""
    if _KEYS[option].inverted:
        return not value
    if option == "moe-layer-freq" and isinstance(value, str):
        runs = re.findall(r"\[([01])\]\*([0-9]+)", value)
        return tuple(flag for flag, count in runs for _ in range(int(count)))
    return value


def _text(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{','.join(value)}]"
    text = str(value)
    # Hydra's grammar of overrides quotes what is not a plain word.
    return text if re.fullmatch(r"[\w.+-]+", text) else f'"{text}"'


def is_bridge(script: Script) -> bool:
    """Returns whether the words of a script are overrides."""
    words = (word for words in commands(script) for word in words)
    keys = (match[1] for word in words if (match := _OVERRIDE.fullmatch(word.text)))
    return any(key in _OPTION_OF or key == _PRECISION for key in keys)


def bridge_arguments(script: Script) -> Arguments:
    """Returns the overrides of a script as options of Megatron, each spelled as it is there."""
    options: dict[str, Argument] = {}
    off: set[str] = set()
    for key, value, line in _given(script):
        if key == _PRECISION:
            options |= _recipe(value, f"{script.path}:{line}", line)
            continue
        option = _OPTION_OF.get(key, key)
        argument = _argument(option, key, value, line)
        options.pop(option, None)
        if argument is None:
            off.add(option)
        else:
            options[option] = argument
    notes = list(script.diagnostics)
    if not {"bf16", "fp16"} & {*options, *off}:
        options["bf16"] = Argument((), 0, _PRECISION)  # the dtype of gradients is left to the stack
        notes.append(Diagnostic("note", "guessed", f"{_PRECISION} is not given: taken as bf16", script.path))
    _derive(options, off)
    dashed = script_arguments(script).options if any(True for _ in _dashed(script)) else {}
    return Arguments(
        script.path,
        dashed | options,
        tuple(notes),
        spellings={option: keys.names[0] for option, keys in _KEYS.items()},
        decided=frozenset((*dashed, *options, *off)),
    )


def _dashed(script: Script) -> Iterator[Word]:
    return (word for words in commands(script) for word in words if word.text.startswith("--"))


def _given(script: Script) -> Iterator[tuple[str, str, int]]:
    """Yields the keys and values of all overrides with their lines."""
    recipe = script.variables.get(_PRECISION)  # alone on its line it reads as an assignment
    if recipe:
        yield _PRECISION, recipe[0].text, recipe[0].line
    for words in commands(script):
        for word, following in zip_longest(words, words[1:]):
            match = _OVERRIDE.fullmatch(word.text)
            if match:
                # 1 024 is not 1: the number that follows belongs to the value, which is refused for it.
                parted = following is not None and match[2].isdecimal() and is_parted_number(following.text)
                yield match[1], f"{match[2]} {following.text}" if parted else match[2], word.line


def _argument(option: str, key: str, value: str, line: int) -> Argument | None:
    """Returns an override as an argument; None where it turns the option off."""
    value = value.strip().strip("\"'")
    inverted = option in _KEYS and _KEYS[option].inverted
    is_off = value in _OFF
    if inverted:
        return Argument((), line, key) if is_off else None
    if is_off:
        return None
    if value in ("true", "True"):
        return Argument((), line, key)
    listed = _LIST.fullmatch(value)
    if option == "moe-layer-freq" and listed:
        return Argument((f"[{listed[1].replace(' ', '')}]",), line, key)
    values = tuple(part.strip().strip("\"'") for part in listed[1].split(",") if part.strip()) if listed else (value,)
    return Argument(values, line, key)


def _recipe(name: str, where: str, line: int) -> dict[str, Argument]:
    plain = name.strip("\"'").replace("-", "_")
    if plain not in _RECIPES:
        problem = f'{_PRECISION} "{shortened(name)}" is not known'
        raise InputError("unknown-name", problem, where=where, hint=" ".join(_RECIPES))
    words = (_RECIPES["bf16_mixed"] if plain.startswith("bf16") else {}) | _RECIPES[plain]
    return {option: Argument(() if value == "true" else (value,), line, _PRECISION) for option, value in words.items()}


def _derive(options: dict[str, Argument], off: set[str]) -> None:
    """Adds the options that Megatron-LM has and Bridge derives from others."""
    if "num-query-groups" in options:
        options["group-query-attention"] = replace(options["num-query-groups"], values=())
    activation = options.pop("activation-func", None)
    if activation is not None and activation.values[:1] == ("squared_relu",):
        options["squared-relu"] = replace(activation, values=())
    if "accumulate-allreduce-grads-in-fp32" in off and "bf16" in options:
        options["grad-reduce-in-bf16"] = replace(options["bf16"], values=())
