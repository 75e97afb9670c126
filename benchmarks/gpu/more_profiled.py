"""More steps than `profiled.py` has, of other models and written in other ways: what profiling them costs.

`python benchmarks/gpu/more_profiled.py --out FOLDER` writes traces and `measured.json` as `profiled.py` does, for
`benchmarks/fit_profiling.py --add`. Each workload says how it is profiled: what is recorded, how many steps, and in
which style: `steps` (a schedule), `synchronized` (the same, the host waiting after each step), `named` (no schedule,
an annotation around each step) or `none` (no mark of steps at all).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from steps import PLAIN, Model
from torch import nn
from torch.nn import functional
from torch.profiler import profile, record_function, schedule

from profiled import Step, captured, clocks, export, profiler_options, run_all, timed

Optimizer = torch.optim.Optimizer
Made = tuple[Step, Optimizer | None]
"""A step, and its optimizer where it can be captured in a graph."""


class Way(NamedTuple):
    """How a workload is profiled."""

    tag: str
    setting: str
    style: str
    active: int


def language_model(mbs: int, seq: int, **sizes: Any) -> tuple[Model, Callable[[], torch.Tensor]]:
    """A model, and its loss on random tokens."""
    case = {**PLAIN, "seq": seq, **sizes}
    with torch.device("cuda"):
        model = Model(case)
        tokens, target = (torch.randint(0, case["vocab"], (mbs, seq)) for _ in range(2))
    return model, lambda: model(tokens, target)


def sized(style: str, hidden: int, ffn: int, heads: int, kv: int, vocab: int, layers: int) -> dict[str, Any]:
    """Sizes by their names."""
    sizes = {"style": style, "hidden": hidden, "ffn": ffn, "heads": heads, "kv": kv, "head_dim": hidden // heads}
    return {**sizes, "vocab": vocab, "layers": layers}


def adamw(model: nn.Module, **how: bool) -> Optimizer:
    """Fused where nothing else is said."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, **(how or {"fused": True}))


def plain_step(loss_of: Callable[[], torch.Tensor], optimizer: Optimizer, set_to_none: bool = True) -> Step:
    """Forward, backward, optimizer; nothing annotated."""

    def step() -> None:
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    return step


def simple(mbs: int, seq: int, *sizes: Any, compiled: bool = False, recompute: str = "none", **how: bool) -> Made:
    """A language model's step."""
    model, loss = language_model(mbs, seq, **sized(*sizes), recompute=recompute)
    optimizer = adamw(model, **how)
    if compiled:
        model.compile()
    return plain_step(loss, optimizer), optimizer


def accumulated(mbs: int, seq: int, batches: int, named: bool, *sizes: Any) -> Made:
    """Several batches before the optimizer's step; forwards and backwards under annotations or not."""
    model, loss_of = language_model(mbs, seq, **sized(*sizes))
    optimizer = adamw(model)

    def marked(name: str) -> contextlib.AbstractContextManager[Any]:
        return record_function(name) if named else contextlib.nullcontext()

    def step() -> None:
        for _ in range(batches):
            with marked("forward"):
                loss = loss_of() / batches
            with marked("backward"):
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, optimizer


class Experts(nn.Module):
    """A layer of experts whose sizes the host reads."""

    def __init__(self, hidden: int, inner: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, count, bias=False)
        self.up = nn.ModuleList(nn.Linear(hidden, inner) for _ in range(count))
        self.down = nn.ModuleList(nn.Linear(inner, hidden) for _ in range(count))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each row by two experts."""
        y = self.norm(x)
        weight, which = self.gate(y).float().softmax(-1).topk(2, -1)
        flat = which.flatten()
        order = flat.argsort()
        sizes = torch.bincount(flat, minlength=len(self.up)).tolist()
        parts = zip(self.up, self.down, y[order // 2].split(sizes), strict=True)
        done = torch.cat([down(functional.gelu(up(rows))) for up, down, rows in parts])
        done = done * weight.flatten()[order].unsqueeze(-1).to(done.dtype)
        return x + torch.zeros_like(x).index_add(0, order // 2, done)


def moe() -> Made:
    """Layers of experts."""
    with torch.device("cuda"):
        model, x = nn.Sequential(*[Experts(1024, 2048, 8) for _ in range(6)]), torch.randn(2048, 1024)
    return plain_step(lambda: model(x).float().square().mean(), adamw(model)), None


class Residual(nn.Module):
    """Linear layers with GELU."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        for layer in self.layers:
            x = x + functional.gelu(layer(x))
        return x


