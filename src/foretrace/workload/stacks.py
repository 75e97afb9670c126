"""The software stacks Foretrace knows, by name; docs/stacks.md says what is known of each, and what is guessed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from foretrace.basics.errors import InputError, did_you_mean
from foretrace.workload.plan import RecomputeModule
from foretrace.workload.stack import Stack

_EAGER_LAUNCH_S: Final = 31e-6
"""Host time of an eager launch, modules and autograd included, as `foretrace measure gpu` measured it on two machines
with an H200: 26.0 and 35.9 us over 266 launches forward and 396 backward, of kernels too small to fill the GPU."""
_COMPILED_LAUNCH_S: Final = 12e-6
"""Guessed: between a bare launch (2.5 us in a graph) and an eager one; products are still called one by one."""

_WRAPPED_MODULES: Final[tuple[RecomputeModule, ...]] = ("core_attn", "mlp", "moe", "shared_experts")
"""Parts of a layer that plain PyTorch code wraps in torch.utils.checkpoint."""
_WITHOUT_OUTPUT: Final[tuple[RecomputeModule, ...]] = ("layernorm", "moe_act", "mla_up_proj")
"""Parts whose output is dropped and made again by a hook, as Megatron-core's `CheckpointWithoutOutput`."""


def _without(sources: tuple[str, ...], *topics: str) -> tuple[str, ...]:
    """Returns sources without those of some topics, which are what comes before their colon."""
    return tuple(source for source in sources if source.partition(":")[0] not in topics)


TORCH_EAGER: Final = Stack(
    name="torch-eager",
    title="PyTorch, eager",
    attention="cudnn",
    norm="fused",
    pointwise="eager",
    rope="eager",
    loss="eager",
    master_weights=False,
    parameter_dtype="bf16",
    gradient_dtype="bf16",
    optimizer_state_dtype="bf16",
    fused_gradient_accumulation=False,
    sequence_parallel=False,
    zero=0,
    grad_overlap=True,
    param_overlap=False,
    hides_tp_backward=False,
    launch_s=_EAGER_LAUNCH_S,
    padded_vocab=1,
    pytorch_ring=True,
    weight_first=True,
    recompute_modules=(*_WRAPPED_MODULES, *_WITHOUT_OUTPUT),
    offloads_modules=True,
    early_stop=True,
    router_launches=12,
    separate_expert_operators=True,
    clips_gradients=False,
    zero2_splits="parameters",
    sources=(
        "kernels and their order: Kineto trace of a TinyLlama step (PyTorch 2.11, H200)",
        "early stop: torch.utils.checkpoint, set_checkpoint_early_stop",
        "context parallelism: torch/distributed/tensor/experimental/_attention.py of 2.6 and later",
        "ZeRO-2: FSDP's SHARD_GRAD_OP, or reshard_after_forward=False of fully_shard",
        "launch: foretrace measure gpu on two machines with an H200",
    ),
)

TORCH_COMPILE: Final = replace(
    TORCH_EAGER,
    name="torch-compile",
    title="PyTorch, torch.compile",
    norm="compiled",
    pointwise="compiled",
    rope="compiled",
    loss="compiled",
    launch_s=_COMPILED_LAUNCH_S,
    recompute_modules=_WRAPPED_MODULES,
    offloads_modules=False,
    router_launches=4,
    separate_expert_operators=False,
    sources=(
        "what is kept: torch/_functorch/partitioners.py, ban_recompute_materialized_backward (inputs of products are)",
        "loss: torch/_inductor, scatter upon a constant tensor becomes pointwise",
        "launch: guessed",
    ),
)

