"""Measures causal attention with and without a window: cuDNN, FlashAttention-2, flex_attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any

import torch
import torch._functorch.config
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from experts.measuring import DEVICE, Item, Session, item, measure
from foretrace.calibrate.gpu.case import Bench, Launch
from foretrace.program.kernels import Attention


def causal_pairs(seq: int, window: int = 0) -> int:
    """Pairs of a query and a key that it sees."""
    width = min(window or seq, seq)
    return width * (width + 1) // 2 + (seq - width) * width


def attention_kernel(shape: tuple[int, int, int, int, int, int], **options: Any) -> Attention:
    """Causal attention; `shape` is batch, query heads, key heads, tokens and the widths of keys and values."""
    batch, heads, kv_heads, seq, dim, v_dim = shape
    pairs = causal_pairs(seq, options.get("window", 0))
    return Attention(batch, heads, kv_heads, seq, seq, dim, v_dim, pairs, **options)


def attention_operands(kernel: Attention, bench: Bench) -> tuple[Any, Any, Any]:
    """Queries, keys and values [batch, tokens, heads, width], as a linear layer leaves them."""
    return (
        bench.normal(kernel.batch, kernel.q, kernel.heads, kernel.head_dim),
        bench.normal(kernel.batch, kernel.kv, kernel.kv_heads, kernel.head_dim),
        bench.normal(kernel.batch, kernel.kv, kernel.kv_heads, kernel.v_dim),
    )


def _with_gradient(kernel: Attention, forward: Callable[..., Any], bench: Bench) -> Launch:
    q, k, v = (x.transpose(1, 2).detach().requires_grad_(True) for x in attention_operands(kernel, bench))
    if not kernel.backward:
        return partial(forward, q, k, v)
    out = forward(q, k, v)
    g = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True)


def _make_sdpa(kernel: Attention, bench: Bench) -> Launch:
    names = {"cudnn": "CUDNN_ATTENTION", "flash2": "FLASH_ATTENTION"}
    backend = getattr(SDPBackend, names[kernel.backend])

    def forward(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel([backend]):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=kernel.heads != kernel.kv_heads
            )

    return _with_gradient(kernel, forward, bench)


def flash_window(q: Any, k: Any, v: Any, window: int) -> Any:
    """FlashAttention-2 with a window: the output, and what its backward pass needs."""
    seq = q.shape[1]
    return torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, seq, seq, 0.0, True, False, window_size_left=window - 1, window_size_right=0
    )


def _make_flash_window(kernel: Attention, bench: Bench) -> Launch:
    q, k, v = attention_operands(kernel, bench)
    window = kernel.window
    if not kernel.backward:
        return lambda: flash_window(q, k, v, window)
    out, sums, state, unused, _ = flash_window(q, k, v, window)
    g, seq = torch.randn_like(out), kernel.q
    return lambda: torch.ops.aten._flash_attention_backward(
        g, q, k, v, out, sums, None, None, seq, seq, 0.0, True, state, unused,
        window_size_left=window - 1, window_size_right=0,
    )  # fmt: skip


@cache
def flex(seq: int, window: int) -> Callable[..., Any]:
    """Compiled flex_attention with a causal window."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._functorch.config.donated_buffer = False  # else a graph cannot be kept for another backward pass

    def seen(_batch: Any, _head: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < window)

    mask = create_block_mask(seen, None, None, seq, seq, device=DEVICE)
    call = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return lambda q, k, v: call(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def _make_flex(kernel: Attention, bench: Bench) -> Launch:
    return _with_gradient(kernel, flex(kernel.q, kernel.window or kernel.q), bench)


ATTENTION_SHAPES = (
    ("cudnn", (1, 128, 128, 4096, 192, 128)),
    ("cudnn", (1, 128, 128, 8192, 192, 128)),
    ("cudnn", (1, 16, 16, 4096, 192, 128)),
    ("cudnn", (1, 64, 8, 4096, 64, 64)),
    ("cudnn", (1, 64, 8, 8192, 64, 64)),
    ("cudnn", (4, 64, 8, 4096, 64, 64)),
    ("cudnn", (1, 64, 8, 4096, 128, 128)),
    ("cudnn", (1, 64, 8, 8192, 128, 128)),
    ("cudnn", (2, 64, 4, 4096, 128, 128)),
    ("flash2", (1, 128, 128, 4096, 192, 192)),
    ("flash2", (1, 64, 8, 4096, 64, 64)),
    ("flash2", (1, 64, 8, 8192, 64, 64)),
    ("flash2", (1, 64, 8, 8192, 128, 128)),
    ("cudnn", (1, 64, 64, 8192, 192, 128)),
    ("cudnn", (1, 32, 32, 8192, 192, 128)),
    ("cudnn", (1, 128, 128, 4096, 64, 64)),
)
WINDOW_SHAPES = (
    (1, 64, 8, 4096, 64, 64),
    (1, 64, 8, 8192, 64, 64),
    (4, 64, 8, 4096, 64, 64),
    (1, 128, 128, 8192, 64, 64),
)


def attention_items() -> Iterator[Item]:
    """Causal attention without and with a window of 128; compiled flex_attention last, which takes long to compile."""
    ways = (False, True)
    for (backend, shape), backward in product(ATTENTION_SHAPES, ways):
        kernel = attention_kernel(shape, backend=backend, backward=backward)
        yield item("sdpa", kernel, partial(_make_sdpa, kernel))
    for shape, backward in product(WINDOW_SHAPES, ways):
        kernel = attention_kernel(shape, backend="flash2", backward=backward, window=128)
        yield item("flash window", kernel, partial(_make_flash_window, kernel))
    for shape, backward in product(WINDOW_SHAPES[1::-1], ways):
        kernel = attention_kernel(shape, backend="flex", backward=backward, window=128)
        yield item("flex window", kernel, partial(_make_flex, kernel))


def check_window(session: Session) -> None:
    """Compares attention in a window with what a mask gives, forward and backward."""
    kernel = attention_kernel((1, 4, 2, 512, 64, 64), window=128)
    q, k, v = attention_operands(kernel, session.bench)
    places = torch.arange(512, device=DEVICE)
    mask = (places[:, None] >= places) & (places[:, None] - places < 128)
    wide = [x.transpose(1, 2).float().detach().requires_grad_(True) for x in (q, k, v)]
    want = functional.scaled_dot_product_attention(*wide, attn_mask=mask, enable_gqa=True)
    out, sums, state, unused, _ = flash_window(q, k, v, 128)
    session.check("flash window", out.transpose(1, 2), want.detach())
    g = torch.randn_like(out)
    got = torch.ops.aten._flash_attention_backward(
        g, q, k, v, out, sums, None, None, 512, 512, 0.0, True, state, unused,
        window_size_left=127, window_size_right=0,
    )  # fmt: skip
    rights = torch.autograd.grad(want, wide, g.transpose(1, 2).float())
    for name, gradient, right in zip("qkv", got, rights, strict=True):
        session.check(f"flash window, gradient of {name}", gradient.transpose(1, 2), right, 2e-2)


def attention(session: Session) -> None:
    """Part 6: attention."""
    with session.trying("check of windows"):
        check_window(session)
    measure(session, attention_items())