def sided(width: int, rows: int, layers: int) -> Made:
    """Two branches, one on a stream of its own, joined by events."""
    with torch.device("cuda"):
        branches, x = nn.ModuleList(Residual(width, layers) for _ in range(2)), torch.randn(rows, width)
    optimizer, side = adamw(branches), torch.cuda.Stream()

    def loss() -> torch.Tensor:
        main, ready, done = torch.cuda.current_stream(), torch.cuda.Event(), torch.cuda.Event()
        ready.record(main)
        with torch.cuda.stream(side):
            side.wait_event(ready)
            side_result = branches[1](x)
            done.record(side)
        main_result = branches[0](x)
        main.wait_event(done)
        return (main_result + side_result).float().square().mean()

    return plain_step(loss, optimizer), optimizer


def prefetch() -> Made:
    """Each batch brought from pinned memory on another stream during the step before."""
    model, _ = language_model(1, 512, **sized("gpt", 768, 3072, 12, 12, 16384, 12))
    optimizer, copies = adamw(model), torch.cuda.Stream()
    pinned = [torch.randint(0, 16384, (16, 512)).pin_memory() for _ in range(2)]
    pinned.append(torch.randn(8 << 20).pin_memory())
    fetched: list[torch.Tensor] = []

    def fetch() -> None:
        with torch.cuda.stream(copies):
            fetched[:] = [tensor.to("cuda", non_blocking=True) for tensor in pinned]

    def step() -> None:
        torch.cuda.current_stream().wait_stream(copies)
        tokens, target, _ = batch = list(fetched)
        for tensor in batch:
            tensor.record_stream(torch.cuda.current_stream())
        fetch()
        model(tokens, target).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    fetch()
    return step, None


def inference() -> Made:
    """Forward alone."""
    model, loss = language_model(1, 128, **sized("llama", 1536, 4096, 12, 12, 32000, 16))
    model.eval()

    @torch.no_grad()
    def step() -> None:
        loss()

    return step, torch.optim.SGD(model.parameters())


def item_clip() -> Made:
    """Gradients clipped by their norm, the loss read by the host, in a step bound by the device."""
    model, loss_of = language_model(2, 1024, **sized("gpt", 4096, 16384, 32, 32, 50304, 4))
    optimizer = adamw(model)
    seen: list[float] = []

    def step() -> None:
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(loss.item())

    return step, None


def sgd_zero() -> Made:
    """SGD by lists of tensors, gradients set to zeros."""
    model, loss = language_model(1, 256, **sized("llama", 2048, 5632, 32, 4, 32000, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, foreach=True)
    return plain_step(loss, optimizer, set_to_none=False), optimizer


def amp() -> Made:
    """PyTorch's own encoder under autocast to fp16, its loss scaled."""
    torch.set_default_dtype(torch.float32)
    with torch.device("cuda"):
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
        model = nn.ModuleList((nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), nn.Linear(768, 1000)))
        x, target = torch.randn(8, 197, 768), torch.randint(0, 1000, (8,))
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-5), torch.amp.GradScaler("cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = functional.cross_entropy(model[1](model[0](x).mean(1)), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step, None


def lstm() -> Made:
    """cuDNN's LSTM: many small kernels for each op."""
    torch.set_default_dtype(torch.float32)
    with torch.device("cuda"):
        model = nn.ModuleList((nn.LSTM(512, 512, 2, batch_first=True), nn.Linear(512, 1000)))
        x, target = torch.randn(32, 64, 512), torch.randint(0, 1000, (32 * 64,))

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model[1](model[0](x)[0]).view(-1, 1000), target)

    return plain_step(loss, torch.optim.Adam(model.parameters(), lr=1e-4)), None


class Block(nn.Module):
    """Two convolutions with batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Added to what came in."""
        return torch.relu(x + self.last(self.second(torch.relu(self.norm(self.first(x))))))


def resnet() -> Made:
    """Convolutions on images that are copied from the host's pageable memory in every step."""
    with torch.device("cuda"):
        blocks = nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), *[Block(128) for _ in range(12)])
        model = nn.ModuleList((blocks.to(memory_format=torch.channels_last), nn.Linear(128, 1000)))
    images, labels = torch.randn(128, 3, 56, 56), torch.randint(0, 1000, (128,))

    def loss() -> torch.Tensor:
        x = images.cuda().contiguous(memory_format=torch.channels_last)
        target = labels.cuda()
        return functional.cross_entropy(model[1](model[0](x).mean((2, 3))).float(), target)

    return plain_step(loss, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)), None