MEGATRON_CORE: Final = Stack(
    name="megatron-core",
    title="Megatron-core with Transformer Engine",
    version="0.16",
    attention="cudnn",
    norm="engine",
    pointwise="fused",
    rope="fused",
    loss="fused",
    master_weights=True,
    parameter_dtype="bf16",
    gradient_dtype="fp32",
    optimizer_state_dtype="fp32",
    fused_gradient_accumulation=True,
    sequence_parallel=True,
    zero=1,
    grad_overlap=True,
    param_overlap=True,
    hides_tp_backward=True,
    launch_s=_EAGER_LAUNCH_S,
    padded_vocab=128,
    copies_kv_heads=True,
    copies_value=True,
    fused_bias_gradient=True,
    recompute_modules=(*_WRAPPED_MODULES, *_WITHOUT_OUTPUT),
    offloads_modules=True,
    fuses_norms=True,
    narrows_activation_input=True,
    separate_experts=True,
    router_launches=10,
    preprocess_launches=18,
    permute_launches=5,
    sends_probabilities=True,
    pads_rows=True,
    separate_expert_operators=True,
    precision_aware_optimizer=True,
    keeps_quantized_weights=True,
    keeps_shared_inputs=True,
    sources=(
        "linear layers: megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication",
        "norm with linear: transformer_engine/pytorch/module/layernorm_linear.py",
        "scales: transformer_engine/pytorch/csrc/extensions, optimize_for_gemm of quantizers (2.12)",
        "experts: transformer_engine/pytorch/module/grouped_linear.py (one cuBLAS product per expert)",
        "heads of keys and values: Megatron-core 0.16 and later copy them where tp is a multiple; up to 0.15 refused",
        "loss: transformer_engine/pytorch/triton/cross_entropy.py (gradient in place of the logits)",
        "dispatch: megatron/core/transformer/moe/token_dispatcher.py (operators of `preprocess` counted in its source)",
        "padding: transformer_engine/pytorch/module/fp8_padding.py, called by TEGroupedMLP in moe/experts.py",
        "clamps and biases of experts: megatron/core/transformer/moe/experts.py, `glu` and `_apply_bias`",
        "HybridEP's SMs: `moe_hybridep_num_sms` of transformer_config.py",
        "recompute_modules, offload_modules: megatron/core/transformer/transformer_config.py and transformer_layer.py",
        "SwiGLU's input in 8 bits: megatron/core/fusions/fused_bias_swiglu.py, fp8_input_store",
        "optimizer: megatron/core/optimizer/distrib_optimizer.py and optimizer_config.py (precision-aware)",
        "ZeRO-2: megatron/core/distributed/fsdp, data_parallel_sharding_strategy optim_grads",
        "inputs in 16 bits: megatron/core/transformer/multi_latent_attention.py and moe/shared_experts.py",
        "8-bit weights: transformer_engine/pytorch/module/base.py, get_weight_workspace (is_first_microbatch)",
        "launch: as torch-eager, whose modules and autograd it runs on; a linear layer of Transformer Engine 2.11 takes"
        " about as long as PyTorch's (TransformerEngine issue 2126)",
        "launches of the router: counted in moe/router.py and moe_utils.py with fusion on",
    ),
)

_MEGATRON_2021_KERNELS: Final = (
    "activations and collectives: Korthikanti et al., arXiv:2205.05198, section 4",
    "fused kernels: Megatron-LM v2.5, megatron/fused_kernels and megatron/model/fused_*.py",
    "loss: megatron/mpu/cross_entropy.py",
)
"""Sources of what all jobs with the Megatron-LM of 2021 run, whoever reduces their gradients."""

MEGATRON_2021: Final = replace(
    MEGATRON_CORE,
    name="megatron-2021",
    version="",
    title="Megatron-LM of 2021-22, fp16, no fused attention",
    attention="unfused",
    norm="fused",
    rope="eager",
    loss="vocab_parallel",
    parameter_dtype="fp16",
    sequence_parallel=False,
    zero=0,
    grad_overlap=False,
    param_overlap=False,
    copies_kv_heads=False,
    copies_value=False,
    fused_bias_gradient=False,
    recompute_modules=("core_attn",),
    offloads_modules=False,
    fuses_norms=False,
    narrows_activation_input=False,
    precision_aware_optimizer=False,
    keeps_quantized_weights=False,
    keeps_shared_inputs=False,
    loss_scaling=True,
    sources=(
        *_MEGATRON_2021_KERNELS,
        "gradients in fp32, reduced after the last microbatch: megatron/model/distributed.py",
        "unscaling and clipping: megatron/optimizer/optimizer.py and clip_grads.py",
        "launch: as torch-eager",
    ),
)

