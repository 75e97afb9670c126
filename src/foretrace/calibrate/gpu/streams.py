"""Lists kernels that memory bounds, as PyTorch's eager operators run them.

Their bytes are those that must be moved, each operand once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Final

from foretrace.calibrate.gpu.case import Bench, Case, Launch
from foretrace.program.kernels import Copy, Stream

TOKENS: Final = (128, 1024, 8192, 32768, 131072)
"""Rows of 4096 bf16 elements: 1 MB to 1 GB an operand."""
WIDTH: Final = 4096
HIDDEN: Final = (1024, 4096, 8192)
HEAD_DIM: Final = 128
TOP_K: Final = 8

Make = Callable[[Bench, int, int], Launch]


def elementwise() -> list[Case]:
    """Each operator of `_ELEMENTWISE` over all sizes."""
    return [
        Case(Stream(name, read * tokens * WIDTH, write * tokens * WIDTH), partial(_sized, make, tokens, WIDTH))
        for name, (read, write, make) in _ELEMENTWISE.items()
        for tokens in TOKENS
    ] + _casts()


def norms() -> list[Case]:
    """Norms, softmaxes and sums: their time depends on the length they reduce over."""
    cases = []
    for name, (read, write, make) in _NORMS.items():
        for hidden, size in product(HIDDEN, (1 << 20, 1 << 25, 1 << 28)):
            stream = Stream(name, read * size, write * size, rows=hidden)
            cases.append(Case(stream, partial(_sized, make, size // hidden, hidden)))
    for hidden, size in product(HIDDEN, (1 << 20, 1 << 25, 1 << 28)):
        tokens = size // hidden
        cases.append(
            Case(Stream("reduce", 2 * size, 2 * hidden, rows=tokens), partial(_sized, _reduce, tokens, hidden))
        )
    return cases


def losses() -> list[Case]:
    """The loss as eager PyTorch computes it, on fp32 logits."""
    cases = []
    for vocab, tokens in product((32000, 50304, 128256), (1024, 8192)):
        size = vocab * tokens
        cases += [
            Case(Stream("log_softmax", 4 * size, 4 * size, rows=vocab), partial(_sized, _log_softmax, tokens, vocab)),
            Case(
                Stream("log_softmax_backward", 8 * size, 4 * size, rows=vocab),
                partial(_sized, _log_softmax_backward, tokens, vocab),
            ),
            Case(Stream("nll", 12 * tokens, 4, rows=vocab), partial(_sized, _nll, tokens, vocab)),
        ]
    return cases


def lookups() -> list[Case]:
    """Embeddings, and what routing tokens to experts takes."""
    cases = []
    for hidden, tokens in product((2048, 4096, 8192), (2048, 16384)):
        size = hidden * tokens
        cases += [
            Case(
                Stream("embedding_backward", 2 * size, 2 * vocab * hidden, rows=hidden),
                partial(_embedding_backward, tokens, hidden, vocab),
            )
            for vocab in (32000, 128256)
        ]
        cases += [
            Case(Stream("embedding", 2 * size, 2 * size, rows=hidden), partial(_sized, _embedding, tokens, hidden)),
            Case(
                Stream("permute", 2 * size * TOP_K, 2 * size * TOP_K, rows=hidden),
                partial(_sized, _permute, tokens, hidden),
            ),
            Case(
                Stream("unpermute", 2 * size * TOP_K, 2 * size, rows=hidden),
                partial(_sized, _unpermute, tokens, hidden),
            ),
        ]
    for experts, tokens in product((8, 64, 128, 256), (4096, 16384)):
        stream = Stream("router", 4 * tokens * experts, 12 * tokens * min(TOP_K, experts), rows=experts)
        cases.append(Case(stream, partial(_sized, _router, tokens, experts)))
    return cases


def optimizers() -> list[Case]:
    """Fused AdamW with states of the parameters' dtype, and norms of gradients, over tensors of 16M elements and up."""
    cases = []
    kinds = product((("bf16", 2), ("fp32", 4)), ((1, 24), (8, 24), (64, 24), (3, 28), (1, 29)))
    for (dtype, size), (tensors, log_size) in kinds:
        elements, suffix = tensors << log_size, "" if dtype == "fp32" else f"_{dtype}"
        cases += [
            Case(
                Stream(f"adam{suffix}", 4 * size * elements, 3 * size * elements),
                partial(_adam, dtype, tensors, 1 << log_size),
            ),
            Case(
                Stream(f"grad_norm{suffix}", size * elements, 4 * tensors),
                partial(_grad_norm, dtype, tensors, 1 << log_size),
            ),
        ]
    return cases


