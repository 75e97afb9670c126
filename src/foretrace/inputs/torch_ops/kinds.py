"""Classifies work by its name: a GPU kernel, an op of PyTorch, an autograd node, a user's label."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

from foretrace.inputs.torch_ops.ranges import ENGINE
from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel, parse_kernels


class WorkKind(StrEnum):
    """The words a person sorts device time by."""

    GEMM = "gemm"
    ATTENTION = "attention"
    """The fused kernel, or a label around all of a layer's attention."""
    MLP = "mlp"
    """Only of labels around a whole feed-forward layer: its products and what lies between them."""
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    SOFTMAX = "softmax"
    EMBEDDING = "embedding"
    LOSS = "loss"
    """With the log-softmax that comes before it."""
    MOE_GATE = "moe gate"
    MOE_EXPERT = "moe expert"
    MOE_DISPATCH = "moe dispatch"
    """Tokens put in their experts' order and back, on one GPU; what goes to others is communication."""
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    COPY = "copy"
    MEMSET = "memset"
    CONVOLUTION = "convolution"
    REDUCTION = "reduction"
    INDEXING = "indexing"
    """Gathers, scatters, sorts and scans."""
    OTHER = "other"


_MAX_NAME: Final = 20_000
"""Characters of a name that are looked at; templates of kernels have a few thousand."""

_LAYER: Final = re.compile(r"(?<![a-z])(?:layers?|blocks?)[._ #:-]*([0-9]{1,9})(?![0-9])", re.IGNORECASE)

_Rules = tuple[tuple[WorkKind, re.Pattern[str]], ...]


def _rules(*rows: tuple[WorkKind, str], flags: int = 0) -> _Rules:
    return tuple((kind, re.compile(pattern, flags)) for kind, pattern in rows)