DEEPSPEED_2021: Final = replace(
    MEGATRON_2021,
    name="deepspeed-2021",
    title="DeepSpeed's ZeRO-3 of 2021 with Megatron-LM",
    gradient_dtype="fp16",
    fused_gradient_accumulation=False,
    zero=3,
    weight_first=True,
    copies_gathered=True,
    lists_tensors=True,
    zero2_splits="parameters",
    sources=(
        *_MEGATRON_2021_KERNELS,
        "gathering: deepspeed/runtime/zero/partition_parameters.py of 0.3.15, _allgather_param and"
        " _reduce_scatter_gradient; stage3.py, prefetch_next_sub_modules and _synchronize_communication",
        "lists: torch/lib/c10d/ProcessGroupNCCL.cpp of 1.8, which copies every part of a list",
        "settings: DeepSpeedExamples, Megatron-LM-v1.1.5-ZeRO3, ds_zero_stage_3_config.json: no overlap_comm",
        "launch: as torch-eager",
    ),
)

FSDP: Final = replace(
    TORCH_EAGER,
    name="fsdp",
    title="FSDP2 as in torchtitan, eager",
    version="2024-10",
    attention="flash2",
    norm="eager",
    parameter_dtype="fp32",
    gradient_dtype="fp32",
    optimizer_state_dtype="fp32",
    zero=3,
    param_overlap=True,
    rope_style="complex",
    separate_projections=True,
    repeats_kv=True,
    selective="products",
    recompute_modules=(),
    offloads_modules=False,
    clips_gradients=True,
    copies_gathered=True,
    expandable_segments=True,
    sources=(
        "model: torchtitan/models/llama/model.py (apply_rotary_emb, repeat_kv, w1 w2 w3)",
        "norm: torchtitan/models/norms.py, norm_type rmsnorm (not fused_rmsnorm)",
        "recompute: torchtitan/parallelisms/parallelize_llama.py, selective_ac_option 'op'",
        "precision: torchtitan MixedPrecisionPolicy(param bf16, reduce fp32)",
        "copies: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (all_gather_copy_out, chunk_cat)",
        "allocator: torchtitan/run_train.sh sets expandable_segments:True",
        "attention: SDPA picks FlashAttention-2 on Hopper before PyTorch 2.5 and in dense eager code after; guessed",
        "launch: as torch-eager",
    ),
)

FSDP_COMPILE: Final = replace(
    FSDP,
    name="fsdp-compile",
    title="FSDP2 as in torchtitan, each block compiled",
    version="2024-10",
    norm="compiled",
    pointwise="compiled",
    rope="compiled",
    launch_s=_COMPILED_LAUNCH_S,
    router_launches=4,
    separate_expert_operators=False,
    sources=(
        *_without(FSDP.sources, "launch"),
        "loss: not compiled (torchtitan/train.py of 2024: compiling it caused CUDA errors, turned off)",
        "launch: guessed",
    ),
)

FSDP_COMPILE_ROWWISE: Final = replace(
    FSDP_COMPILE,
    name="fsdp-compile-rowwise",
    version="",
    title="FSDP2 as in torchtitan, each block compiled, row-wise fp8 of torchao",
    fp8_scales="rows",
    sources=(
        *FSDP_COMPILE.sources,
        "rows: torchao/float8/config.py, recipe rowwise; float8_linear.py, matmul_with_hp_or_float8_args",
        "gathering in 16 bits: torchtitan/models/llama3/parallelize.py, enable_float8_tensorwise_tp",
        "scaling after cuBLAS: torchao pull request 1325; casts: compiled, timed on an H200",
    ),
)

