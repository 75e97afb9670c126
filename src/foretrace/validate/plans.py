"""Reads the plan of a measured run from the words of a table. docs/accuracy.md lists the rules."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypedDict, get_args

from foretrace.basics.errors import InputError
from foretrace.validate.training_runs import RunConfig
from foretrace.workload.plan import CpComm, CudaGraphs, Dispatcher, Plan, Precision, Recompute, RecomputeModule

FAMILY_STACKS: Final = {
    "korthikanti": "megatron-2021",
    "sc21": "megatron-2021",
    "mt-nlg": "megatron-2021",
    "llm-foundry": "llm-foundry@2023",
    "megatron-bridge": "megatron-bridge",
    "nemo": "megatron-core",
    "megascale": "megatron-core",
}
"""Which software the runs of a source used."""

_BEFORE_SEQUENCE_PARALLELISM: Final = ("sc21", "mt-nlg")
"""Runs of 2021, a year before Megatron could split norms and dropout over tp (arXiv:2205.05198)."""

_MEGATRON_RECIPES: Final = ("megatron-bridge", "nemo")
"""NVIDIA's performance recipes: `tp_comm_overlap` is on wherever tp and sequence parallelism are."""

_GRAPHS_EVERYTHING: Final = (26, 6)
"""The first container whose recipes run whole steps as CUDA graphs."""

_RELEASE: Final = re.compile(r"\b(?:container|NeMo) ([0-9]{1,4}(?:\.[0-9]{1,4}){0,2})")

_PRECISIONS: Final[tuple[tuple[str, Precision], ...]] = (
    (r"nvfp4|fp4", "nvfp4"),
    (r"mx|fine-grained|block|sub-?channel", "mxfp8"),
    (r"fp8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32", "fp32"),
)


class _Recompute(TypedDict, total=False):
    """The fields of a plan that say what is recomputed."""

    recompute: Recompute
    recompute_layers: int | None
    recompute_modules: tuple[RecomputeModule, ...] | None


def release_of(config: RunConfig) -> tuple[int, ...] | None:
    """Returns the release of the software that the notes of a run state: (26, 4, 1) of `container 26.04.01`."""
    release = _RELEASE.search(config.notes)
    return None if release is None else tuple(int(part) for part in release[1].split("."))


