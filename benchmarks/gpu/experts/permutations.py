"""Measures permutations: rows to experts' order and back, by Triton kernels and PyTorch's operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl

from experts.measuring import DEVICE, EXPERTS, TOP, Item, Session, fastest, item, measure
from foretrace.calibrate.gpu.case import Bench, Launch
from foretrace.program.kernels import Stream


@triton.jit
def permute_rows(source, places, target, hidden, top: tl.constexpr, block: tl.constexpr):
    """Copies the row of a token to all its places."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < hidden
    values = tl.load(source + token * hidden + columns, mask=mask)
    for at in tl.static_range(top):
        row = tl.load(places + token * top + at).to(tl.int64)
        tl.store(target + row * hidden + columns, values, mask=mask)


@triton.jit
def gather_rows(source, index, target, hidden, block: tl.constexpr):
    """Copies a row from where `index` says."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < hidden
    origin = tl.load(index + row).to(tl.int64)
    tl.store(target + row * hidden + columns, tl.load(source + origin * hidden + columns, mask=mask), mask=mask)


@triton.jit
def unpermute_rows(
    source, places, weights, target, hidden, top: tl.constexpr, weighted: tl.constexpr, block: tl.constexpr
):
    """Adds up the rows of a token, weighted or not, in fp32."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < hidden
    total = tl.zeros((block,), dtype=tl.float32)
    for at in tl.static_range(top):
        row = tl.load(places + token * top + at).to(tl.int64)
        values = tl.load(source + row * hidden + columns, mask=mask, other=0.0).to(tl.float32)
        if weighted:
            values *= tl.load(weights + token * top + at)
        total += values
    tl.store(target + token * hidden + columns, total.to(tl.bfloat16), mask=mask)


@triton.jit
def unpermute_rows_backward(
    gradient, source, places, weights, d_source, d_weights, hidden, top: tl.constexpr, block: tl.constexpr
):
    """Gradients of weighted rows and of their weights; one program holds a whole row."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    mask = columns < hidden
    g = tl.load(gradient + token * hidden + columns, mask=mask, other=0.0).to(tl.float32)
    for at in tl.static_range(top):
        row = tl.load(places + token * top + at).to(tl.int64)
        values = tl.load(source + row * hidden + columns, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weights + token * top + at)
        tl.store(d_source + row * hidden + columns, (g * weight).to(tl.bfloat16), mask=mask)
        tl.store(d_weights + token * top + at, tl.sum(g * values, 0))


@dataclass
class Routes:
    """Random routes of tokens to experts: `places[token, choice]` is a row by expert, `origins[row]` its token."""

    places: Any
    origins: Any
    weights: Any

    @classmethod
    def random(cls, tokens: int) -> Routes:
        """Every token chooses `TOP` of `EXPERTS` experts."""
        experts = torch.rand(tokens, EXPERTS, device=DEVICE).topk(TOP, -1).indices.flatten()
        order = torch.argsort(experts, stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(tokens * TOP, device=DEVICE)
        weights = torch.rand(tokens, TOP, device=DEVICE)
        return cls(places.view(tokens, TOP).int(), (order // TOP).int(), weights)


def grid_of(rows: int, hidden: int, config: tuple[int, int]) -> tuple[int, int]:
    """Programs for rows and blocks of columns."""
    return rows, triton.cdiv(hidden, config[0])


def launch_permute(x: Any, routes: Routes, out: Any, config: tuple[int, int]) -> None:
    """Tokens to experts' order, each read once."""
    tokens, hidden = x.shape
    permute_rows[grid_of(tokens, hidden, config)](x, routes.places, out, hidden, TOP, config[0], num_warps=config[1])


def launch_gather(x: Any, index: Any, out: Any, config: tuple[int, int]) -> None:
    """Rows in the order of an index."""
    rows, hidden = out.shape
    gather_rows[grid_of(rows, hidden, config)](x, index, out, hidden, config[0], num_warps=config[1])