_KERNELS: Final = _rules(
    (
        WorkKind.COMMUNICATION,
        r"^nccl|ncclDevKernel|ncclKernel|ncclSymk|rccl|deep_ep|nvshmem|userbuffers|mscclpp"
        r"|(one|two)_shot_all_reduce|cross_device_reduce|multimem_(all|one|two)",
    ),
    (WorkKind.MEMSET, r"^\[?(CUDA )?memset|^Memset|fillBuffer"),
    (WorkKind.COPY, r"^\[?(CUDA )?memcpy|^Memcpy|copyBuffer|^Copy(Host|Device)"),
    (
        WorkKind.EMBEDDING,
        r"[Ee]mbedding|_embs_|compute_grad_weight|krn_partial|sum_and_scatter|num_of_partial_segments|linearize_index"
        r"|bounds_check_indices|fbgemm_gpu::(permute|_block_bucketize|_offsets_range|.*lengths)|recat_",
    ),
    # Lists of tensors in one launch: the optimizer's own, gradients' norms and scales (PyTorch's foreach, Apex).
    (WorkKind.OPTIMIZER, r"multi_tensor_apply|[Aa]dam(w|W)?[_A-Z]|FusedAdam|Lamb(Stage|Functor)|SGDFunctor|adagrad"),
    (
        WorkKind.ATTENTION,
        r"flash_(fwd|bwd|attn)|flash::|flashattn|FlashAttn|[Ff]mha|FMHA|sdpa|[Aa]ttention|attn_(fwd|bwd)|_attn_"
        r"|mha_(fwd|bwd)|compute_dot_do_o|convert_dq",
    ),
    (
        WorkKind.NORM,
        r"[Ll]ayer_?[Nn]orm|rms_?norm|RMSNorm|GammaBeta|RowwiseMoments|[Bb]atch_?[Nn]orm|cudnn::bn_|bn_(fw|bw)"
        r"|[Gg]roup_?[Nn]orm|\bln_(fwd|bwd)|rmsnorm_(fwd|bwd)|normalization::|[Ww]elford|MIOpenBatchNorm"
        r"|triton_\w*(mean\w*rsqrt|rsqrt\w*mean|var_mean)",
    ),
    (WorkKind.LOSS, r"nll_loss|[Cc]ross_?[Ee]ntropy|LogSoftMax|log_softmax|mse_|XEntropy|_loss_|huber|kl_div"),
    (WorkKind.SOFTMAX, r"[Ss]oft_?[Mm]ax"),
    (
        WorkKind.CONVOLUTION,
        r"[Cc]onvolv|Convolution|implicit_(gemm|con)|scudnn|cudnn::(cnn|winograd|detail::(dgrad|wgrad))|cask_cudnn"
        r"|[fdw](prop|grad)_(optimized|implicit|engine)|winograd|[Ww]inograd|nchwToNhwc|nhwcToNchw|miopen\w*[Cc]onv"
        r"|cutlass\w*cudnn|\bconv[123]?d|igemm_(fwd|bwd|wrw)|depthwise",
    ),
    (WorkKind.MOE_EXPERT, r"fused_moe|[Gg]rouped_?(gemm|Gemm|GEMM|mm)|GroupProblemShape|moe_gemm|group_gemm"),
    (WorkKind.MOE_GATE, r"topk_gating|fused_topk|moe_(gate|gating|router|softmax)|router_|aux_loss"),
    (
        WorkKind.MOE_DISPATCH,
        r"(un)?permute_(kernel|with|fwd|bwd|topK)|moe_(align|sort|permute|unpermute|sum|dispatch|combine|scatter)"
        r"|sort_chunks|row_id_map|token_permut",
    ),
    (
        WorkKind.GEMM,
        r"gemm|GEMM|Gemm|nvjet|cublas|Cijk_|gemv|splitK|s1688|s16816|tensorop|[^a-z]matmul|triton_tem|triton_mm"
        r"|dot_kernel|reduce_1Block|scal_kernel|epilogue::impl|_scaled_mm|wgmma|batched_dot",
    ),
    (WorkKind.ELEMENTWISE, r"elementwise_kernel_with_index"),
    (
        WorkKind.INDEXING,
        r"RadixSort|radix_sort|[Ss]catter|[Gg]ather|index|[Tt]op_?[Kk]|DeviceScan|scan_|_scan|[Uu]nique|nonzero"
        r"|DeviceSelect|ReduceByKey|DeviceRunLength|[Hh]istogram|bincount|[Ss]ort|to_dense_rep|Compact|offsets|searchsorted",
    ),
    (WorkKind.REDUCTION, r"reduce_kernel|[Rr]educe|ReduceOp|_pool|[Pp]ooling|argmax|triton_(red|per)_"),
    (WorkKind.MEMSET, r"FillFunctor|fill_kernel"),
    (WorkKind.COPY, r"CatArray|[Cc]opy|[Tt]ranspose|chunk_cat|split_with_sizes|contiguous"),
    (
        WorkKind.ELEMENTWISE,
        r"elementwise|Functor|triton_poi|[Dd]ropout|gelu|silu|swiglu|geglu|relu|rope|rotary|[Cc]ast|[Qq]uantize|FP8|fp8"
        r"|distribution_|triu_tril|where_kernel|amax|_scale|bias_|upsample|arange",
    ),
)
"""Tried in turn: a kernel's name holds the names of its template arguments, so the most telling come first."""