def plan_of(config: RunConfig, architecture: str) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a run on GPUs of an architecture, with what was assumed about it."""
    if config.mbs is None:
        raise InputError(
            "missing-field", "the microbatch size is not said", where=config.where, hint="fill in the column mbs"
        )
    precision, about_precision = _precision(config, architecture)
    zero, about_zero = _zero(config)
    recompute, about_recompute = _recompute(config)
    stack, about_stack = _stack(config, zero)
    words = f"{config.overlap}; {config.notes}".lower()
    dtypes, about_dtypes = _dtypes(config, precision, zero)
    recent = _graphs_everything(config, precision, words)
    recent_overlap = recent and (config.pp == 1 or config.vpp > 1)
    offloaded = re.search(r"cpu_offload_layers=(\d+)", words)
    layout = re.search(r"pp_layout=['\"]?([^;'\"]+)", f"{config.overlap}; {config.notes}")
    # Megatron-LM overlaps nothing of data parallelism unless told to; NVIDIA's recipes tell it.
    no_overlap = "no dp overlap" in words or config.family.lower().startswith("simumax")
    plan = Plan(
        gpus=config.gpus,
        mbs=config.mbs,
        gbs=config.gbs,
        seq_len=config.seq_len,
        tp=config.tp,
        sequence_parallel=_sequence_parallel(config),
        cp=config.cp,
        cp_comm=_cp_comm(config),
        pp=config.pp,
        vpp=config.vpp,
        layout=layout[1].strip() if layout is not None and layout[1].strip().lower() != "none" else None,
        ep=config.ep,
        etp=int(expert_tp[1]) if (expert_tp := re.search(r"expert_tensor_parallel_size=(\d+)", words)) else 1,
        zero=zero,
        **recompute,
        precision=precision,
        **dtypes,
        grad_overlap=False if no_overlap else None,
        param_overlap=False if no_overlap else None,
        tp_overlap=_tp_overlap(config, words),
        moe_overlap="moe_a2a_overlap=true" in words or recent_overlap,
        cuda_graphs="full" if recent or _drops_in_graphs(config) else _cuda_graphs(words),
        offload_layers=int(offloaded[1]) if offloaded else config.offload_layers,
        stack=stack,
        dispatcher="hybridep" if recent else _dispatcher(config, words),
        routing=1.0,  # published benchmarks force balance, as NVIDIA's recipes do: moe_router_force_load_balancing
    )
    set_by_recipe = ["graphs of the whole step", "HybridEP", *["overlapped all-to-alls"] * recent_overlap]
    about_recent = (f"{', '.join(set_by_recipe)}: as its recipes set",) if recent else ()
    # torch.compile's _micro_pipeline_tp (torchtitan: enable_async_tensor_parallel)
    about_overlap = ("asynchronous tensor parallelism is not modelled: left out",) if "async tp" in words else ()
    return plan, (
        *about_precision,
        *about_zero,
        *about_recompute,
        *about_stack,
        *about_dtypes,
        *about_recent,
        *about_overlap,
    )


def _dtypes(config: RunConfig, precision: Precision, zero: int | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the dtypes of gradients, moments and parameters: those of the row, or of NVIDIA's performance recipes.

    NVIDIA-NeMo/Megatron-Bridge, scripts/performance: `set_*_common_configs` of Llama 3, Llama 3.1, DeepSeek-V3, Qwen3
    and GPT-OSS reduce gradients in bf16; `set_post_overrides` makes the optimizer precision-aware in bf16 runs, and the
    recipe of DeepSeek-V3 in all, with moments in bf16; `_set_megatron_fsdp_overrides` makes it not so under FSDP.
    `bf16_with_mxfp8_mixed` and `bf16_with_fp8_current_scaling_mixed` gather parameters in 8 bits.
    """
    given = {name: getattr(config, name) for name in ("grad_dtype", "master_dtype", "moment_dtype")}
    if any(given.values()):
        return given, ()
    family = config.family.lower()
    if family == "nemo" and config.model.lower().startswith(("gpt3", "nemotron-340b")) and precision == "fp8":
        # grad_sync_dtype of gpt3/*_fp8_performance.yaml and nemotron/nemotron_340b.yaml, NVIDIA/NeMo-Framework-Launcher
        return {"grad_dtype": "bf16"}, ("gradients in bf16: as the launcher of NeMo sets",)
    if family != "megatron-bridge":
        return {}, ()
    dtypes: dict[str, Any] = {"grad_dtype": "bf16"}
    if zero != 3:
        if config.model.lower().startswith("deepseek"):
            dtypes["moment_dtype"] = "bf16"
        elif precision == "bf16":
            dtypes["moment_dtype"] = "fp32"
    if precision in ("fp8", "mxfp8"):
        dtypes["fp8_params"] = True
    words = ["gradients in bf16"]
    words += [f"moments of a precision-aware optimizer in {dtype}" for dtype in [dtypes.get("moment_dtype")] if dtype]
    words += ["parameters in 8 bits"] * ("fp8_params" in dtypes)
    return dtypes, (f"{', '.join(words)}: as the recipes of Megatron-Bridge set",)


def _graphs_everything(config: RunConfig, precision: Precision, words: str) -> bool:
    """Returns whether a row that does not say so runs whole steps as CUDA graphs, with HybridEP and overlap.

    Recipes of mixtures in mxfp8 since Megatron-Bridge 0.5 (container 26.06): `cuda_graph_impl="full_iteration"`,
    `moe_a2a_overlap`, `cutedsl_fused_grouped_mlp` (scripts/performance/configs, release notes of 0.5.1).
    """
    release = release_of(config)
    recent = release is not None and config.family.lower() == "megatron-bridge" and release >= _GRAPHS_EVERYTHING
    return recent and bool(config.experts) and precision == "mxfp8" and "cuda_graph" not in words


def _drops_in_graphs(config: RunConfig) -> bool:
    """Returns whether a row drops tokens, so that all shapes are known, and runs in CUDA graphs.

    Recipes of container 25.09 set `cuda_graphs: true` for GB200 and false for B200 and H100.
    """
    return "tokendrop" in config.model.lower() and config.gpu.upper().startswith("GB200")


def _dispatcher(config: RunConfig, words: str) -> Dispatcher:
    """Returns the dispatcher in effect.

    A backend counts only where the type is `flex`. The performance recipes of Qwen3 for H100 and B200 set `alltoall`
    and leave the "deepep" of the base recipe in the other field (NVIDIA-NeMo/Megatron-Bridge, scripts/performance).
    """
    backend = re.search(r"dispatcher_backend=(deepep|hybridep)", words)
    if backend is None:
        return "alltoall"
    if backend[1] == "deepep":
        return "alltoall" if config.model.lower().startswith("qwen3") else "deepep"
    return "hybridep"


def _precision(config: RunConfig, architecture: str) -> tuple[Precision, tuple[str, ...]]:
    text = config.dtype.lower()
    named = next((precision for words, precision in _PRECISIONS if re.search(words, text)), None)
    if named is None:
        return "bf16", (f'dtype "{config.dtype}" is taken as bf16',)
    if named == "mxfp8" and not architecture.startswith("Blackwell"):
        return "fp8_block", ()
    return named, ()


