"""Measures gated activations, as Megatron-core writes and compiles them.

Sources: megatron/core/fusions, fused_bias_swiglu.py and fused_bias_geglu.py.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any

import torch
import torch._dynamo
from torch.nn import functional

from experts.grouped import row_counts, spans
from experts.measuring import DEVICE, Item, Session, item, measure
from foretrace.calibrate.gpu.case import Bench, Launch
from foretrace.program.kernels import Stream


def swiglu(y: Any) -> Any:
    """The gate's half through SiLU, times the other."""
    gate, up = torch.chunk(y, 2, -1)
    return functional.silu(gate) * up


def swiglu_back(g: Any, y: Any) -> Any:
    """Its gradient."""
    gate, up = torch.chunk(y, 2, -1)
    sigmoid = torch.sigmoid(gate)
    return torch.cat((g * sigmoid * (1 + gate * (1 - sigmoid)) * up, g * functional.silu(gate)), -1)


def weighted_swiglu(y: Any, weights: Any) -> Any:
    """Times a probability for each row."""
    return (swiglu(y) * weights).to(y.dtype)


def weighted_swiglu_back(g: Any, y: Any, weights: Any) -> Any:
    """Gradients of the input and of the probabilities."""
    d_input = swiglu_back(g * weights, y)
    d_weights = torch.sum(swiglu(y) * g.to(weights.dtype), dim=-1, keepdim=True)
    return d_input.to(y.dtype), d_weights.to(weights.dtype)


def quick_geglu(y: Any) -> Any:
    """GPT-OSS's gate: x * sigmoid(1.702 x), times the other half plus one."""
    gate, up = torch.chunk(y, 2, -1)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1.0)


def quick_geglu_back(g: Any, y: Any) -> Any:
    """Its gradient."""
    gate, up = torch.chunk(y, 2, -1)
    sigmoid = torch.sigmoid(1.702 * gate)
    d_gate = g * sigmoid * (1 + 1.702 * gate * (1 - sigmoid)) * (up + 1.0)
    return torch.cat((d_gate, g * gate * sigmoid), -1)


def weighted_quick_geglu(y: Any, weights: Any) -> Any:
    """Times a probability for each row."""
    return (quick_geglu(y) * weights).to(y.dtype)


def weighted_quick_geglu_back(g: Any, y: Any, weights: Any) -> Any:
    """Gradients of the input and of the probabilities."""
    d_input = quick_geglu_back(g * weights, y)
    d_weights = torch.sum(quick_geglu(y) * g.to(weights.dtype), dim=-1, keepdim=True)
    return d_input.to(y.dtype), d_weights.to(weights.dtype)


@cache
def compiled(function: Callable[..., Any], ffn: int, dynamic: bool) -> Callable[..., Any]:
    """The function compiled for one width: PyTorch keeps what it compiled by code object, so each has its own."""
    own = types.FunctionType(function.__code__.replace(), function.__globals__, f"{function.__name__}_{ffn}_{dynamic}")
    compile_ = partial(torch.compile, fullgraph=True)
    return compile_(own) if dynamic else compile_(own, dynamic=False)


def make_activation(function: Callable[..., Any], shape: tuple[int, int, bool], bench: Bench) -> Launch:
    """`shape` is rows, ffn and whether the number of rows is open, as in training with experts."""
    rows, ffn, dynamic = shape
    values = []
    if "_back" in function.__name__:
        values.append(bench.normal(rows, ffn))
    values.append(bench.normal(rows, 2 * ffn))
    if "weighted" in function.__name__:
        values.append(torch.rand(rows, 1, device=DEVICE))
    if dynamic:
        for value in values:
            torch._dynamo.mark_dynamic(value, 0)
    call = compiled(function, ffn, dynamic)
    return lambda: call(*values)