def launch_unpermute(rows: Any, routes: Routes, out: Any, weighted: bool, config: tuple[int, int]) -> None:
    """Sums of the rows of each token."""
    tokens, hidden = out.shape
    unpermute_rows[grid_of(tokens, hidden, config)](
        rows, routes.places, routes.weights, out, hidden, TOP, weighted, config[0], num_warps=config[1]
    )


def launch_unpermute_backward(g: Any, rows: Any, routes: Routes, outs: tuple[Any, Any], warps: int) -> None:
    """Gradients of weighted sums."""
    tokens, hidden = g.shape
    unpermute_rows_backward[(tokens,)](
        g, rows, routes.places, routes.weights, *outs, hidden, TOP, triton.next_power_of_2(hidden), num_warps=warps
    )


ROW_CONFIGS = ((1024, 2), (1024, 4), (2048, 4), (2048, 8))
SHAPES = ((4096, 7168), (16384, 7168), (4096, 4096), (16384, 4096), (4096, 2048), (16384, 2048))


def check_permutations(session: Session) -> None:
    """Compares each kernel with PyTorch, hidden not a multiple of a block included."""
    for tokens, hidden in ((96, 1536), (64, 2048)):
        routes = Routes.random(tokens)
        x = torch.randn(tokens, hidden, device=DEVICE).bfloat16()
        rows = torch.full((tokens * TOP, hidden), torch.nan, device=DEVICE).bfloat16()
        want = x.index_select(0, routes.origins)
        launch_permute(x, routes, rows, (1024, 4))
        session.check(f"permute {hidden}", rows, want, 0.0)
        gathered = torch.full_like(rows, torch.nan)
        launch_gather(x, routes.origins, gathered, (1024, 4))
        session.check(f"gather {hidden}", gathered, want, 0.0)
        rows = torch.randn(tokens * TOP, hidden, device=DEVICE).bfloat16()
        of_token = rows[routes.places.long()].float()
        for weighted in (False, True):
            out = torch.full_like(x, torch.nan)
            launch_unpermute(rows, routes, out, weighted, (1024, 4))
            factors = routes.weights[:, :, None] if weighted else 1.0
            session.check(f"unpermute {hidden} weighted={weighted}", out, (of_token * factors).sum(1))
        outs = torch.full_like(rows, torch.nan), torch.full_like(routes.weights, torch.nan)
        launch_unpermute_backward(x, rows, routes, outs, 8)
        want = torch.empty_like(rows)
        want[routes.places.long()] = (x.float()[:, None] * routes.weights[:, :, None]).bfloat16()
        session.check(f"unpermute backward {hidden}: rows", outs[0], want)
        session.check(f"unpermute backward {hidden}: weights", outs[1], (x.float()[:, None] * of_token).sum(-1))


def tune_permutations(session: Session) -> dict[str, Any]:
    """Returns the fastest configuration of each kernel."""
    tokens, hidden = SHAPES[0]
    routes = Routes.random(tokens)
    x, rows = session.bench.normal(tokens, hidden), session.bench.normal(tokens * TOP, hidden)
    kernels: dict[str, Callable[[tuple[int, int]], None]] = {
        "permute": partial(launch_permute, x, routes, rows),
        "gather": partial(launch_gather, x, routes.origins, rows),
        "unpermute": partial(launch_unpermute, rows, routes, x, True),
    }
    best: dict[str, Any] = {
        name: fastest(session, name, {config: partial(launch, config) for config in ROW_CONFIGS})
        for name, launch in kernels.items()
    }
    outs = torch.empty_like(rows), torch.empty_like(routes.weights)
    backward = {warps: partial(launch_unpermute_backward, x, rows, routes, outs, warps) for warps in (8, 16)}
    best["backward"] = fastest(session, "unpermute backward", backward)
    return best


