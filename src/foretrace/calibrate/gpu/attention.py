"""Lists fused attention to measure, forward and backward, through PyTorch's cuDNN and FlashAttention-2 backends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final

from foretrace.calibrate.gpu.case import Bench, Case, Launch
from foretrace.program.kernels import Attention

_BACKENDS: Final = {"cudnn": "CUDNN_ATTENTION", "flash2": "FLASH_ATTENTION"}

_BATCHES: Final = ((8, 512), (4, 1024), (1, 2048), (4, 2048), (16, 2048), (1, 4096), (2, 4096), (1, 8192), (2, 8192))
_LONG: Final = ((1, 16384), (1, 32768))
_LONG_SEQUENCES: Final = ((1, 65536), (1, 131072))


def attentions(backend: str) -> list[Case]:
    """Causal attention over sequences, heads and widths of common models, and some that is not causal."""
    shapes = [
        *product(((8, 1, 128), (32, 8, 128), (32, 32, 128)), (*_BATCHES, *_LONG)),
        *product(((32, 4, 64), (32, 32, 64), (12, 12, 128), (16, 16, 64)), _BATCHES[1:8]),
        *product(((32, 32, 80), (40, 40, 128), (64, 8, 128), (16, 16, 128)), ((4, 2048), (1, 4096), (1, 8192))),
    ]
    shapes += product(((8, 1, 128), (8, 8, 128)), _LONG_SEQUENCES)
    forwards = [
        Attention(batch, heads, kv_heads, seq, seq, dim, dim, seq * (seq + 1) // 2, backend=backend)
        for (heads, kv_heads, dim), (batch, seq) in shapes
    ]
    if backend == "cudnn":  # FlashAttention-2 wants values as wide as keys
        forwards += [
            Attention(1, heads, heads, seq, seq, 192, 128, seq * (seq + 1) // 2, backend=backend)
            for heads, seq in product((16, 128), (2048, 4096, 8192))
        ]
    forwards += [
        Attention(batch, 32, 8, seq, seq, 128, 128, seq * seq, backend=backend)
        for batch, seq in ((4, 2048), (1, 4096), (1, 8192))
    ]
    return [
        Case(kernel, partial(_attention, kernel))
        for forward in dict.fromkeys(forwards)
        for kernel in (forward, replace(forward, backward=True))
    ]


def _attention(kernel: Attention, bench: Bench) -> Launch:
    """Operands lie as a linear layer leaves them: [batch, sequence, heads, width], seen as [batch, heads, ...]."""
    torch = bench.torch

    def operand(heads: int, seq: int, dim: int) -> Any:
        made = bench.normal(kernel.batch, seq, heads, dim).transpose(1, 2)
        return made.detach().requires_grad_(True)  # as in training: the forward pass then keeps the sums of its softmax

    q = operand(kernel.heads, kernel.q, kernel.head_dim)
    k = operand(kernel.kv_heads, kernel.kv, kernel.head_dim)
    v = operand(kernel.kv_heads, kernel.kv, kernel.v_dim)
    forward = partial(_forward, kernel, torch, q, k, v)
    if not kernel.backward:
        return forward
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def _forward(kernel: Attention, torch: Any, q: Any, k: Any, v: Any) -> Any:
    from importlib import import_module

    attention = import_module("torch.nn.attention")
    backend = getattr(attention.SDPBackend, _BACKENDS[kernel.backend])
    with attention.sdpa_kernel([backend]):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=kernel.pairs < kernel.q * kernel.kv, enable_gqa=kernel.heads != kernel.kv_heads
        )
