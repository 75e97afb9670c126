"""Chooses the fused kernels that PyTorch chooses on a GPU.

On the meta device PyTorch would compose attention, normalisation and dropout of small ops.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
    """Registers the choices for the meta device."""
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
