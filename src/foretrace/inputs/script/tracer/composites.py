"""Chooses the fused kernels that PyTorch chooses on a GPU, and casts as autocast does there.

On the meta device PyTorch would compose attention, normalisation and dropout of small ops. Autocast casts tensors of
a GPU only; here its rules apply to simulated ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.library import Library

from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.storages import META, is_simulated

MAX_HEAD: Final = 256
"""The largest head dimension of cuDNN's and flash attention. Which backend runs in which case was observed on an H200
with PyTorch 2.11, for 24 combinations of types, masks, dropout and sizes."""

_HALF: Final = (torch.float16, torch.bfloat16)

_aten: Final = torch.ops.aten


def install(patches: Patches, recorder: Recorder) -> None:
    """Registers the choices for the meta device, and autocast."""
    _RmsNorm.recorder = recorder
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
        library.impl("rms_norm", _rms_norm, "AutogradMeta")
        library.impl("dropout", _dropout, "AutogradMeta")
        for name, run in _SYNC_BATCH_NORM.items():
            library.impl(name, run, "Meta")
    patches.on_undo(library._destroy)
    _install_autocast(patches)


def _channels(given: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Returns statistics of channels, which are kept in single precision."""
    dtype = torch.float32 if given.dtype in _HALF else given.dtype
    return tuple(torch.empty(given.size(1), dtype=dtype, device=META) for _ in range(count))


_SYNC_BATCH_NORM: Final[dict[str, Callable[..., Any]]] = {
    "batch_norm_stats": lambda given, *_: _channels(given, 2),
    "batch_norm_gather_stats_with_counts": lambda given, *_: _channels(given, 2),
    "batch_norm_elemt": lambda given, *_: torch.empty_like(given),
    "batch_norm_backward_reduce": lambda gradient, *_: _channels(gradient, 4),
    "batch_norm_backward_elemt": lambda _, given, *__: torch.empty_like(given),
}
"""The ops of SyncBatchNorm, which PyTorch has for GPUs only."""


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Runs attention by the backend that a Hopper GPU would use: cuDNN's, flash, memory-efficient, or composed."""
    half, size = query.dtype in _HALF, max(query.size(-1), value.size(-1))
    grads = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if half and size <= MAX_HEAD and query.dim() == 4:
        takes_cudnn = size % 8 == 0 and query.size(-2) > 1 and torch.backends.cuda.cudnn_sdp_enabled()
        if takes_cudnn:
            bias = _bias(attn_mask, query, key)
            return _aten._scaled_dot_product_cudnn_attention(
                query, key, value, bias, grads, dropout_p, is_causal, False, scale=scale
            )[0]
        if attn_mask is None and torch.backends.cuda.flash_sdp_enabled():
            return _flash(query, key, value, dropout_p, is_causal, scale)
    if enable_gqa and query.size(-3) != key.size(-3):
        times = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    aligned = size % (8 if half else 4) == 0 and query.dim() == 4
    if aligned and torch.backends.cuda.mem_efficient_sdp_enabled():
        bias = _bias(attn_mask, query, key)
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, grads, dropout_p, is_causal, scale=scale
        )[0]
    return _aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    """Runs flash attention, for which head dimensions are padded to multiples of 8."""
    size = query.size(-1)
    if scale is None:
        scale = size**-0.5
    if size % 8:
        padding = (0, 8 - size % 8)
        query, key, value = (torch.nn.functional.pad(tensor, padding) for tensor in (query, key, value))
    result = _aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return result[..., :size]


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """Returns a mask as the numbers that are added to scores."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _rms_norm(
    given: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    if hasattr(given, "_local_tensor"):
        return _divided_rms_norm(given, shape, weight, eps)
    if (weight is not None and weight.dtype != given.dtype) or not is_simulated(given):
        return _aten.rms_norm.default.decompose(given, shape, weight, eps)
    return _RmsNorm.apply(given, shape, weight, eps)


def _divided_rms_norm(given: Any, shape: list[int], weight: Any, eps: float | None) -> torch.Tensor:
    """Normalises a DTensor whose rows are whole on each rank; the gradient of its weight is a sum over ranks."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    rows = given.dim() - len(shape)
    if any(
        placement.is_partial() or (placement.is_shard() and placement.dim >= rows) for placement in given.placements
    ):
        return _aten.rms_norm.default.decompose(given, shape, weight, eps)
    summed = [Partial() if placement.is_shard() else Replicate() for placement in given.placements]
    local_weight = weight.to_local(grad_placements=summed) if isinstance(weight, DTensor) else weight
    local = _rms_norm(given.to_local(), shape, local_weight, eps)
    return DTensor.from_local(
        local, given.device_mesh, given.placements, run_check=False, shape=given.shape, stride=given.stride()
    )


