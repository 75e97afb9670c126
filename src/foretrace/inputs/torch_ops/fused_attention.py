"""Reads fused attention: where each op has queries, keys and values, and whether it is causal."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.tensors import Tensor, tensors, value
from foretrace.models.flops import attention_pairs
from foretrace.program.kernels import Attention


@dataclass(frozen=True, slots=True)
class _Signature:
    """An op's inputs by position; `heads_first` says [batch, heads, length, size], otherwise lengths come first."""

    query: int
    causal: int
    backend: str
    backward: bool = False
    heads_first: bool = True


_FLASH, _CUDNN, _EFFICIENT = "flash2", "cudnn", "flash1"
# Memory-efficient attention (xformers' CUTLASS kernels) is priced as the first FlashAttention: both recompute by blocks
# with mma.sync alone.

SIGNATURES: Final = {
    "scaled_dot_product_attention": _Signature(0, 5, _FLASH),
    "scaled_dot_product_flash_attention": _Signature(0, 4, _FLASH),
    "scaled_dot_product_flash_attention_backward": _Signature(1, 11, _FLASH, True),
    "flash_attention_forward": _Signature(0, 8, _FLASH, heads_first=False),
    "flash_attention_backward": _Signature(1, 11, _FLASH, True, heads_first=False),
    "scaled_dot_product_cudnn_attention": _Signature(0, 6, _CUDNN),
    "scaled_dot_product_cudnn_attention_backward": _Signature(1, 14, _CUDNN, True),
    "cudnn_attention_forward": _Signature(0, 10, _CUDNN),
    "cudnn_attention_backward": _Signature(1, 14, _CUDNN, True),
    "scaled_dot_product_efficient_attention": _Signature(0, 6, _EFFICIENT),
    "scaled_dot_product_efficient_attention_backward": _Signature(1, 11, _EFFICIENT, True),
    "efficient_attention_forward": _Signature(0, 9, _EFFICIENT, heads_first=False),
    "efficient_attention_backward": _Signature(1, 14, _EFFICIENT, True, heads_first=False),
    "flash_attn::_flash_attn_forward": _Signature(0, 5, _FLASH, heads_first=False),
    "flash_attn::_flash_attn_backward": _Signature(1, 11, _FLASH, True, heads_first=False),
    "flash_attn_3::fwd": _Signature(0, -1, "flash3", heads_first=False),
    "flash_attn_3::bwd": _Signature(1, -1, "flash3", True, heads_first=False),
}
"""Positions as native_functions.yaml (PyTorch 2.11) and flash_attn's custom ops (2.7) list them."""

_MAX_NAME: Final = 4_000
"""Characters of a kernel's name that are looked at; those of attention have fewer than 1,000."""

_TRUE: Final = ("True", "true", "1")
_CAUSAL_KERNEL: Final = re.compile(
    r"flash_(?:fwd|bwd)\w*<.*?traits<[^>]*>+, (?:true|false|\(bool\)[01]), (true|false|\(bool\)[01])"
)


def attention(op: str, inputs: Inputs, gpu_kernel: str, assumed: str) -> Attention | None:
    """The attention of an op (its plain name); None where its inputs are not those of one."""
    signature = SIGNATURES[op]
    operands = tensors(inputs, assumed)[signature.query : signature.query + 3]
    if len(operands) < 3:
        return None
    q, k, v = operands
    if q is None or k is None or v is None or any(len(tensor.dims) != 4 for tensor in (q, k, v)):
        return None
    batch, heads, queries, size = _by_name(q, signature.heads_first)
    _, kv_heads, keys, _ = _by_name(k, signature.heads_first)
    causal = _is_causal(value(inputs, signature.causal), gpu_kernel, queries == keys)
    return Attention(
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        size,
        v.dims[-1],
        math.ceil(attention_pairs(queries, None)) if causal and queries == keys else queries * keys,
        signature.backward,
        _backend(signature.backend, gpu_kernel),
        q.dtype or "bf16",
    )


def _by_name(tensor: Tensor, heads_first: bool) -> tuple[int, int, int, int]:
    batch, first, other, size = tensor.dims
    return (batch, first, other, size) if heads_first else (batch, other, first, size)


def _is_causal(recorded: str, gpu_kernel: str, square: bool) -> bool:
    """As recorded; else as FlashAttention's template arguments say; else as in most training: where queries are as many
    as keys."""
    if recorded:
        return recorded in _TRUE
    named = _CAUSAL_KERNEL.search(gpu_kernel[:_MAX_NAME])
    return named.group(1) in ("true", "(bool)1") if named else square


def _backend(usual: str, gpu_kernel: str) -> str:
    """The kernel's own name says it best: the same op runs other kernels on other GPUs."""
    if "cudnn" in gpu_kernel:
        return "cudnn"
    if "Sm90" in gpu_kernel or "FlashAttnFwd" in gpu_kernel or "FlashAttnBwd" in gpu_kernel:
        return "flash3"
    return usual