_OF_OP: Final[dict[WorkKind, str]] = {
    WorkKind.GEMM: "mm addmm bmm baddbmm linear matmul scaled_mm einsum mv addmv dot addbmm linear_backward int_mm "
    "cublas_gemm general_gemm addmm_activation",
    WorkKind.MOE_EXPERT: "grouped_mm scaled_grouped_mm",
    WorkKind.SOFTMAX: "softmax softmax_backward_data safe_softmax",
    WorkKind.LOSS: "log_softmax log_softmax_backward_data nll_loss nll_loss_forward nll_loss_backward nll_loss_nd "
    "cross_entropy_loss mse_loss mse_loss_backward binary_cross_entropy binary_cross_entropy_with_logits nll_loss2d",
    WorkKind.COPY: "copy to to_copy clone contiguous cat stack chunk_cat split_with_sizes_copy repeat_interleave "
    "convert_element_type chunk_backward slice slice_backward split split_with_sizes",
    WorkKind.MEMSET: "fill zero zeros zeros_like ones ones_like full full_like",
    WorkKind.REDUCTION: "sum mean amax amin max min prod any all argmax argmin var std var_mean logsumexp norm "
    "linalg_vector_norm max_pool2d avg_pool2d adaptive_avg_pool2d max_pool2d_with_indices "
    "max_pool2d_with_indices_backward",
    WorkKind.INDEXING: "index index_select gather scatter scatter_add index_add index_put index_put_impl topk sort "
    "argsort cumsum unique unique2 nonzero masked_select bincount searchsorted one_hot take_along_dim",
    WorkKind.ELEMENTWISE: "add sub rsub mul div neg pow sqrt rsqrt exp log sigmoid tanh relu gelu silu threshold "
    "clamp clamp_min clamp_max where masked_fill dropout native_dropout fused_dropout bernoulli eq ne lt gt le ge "
    "bitwise_and bitwise_or bitwise_not logical_and logical_or logical_not isnan isinf abs sign sin cos reciprocal "
    "addcmul addcdiv lerp arange triu tril normal uniform polar nan_to_num floor ceil round square maximum minimum "
    "sigmoid_backward tanh_backward gelu_backward silu_backward threshold_backward native_dropout_backward "
    "masked_scale erf softplus hardtanh leaky_relu glu floor_divide remainder fmod logit isfinite",
}
_BY_OP: Final = {op: kind for kind, ops in _OF_OP.items() for op in ops.split()}

_OPS: Final = _rules(
    (
        WorkKind.COMMUNICATION,
        r"^nccl:|^c10d|gloo:|record_param_comms|all_?(to|2)_?all|all_?gather|all_?reduce|reduce_?scatter|broadcast"
        r"|^(i)?(send|recv)|^reduce.?grads|barrier|batch_isend_irecv|deep_?ep",
    ),
    (
        WorkKind.OPTIMIZER,
        r"optim|adam|^sgd|lamb(_|$)|clip.?grad|multiply.?grads|zero_?grad|_?foreach_|fused_(adam|sgd)|muon|unscale"
        r"|grad_?norm|grad_?scal|multi_tensor",
    ),
    (WorkKind.MOE_DISPATCH, r"dispatch|combine|permut|moe.?mm|token_(sort|shuffle)"),
    (WorkKind.MOE_GATE, r"moe.*gat(e|ing)|router|routing|(^|_)gating|topk_?gate"),
    (WorkKind.MOE_EXPERT, r"expert|grouped_?(linear|gemm|mlp)"),
    (WorkKind.OTHER, r"^moe_?layer$|^moe$"),
    (WorkKind.NORM, r"(layer|rms|batch|group|instance).?norm|^ln_|_ln$|final_?norm|_norm$|^norm\d?$"),
    (WorkKind.ELEMENTWISE, r"drop_?out|residual|(^|_|attn)res(_|\d|$)|gelu|silu|swiglu|relu|activation|rope|rotary"),
    (WorkKind.EMBEDDING, r"embed"),
    (WorkKind.ATTENTION, r"attn|attention|sdpa|fmha"),
    (WorkKind.LOSS, r"loss|criterion|cross_?entropy|log_?softmax"),
    (WorkKind.SOFTMAX, r"softmax"),
    (WorkKind.MLP, r"ffn|(^|_|\W)mlp|mlp$|feed_?forward"),
    (WorkKind.CONVOLUTION, r"conv(olution|\dd|$|_)"),
    (WorkKind.GEMM, r"linear|(^|_)proj(ection)?($|_)|lm_?head|logits|gemm|matmul"),
    (WorkKind.MEMSET, r"memset"),
    (WorkKind.COPY, r"memcpy|copy|data_?load|h2d|d2h"),
)
"""Labels of users and ops of other libraries, in lower case."""