def _zero(config: RunConfig) -> tuple[Literal[0, 1, 2, 3] | None, tuple[str, ...]]:
    text = config.sharding.lower()
    if not text:
        return None, ()
    if "hsdp" in text or "hybrid" in text:
        return 3, (f'"{config.sharding}": sharded over all data-parallel ranks, for how many do is not said',)
    if "fsdp" in text or re.search(r"zero-?3", text):
        return 3, ()
    if re.search(r"zero-?2", text):
        return 2, ()
    if "dist" in text or re.search(r"zero-?1", text):
        return 1, ()
    if text in ("none", "no", "ddp", "zero-0"):
        return 0, ()
    return None, (f'sharding "{config.sharding}" is not understood: the stack\'s own is taken',)


def _recompute(config: RunConfig) -> tuple[_Recompute, tuple[str, ...]]:
    """Returns what is recomputed: `full`, `full 5 layers`, `selective`, `selective:layernorm+moe_act` or `none`.

    Other words behind `selective` stand for the choice of the software.
    """
    text = config.recompute.lower()
    if not text:
        return {"recompute": "none"}, ("whether it recomputes is not said: taken as not",)
    if text.startswith("full"):
        count = re.search(r"(?<![0-9])([0-9]{1,6}) layers?", text)
        return {"recompute": "full", "recompute_layers": int(count[1]) if count else None}, ()
    if text.startswith("selective"):
        listed = re.findall(r"\w+", text.partition(":")[2])
        modules = tuple(module for module in get_args(RecomputeModule) if module in listed)
        unknown = [word for word in listed if word not in modules]
        about = (f"recomputing {', '.join(unknown)} is not modelled: left out",) if unknown else ()
        if unknown and not modules:
            return {"recompute": "none"}, about
        return {"recompute": "selective", "recompute_modules": modules or None}, about
    if text.startswith(("none", "no")):
        return {"recompute": "none"}, ()
    return {"recompute": "none"}, (f'recompute "{config.recompute}" is not understood: taken as none',)


def _stack(config: RunConfig, zero: int | None) -> tuple[str, tuple[str, ...]]:
    if config.style:
        return "torch-compile" if config.compiled else "torch-eager", ()
    family = config.family.lower()
    if family == "sc21" and zero == 3:
        return "deepspeed-2021", ()
    if family in FAMILY_STACKS:
        release = release_of(config) if family == "megatron-bridge" else None
        version = "@" + ".".join(f"{part:02}" for part in release) if release else ""
        return FAMILY_STACKS[family] + version, ()
    if family.startswith("simumax"):  # whose own kernels of the B200 are those of cuDNN of 2025
        return "megatron-core@0.14", ()
    if family.startswith("torchtitan") and "row" in config.dtype.lower():
        return "fsdp-compile-rowwise", ()
    if family.startswith("torchtitan"):
        return ("fsdp-compile" if "compile" in config.notes.lower() else "fsdp"), ()
    if "fsdp" in config.sharding.lower() and zero == 3 and "megatron" not in config.notes.lower():
        compiled = "compile" in config.notes.lower()
        name = "fsdp-compile" if compiled else "fsdp"
    else:
        name = "megatron-core"
    return name, (f'which software ran family "{config.family}" is not known: taken as {name}',)


def _sequence_parallel(config: RunConfig) -> bool | None:
    if config.tp == 1:
        return None
    early = config.family.lower() in _BEFORE_SEQUENCE_PARALLELISM
    return False if early and config.sequence_parallel is None else config.sequence_parallel


def _cp_comm(config: RunConfig) -> CpComm:
    # torchtitan's context_parallel_rotate_method is allgather by default; Megatron passes keys and values on.
    return "all_gather" if config.family.lower().startswith("torchtitan") else "p2p"


def _tp_overlap(config: RunConfig, words: str) -> bool:
    if "tp-comm-overlap off" in words or config.family.lower() not in _MEGATRON_RECIPES:
        return False
    # Megatron-Bridge's recipes of these set tp_comm_overlap to False (scripts/performance).
    if config.family.lower() == "megatron-bridge" and config.model.lower().startswith(("qwen3", "deepseek")):
        return False
    return config.tp > 1 and config.sequence_parallel is not False


def _cuda_graphs(words: str) -> CudaGraphs:
    if "cuda_graph_impl=none" in words or "cuda_graph" not in words:
        return "none"
    if "full_iteration" in words:
        return "full"
    return "router" if "moe_router" in words and "attn" not in words else "partial"
