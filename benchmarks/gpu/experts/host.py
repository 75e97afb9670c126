"""Measures microseconds of the host: calls, modules with gradients, loops in C++, waits and collectives."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from experts.activations import make_activation, weighted_swiglu
from experts.grouped import looped, offsets
from experts.measuring import DEVICE, STREAMS, TOP, Session
from experts.native import Native
from experts.permutations import Routes, launch_permute
from foretrace.calibrate.gpu.case import Launch
from foretrace.calibrate.gpu.host import host_facts, profiled_launches


class EngineLinear(torch.autograd.Function):
    """Does the least that a linear layer of Transformer Engine does: one product forward, two backward, in Python."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, options: dict[str, Any]) -> Any:
        """Keeps its operands."""
        ctx.save_for_backward(x, weight)
        ctx.options, ctx.shape = options, x.shape
        ctx.needs_x, ctx.needs_weight = x.requires_grad, weight.requires_grad
        return torch.mm(x.view(-1, x.shape[-1]), weight.t()).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Gradients of the input and the weight."""
        x, weight = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        d_x = torch.mm(flat, weight).view(ctx.shape) if ctx.needs_x else None
        d_weight = torch.mm(flat.t(), x.view(-1, x.shape[-1])) if ctx.needs_weight else None
        return d_x, d_weight, None


class EngineModule(torch.nn.Module):
    """A module around `EngineLinear`."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * 0.02)
        self.options = {"fp8": False, "parallel_mode": None, "sequence_parallel": False}

    def forward(self, x: Any) -> Any:
        """The product."""
        return EngineLinear.apply(x, self.weight, self.options)