def copies() -> list[Case]:
    """Between pinned host memory and the GPU."""
    return [
        Case(Copy(size << 20, to), partial(_copy, size << 20, to))
        for to, size in product(("host", "gpu"), (1, 16, 64, 256, 1024))
    ]


def _sized(make: Make, tokens: int, width: int, bench: Bench) -> Launch:
    return make(bench, tokens, width)


def _unary(call: Callable[[Any, Any], object]) -> Make:
    def make(bench: Bench, tokens: int, width: int) -> Launch:
        x = bench.normal(tokens, width)
        return lambda: call(bench.torch, x)

    return make


def _binary(call: Callable[[Any, Any, Any], object]) -> Make:
    def make(bench: Bench, tokens: int, width: int) -> Launch:
        a, b = bench.normal(tokens, width), bench.normal(tokens, width)
        return lambda: call(bench.torch, a, b)

    return make


def _halves(call: Callable[[Any, Any, Any], object], width: int = 0) -> Make:
    """Operands are the halves of rows twice as long: PyTorch cannot vectorise over them."""

    def make(bench: Bench, tokens: int, whole: int) -> Launch:
        row = width or whole
        left, right = bench.normal(tokens * whole // row, 2 * row).chunk(2, -1)
        return lambda: call(bench.torch, left, right)

    return make


def _contiguous_and_half(call: Callable[[Any, Any, Any], object], width: int = 0) -> Make:
    def make(bench: Bench, tokens: int, whole: int) -> Launch:
        row = width or whole
        a = bench.normal(tokens * whole // row, row)
        half = bench.normal(tokens * whole // row, 2 * row).chunk(2, -1)[1]
        return lambda: call(bench.torch, a, half)

    return make


def _rotary(bench: Bench, tokens: int, width: int) -> Launch:
    """Queries [batch, heads, sequence, width] as attention sees them, times a cosine that all heads share."""
    seq = min(tokens, 4096)
    q = bench.normal(tokens // seq, seq, width // HEAD_DIM, HEAD_DIM).transpose(1, 2)
    cosine = bench.normal(seq, HEAD_DIM)
    return lambda: q * cosine


def _rotary_complex(bench: Bench, tokens: int, width: int) -> Launch:
    """Queries in fp32 seen as complex numbers, times those of their positions, which all heads share."""
    torch, seq = bench.torch, min(tokens, 4096)
    pairs = bench.normal(tokens // seq, seq, width // HEAD_DIM, HEAD_DIM // 2, 2, dtype="fp32")
    turns = torch.view_as_complex(bench.normal(1, seq, 1, HEAD_DIM // 2, 2, dtype="fp32"))
    q = torch.view_as_complex(pairs)
    return lambda: q * turns


def _dropout_backward(bench: Bench, tokens: int, width: int) -> Launch:
    g = bench.normal(tokens, width)
    mask = bench.normal(tokens, width) > -1
    return lambda: bench.torch.ops.aten.native_dropout_backward(g, mask, 1.1)


_ELEMENTWISE: Final[dict[str, tuple[int, int, Make]]] = {
    "elementwise": (2, 2, _unary(lambda _, x: x * 2)),
    "add": (4, 2, _binary(lambda _, a, b: a + b)),
    "mul": (4, 2, _binary(lambda _, a, b: a * b)),
    "gelu": (2, 2, _unary(lambda torch, x: torch.nn.functional.gelu(x))),
    "gelu_backward": (4, 2, _binary(lambda torch, g, x: torch.ops.aten.gelu_backward(g, x))),
    "silu": (2, 2, _unary(lambda torch, x: torch.nn.functional.silu(x))),
    "silu_backward": (4, 2, _binary(lambda torch, g, x: torch.ops.aten.silu_backward(g, x))),
    "neg": (2, 2, _unary(lambda _, x: -x)),
    "copy": (2, 2, _unary(lambda _, x: x.clone())),
    "cat": (4, 4, _binary(lambda torch, a, b: torch.cat((a, b), -1))),
    "dropout": (2, 3, _unary(lambda torch, x: torch.native_dropout(x, 0.1, True))),
    "dropout_backward": (3, 2, _dropout_backward),
    "transpose": (2, 2, _unary(lambda _, x: x.t().contiguous())),
    "zero": (0, 2, _unary(lambda _, x: x.zero_())),
    "scale": (2, 2, _unary(lambda _, x: x.mul_(1.0))),
    "add_strided": (4, 2, _halves(lambda _, a, b: a + b)),
    "mul_strided": (4, 2, _contiguous_and_half(lambda _, a, b: a * b)),
    "mul_broadcast": (2, 2, _rotary),
    "mul_complex": (4, 4, _rotary_complex),
    "silu_strided": (2, 2, _halves(lambda torch, a, _: torch.nn.functional.silu(a))),
    "silu_backward_strided": (4, 2, _contiguous_and_half(lambda torch, g, x: torch.ops.aten.silu_backward(g, x))),
    "neg_strided": (2, 2, _halves(lambda _, __, b: -b, HEAD_DIM // 2)),
    "copy_strided": (2, 2, _halves(lambda _, a, __: a.contiguous())),
    "cat_strided": (4, 4, _contiguous_and_half(lambda torch, a, b: torch.cat((a, b), -1), HEAD_DIM // 2)),
}
"""Bytes read and written per element, and the operator. `mul_broadcast` is what eager rotary embeddings multiply with;
`cat_strided` joins halves of a head, as they do."""


def _casts() -> list[Case]:
    cases = []
    for (source, read), (target, write) in ((("bf16", 2), ("fp32", 4)), (("fp32", 4), ("bf16", 2))):
        for tokens in TOKENS:
            stream = Stream("cast", read * tokens * WIDTH, write * tokens * WIDTH)
            cases.append(Case(stream, partial(_cast, source, target, tokens)))
    return cases


def _cast(source: str, target: str, tokens: int, bench: Bench) -> Launch:
    x = bench.normal(tokens, WIDTH, dtype=source)
    return lambda: x.to(bench.dtype(target))


def _norm(name: str, backward: bool) -> Make:
    def make(bench: Bench, tokens: int, hidden: int) -> Launch:
        functional = bench.torch.nn.functional
        x = bench.normal(tokens, hidden).requires_grad_(True)
        weights = [bench.normal(hidden).requires_grad_(True) for _ in range(2 if name == "layer_norm" else 1)]
        forward = partial(getattr(functional, name), x, (hidden,), *weights)
        if not backward:
            return forward
        y = forward()
        gradient = bench.torch.randn_like(y)
        return lambda: bench.torch.autograd.grad(y, (x, *weights), gradient, retain_graph=True)

    return make


def _softmax(bench: Bench, rows: int, length: int) -> Launch:
    x = bench.normal(rows, length)
    return lambda: bench.torch.softmax(x, -1)


def _softmax_backward(bench: Bench, rows: int, length: int) -> Launch:
    torch = bench.torch
    y, g = torch.softmax(bench.normal(rows, length), -1), bench.normal(rows, length)
    return lambda: torch.ops.aten._softmax_backward_data(g, y, -1, torch.bfloat16)


_NORMS: Final[dict[str, tuple[int, int, Make]]] = {
    "rmsnorm": (2, 2, _norm("rms_norm", backward=False)),
    "rmsnorm_backward": (4, 2, _norm("rms_norm", backward=True)),
    "layernorm": (2, 2, _norm("layer_norm", backward=False)),
    "layernorm_backward": (4, 2, _norm("layer_norm", backward=True)),
    "softmax": (2, 2, _softmax),
    "softmax_backward": (4, 2, _softmax_backward),
}


def _reduce(bench: Bench, tokens: int, hidden: int) -> Launch:
    x = bench.normal(tokens, hidden)
    return lambda: x.sum(0)


def _log_softmax(bench: Bench, tokens: int, vocab: int) -> Launch:
    x = bench.normal(tokens, vocab, dtype="fp32")
    return lambda: bench.torch.log_softmax(x, -1)


def _log_softmax_backward(bench: Bench, tokens: int, vocab: int) -> Launch:
    torch = bench.torch
    y, g = bench.normal(tokens, vocab, dtype="fp32"), bench.normal(tokens, vocab, dtype="fp32")
    return lambda: torch.ops.aten._log_softmax_backward_data(g, y, -1, torch.float32)


def _nll(bench: Bench, tokens: int, vocab: int) -> Launch:
    logs, target = bench.normal(tokens, vocab, dtype="fp32"), bench.indices(tokens, vocab)
    return lambda: bench.torch.nn.functional.nll_loss(logs, target)


def _embedding(bench: Bench, tokens: int, hidden: int) -> Launch:
    table, index = bench.normal(128256, hidden), bench.indices(tokens, 128256)
    return lambda: bench.torch.nn.functional.embedding(index, table)


def _embedding_backward(tokens: int, hidden: int, vocab: int, bench: Bench) -> Launch:
    g, index = bench.normal(tokens, hidden), bench.indices(tokens, vocab)
    return lambda: bench.torch.ops.aten.embedding_dense_backward(g, index, vocab, -1, False)


def _permute(bench: Bench, tokens: int, hidden: int) -> Launch:
    x, index = bench.normal(tokens, hidden), bench.indices(tokens * TOP_K, tokens)
    return lambda: x.index_select(0, index)


def _unpermute(bench: Bench, tokens: int, hidden: int) -> Launch:
    into, rows = bench.normal(tokens, hidden), bench.normal(tokens * TOP_K, hidden)
    index = bench.indices(tokens * TOP_K, tokens)
    return lambda: into.index_add_(0, index, rows)


def _router(bench: Bench, tokens: int, experts: int) -> Launch:
    torch, scores = bench.torch, bench.normal(tokens, experts, dtype="fp32")
    return lambda: torch.topk(torch.softmax(scores, -1), min(TOP_K, experts), -1)


def _adam(dtype: str, tensors: int, size: int, bench: Bench) -> Launch:
    torch = bench.torch
    lists = [[bench.normal(size, dtype=dtype) for _ in range(tensors)] for _ in range(3)]
    squares = [bench.normal(size, dtype=dtype).square_() for _ in range(tensors)]
    steps = [torch.ones((), device=bench.device) for _ in range(tensors)]
    settings = {"lr": 1e-6, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}
    return lambda: torch._fused_adamw_(*lists, squares, [], steps, **settings, amsgrad=False, maximize=False)


def _grad_norm(dtype: str, tensors: int, size: int, bench: Bench) -> Launch:
    gradients = [bench.normal(size, dtype=dtype) for _ in range(tensors)]
    return lambda: bench.torch._foreach_norm(gradients, 2)


def _copy(size: int, to: str, bench: Bench) -> Launch:
    torch = bench.torch
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=bench.device == "cuda")
    there = torch.empty(size, dtype=torch.uint8, device=bench.device)
    source, target = (there, pinned) if to == "host" else (pinned, there)
    return lambda: target.copy_(source, non_blocking=True)
