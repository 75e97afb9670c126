"""Measures what a launch takes the host, with kernels so small that the GPU always waits for the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from foretrace.calibrate.gpu.case import Bench, Launch
from foretrace.calibrate.gpu.timing import Clock

LAYERS: Final = 12
TOKENS: Final = 64
HIDDEN: Final = 256
HEAD_DIM: Final = 64
TIMES: Final = 9


def host_facts(bench: Bench, clock: Clock) -> dict[str, str]:
    """Microseconds of the host for a launch, by kind of work, each with how many launches that is a mean over."""
    facts: dict[str, str] = {}
    for measure in (_single_operators, _small_model, _kernel_floor):
        try:
            facts |= measure(bench, clock)
        except Exception as error:  # a fact less is better than no profile
            facts[f"not measured {measure.__name__.strip('_')}"] = f"{type(error).__name__}: {error}"[:200]
    return facts


def _single_operators(bench: Bench, clock: Clock) -> dict[str, str]:
    torch = bench.torch
    x, w = bench.normal(TOKENS, HIDDEN), bench.normal(HIDDEN, HIDDEN)
    scale = bench.normal(HIDDEN)
    calls: dict[str, Launch] = {
        "mm": lambda: torch.mm(x, w),
        "add": lambda: x + x,
        "norm": lambda: torch.nn.functional.rms_norm(x, (HIDDEN,), scale),
    }
    return {f"host_{name}_us": f"{_host_s(clock, call, 500) / 500 * 1e6:.2f}" for name, call in calls.items()}


def _host_s(clock: Clock, call: Callable[[], object], times: int = 1) -> float:
    """Returns the seconds that the host takes for `times` calls: the median of some tries."""
    tries = []
    for _ in range(TIMES):
        clock.wait()
        began = time.perf_counter()
        for _ in range(times):
            call()
        tries.append(time.perf_counter() - began)
    clock.wait()
    return median(tries)


def _small_model(bench: Bench, clock: Clock) -> dict[str, str]:
    """Forward, backward and optimizer of small llama layers; launches are counted by the profiler."""
    torch = bench.torch
    layers = [_parameters(bench) for _ in range(LAYERS)]
    parameters = [parameter for layer in layers for parameter in layer]
    x = bench.normal(1, TOKENS, HIDDEN)
    cosine = bench.normal(TOKENS, HEAD_DIM)
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)

    def forward() -> Any:
        y = x
        for layer in layers:
            y = _layer(torch, y, cosine, *layer)
        return y.float().sum()

    def step() -> tuple[float, float, float]:
        clock.wait()
        marks = [time.perf_counter()]
        loss = forward()
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks.append(time.perf_counter())
        return marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]

    for _ in range(4):
        step()
    times = [step() for _ in range(2 * TIMES)]
    seconds = [median(time_[part] for time_ in times) for part in range(3)]
    loss = forward()
    counts = [
        profiled_launches(torch, clock, forward),
        profiled_launches(torch, clock, loss.backward),
        profiled_launches(torch, clock, optimizer.step),
    ]
    if not all(counts):
        raise RuntimeError("the profiler saw no launches")
    facts = {}
    for name, host_s, count in zip(("forward", "backward", "optimizer"), seconds, counts, strict=True):
        facts[f"host_{name}_us"] = f"{host_s / count * 1e6:.2f}"
        facts[f"host_{name}_launches"] = str(count)
    facts["host_optimizer_tensors"] = str(len(parameters))
    try:
        return facts | _graph(bench, clock, forward, counts[0])
    except Exception as error:  # graphs cannot hold every operator
        return facts | {"not measured graph_kernel_us": f"{type(error).__name__}: {error}"[:200]}


def _parameters(bench: Bench) -> tuple[Any, ...]:
    """Weights of norm, qkv, projection, norm, gate and up, down."""
    ffn = 2 * HIDDEN
    shapes = ((HIDDEN,), (3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,), (2 * ffn, HIDDEN), (HIDDEN, ffn))
    return tuple((bench.normal(*shape) * 0.02).requires_grad_(True) for shape in shapes)


def _layer(torch: Any, x: Any, cosine: Any, first: Any, qkv: Any, out: Any, second: Any, up: Any, down: Any) -> Any:
    functional = torch.nn.functional

    def rotate(q: Any) -> Any:
        left, right = q.chunk(2, -1)
        return q * cosine + torch.cat((-right, left), -1) * cosine

    batch, tokens, hidden = x.shape
    parts = functional.linear(functional.rms_norm(x, (hidden,), first), qkv).split(hidden, -1)
    q, k, v = (part.view(batch, tokens, -1, HEAD_DIM).transpose(1, 2) for part in parts)
    y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    x = x + functional.linear(y.transpose(1, 2).reshape(batch, tokens, hidden), out)
    gate, rest = functional.linear(functional.rms_norm(x, (hidden,), second), up).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * rest, down)


def profiled_launches(torch: Any, clock: Clock, call: Callable[[], object]) -> int:
    """Returns the number of kernels that a call launches; what copies or fills memory counts as one."""
    profiler = torch.profiler
    clock.wait()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]) as recorded:
        call()
        clock.wait()
    words = ("LaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync")
    return sum(1 for event in recorded.events() if any(word in event.name for word in words))


def _graph(bench: Bench, clock: Clock, forward: Callable[[], Any], launches: int) -> dict[str, str]:
    """The same forward pass replayed as a CUDA graph: GPU time for each of its kernels, gaps included."""
    torch = bench.torch
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                forward()
        clock.wait()
        with torch.cuda.graph(graph):
            forward()
    graph.replay()
    clock.wait()
    start = clock.event()
    for _ in range(10):
        graph.replay()
    end = clock.event()
    clock.wait()
    return {"graph_kernel_us": f"{clock.between_s(start, end) / 10 / launches * 1e6:.2f}"}


def _kernel_floor(bench: Bench, clock: Clock) -> dict[str, str]:
    """Returns the seconds from the start of the smallest kernel to that of the next, in a full queue."""
    x = bench.normal(8)
    x.add_(1)
    clock.wait()
    clock.delay(2e-2)
    start = clock.event()
    for _ in range(200):
        x.add_(1)
    end = clock.event()
    clock.wait()
    return {"kernel_floor_us": f"{clock.between_s(start, end) / 200 * 1e6:.2f}"}
