"""Defines `Plan`: how a model is trained on a number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.workload.routing import layer_routing

CpComm = Literal["p2p", "all_gather", "a2a"]
Recompute = Literal["none", "selective", "full"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4"]
CudaGraphs = Literal["none", "router", "partial", "full"]
Dispatcher = Literal["alltoall", "hierarchical", "deepep", "hybridep", "low_latency"]
GradDtype = Literal["fp32", "bf16"]
MasterDtype = Literal["fp32", "fp16"]
MomentDtype = Literal["fp32", "bf16", "fp16", "fp8"]
RecomputeModule = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
"""Parts of a layer that Megatron-core's `recompute_modules` names."""
OffloadModule = Literal["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"]
"""Parts of a layer whose inputs Megatron-core's `offload_modules` names."""
Counted = Literal["embedding", "loss"]
"""Ends of the model that may count as a layer each."""

FULL_PRECISIONS: Final = ("fp32", "tf32")
"""Precisions of products whose operands rest in 4 bytes."""
NARROW_PRECISIONS: Final = ("fp8", "fp8_block", "mxfp8", "nvfp4")
"""Precisions of products whose operands are quantized from 16 bits."""

WORDS: Final = {
    "cp_comm": get_args(CpComm),
    "recompute": get_args(Recompute),
    "precision": get_args(Precision),
    "cuda_graphs": get_args(CudaGraphs),
    "dispatcher": get_args(Dispatcher),
}
"""The fields of a plan that are one of a few words, and which."""

OPEN_WORDS: Final = {
    "grad_dtype": get_args(GradDtype),
    "master_dtype": get_args(MasterDtype),
    "moment_dtype": get_args(MomentDtype),
}
"""The same for fields that may be None."""

WORD_LISTS: Final = {
    "recompute_modules": get_args(RecomputeModule),
    "offload_modules": get_args(OffloadModule),
    "account_for": get_args(Counted),
}
"""The fields of a plan that are several of a few words, and which."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a user decides about a run, apart from the model and the cluster.

    Sizes are of axes (`dp` follows from the GPUs). A field that is None is chosen by the rule in its comment, and
    reported.
    """

    gpus: int
    mbs: int = 1
    """Sequences of one microbatch on one rank."""
    gbs: int | None = None
    """Sequences of one step; None: one microbatch for every rank and stage."""
    seq_len: int | None = None
    """Tokens of a sequence; None: the model's own."""
    tp: int = 1
    sequence_parallel: bool | None = None
    """Whether norms and dropout are split over tp too; None: where tp > 1 and the stack does so."""
    cp: int = 1
    cp_comm: CpComm = "p2p"
    pp: int = 1
    vpp: int = 1
    """Model chunks of each stage."""
    stage_layers: tuple[int, ...] | None = None
    """Layers of every chunk, in the model's order; None: as `layout`, or the fields below it, or the rule say."""
    layout: str | None = None
    """Megatron-core's `pipeline_model_parallel_layout`: what each chunk holds, such as `Et*4|(t*4|)*14tmL`."""
    account_for: tuple[Counted, ...] | None = None
    """The ends that count as a layer each where layers are divided; None: both where layers then divide evenly."""
    first_stage_layers: int | None = None
    """Layers of the first stage, over all its chunks; None: as many as the others."""
    last_stage_layers: int | None = None
    schedule: str | None = None
    """None: 1f1b, or interleaved where vpp > 1."""
    ep: int = 1
    etp: int = 1
    rank_order: str = DEFAULT_ORDER
    """The axes in the order in which they number the ranks, fastest first, as Megatron-core's `order`."""
    zero: Literal[0, 1, 2, 3] | None = None
    """What data-parallel ranks split: 1 optimizer state, 2 gradients too, 3 parameters too (FSDP); None: stack's."""
    shard: int | None = None
    """Ranks that split under ZeRO-3 (HSDP: the rest replicate); None: all of dp·cp."""
    reshard: bool = True
    """ZeRO-3: whether parameters are dropped after the forward and gathered again for the backward."""
    prefetch: int = 1
    """ZeRO-3: how many layers ahead parameters are gathered."""
    recompute: Recompute = "none"
    """selective: the stack's own choice (Megatron: core attention; torchtitan: every second matrix product)."""
    recompute_layers: int | None = None
    """full: of how many layers of each stage; None: all."""
    recompute_modules: tuple[RecomputeModule, ...] | None = None
    """selective: the parts of a layer that are recomputed; None: the stack's own choice."""
    precision: Precision = "bf16"
    """Of the operands of linear layers."""
    grad_dtype: GradDtype | None = None
    """The dtype in which gradients are accumulated and reduced; None: the stack's."""
    master_dtype: MasterDtype | None = None
    """The dtype of the optimizer's own copy of parameters; None: fp32 where the stack has one."""
    moment_dtype: MomentDtype | None = None
    """The dtype of the optimizer's two moments; None: the stack's."""
    fp8_params: bool = False
    """Whether parameters are held and gathered in 8 bits (Megatron-core's `fp8_param_gather`)."""
    fp8_activation_input: bool = False
    """Whether an MLP keeps the input of its activation in 8 bits (`activation_func_fp8_input_store`)."""
    grad_overlap: bool | None = None
    """Whether gradients are reduced under the backward; None: the stack's habit."""
    param_overlap: bool | None = None
    """Whether parameters are gathered under the forward; None: the stack's habit."""
    tp_overlap: bool = False
    """Whether tp collectives run beside the products around them (Transformer Engine's user buffers)."""
    moe_overlap: bool = False
    """Whether all-to-alls of one microbatch run beside another's computation."""
    pp_overlap: bool = False
    """Whether stages of 1F1B and GPipe compute while they send and receive, as all other schedules do."""
    cuda_graphs: CudaGraphs = "none"
    """router: routers with what comes before the dispatch; partial: attention too; full: the whole step. The host
    launches what is left."""
    offload_optimizer: bool = False
    offload_layers: int = 0
    """Layers of each stage whose activations go to the host and back."""
    offload_modules: tuple[OffloadModule, ...] = ()
    """Parts of a layer whose inputs go to the host and back, in every layer."""
    documents: tuple[int, ...] | None = None
    """Packed sequences: the tokens of each document of a sequence, over which attention does not reach."""
    routing: float | tuple[float, ...] | None = None
    """How many times the mean the busiest expert rank receives: in all layers, or in each of the model's; None: as
    `assumed_routing` says."""
    stack: str | None = None
    """The software that runs it; None: megatron-core, or fsdp under ZeRO-3."""
    dispatcher: Dispatcher = "alltoall"
    """How tokens go to experts of other ranks and back: by NCCL's all-to-all, in two steps within and between nodes, by
    DeepEP or HybridEP, or by DeepEP's low-latency kernels."""

    def routing_of(self, layer: int | None = None) -> float | None:
        """Returns the routing that is given for a layer by number, or without a number for the most uneven layer."""
        return layer_routing(self.routing, layer)
