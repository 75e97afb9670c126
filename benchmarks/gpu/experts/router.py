"""Measures routers: the choice of each token's experts, by a Triton kernel and PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl

from experts.activations import compiled
from experts.measuring import DEVICE, TOP, Item, Session, fastest, item, measure
from foretrace.calibrate.gpu.case import Bench, Launch
from foretrace.program.kernels import Stream


@triton.jit
def route_rows(
    logits, probs, routed, scores, tokens, experts: tl.constexpr, top: tl.constexpr, rows_each: tl.constexpr
):
    """Softmax, the `top` largest, and their scores and places as maps [tokens, experts]."""
    rows = tl.program_id(0) * rows_each + tl.arange(0, rows_each)
    columns = tl.arange(0, experts)
    at = rows[:, None] * experts + columns[None, :]
    mask = rows[:, None] < tokens
    x = tl.load(logits + at, mask=mask, other=0.0)
    e = tl.exp(x - tl.max(x, 1)[:, None])
    score = e / tl.sum(e, 1)[:, None]
    left = score
    for _ in tl.static_range(top):
        best = tl.argmax(left, 1)
        left = tl.where(columns[None, :] == best[:, None], -1.0, left)
    chosen = left < 0.0
    tl.store(scores + at, score, mask=mask)
    tl.store(probs + at, tl.where(chosen, score, 0.0), mask=mask)
    tl.store(routed + at, chosen.to(tl.uint8), mask=mask)


@triton.jit
def route_rows_backward(gradient, routed, scores, out, tokens, experts: tl.constexpr, rows_each: tl.constexpr):
    """The gradient of the logits."""
    rows = tl.program_id(0) * rows_each + tl.arange(0, rows_each)
    at = rows[:, None] * experts + tl.arange(0, experts)[None, :]
    mask = rows[:, None] < tokens
    score = tl.load(scores + at, mask=mask, other=0.0)
    g = tl.where(tl.load(routed + at, mask=mask, other=0) != 0, tl.load(gradient + at, mask=mask, other=0.0), 0.0)
    tl.store(out + at, score * (g - tl.sum(g * score, 1)[:, None]), mask=mask)


def softmax_router(logits: Any) -> Any:
    """Megatron-core's choice by softmax, written to maps."""
    scores = torch.softmax(logits, dim=-1, dtype=torch.float32)
    probs, indices = torch.topk(scores, k=TOP, dim=-1)
    routed = torch.zeros_like(logits).int().scatter(1, indices, 1).bool()
    return torch.zeros_like(logits).scatter(1, indices, probs), routed


def sigmoid_router(logits: Any, bias: Any) -> Any:
    """DeepSeek-V3's: sigmoid, a bias, 4 of 8 groups by their two best, 8 experts of those, normalised."""
    scores = torch.sigmoid(logits)
    biased = scores + bias
    tokens, experts = logits.shape
    best = biased.view(tokens, 8, -1).topk(2, dim=-1)[0].sum(dim=-1)
    groups = torch.topk(best, k=4, dim=-1)[1]
    mask = torch.zeros_like(best).scatter(1, groups, 1)
    mask = mask.unsqueeze(-1).expand(tokens, 8, experts // 8).reshape(tokens, -1)
    indices = torch.topk(biased.masked_fill(~mask.bool(), float("-inf")), k=TOP, dim=-1)[1]
    chosen = torch.gather(scores, 1, indices)
    probs = 2.5 * chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20)
    routed = torch.zeros_like(logits).int().scatter(1, indices, 1).bool()
    return torch.zeros_like(logits).scatter(1, indices, probs), routed


def launch_router(logits: Any, outs: Sequence[Any], config: tuple[int, int]) -> None:
    """The Triton kernel; `outs` are probabilities, map, scores."""
    tokens, experts = logits.shape
    rows_each, warps = config
    route_rows[(triton.cdiv(tokens, rows_each),)](logits, *outs, tokens, experts, TOP, rows_each, num_warps=warps)