SMALL = ("gpt", 1024, 4096, 16, 16, 16384, 6)
WORKLOADS: dict[str, tuple[Callable[[], Made], tuple[Way, ...]]] = {
    "gpt27b": (
        lambda: simple(1, 1024, "gpt", 2560, 10240, 32, 32, 50304, 32),
        (Way("plain2", "plain", "steps", 2), Way("none", "shapes", "none", 3)),
    ),
    "accum": (
        lambda: accumulated(2, 512, 3, False, "llama", 1024, 2816, 16, 8, 32000, 10),
        (Way("named", "shapes", "named", 3), Way("none", "plain", "none", 3), Way("steps", "shapes", "steps", 4)),
    ),
    "accum_big": (
        lambda: accumulated(2, 2048, 2, True, "llama", 3072, 8192, 24, 8, 32000, 8),
        (Way("steps1", "shapes", "steps", 1), Way("none", "shapes", "none", 3)),
    ),
    "recompute": (
        lambda: simple(2, 2048, "llama", 2048, 5632, 16, 8, 32000, 12, recompute="full"),
        (Way("none", "shapes", "none", 3), Way("sync", "shapes", "synchronized", 3)),
    ),
    "foreach_false": (
        lambda: simple(4, 256, "llama", 768, 2048, 12, 12, 16384, 6, fused=False, foreach=False),
        (Way("steps", "shapes", "steps", 3), Way("plain", "plain", "steps", 3)),
    ),
    "moe": (moe, (Way("steps", "shapes", "steps", 4), Way("none", "plain", "none", 3))),
    "sided_small": (lambda: sided(1024, 2048, 24), (Way("steps", "shapes", "steps", 4),)),
    "sided_big": (
        lambda: sided(4096, 8192, 8),
        (Way("steps", "shapes", "steps", 4), Way("sync", "sync", "steps", 3)),
    ),
    "prefetch": (prefetch, (Way("steps", "shapes", "steps", 4), Way("plain", "plain", "none", 3))),
    "inference": (inference, (Way("steps", "shapes", "steps", 4), Way("none", "plain", "none", 4))),
    "item_clip": (item_clip, (Way("steps", "shapes", "steps", 3), Way("steps2", "plain", "steps", 2))),
    "sgd_zero": (
        sgd_zero,
        (
            Way("steps1", "shapes", "steps", 1),
            Way("sync", "shapes", "synchronized", 3),
            Way("stack", "stack", "steps", 2),
        ),
    ),
    "amp": (amp, (Way("stack", "stack", "steps", 2), Way("shapes", "shapes", "steps", 4))),
    "lstm": (lstm, (Way("steps", "shapes", "steps", 4), Way("none", "shapes", "none", 4))),
    "resnet": (resnet, (Way("steps", "shapes", "steps", 3),)),
    "tinyllama_s384": (
        lambda: simple(1, 384, "llama", 2048, 5632, 32, 4, 32000, 22),
        (Way("named", "plain", "named", 2), Way("shapes", "shapes", "steps", 4)),
    ),
    "compiled": (
        lambda: simple(4, 512, *SMALL, compiled=True),
        (Way("steps", "shapes", "steps", 4), Way("none", "plain", "none", 3)),
    ),
}


def profiled(step: Step, way: Way, path: Path) -> dict[str, Any]:
    """Steps under the profiler; the trace is written to `path`."""
    scheduled = way.style in ("steps", "synchronized")
    ahead = 2 if scheduled else 0
    when = schedule(wait=1, warmup=1, active=way.active, repeat=1) if scheduled else None
    took = 0.0
    for _ in range(2 - ahead):
        step()
    torch.cuda.synchronize()
    with profile(schedule=when, **profiler_options(way.setting)) as profiler:
        for number in range(ahead + way.active):
            if number == ahead:
                torch.cuda.synchronize()
                began = time.perf_counter()
            with record_function(f"train_step-{number}") if way.style == "named" else contextlib.nullcontext():
                step()
                if way.style == "synchronized":
                    torch.cuda.synchronize()
            if number == ahead + way.active - 1:
                torch.cuda.synchronize()
                took = time.perf_counter() - began
            if scheduled:
                profiler.step()
    export(profiler, path)
    mean_ms = round(took / way.active * 1e3, 4)
    return {"ms": [mean_ms], "median_ms": mean_ms, "setting": way.setting, "style": way.style, "active": way.active}


def measure(name: str, out: Path, settings: list[str] | None) -> dict[str, Any]:
    """All there is to know of one workload."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    maker, ways = WORKLOADS[name]
    step, optimizer = maker()
    for _ in range(5):
        step()
    results: dict[str, Any] = {"case": {"kind": name}, "clocks": clocks(), "unprofiled": [timed(step), timed(step)]}
    results["profiled"] = {
        way.tag: profiled(step, way, out / f"{name}.{way.tag}.json.gz")
        for way in ways
        if settings is None or way.setting in settings
    }
    results["clocks_after"] = clocks()
    if optimizer is None:
        return results
    try:
        graph = captured(step, optimizer)
        results["graph"] = [timed(graph.replay), timed(graph.replay)]
    except Exception as error:  # the eager times still count
        results["graph_error"] = f"{type(error).__name__}: {error}"[:300]
    return results


if __name__ == "__main__":
    run_all(__file__, list(WORKLOADS), measure)