class HostTimer:
    """Times calls on the host, the GPU's queue never being full."""

    TRIES = 15

    def __init__(self, session: Session) -> None:
        self.session = session

    def calls(self, what: str, call: Launch, times: int = 200, **labels: Any) -> None:
        """Writes the microseconds of a call: the median and the least of some tries of `times` calls."""
        with self.session.trying(what):
            for _ in range(3):
                call()
            tries = []
            for _ in range(self.TRIES):
                self.session.clock.wait()
                began = time.perf_counter()
                for _ in range(times):
                    call()
                tries.append((time.perf_counter() - began) / times)
            self.session.clock.wait()
            self.write(what, tries, **labels)

    def write(self, what: str, seconds: Sequence[float], **labels: Any) -> None:
        """Writes a row; with `count` in the labels also for one of so many."""
        us = median(seconds) * 1e6
        if "count" in labels:
            labels["us_each"] = round(us / labels["count"], 3)
        self.session.write("host", what=what, us=round(us, 3), least_us=round(min(seconds) * 1e6, 3), **labels)

    def chain(self, what: str, make: Callable[[], Any], x: Any, layers: int = 20) -> None:
        """Writes the microseconds of a module's forward and backward pass, in a chain of so many."""
        with self.session.trying(what):
            modules = [make() for _ in range(layers)]
            parameters = [parameter for module in modules for parameter in module.parameters()]

            def forward() -> Any:
                y = x
                for module in modules:
                    y = module(y)
                return y

            def clear() -> None:
                for leaf in (x, *parameters):
                    leaf.grad = None

            g = torch.randn_like(forward())
            forwards, backwards = [], []
            for attempt in range(25):
                clear()
                self.session.clock.wait()
                marks = [time.perf_counter()]
                y = forward()
                marks.append(time.perf_counter())
                y.backward(g)
                marks.append(time.perf_counter())
                if attempt >= 5:
                    forwards.append(marks[1] - marks[0])
                    backwards.append(marks[2] - marks[1])
            self.session.clock.wait()
            labels = {"count": layers, "tokens": x.numel() // x.shape[-1], "hidden": x.shape[-1]}
            clear()
            y = forward()
            launches = [
                profiled_launches(torch, self.session.clock, call) for call in (forward, partial(y.backward, g))
            ]
            self.write(f"{what} forward", forwards, launches=launches[0], **labels)
            self.write(f"{what} backward", backwards, launches=launches[1], **labels)


def host_machine(session: Session) -> None:
    """The CPU, and the facts that profiles carry."""
    with session.trying("lscpu"):
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
        words = ("Model name", "CPU(s)", "Thread", "Core", "MHz", "L2", "L3", "Hypervisor")
        cpu = dict(line.split(":", 1) for line in lines if line.startswith(("CPU max", *words)) or "MHz" in line)
        session.write("facts", cpu={name.strip(): value.strip() for name, value in cpu.items()})
    with session.trying("host facts"):
        session.write("facts", **host_facts(session.bench, session.clock))


def host_operators(session: Session, timer: HostTimer) -> None:
    """Single calls of PyTorch and Triton, on tensors so small that the GPU waits."""
    x, w, out = session.bench.normal(64, 256), session.bench.normal(256, 256), session.bench.normal(64, 256)
    ids, xs = torch.arange(64, device=DEVICE), [session.bench.normal(64, 256) for _ in range(16)]
    eights = session.bench.normal(64, 256, dtype="fp8"), session.bench.normal(256, 256, dtype="fp8").t()
    scale, grouped = torch.ones((), device=DEVICE), session.bench.normal(16, 256, 256)
    rows, ends = session.bench.normal(1024, 256), offsets([64] * 16)
    needs_grad = session.bench.normal(64, 256).requires_grad_(True)
    varied = [session.bench.normal(rows_, 256) for rows_ in range(33, 233)]
    at = iter(range(10**9))
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    norm = session.bench.normal(256)

    def on_stream() -> None:
        with torch.cuda.stream(stream):
            pass

    calls: dict[str, Launch] = {
        "python function": lambda: None,
        "x + x": lambda: x + x,
        "x + x, with grad": lambda: needs_grad + needs_grad,
        "x.add_(1)": lambda: x.add_(1),
        "torch.add out": lambda: torch.add(x, x, out=out),
        "torch.empty": lambda: torch.empty(64, 256, device=DEVICE, dtype=torch.bfloat16),
        "slice": lambda: x[3:17],
        "split in 16": lambda: rows.split(64),
        "cat of 16": lambda: torch.cat(xs),
        "torch.mm": lambda: torch.mm(x, w),
        "torch.mm out": lambda: torch.mm(x, w, out=out),
        "torch.mm of 200 shapes": lambda: torch.mm(varied[next(at) % 200], w),
        "torch._scaled_mm": lambda: torch._scaled_mm(*eights, scale, scale, out_dtype=torch.bfloat16),
        "torch._grouped_mm": lambda: torch._grouped_mm(rows, grouped, offs=ends, out_dtype=torch.bfloat16),
        "rms_norm": lambda: functional.rms_norm(x, (256,), norm),
        "index_select": lambda: x.index_select(0, ids),
        "topk": lambda: torch.topk(x, 8),
        "_foreach_add_ of 16": lambda: torch._foreach_add_(xs, 1.0),
        "stream context": on_stream,
        "event record": lambda: event.record(),
        "wait_stream": lambda: stream.wait_stream(torch.cuda.current_stream()),
        "torch.mm of 16 on 4 streams": looped([partial(torch.mm, y, w) for y in xs], STREAMS),
    }
    for what, call in calls.items():
        timer.calls(what, call, times=60 if "16" in what else 200)
    with session.trying("triton"):
        tokens, routes = session.bench.normal(64, 256), Routes.random(64)
        target = session.bench.normal(64 * TOP, 256)
        timer.calls("triton kernel", partial(launch_permute, tokens, routes, target, (1024, 4)))
    with session.trying("inductor"):
        launch = make_activation(weighted_swiglu, (64, 256, True), session.bench)
        timer.calls("compiled weighted_swiglu", launch)


def host_modules(session: Session, timer: HostTimer) -> None:
    """Modules with gradients. The linear layers are those of TransformerEngine issue 2053, which were measured on an
    H100's Xeon 8480C and on Grace: 8,192 tokens, 2,048 wide, bf16."""
    bf16 = {"device": DEVICE, "dtype": torch.bfloat16}
    for tokens, hidden in ((8192, 2048), (64, 256)):
        x = session.bench.normal(tokens, hidden).requires_grad_(True)
        for bias in (True, False):
            linear = torch.nn.Linear(hidden, hidden, bias=bias, **bf16)
            labels = {"tokens": tokens, "hidden": hidden, "bias": bias}
            timer.calls("nn.Linear call", partial(linear, x), times=150, **labels)
            with torch.no_grad():
                timer.calls("nn.Linear call, no grad", partial(linear, x), times=150, **labels)
        engine = EngineModule(hidden, hidden)
        timer.calls("autograd.Function linear call", partial(engine, x), times=150, tokens=tokens, hidden=hidden)
        makers: dict[str, Callable[[], Any]] = {
            "nn.Linear": partial(torch.nn.Linear, hidden, hidden, bias=False, **bf16),
            "autograd.Function linear": partial(EngineModule, hidden, hidden),
            "nn.RMSNorm": partial(torch.nn.RMSNorm, hidden, **bf16),
        }
        for what, make in makers.items():
            timer.chain(what, make, x)
    x = session.bench.normal(64, 256).requires_grad_(True)
    timer.chain("add with grad", _Add, x)
    q = [session.bench.normal(1, 4, 64, 64).requires_grad_(True) for _ in range(3)]
    timer.calls("sdpa forward", lambda: functional.scaled_dot_product_attention(*q, is_causal=True), times=100)


class _Add(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        """Twice the input."""
        return x + x


def host_loops(session: Session, timer: HostTimer) -> None:
    """Loops in C++ over kernels and over cublasLt's products."""
    native = Native(session.library)
    x = torch.zeros(4096, device=DEVICE)
    for count, streams in product((1, 16, 64), (1, STREAMS)):
        timer.calls("C++ kernels", partial(native.kernels, count, streams, x), 12, count=count, streams=streams)
    weights = session.bench.normal(64, 512, 512)
    parts = [(session.bench.normal(128, 512), weights[g], session.bench.normal(128, 512)) for g in range(64)]
    for count, streams, reuse in ((1, 1, False), (16, 4, False), (64, 4, False), (64, 1, False), (64, 4, True)):
        launch = native.products(parts[:count], streams, reuse)
        what = f"C++ cublasLt products{', one algorithm' if reuse else ''}"
        timer.calls(what, launch, 10, count=count, streams=streams)
    with session.trying("C++ cublasLt products, new rows"):
        generator = random.Random(3)
        most = session.bench.normal(1200, 512), session.bench.normal(1200, 512)
        launches = []
        for _ in range(40):
            rows = [generator.randint(900, 1150) for _ in range(16)]
            launches.append(native.products([(most[0][:r], weights[g], most[1][:r]) for g, r in enumerate(rows)], 4))
        for what in ("first time", "again"):
            tries = []
            for launch in launches:
                session.clock.wait()
                began = time.perf_counter()
                launch()
                tries.append(time.perf_counter() - began)
            timer.write(f"C++ cublasLt products, rows of each call new, {what}", tries, count=16, streams=4)
        sizes = list(range(1300, 1500))
        generator.shuffle(sizes)
        wide, narrow = session.bench.normal(1500, 512), session.bench.normal(512, 512)
        for what in ("first time", "again"):
            tries = []
            for rows_ in sizes:
                view = wide[:rows_]
                began = time.perf_counter()
                torch.mm(view, narrow)
                tries.append(time.perf_counter() - began)
            session.clock.wait()
            timer.write(f"torch.mm, rows of each call new, {what}", tries)


def host_waits(session: Session, timer: HostTimer) -> None:
    """Times waits of the host for the GPU, and graphs."""
    x, counts = torch.zeros(1, device=DEVICE), torch.arange(64, device=DEVICE)
    pinned, event = torch.empty(64, dtype=torch.int64, pin_memory=True), torch.cuda.Event()

    def to_pinned() -> None:
        pinned.copy_(counts, non_blocking=True)
        event.record()
        event.synchronize()

    calls: dict[str, Launch] = {
        "item, GPU idle": x.item,
        "item after a kernel": lambda: x.add_(1).item(),
        "tolist of 64": counts.tolist,
        "copy of 64 to pinned memory and wait": to_pinned,
        "synchronize, GPU idle": torch.cuda.synchronize,
        "synchronize after a kernel": lambda: (x.add_(1), torch.cuda.synchronize()),
        "stream.synchronize after a kernel": lambda: (x.add_(1), torch.cuda.current_stream().synchronize()),
    }
    for what, call in calls.items():
        timer.calls(what, call, times=100)
    for nodes in (1, 16, 256):
        with session.trying(f"graph of {nodes}"):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(nodes):
                    x.add_(1)
            timer.calls("graph replay", graph.replay, times=10, nodes=nodes)
            session.clock.delay(2e-3)
            start = session.clock.event()
            for _ in range(10):
                graph.replay()
            end = session.clock.event()
            session.clock.wait()
            gpu_us = session.clock.between_s(start, end) / 10 * 1e6
            session.write("host", what="graph replay, GPU", us=round(gpu_us, 3), us_each=gpu_us / nodes, nodes=nodes)


def host(session: Session) -> None:
    """Part 0: the host's microseconds."""
    timer = HostTimer(session)
    host_machine(session)
    for part in (host_modules, host_loops, host_operators, host_waits):
        with session.trying(part.__name__):
            if session.over:
                session.write("skipped", reason="time was up", what=part.__name__)
            else:
                part(session, timer)
            torch.cuda.empty_cache()


def nccl(session: Session) -> None:
    """Part 8: collectives of a world of one; only the host's time means anything."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    timer = HostTimer(session)
    distributed = torch.distributed
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        x, out = session.bench.normal(1024), session.bench.normal(1024)
        splits = [1024]
        calls: dict[str, Launch] = {
            "all_to_all_single with splits": lambda: distributed.all_to_all_single(out, x, splits, splits),
            "all_to_all_single, async and wait": lambda: distributed.all_to_all_single(
                out, x, splits, splits, async_op=True
            ).wait(),
            "all_gather_into_tensor": lambda: distributed.all_gather_into_tensor(out, x),
            "reduce_scatter_tensor": lambda: distributed.reduce_scatter_tensor(out, x),
            "all_reduce": lambda: distributed.all_reduce(x),
        }
        for what, call in calls.items():
            timer.calls(what, call, times=50, world=1)
        distributed.destroy_process_group()