def launch_router_backward(gradient: Any, outs: Sequence[Any], out: Any, config: tuple[int, int]) -> None:
    """Its gradient."""
    tokens, experts = gradient.shape
    rows_each, warps = config
    route_rows_backward[(triton.cdiv(tokens, rows_each),)](
        gradient, outs[1], outs[2], out, tokens, experts, rows_each, num_warps=warps
    )


def router_operands(tokens: int, experts: int) -> tuple[Any, list[Any]]:
    """Logits and room for probabilities, map and scores."""
    logits = torch.randn(tokens, experts, device=DEVICE)
    return logits, [torch.empty_like(logits), torch.empty_like(logits, dtype=torch.uint8), torch.empty_like(logits)]


def _make_router(config: tuple[int, int], tokens: int, experts: int, bench: Bench) -> Launch:
    del bench
    return partial(launch_router, *router_operands(tokens, experts), config)


def _make_router_backward(config: tuple[int, int], tokens: int, experts: int, bench: Bench) -> Launch:
    del bench
    logits, outs = router_operands(tokens, experts)
    launch_router(logits, outs, config)
    return partial(launch_router_backward, torch.randn_like(logits), outs, torch.empty_like(logits), config)


def _make_torch_router(function: Callable[..., Any], compile_: bool, shape: tuple[int, int], bench: Bench) -> Launch:
    del bench
    values = [torch.randn(*shape, device=DEVICE)]
    if function is sigmoid_router:
        values.append(torch.randn(shape[1], device=DEVICE) * 1e-2)
    call = compiled(function, shape[1], True) if compile_ else function
    return lambda: call(*values)


def router_items(configs: dict[int, tuple[int, int]]) -> Iterator[Item]:
    """Eager operators, compiled ones and one Triton kernel."""
    shapes = list(product((8192, 4096, 16384), (256, 128)))

    def both(tokens: int, experts: int) -> tuple[Stream, dict[str, Any]]:
        size = tokens * experts
        return Stream("router_fused", 4 * size, 9 * size, rows=experts), {"shape": [tokens, experts]}

    for shape in shapes:
        kernel, labels = both(*shape)
        if shape[1] in configs:
            yield item("triton", kernel, partial(_make_router, configs[shape[1]], *shape), **labels)
            backward = replace(kernel, name="router_backward_fused", read=9 * shape[0] * shape[1], write=kernel.read)
            yield item("triton", backward, partial(_make_router_backward, configs[shape[1]], *shape), **labels)
    for compile_, shape in product((False, True), shapes):
        kernel, labels = both(*shape)
        functions = [softmax_router] if shape[1] == 128 else [softmax_router, sigmoid_router]
        for function in functions:
            how = f"{'inductor' if compile_ else 'eager'} {function.__name__}"
            make = partial(_make_torch_router, function, compile_, shape)
            yield item(how, replace(kernel, name="router", write=5 * shape[0] * shape[1]), make, **labels)


def check_router(session: Session) -> None:
    """Compares the Triton kernels with eager operators and autograd."""
    logits, outs = router_operands(100, 128)
    logits.requires_grad_(True)
    launch_router(logits.detach(), outs, (4, 4))
    probs, routed = softmax_router(logits)
    session.check("router: probabilities", outs[0], probs.detach(), 1e-5)
    session.check("router: map", outs[1], routed, 0.0)
    g = torch.randn_like(probs)
    d_logits = torch.empty_like(g)
    launch_router_backward(g, outs, d_logits, (4, 4))
    session.check("router: gradient", d_logits, torch.autograd.grad(probs, logits, g)[0], 1e-4)


def router(session: Session) -> None:
    """Part 7: which experts a token goes to."""
    with session.trying("check of the router"):
        check_router(session)
    configs: dict[int, tuple[int, int]] = {}
    for experts in (128, 256):
        with session.trying(f"tuning of the router, {experts} experts"):
            launch = partial(launch_router, *router_operands(16384, experts))
            choices = ((4, 4), (1, 1), (8, 4), (8, 8))
            configs[experts] = fastest(session, f"router {experts}", {c: partial(launch, c) for c in choices})
    measure(session, router_items(configs))
