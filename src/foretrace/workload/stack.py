"""Software stacks: which kernels a framework runs, what it fuses, and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from foretrace.workload.plan import RecomputeModule


@dataclass(frozen=True, slots=True)
class HostPace:
    """How fast a host launches kernels.

    Attributes:
        factor: How many times as long as usual a launch takes.
        torch_factor: The same for plain PyTorch, where it differs.
        source: Where that was learned.
    """

    factor: float
    source: str
    torch_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """How a framework turns a transformer into kernels.

    What differs between frameworks is a field here; code asks the field, never the name.
    """

    name: str
    title: str
    attention: Literal["unfused", "flash1", "triton", "flash2", "flash3", "cudnn_2025", "cudnn"]
    """unfused: products, scale-mask-softmax and dropout as kernels of their own; triton: FlashAttention-1 in Triton;
    cudnn_2025: cuDNN up to 9.12."""
    norm: Literal["fused", "engine", "eager", "compiled"]
    """fused: one kernel each way; engine: the same of Transformer Engine or cuDNN, which are faster backward; eager: as
    many as PyTorch's own operators; compiled: fused with its neighbours."""
    pointwise: Literal["fused", "eager", "compiled"]
    """Bias, activation, gate, dropout and residual: fused kernels, one per operator, or as few as compiled."""
    rope: Literal["fused", "eager", "compiled"]
    loss: Literal["fused", "eager", "compiled", "vocab_parallel"]
    """Cross-entropy: eager copies the logits to fp32 and keeps the log-probabilities; vocab_parallel does so in passes
    over its part of the vocabulary (Megatron without fusion); fused works in place on the logits."""
    master_weights: bool
    """Whether an fp32 copy of parameters lives with the optimizer (Megatron); else it works on parameters."""
    parameter_dtype: Literal["fp32", "bf16", "fp16"]
    """In which parameters rest between steps, unless products are in fp32 or tf32: then they rest in fp32."""
    gradient_dtype: Literal["fp32", "bf16", "fp16"]
    """In which gradients are accumulated and reduced."""
    optimizer_state_dtype: Literal["fp32", "bf16", "fp16", "fp8"]
    """The dtype of each of the two moments. Scales of 8-bit moments, one for each tensor, are left out."""
    fused_gradient_accumulation: bool
    """Whether weight-gradient products add into the accumulated gradient themselves."""
    sequence_parallel: bool
    """Whether tp > 1 means sequence parallelism unless the plan says otherwise."""
    zero: Literal[0, 1, 2, 3]
    grad_overlap: bool
    param_overlap: bool
    hides_tp_backward: bool
    """Whether the input gradient's tp collective runs beside the weight gradient."""
    launch_s: float
    """Host time for one kernel launch, framework included."""
    padded_vocab: int
    """The vocabulary is padded to a multiple of this times tp (1: not at all)."""
    rope_style: Literal["halves", "complex"] = "halves"
    """Eager rotation: of two halves in the model's dtype, or of complex numbers in fp32 (torchtitan)."""
    separate_projections: bool = False
    """Whether queries, keys and values (and gate and up) are products of their own."""
    repeats_kv: bool = False
    """Whether keys and values are copied to every query head before attention."""
    copies_kv_heads: bool = False
    """Whether ranks of tp hold copies of a head of keys and values where there are fewer of them than ranks."""
    copies_value: bool = False
    """Whether values are copied out of the joint projection before attention, so that it can be freed."""
    packs_sequences: bool = False
    """Whether queries, keys and values are always copied out of padded sequences before attention, and the output
    back."""
    pytorch_ring: bool = False
    """Whether context parallelism is PyTorch's ring attention, by all-gather or around the ring."""
    weight_first: bool = False
    """Whether a linear layer's weight gradient runs before its input gradient (PyTorch's own `mm` backward)."""
    fused_bias_gradient: bool = False
    """Whether bias gradients come out of a product's epilogue; else they are sums over rows."""
    selective: Literal["core", "products"] = "core"
    """What `selective` recompute runs again: core attention, or all but attention and every second product."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """The parts of a layer that a plan may name for `selective` recompute."""
    offloads_modules: bool = False
    """Whether a plan may name parts of a layer whose inputs go to the host."""
    fuses_norms: bool = False
    """Whether a norm is part of the linear layer behind it, where there is one and no router."""
    narrows_activation_input: bool = False
    """Whether the input of SwiGLU can be kept in 8 bits."""
    early_stop: bool = False
    """Whether recompute stops at the last tensor that the backward needs (non-reentrant checkpoints)."""
    separate_experts: bool = False
    """Whether each expert's product, and the quantization of its rows, is a launch of its own, in a loop in C++."""
    fuses_experts: bool = False
    """Block-scaled products of experts: whether all are one kernel, which also adds biases, activates and quantizes its
    result (CuTe-DSL), and needs no number of rows from the host."""
    fp8_scales: Literal["tensor", "rows"] = "tensor"
    """`fp8`: whether operands have one scale, or one for each row."""
    swizzles_scales: Literal["operands", "weights"] = "weights"
    """The operands whose block scales a separate kernel reorders for the tensor cores. From Transformer Engine 2.12 on,
    quantization writes those of activations and gradients in that order."""
    router_launches: int = 8
    """Kernels of a router after its product: scores, top-k, masks, counts, the balance loss."""
    preprocess_launches: int = 2
    """Operators that count the tokens of experts and ranks before an all-to-all, and copy the counts to the host."""
    permute_launches: int = 2
    """Kernels that sort tokens by expert before an all-to-all, those that find their places included."""
    sends_probabilities: bool = False
    """Whether the router's probabilities travel in an all-to-all of their own, next to the tokens'."""
    pads_rows: bool = False
    """8-bit recipes behind NCCL's all-to-all: whether experts' rows are copied into padded ones, and back."""
    separate_expert_operators: bool = False
    """Whether clamps before a gated activation, and biases of experts behind it, are operators of their own."""
    hybridep_sms: int = 16
    """SMs that HybridEP holds."""
    clips_gradients: bool = True
    """Whether the norm of all gradients is taken before the update, for which the host waits."""
    backward_prefetch: bool = True
    """ZeRO-3: whether a layer's parameters are gathered again before the gradients of the layer behind it are reduced
    (FSDP's BACKWARD_PRE); else after, so that the backward waits for both."""
    copies_gathered: bool = False
    """ZeRO-3: whether gathered parameters are copied out of one buffer, and gradients into one (FSDP2, DeepSpeed)."""
    lists_tensors: bool = False
    """ZeRO-3: whether every tensor is gathered, and its gradient reduced, by a collective of its own over a list of
    ranks' parts, for which the host waits (DeepSpeed of 2021)."""
    metrics: int = 0
    """How many training metrics compute the cross-entropy again, from a copy in fp32, after every backward."""
    loss_scaling: bool = False
    """Whether gradients are divided by a loss scale and checked for overflow before the update (fp16)."""
    master_dtype: Literal["fp32", "fp16"] = "fp32"
    """The dtype of the optimizer's copy of parameters, where it has one."""
    precision_aware_optimizer: bool = False
    """Whether a plan may choose the dtypes of moments and of the copy of parameters, as Transformer Engine's FusedAdam
    lets it."""
    zero2_splits: Literal["gradients", "parameters"] = "gradients"
    """Under ZeRO-2 ranks hold whole parameters and their part of gradients (Megatron-FSDP's `optim_grads`); or they
    hold a part of parameters too, and whole ones from a unit's forward to its backward (FSDP's SHARD_GRAD_OP)."""
    keeps_shared_inputs: bool = False
    """8-bit recipes: whether a product keeps an input in 16 bits that another module keeps anyway, and quantizes it
    again, instead of keeping a quantized copy (Megatron-core's `set_save_original_input`)."""
    keeps_quantized_weights: bool = False
    """Whether quantized weights are kept over the microbatches of a step, in both directions of products."""
    expandable_segments: bool = False
    """Whether its launcher lets the segments of PyTorch's allocator grow."""
    launch_factor: float = 1.0
    """How many times its usual time `launch_s` is, on the host that `on_host` gave."""
    launch_source: str = ""
    """Whose the time of a launch is; "": this stack's."""
    version: str = ""
    """The release that these facts are of, where several are known: a container, a release or a month."""
    sources: tuple[str, ...] = ()
    """Where these facts come from; what is guessed is said so."""

    @property
    def label(self) -> str:
        """The name with the version, as a plan gives it."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def runs_cudnn(self) -> bool:
        """Whether attention is cuDNN's, of any version."""
        return self.attention in ("cudnn", "cudnn_2025")

    @property
    def runs_transformer_engine(self) -> bool:
        """Whether products are Transformer Engine's: PyTorch's own do not add to accumulated gradients."""
        return self.fused_gradient_accumulation and self.runs_cudnn

    def on_host(self, pace: HostPace) -> Stack:
        """Returns the stack on a host that launches kernels at another pace."""
        torch_factor = pace.factor if pace.torch_factor is None else pace.torch_factor
        factor = pace.factor if self.runs_transformer_engine else torch_factor
        usual_s = self.launch_s / self.launch_factor
        return replace(self, launch_s=usual_s * factor, launch_factor=factor, launch_source=pace.source)

    def splits_parameters(self, zero: int) -> bool:
        """Returns whether data-parallel ranks hold only a part of parameters between steps, at a ZeRO stage."""
        return zero == 3 or (zero == 2 and self.zero2_splits == "parameters")