class _RmsNorm(torch.autograd.Function):
    """RMSNorm in one kernel, which PyTorch has for GPUs only."""

    recorder: Recorder

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, shape: Any, weight: torch.Tensor | None, eps: Any) -> torch.Tensor:
        ctx.shape = shape
        rows = (*given.shape[: given.dim() - len(shape)], *(1 for _ in shape))
        statistic = torch.float32 if given.dtype in _HALF else given.dtype

        def make() -> tuple[torch.Tensor, ...]:
            return torch.empty_like(given), torch.empty(rows, dtype=statistic, device=META)

        op = _aten._fused_rms_norm.default
        result, scale = _RmsNorm.recorder.run_as(op, (given, shape, weight, eps), make)
        ctx.save_for_backward(given, weight, scale)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        given, weight, scale = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]

        def make() -> tuple[torch.Tensor | None, ...]:
            return torch.empty_like(given), None if weight is None else torch.empty_like(weight)

        op = _aten._fused_rms_norm_backward.default
        of_given, of_weight = _RmsNorm.recorder.run_as(op, (gradient, given, ctx.shape, scale, weight, needed), make)
        return of_given, None, of_weight, None


def _dropout(given: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 0 or not train or not given.numel():
        return given
    return _aten.native_dropout(given, p, train)[0]


_LOWER: Final = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "scaled_dot_product_attention",
]
_FULL: Final = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "cosine_similarity",
    "nll_loss",
    "nll_loss2d",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "cdist",
    "renorm",
    "logsumexp",
    "cosine_embedding_loss",
]
_FULL_BY_DTYPE: Final = [
    "prod",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "cumsum.dimname",
    "sum",
    "sum.dim_IntList",
]
_WIDEST: Final = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
"""Ops that autocast runs in the lower precision, in fp32, in fp32 by their `dtype`, and in the widest type of their
inputs (ATen/autocast_mode.h)."""


def _install_autocast(patches: Patches) -> None:
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    state: dict[str, Any] = {"library": None}
    guards: list[Any] = []
    key = torch._C.DispatchKey.AutocastCUDA
    cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def entered(self: Any) -> Any:
        result = enter(self)
        if torch.is_autocast_enabled("cuda"):
            if state["library"] is None:
                state["library"] = _autocast_library(key, cast_weights)
            guard = torch._C._IncludeDispatchKeyGuard(key)
            guard.__enter__()
            guards.append(guard)
        else:
            guards.append(None)
        return result

    def left(self: Any, *args: Any) -> Any:
        guard = guards.pop()
        if guard is not None:
            guard.__exit__(None, None, None)
        if not any(guard is not None for guard in guards):
            cast_weights.clear()
        return leave(self, *args)

    def undo() -> None:
        if state["library"] is not None:
            state["library"]._destroy()

    patches.set(torch.autocast, "__enter__", entered)
    patches.set(torch.autocast, "__exit__", left)
    patches.on_undo(undo)


def _autocast_library(key: Any, cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Library:
    library = Library("aten", "IMPL")

    def cast(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(cast(item, dtype) for item in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == torch.float64:
            return value
        if not is_simulated(value) or value.dtype == dtype:
            return value
        if not (value.is_leaf and value.requires_grad and value.dtype == torch.float32):
            return value.to(dtype)
        known = cast_weights.get(id(value))
        if known is None or known[0] is not value:
            known = cast_weights[id(value)] = value, value.to(dtype)
        return known[1]

    def lowered() -> torch.dtype:
        return torch.get_autocast_dtype("cuda")

    def widest(args: Any) -> torch.dtype:
        tensors = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
        wide = any(tensor.dtype == torch.float32 for tensor in tensors)
        return torch.float32 if wide else lowered()

    def with_casts(op: Any, dtype: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                to = dtype(args)
                named = {key: cast(value, to) for key, value in kwargs.items()}
                # GCC evaluates the casts of PyTorch's arguments from the last to the first, which decides the order
                # in which gradients become ready.
                return op(*reversed([cast(value, to) for value in reversed(args)]), **named)

        return run

    def with_dtype(op: Any) -> Callable[..., Any]:
        def run(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                names = [argument.name for argument in op._schema.arguments]
                at = names.index("dtype") - 1
                named = kwargs.get("dtype") is not None or (at < len(args) and args[at] is not None)
                if not named and is_simulated(given) and given.is_floating_point():
                    args, kwargs = args[: max(at, 0)], {**kwargs, "dtype": torch.float32}
                return op(given, *args, **kwargs)

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways: tuple[tuple[Sequence[str], Callable[[Any], Any]], ...] = (
            (_LOWER, lambda op: with_casts(op, lambda _: lowered())),
            (_FULL, lambda op: with_casts(op, lambda _: torch.float32)),
            (_FULL_BY_DTYPE, with_dtype),
            (_WIDEST, lambda op: with_casts(op, widest)),
        )
        for names, make in ways:
            for name in names:
                op = _overload(name)
                if op is not None:
                    library.impl(name, make(op), "AutocastCUDA", allow_override=True)
    return library


def _overload(name: str) -> Any:
    word, _, overload = name.partition(".")
    packet = getattr(_aten, word, None)
    return getattr(packet, overload or "default", None)