def _activation(function: Callable[..., Any], rows: int, ffn: int, dynamic: bool = True) -> Item:
    name, size = function.__name__, rows * ffn
    read, write = (6 * size, 4 * size) if "_back" in name else (4 * size, 2 * size)
    if "weighted" in name:
        read, write = read + 4 * rows, write + (4 * rows if "_back" in name else 0)
    kernel = Stream(f"{name.replace('_back', '_backward')}_fused", read, write)
    how = "inductor" if dynamic else "inductor, fixed rows"
    return item(how, kernel, partial(make_activation, function, (rows, ffn, dynamic)), shape=[rows, ffn])


def _clamped(x: Any) -> Any:
    gate, up = torch.chunk(x, 2, -1)
    return torch.cat((gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)), -1)


def _make_clamp(rows: int, ffn: int, backward: bool, bench: Bench) -> Launch:
    x = bench.normal(rows, 2 * ffn).requires_grad_(True)
    if not backward:
        return lambda: _clamped(x)
    out, g = _clamped(x), bench.normal(rows, 2 * ffn)
    return lambda: torch.autograd.grad(out, x, g, retain_graph=True)


def _make_bias(rows: int, hidden: int, groups: int, wide: bool, bench: Bench) -> Launch:
    """Each expert's bias times its rows' probabilities, added; then all joined."""
    x, bias = bench.normal(rows, hidden), bench.normal(groups, hidden)
    probs = torch.rand(rows, 1, device=DEVICE).to(torch.float32 if wide else torch.bfloat16)
    parts = [(x[s], bias[g], probs[s]) for g, s in enumerate(spans(row_counts("random", groups, rows // groups)))]
    return lambda: torch.cat([t + b * p for t, b, p in parts]).to(torch.bfloat16)


def activation_items() -> Iterator[Item]:
    """DeepSeek-V3's and Qwen3's experts, rows open and fixed; the dense variant; GPT-OSS's."""
    for ffn, function in product((2048, 1536, 768), (weighted_swiglu, weighted_swiglu_back)):
        for rows in (8192, 32768, 131072):
            yield _activation(function, rows, ffn)
    for function, dynamic in product((weighted_swiglu, weighted_swiglu_back), (False,)):
        yield _activation(function, 32768, 2048, dynamic)
    for function in (weighted_quick_geglu, weighted_quick_geglu_back):
        for rows in (16384, 65536):
            yield _activation(function, rows, 2880)
    for rows in (16384, 65536):
        size = rows * 2880
        labels = {"shape": [rows, 2880]}
        forward = Stream("clamp_gates", 8 * size, 8 * size, launches=3)
        backward = Stream("clamp_gates_backward", 10 * size, 10 * size, launches=3)
        yield item("eager", forward, partial(_make_clamp, rows, 2880, False), **labels)
        yield item("eager", backward, partial(_make_clamp, rows, 2880, True), **labels)
        for wide in (False, True):
            moved = 28 if wide else 12
            kernel = Stream("expert_bias", moved * size // 2, moved * size // 2, launches=34 if wide else 33)
            how = f"eager, probabilities in {'fp32' if wide else 'bf16'}"
            yield item(how, kernel, partial(_make_bias, rows, 2880, 16, wide), **labels)
    for function, rows in product((swiglu, swiglu_back), (8192, 32768)):
        yield _activation(function, rows, 2048)


def check_activations(session: Session) -> None:
    """Compares the formulas of the gradients with autograd's."""
    for forward, backward in (
        (weighted_swiglu, weighted_swiglu_back),
        (weighted_quick_geglu, weighted_quick_geglu_back),
    ):
        y, weights = torch.randn(64, 256, requires_grad=True), torch.rand(64, 1, requires_grad=True)
        g = torch.randn(64, 128)
        want = torch.autograd.grad(forward(y, weights), (y, weights), g)
        for name, got, right in zip(("input", "weights"), backward(g, y, weights), want, strict=True):
            session.check(f"{backward.__name__}: {name}", got.detach(), right, 1e-5)


def activations(session: Session) -> None:
    """Part 5: gates of experts."""
    with session.trying("check of activations"):
        check_activations(session)
    measure(session, activation_items())
