"""Lists fused kernels that eager PyTorch does not have, as torch.compile writes them.

They pass over their operands once, as the hand-written kernels of training frameworks do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any, Final

from foretrace.calibrate.gpu.case import Bench, Case, Launch
from foretrace.program.kernels import Stream

WIDTH: Final = 8192
TOKENS: Final = (1024, 8192, 65536)
HEAD_DIM: Final = 128
FP8_LARGEST: Final = 448.0
"""The largest number e4m3 can hold."""
MX_BLOCK: Final = 32

Function = Callable[..., Any]
Operands = Callable[[Bench, int], tuple[Any, ...]]


def fused() -> list[Case]:
    """Each function over three sizes; a compilation takes about a second, so most used first."""
    cases = [
        Case(
            Stream(name, int(read * tokens * WIDTH), int(write * tokens * WIDTH)),
            partial(_compiled, function, operands, tokens),
        )
        for name, (read, write, function, operands) in _FUSED.items()
        for tokens in TOKENS
    ]
    for vocab, tokens in product((32000, 128256), (1024, 8192)):
        size = vocab * tokens
        logits = partial(_logits, vocab)
        cases += [
            Case(
                Stream("cross_entropy", 2 * size, 8 * tokens, rows=vocab),
                partial(_compiled, _cross_entropy, logits, tokens),
            ),
            Case(
                Stream("cross_entropy_backward", 2 * size, 2 * size, rows=vocab),
                partial(_compiled, _cross_entropy_backward, logits, tokens),
            ),
        ]
    return cases


def _compiled(function: Function, operands: Operands, tokens: int, bench: Bench) -> Launch:
    values = operands(bench, tokens)
    torch = bench.torch
    compiled = _compile(function, torch)
    return lambda: compiled(torch, *values)


@cache
def _compile(function: Function, torch: Any) -> Function:
    """Once for each function, so that all operands of a shape run one kernel. The function itself is compiled, not a
    wrapper: PyTorch counts recompilations by code, and past 8 would run eagerly, in silence unless `fullgraph`."""
    compiled: Function = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled


def _rows(*widths: float) -> Operands:
    """Operands [tokens, width] for each factor of the width."""
    return lambda bench, tokens: tuple(bench.normal(tokens, int(width * WIDTH)) for width in widths)


def _with_bias(*widths: float) -> Operands:
    return lambda bench, tokens: (*_rows(*widths)(bench, tokens), bench.normal(WIDTH))


def _with_mask(bench: Bench, tokens: int) -> tuple[Any, ...]:
    g = bench.normal(tokens, WIDTH)
    return g, bench.normal(tokens, WIDTH) > -1


def _with_scale(bench: Bench, tokens: int) -> tuple[Any, ...]:
    return bench.normal(tokens, WIDTH), bench.torch.ones((), device=bench.device)


def _heads(bench: Bench, tokens: int) -> tuple[Any, ...]:
    seq = min(tokens, 4096)
    q = bench.normal(tokens // seq, seq, WIDTH // HEAD_DIM, HEAD_DIM)
    return q, bench.normal(seq, 1, HEAD_DIM), bench.normal(seq, 1, HEAD_DIM)


def _logits(vocab: int, bench: Bench, tokens: int) -> tuple[Any, ...]:
    return bench.normal(tokens, vocab), bench.indices(tokens, vocab)


def _swiglu(torch: Any, x: Any) -> Any:
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _swiglu_backward(torch: Any, g: Any, x: Any) -> Any:
    gate, up = (half.float() for half in x.chunk(2, -1))
    sigmoid = torch.sigmoid(gate)
    d_gate = g * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((d_gate.to(x.dtype), (g * gate * sigmoid).to(x.dtype)), -1)


def _bias_gelu(torch: Any, x: Any, bias: Any) -> Any:
    return torch.nn.functional.gelu(x + bias, approximate="tanh")


def _bias_gelu_backward(torch: Any, g: Any, x: Any, bias: Any) -> Any:
    y = (x + bias).float()
    inner = torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y))
    slope = 0.5 * y * (1 - inner * inner) * (0.79788456 + 0.1070322243 * y * y) + 0.5 * (1 + inner)
    return (slope * g).to(x.dtype)


def _bias_dropout_add(torch: Any, x: Any, residual: Any, bias: Any) -> Any:
    keep = torch.rand_like(x, dtype=torch.float32) > 0.1
    return residual + torch.where(keep, (x + bias) * 1.1, 0.0).to(x.dtype), keep


def _bias_dropout_add_backward(torch: Any, g: Any, keep: Any) -> Any:
    return torch.where(keep, g * 1.1, 0.0).to(g.dtype)


def _relu2(torch: Any, x: Any) -> Any:
    return torch.relu(x).square()


def _relu2_backward(torch: Any, g: Any, x: Any) -> Any:
    return 2 * g * torch.relu(x)


def _rope(torch: Any, q: Any, cosine: Any, sine: Any) -> Any:
    left, right = q.chunk(2, -1)
    return q * cosine + torch.cat((-right, left), -1) * sine


def _rope_backward(torch: Any, g: Any, cosine: Any, sine: Any) -> Any:
    left, right = (g * sine).chunk(2, -1)
    return g * cosine + torch.cat((right, -left), -1)


def _quantize(torch: Any, x: Any, scale: Any) -> Any:
    return (x.float() * scale).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)


def _quantize_mx(torch: Any, x: Any) -> Any:
    """Scales that are powers of two over 32 elements, along rows and along columns."""

    def along(blocks: Any, axis: int) -> Any:
        largest = blocks.abs().amax(axis, keepdim=True)
        exponent = torch.floor(torch.log2(largest.clamp(min=1e-30))) - 8
        scaled = (blocks * torch.exp2(-exponent)).clamp(-FP8_LARGEST, FP8_LARGEST)
        return scaled.to(torch.float8_e4m3fn), (exponent + 127).to(torch.uint8)

    tokens, width = x.shape
    rows = along(x.float().view(tokens, width // MX_BLOCK, MX_BLOCK), 2)
    return rows, along(x.float().view(tokens // MX_BLOCK, MX_BLOCK, width), 1)


def _cross_entropy(torch: Any, logits: Any, target: Any) -> Any:
    values = logits.float()
    log_sum = torch.logsumexp(values, -1)
    return log_sum, log_sum - values.gather(1, target[:, None]).squeeze(1)


def _cross_entropy_backward(torch: Any, logits: Any, target: Any) -> Any:
    """The logarithm of the sum is known from the forward pass; any number per row stands in for it here."""
    values = logits.float()
    columns = torch.arange(values.shape[1], device=values.device)
    log_sum = target.float()[:, None] * 1e-6
    return (torch.exp(values - log_sum) - (columns == target[:, None]).float()).to(logits.dtype)


_FUSED: Final[dict[str, tuple[float, float, Function, Operands]]] = {
    "swiglu": (4, 2, _swiglu, _rows(2)),
    "swiglu_backward": (6, 4, _swiglu_backward, _rows(1, 2)),
    "rope": (2, 2, _rope, _heads),
    "rope_backward": (2, 2, _rope_backward, _heads),
    "bias_gelu": (2, 2, _bias_gelu, _with_bias(1)),
    "bias_gelu_backward": (4, 2, _bias_gelu_backward, _with_bias(1, 1)),
    "bias_dropout_add": (4, 3, _bias_dropout_add, _with_bias(1, 1)),
    "bias_dropout_add_backward": (3, 2, _bias_dropout_add_backward, _with_mask),
    "quantize": (2, 1, _quantize, _with_scale),
    "quantize_mx": (2, 2 * (1 + 1 / MX_BLOCK), _quantize_mx, _rows(1)),
    "relu2": (2, 2, _relu2, _rows(1)),
    "relu2_backward": (4, 2, _relu2_backward, _rows(1, 1)),
}
"""Bytes read and written per element of [tokens, width], the function and its operands."""