LLM_FOUNDRY: Final = replace(
    TORCH_EAGER,
    name="llm-foundry",
    title="LLM Foundry (Composer, FSDP1)",
    version="2024",
    attention="flash2",
    packs_sequences=True,
    loss="fused",
    parameter_dtype="fp32",
    gradient_dtype="bf16",
    optimizer_state_dtype="fp32",
    zero=3,
    param_overlap=True,
    recompute_modules=_WRAPPED_MODULES,
    offloads_modules=False,
    clips_gradients=True,
    backward_prefetch=False,
    metrics=2,
    sources=(
        "model: llmfoundry/models/mpt (low_precision_layernorm, Wqkv, nn.GELU)",
        "recompute: whole blocks, activation_checkpointing_reentrant: false",
        "gradients: mixed_precision: PURE reduces in bf16",
        "loss: fused_crossentropy of flash-attention is the default loss_fn of llmfoundry/models/mpt",
        "metrics: use_train_metrics is on by default: two of composer/metrics/nlp.py, each a torch.nn.CrossEntropyLoss",
        "gathering: Composer's default backward_prefetch is BACKWARD_POST",
        "attention: scripts/train/benchmarking/submit_benchmarks.py of 2024, --attn_impl flash with flash-attn 2.4",
        "packing: llmfoundry/models/layers/attention.py, flash_attn_fn: index_first_axis of flash-attn's bert_padding"
        " for each of q, k and v, then pad_input",
        "launch: as torch-eager",
    ),
)

LLM_FOUNDRY_2023: Final = replace(
    LLM_FOUNDRY,
    version="2023",
    early_stop=False,
    attention="triton",
    packs_sequences=False,
    sources=(
        *_without(LLM_FOUNDRY.sources, "attention", "packing", "launch"),
        "attention: submit_benchmarks.py of 2023, --attn_impl triton, as the pretraining yamls: flash_attn_triton.py",
        "recompute: PyTorch 1.13 and 2.0 (images of sweep.sh), before early stop (PyTorch pull request 96866, for 2.1)",
        "launch: as torch-eager",
    ),
)

MEGATRON_CORE_015: Final = replace(
    MEGATRON_CORE,
    version="0.15",
    copies_kv_heads=False,
    swizzles_scales="operands",
    sources=(*MEGATRON_CORE.sources, "Transformer Engine 2.9: operands' scales are rearranged before every product"),
)

MEGATRON_CORE_014: Final = replace(
    MEGATRON_CORE_015,
    version="0.14",
    attention="cudnn_2025",
    sources=(*MEGATRON_CORE_015.sources, "attention: cuDNN up to 9.12, as in containers of mid-2025"),
)

MEGATRON_BRIDGE: Final = replace(
    MEGATRON_CORE,
    name="megatron-bridge",
    title="Megatron-Bridge's performance recipes",
    gradient_dtype="bf16",
    hybridep_sms=32,
    version="26.04",
    sources=(
        *MEGATRON_CORE.sources,
        "gradients, SMs of HybridEP: scripts/performance of NVIDIA-NeMo/Megatron-Bridge (grad_reduce_in_fp32,"
        " moe_hybridep_num_sms)",
        "versions: container 25.11 has Bridge 0.2.0 and Transformer Engine 2.9, 26.02 0.3 and 2.12, 26.04 0.4 and 2.14",
    ),
)

MEGATRON_BRIDGE_2606: Final = replace(
    MEGATRON_BRIDGE,
    version="26.06",
    fuses_experts=True,
    sources=(*MEGATRON_BRIDGE.sources, "experts: release notes of Bridge 0.5.1, CuTeDSL fused grouped GEMM"),
)

FSDP_2025: Final = replace(
    FSDP,
    version="2025-10",
    norm="fused",
    sources=(*_without(FSDP.sources, "norm"), "norm: torch.nn.RMSNorm, one kernel from PyTorch 2.9 on"),
)