def permutation_items(best: dict[str, Any]) -> Iterator[Item]:
    """Triton's kernels and PyTorch's operators over the same routes."""
    for tokens, hidden in SHAPES:
        own, sent = 2 * tokens * hidden, 2 * tokens * hidden * TOP
        entry = partial(_permutation, tokens, hidden)
        yield entry("triton", Stream("permute_fused", own, sent), partial(_make_permute, best["permute"]))
        yield entry("triton gather", Stream("permute_fused", own, sent), partial(_make_gather, best["gather"]))
        yield entry("triton sort", Stream("sort_fused", sent, sent), partial(_make_sort, best["gather"]))
        for weighted in (False, True):
            how = f"triton{' weighted' if weighted else ''}"
            make = partial(_make_unpermute, best["unpermute"], weighted)
            yield entry(how, Stream("unpermute_fused", sent, own), make)
        kernel = Stream("unpermute_backward_fused", own + sent, sent)
        yield entry("triton weighted", kernel, partial(_make_backward, best["backward"]))
        yield entry("index_select", Stream("permute", sent, sent), _make_index_select)
        yield entry("index_add", Stream("unpermute", sent, own), _make_index_add)
        yield entry("scatter_add", Stream("unpermute", sent, own), _make_scatter_add)


def _permutation(tokens: int, hidden: int, how: str, kernel: Stream, make: Callable[..., Launch]) -> Item:
    kernel = replace(kernel, rows=hidden)
    return item(how, kernel, partial(_routed, make, tokens, hidden), tokens=tokens, hidden=hidden, top=TOP)


def _routed(make: Callable[..., Launch], tokens: int, hidden: int, bench: Bench) -> Launch:
    return make(bench, Routes.random(tokens), bench.normal(tokens, hidden))


def _rows_like(bench: Bench, x: Any) -> Any:
    return bench.normal(x.shape[0] * TOP, x.shape[1])


def _make_permute(config: tuple[int, int], bench: Bench, routes: Routes, x: Any) -> Launch:
    return partial(launch_permute, x, routes, _rows_like(bench, x), config)


def _make_gather(config: tuple[int, int], bench: Bench, routes: Routes, x: Any) -> Launch:
    return partial(launch_gather, x, routes.origins, _rows_like(bench, x), config)


def _make_sort(config: tuple[int, int], bench: Bench, routes: Routes, x: Any) -> Launch:
    """Chunks of 64 to 192 rows in another order: what comes from other ranks, sorted by expert."""
    del routes
    generator = random.Random(5)
    total, starts = x.shape[0] * TOP, [0]
    while starts[-1] < total:
        starts.append(min(total, starts[-1] + generator.randint(64, 192)))
    chunks = [torch.arange(a, b, dtype=torch.int32) for a, b in pairwise(starts)]
    generator.shuffle(chunks)
    index = torch.cat(chunks).to(x.device)
    return partial(launch_gather, _rows_like(bench, x), index, _rows_like(bench, x), config)


def _make_unpermute(config: tuple[int, int], weighted: bool, bench: Bench, routes: Routes, x: Any) -> Launch:
    return partial(launch_unpermute, _rows_like(bench, x), routes, x, weighted, config)


def _make_backward(warps: int, bench: Bench, routes: Routes, x: Any) -> Launch:
    outs = _rows_like(bench, x), torch.empty_like(routes.weights)
    return partial(launch_unpermute_backward, x, _rows_like(bench, x), routes, outs, warps)


def _make_index_select(bench: Bench, routes: Routes, x: Any) -> Launch:
    del bench
    return lambda: x.index_select(0, routes.origins)


def _make_index_add(bench: Bench, routes: Routes, x: Any) -> Launch:
    rows = _rows_like(bench, x)
    return lambda: x.index_add_(0, routes.origins, rows)


def _make_scatter_add(bench: Bench, routes: Routes, x: Any) -> Launch:
    """As Megatron-core does it without fusion."""
    rows = _rows_like(bench, x)
    index = routes.origins.long()[:, None].expand(-1, x.shape[1])
    return lambda: torch.zeros_like(x).scatter_add_(0, index, rows)


def permutations(session: Session) -> None:
    """Part 3: rows to experts and back."""
    with session.trying("check of permutations"):
        check_permutations(session)
    measure(session, permutation_items(tune_permutations(session)))