_CONTAINER: Final = re.compile(r"(forward|backward)$|(profilerstep|train_?step|layer|iteration|step)[\W_]?\d*$")
"""What holds work of every kind."""


_STREAMS: Final = _rules(
    (WorkKind.GEMM, r"^gemm"),
    (WorkKind.ATTENTION, r"^attention"),
    (WorkKind.OPTIMIZER, r"^(adam|sgd|grad_norm)"),
    (WorkKind.LOSS, r"^(log_softmax|nll|cross_entropy)"),
    (WorkKind.SOFTMAX, r"softmax"),
    (WorkKind.NORM, r"norm"),
    (WorkKind.EMBEDDING, r"^embedding"),
    (WorkKind.MOE_GATE, r"^router"),
    (WorkKind.MOE_DISPATCH, r"permute"),
    (WorkKind.MEMSET, r"^zero"),
    (WorkKind.COPY, r"^(copy|cat|transpose)"),
    (WorkKind.REDUCTION, r"^reduce"),
)
"""Names of streams (`program.kernels.Stream`); the rest is elementwise."""


def kind_of_work(kernel: Kernel) -> WorkKind:
    """Returns the kind of a kernel with its shape."""
    if isinstance(kernel, Gemm):
        return WorkKind.GEMM
    if isinstance(kernel, GroupedGemm):
        return WorkKind.MOE_EXPERT
    if isinstance(kernel, Attention):
        return WorkKind.ATTENTION
    if isinstance(kernel, Copy):
        return WorkKind.COPY
    return next((kind for kind, pattern in _STREAMS if pattern.search(kernel.name)), WorkKind.ELEMENTWISE)


def kinds_of_text(text: str) -> frozenset[WorkKind]:
    """The kinds of the kernels of an op (its `kernel` column)."""
    return frozenset(kind_of_work(kernel) for _, kernel in parse_kernels(text))


@lru_cache(maxsize=65536)
def kind_of_kernel(name: str) -> WorkKind:
    """Returns the kind of a GPU kernel (or of a copy or memset as a profiler names it)."""
    begin = name[:_MAX_NAME]
    return next((kind for kind, pattern in _KERNELS if pattern.search(begin)), WorkKind.OTHER)


def communicates(name: str) -> bool:
    """Whether a GPU kernel is one of communication."""
    return kind_of_kernel(name) is WorkKind.COMMUNICATION


@lru_cache(maxsize=65536)
def kind_of_op(name: str) -> WorkKind:
    """Returns the kind of an op of PyTorch, an autograd node or a user's label.

    It is `other` too where a label holds work of many kinds (`forward`, `LAYER_0`).
    """
    plain = plain_name(name[:_MAX_NAME])
    if plain in _BY_OP:
        return _BY_OP[plain]
    if name.startswith("triton_"):
        return kind_of_kernel(name)
    if plain.startswith("cuda") or _CONTAINER.match(plain):
        return WorkKind.COPY if plain.startswith("cudamemcpy") else WorkKind.OTHER
    return next((kind for kind, pattern in _OPS if pattern.search(plain)), WorkKind.OTHER)


def layer_number(name: str) -> int | None:
    """Returns the number of the layer that a name tells, such as 12 of "layers.12.attention"; None where it tells
    none."""
    match = _LAYER.search(name)
    return None if match is None else int(match[1])


def plain_name(name: str) -> str:
    """An op's name without what says how it was called: `aten::add_`, `aten::add.Tensor`,
    `autograd::engine::evaluate_function: AddBackward0` are all add."""
    text = name.removeprefix(ENGINE).removeprefix("torch::autograd::")
    text = text.removeprefix("aten::")
    node = re.fullmatch(r"(?:\w+::)*_?(\w+?)Backward(?:es)?\d*|(CopyBackwards)", text)
    if node and "_backward" not in text:
        text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.group(1) or "copy")
    head = re.sub(r"\.\w+$", "", text) if "::" not in text and "#" not in text else text
    return head.strip("_").lower()