FSDP_COMPILE_2025: Final = replace(
    FSDP_COMPILE,
    version="2025-10",
    loss="compiled",
    sources=(
        *_without(FSDP_COMPILE.sources, "loss"),
        "loss: compiled, torchtitan/components/loss.py (`components` of its compile settings)",
    ),
)

VERSIONS: Final[dict[str, tuple[Stack, ...]]] = {
    "megatron-core": (MEGATRON_CORE_014, MEGATRON_CORE_015, MEGATRON_CORE),
    "megatron-bridge": (
        replace(MEGATRON_BRIDGE, version="25.11", copies_kv_heads=False, swizzles_scales="operands"),
        replace(MEGATRON_BRIDGE, version="26.02"),
        MEGATRON_BRIDGE,
        MEGATRON_BRIDGE_2606,
        replace(MEGATRON_BRIDGE_2606, version="26.08"),
    ),
    "llm-foundry": (LLM_FOUNDRY_2023, LLM_FOUNDRY),
    "fsdp": (FSDP, FSDP_2025),
    "fsdp-compile": (FSDP_COMPILE, FSDP_COMPILE_2025),
}
"""The known versions of stacks, oldest first."""

STACKS: Final[dict[str, Stack]] = {
    entry.name: entry
    for entry in (
        MEGATRON_CORE,
        MEGATRON_BRIDGE,
        MEGATRON_2021,
        DEEPSPEED_2021,
        FSDP,
        FSDP_COMPILE,
        FSDP_COMPILE_ROWWISE,
        LLM_FOUNDRY,
        TORCH_EAGER,
        TORCH_COMPILE,
    )
}
"""Stacks by name, each in the version that is taken where none is asked for."""


def stack(name: str, *, where: str | None = None) -> Stack:
    """Returns the stack of a name such as `fsdp` or `megatron-bridge@26.04`, whatever the case and separators.

    If the version is not known, the newest one before it is taken, else the oldest; `nearest_version` says so.

    Raises:
        InputError: The name is not known, or its version is not one; it names `where`.
    """
    plain, at, asked = name.strip().lower().partition("@")
    plain = plain.strip().replace("_", "-").replace(" ", "-")
    entry = STACKS.get(plain)
    if entry is None:
        hint = f"known: {', '.join(STACKS)}; a version follows an @"
        raise InputError(
            "unknown-name", f'stack "{name}" is not known{did_you_mean(plain, STACKS)}', where=where, hint=hint
        )
    if not at:
        return entry
    versions = VERSIONS.get(plain, ())
    if not versions:
        problem = f"versions of {plain} are not told apart"
        raise InputError("bad-value", problem, where=where, hint=f"leave out @{asked.strip()}")
    number = _number_of(asked)
    if number is None or len(number) < len(_number_of(versions[0].version) or ()):
        known = ", ".join(f"@{version.version}" for version in versions)
        raise InputError("bad-value", f'"{asked}" is not a version', where=where, hint=f"known: {known}")
    before = [version for version in versions if (_number_of(version.version) or ()) <= number]
    return before[-1] if before else versions[0]


def nearest_version(name: str) -> str | None:
    """Returns the version that a stack's name asks for, where the one that is taken is another; else None.

    A patch counts as its version: 26.04.01 is 26.04.
    """
    asked = name.lower().partition("@")[2].strip()
    if not asked:
        return None
    known = _number_of(stack(name).version) or ()
    return None if (_number_of(asked) or ())[: len(known)] == known else asked


def _number_of(version: str) -> tuple[int, ...] | None:
    """Returns the parts of a version such as 26.04.01 or 2024-10; None where it is none. 0.16.0 is 0.16."""
    parts = re.fullmatch(r"v?([0-9]{1,4})(?:[.-]([0-9]{1,4}))?(?:[.-]([0-9]{1,4}))?", version.strip(), re.ASCII)
    if parts is None:
        return None
    *numbers, last = (int(part) for part in parts.groups() if part)
    return (*numbers, last) if last or len(numbers) < 2 else tuple(numbers)
