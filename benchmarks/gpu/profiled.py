"""What profiling a training step costs, on the GPU of this machine: each step unprofiled, profiled and as a CUDA graph.

Needs PyTorch with CUDA and nothing else: `python benchmarks/gpu/profiled.py --out FOLDER`. It writes Kineto traces
(gzip) and `measured.json`; each workload runs in a process of its own, since the profiler's hooks may stay in a
process that once profiled. Times are in milliseconds; a list holds one number per step.

A step is forward, backward, fused AdamW and zero_grad. *Unprofiled*: steps back to back, a CUDA event between each two;
`ms` are the differences, `mean_ms` the host's clock around all of them with a synchronisation at both ends. *Profiled*:
the same under `torch.profiler` with a schedule of three steps not recorded and four recorded. *Graph*: replays of the
whole step captured once.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from steps import PLAIN, Model
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS, ACTIVE = 30, 4
TINYLLAMA = {"hidden": 2048, "ffn": 5632, "heads": 32, "kv": 4, "head_dim": 64, "style": "llama", "vocab": 32000}
TINYLLAMA |= {"layers": 22, **PLAIN}
GPT_4096 = {"hidden": 4096, "ffn": 16384, "heads": 32, "kv": 32, "head_dim": 128, "style": "gpt", "vocab": 50304}
GPT_SMALL = {"hidden": 384, "ffn": 1536, "heads": 6, "kv": 6, "head_dim": 64, "style": "gpt", "vocab": 8192}
LLAMA_1024 = {"hidden": 1024, "ffn": 2816, "heads": 16, "kv": 4, "head_dim": 64, "style": "llama", "vocab": 32000}
LLAMA_8B = {"hidden": 4096, "ffn": 14336, "heads": 32, "kv": 8, "head_dim": 128, "style": "llama", "vocab": 32000}
RECOMPUTED = {**PLAIN, "recompute": "full"}

ALL = ("plain", "shapes", "memory", "stack")
SOME = ("shapes", "plain")
Step = Callable[[], None]

WORKLOADS: dict[str, dict[str, Any]] = {
    "tinyllama_mbs1_s256": {"kind": "transformer", "mbs": 1, "seq": 256, **TINYLLAMA, "settings": ALL},
    "tinyllama_mbs4_s1024": {"kind": "transformer", "mbs": 4, "seq": 1024, **TINYLLAMA, "settings": SOME},
    "streams": {"kind": "streams", "settings": ("shapes", "sync", "plain")},
    "gpt_small": {"kind": "transformer", "mbs": 8, "seq": 128, "layers": 6, **GPT_SMALL, **PLAIN, "settings": ALL},
    "mlp_many_ops": {"kind": "mlp", "settings": ALL},
    "convnet": {"kind": "convnet", "settings": ("shapes", "plain", "stack")},
    "item_each_step": {"kind": "item", "settings": ("shapes", "plain", "sync")},
    "gpt_4x4096_mbs4_s1024": {"kind": "transformer", "mbs": 4, "seq": 1024, "layers": 4, **GPT_4096, **PLAIN},
    "llama8b_2layers_s2048": {"kind": "transformer", "mbs": 1, "seq": 2048, "layers": 2, **LLAMA_8B, **PLAIN},
    "tinyllama_mbs1_s1024": {"kind": "transformer", "mbs": 1, "seq": 1024, **TINYLLAMA, "settings": SOME},
    "gpt_autocast": {"kind": "autocast", "settings": ALL},
    "tinyllama_mbs2_s256": {"kind": "transformer", "mbs": 2, "seq": 256, **TINYLLAMA},
    "llama_16x1024_s512": {"kind": "transformer", "mbs": 2, "seq": 512, "layers": 16, **LLAMA_1024, **PLAIN},
    "gpt_recomputed_s512": {"kind": "transformer", "mbs": 2, "seq": 512, "layers": 8, **GPT_4096, **RECOMPUTED},
    "tinyllama_foreach": {"kind": "transformer", "mbs": 1, "seq": 512, **TINYLLAMA, "layers": 8, "foreach": True},
}


def profiler_options(setting: str) -> dict[str, Any]:
    """What `torch.profiler.profile` is told in a setting."""
    options: dict[str, Any] = {"activities": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
    if setting != "plain":
        options["record_shapes"] = True
    if setting == "memory":
        options["profile_memory"] = True
    if setting == "stack":
        options["with_stack"] = True
    if setting == "sync":
        options["experimental_config"] = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    return options


class Blocks(nn.Module):
    """Linear layers with small pointwise ops between them, as hand-written models have."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual blocks."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = torch.tanh(layer(norm(x)))
            x = x + functional.dropout(y * torch.sigmoid(y), 0.1)
        return x


class ConvNet(nn.Module):
    """Residual 3×3 convolutions with batch norm on small images."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2 * blocks))
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = self.stem(x)
        for i in range(0, len(self.convs), 2):
            y = torch.relu(self.norms[i](self.convs[i](x)))
            x = torch.relu(x + self.norms[i + 1](self.convs[i + 1](y)))
        return self.head(x.mean((2, 3)))


def transformer_step(case: dict[str, Any]) -> tuple[Step, torch.optim.Optimizer]:
    """A language model's step."""
    with torch.device("cuda"):
        model = Model(case)
    fused = not case.get("foreach")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused, foreach=not fused)
    shape = (case["mbs"], case["seq"])
    tokens, target = (torch.randint(0, case["vocab"], shape, device="cuda") for _ in range(2))
    return plain_step(lambda: model(tokens, target), optimizer), optimizer


def plain_step(loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """Forward, backward, optimizer, each under its annotation."""

    def step() -> None:
        with record_function("forward"):
            loss = loss_of()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def mlp_step(_: dict[str, Any]) -> tuple[Step, torch.optim.Optimizer]:
    """Many small ops on small tensors."""
    with torch.device("cuda"):
        model = Blocks(512, 48)
        x = torch.randn(256, 512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return plain_step(lambda: model(x).float().square().mean(), optimizer), optimizer


def convnet_step(_: dict[str, Any]) -> tuple[Step, torch.optim.Optimizer]:
    """A small network of convolutions."""
    with torch.device("cuda"):
        model = ConvNet(64, 16)
        x, target = torch.randn(64, 3, 32, 32), torch.randint(0, 100, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    return plain_step(lambda: functional.cross_entropy(model(x).float(), target), optimizer), optimizer


def autocast_step(_: dict[str, Any]) -> tuple[Step, torch.optim.Optimizer]:
    """A small GPT with fp32 parameters under autocast."""
    torch.set_default_dtype(torch.float32)
    small = {**GPT_SMALL, **PLAIN, "hidden": 768, "ffn": 3072, "heads": 12, "kv": 12, "layers": 12, "seq": 256}
    with torch.device("cuda"):
        model = Model(small)
        tokens, target = torch.randint(0, 8192, (4, 256)), torch.randint(0, 8192, (4, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            result: torch.Tensor = model(tokens, target)
        return result

    return plain_step(loss, optimizer), optimizer


def streams_step(_: dict[str, Any]) -> tuple[Step, torch.optim.Optimizer]:
    """Two branches on streams of their own, and a batch brought from pinned memory on a third while they run."""
    with torch.device("cuda"):
        left, right, head = Blocks(2048, 8), Blocks(2048, 8), nn.Linear(4096, 1024)
        batches = [torch.randn(4096, 2048), torch.randn(4096, 2048)]
    pinned = torch.randn(4096, 2048).pin_memory()
    parameters = [*left.parameters(), *right.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    first, second, copies = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def loss() -> torch.Tensor:
        main = torch.cuda.current_stream()
        for stream in (first, second, copies):
            stream.wait_stream(main)
        with torch.cuda.stream(copies):
            batches[1].copy_(pinned, non_blocking=True)
        with torch.cuda.stream(first):
            left_result = left(batches[0])
        with torch.cuda.stream(second):
            right_result = right(batches[0])
        main.wait_stream(first)
        main.wait_stream(second)
        result = head(torch.cat((left_result, right_result), -1)).float().square().mean()
        main.wait_stream(copies)
        return result

    return plain_step(loss, optimizer), optimizer


def item_step(_: dict[str, Any]) -> tuple[Step, torch.optim.Optimizer]:
    """A GPT whose loss is read by the host in every step, as logging does; its gradients clipped by their norm."""
    sizes = {**GPT_SMALL, **PLAIN, "hidden": 1024, "ffn": 4096, "heads": 16, "kv": 16, "layers": 8, "seq": 512}
    with torch.device("cuda"):
        model = Model(sizes)
        tokens, target = torch.randint(0, 8192, (8, 512)), torch.randint(0, 8192, (8, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    seen: list[float] = []

    def step() -> None:
        with record_function("forward"):
            loss = model(tokens, target)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen.append(loss.item())

    return step, optimizer


MAKERS = {"transformer": transformer_step, "mlp": mlp_step, "convnet": convnet_step, "autocast": autocast_step}
MAKERS |= {"streams": streams_step, "item": item_step}


def timed(step: Step, steps: int = STEPS) -> dict[str, Any]:
    """Steps back to back."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    issued = []
    for mark in marks[:-1]:
        mark.record()
        at = time.perf_counter()
        step()
        issued.append(round((time.perf_counter() - at) * 1e3, 4))
    marks[-1].record()
    torch.cuda.synchronize()
    mean = (time.perf_counter() - began) / steps * 1e3
    each = [round(a.elapsed_time(b), 4) for a, b in itertools.pairwise(marks)]
    return {"ms": each, "median_ms": round(median(each), 4), "mean_ms": round(mean, 4), "host_ms": issued}


def profiled(step: Step, setting: str, path: Path) -> dict[str, Any]:
    """Steps under the profiler; the trace is written to `path`."""
    marks: list[tuple[float, torch.cuda.Event]] = []

    def mark() -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append((time.perf_counter(), event))

    with profile(schedule=schedule(wait=1, warmup=2, active=ACTIVE, repeat=1), **profiler_options(setting)) as profiler:
        for number in range(3 + ACTIVE):
            if number == 3:
                torch.cuda.synchronize()
                began = time.perf_counter()
            if number >= 3:
                mark()
            step()
            if number == 2 + ACTIVE:
                mark()
                torch.cuda.synchronize()
                mean = (time.perf_counter() - began) / ACTIVE * 1e3
            profiler.step()
    export(profiler, path)
    each = [round(a[1].elapsed_time(b[1]), 4) for a, b in itertools.pairwise(marks)]
    host = [round((b[0] - a[0]) * 1e3, 4) for a, b in itertools.pairwise(marks)]
    return {"ms": each, "median_ms": round(median(each), 4), "mean_ms": round(mean, 4), "host_ms": host}


def export(profiler: profile, path: Path) -> None:
    """The trace, compressed."""
    plain = path.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    plain.unlink()


def captured(step: Step, optimizer: torch.optim.Optimizer) -> torch.cuda.CUDAGraph:
    """The whole step as a graph."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    for state in optimizer.state.values():
        if "step" in state and not state["step"].is_cuda:
            state["step"] = state["step"].cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def measure(name: str, out: Path, settings: list[str] | None) -> dict[str, Any]:
    """All there is to know of one workload."""
    case = WORKLOADS[name]
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    step, optimizer = MAKERS[case["kind"]](case)
    for _ in range(6):
        step()
    results: dict[str, Any] = {"case": {k: v for k, v in case.items() if k != "settings"}, "clocks": clocks()}
    results["unprofiled"] = [timed(step), timed(step)]
    results["profiled"] = {}
    for setting in settings or case.get("settings", ("shapes",)):
        path = out / f"{name}.{setting}.json.gz"
        results["profiled"][setting] = profiled(step, setting, path)
        results["unprofiled"].append(timed(step))
    results["clocks_after"] = clocks()
    if case["kind"] == "item":
        return results
    try:
        graph = captured(step, optimizer)
        results["graph"] = [timed(graph.replay), timed(graph.replay)]
        path = out / f"{name}.graph.json.gz"
        results["graph_profiled"] = profiled(graph.replay, "plain", path)
        results["graph"].append(timed(graph.replay))
    except Exception as error:  # the eager times still count
        results["graph_error"] = f"{type(error).__name__}: {error}"[:300]
    return results


def clocks() -> str:
    """The GPU's clocks, temperature and power as nvidia-smi tells them."""
    query = "--query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw"
    return subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def region(times: dict[str, list[float]], name: str, count: int) -> Iterator[None]:
    """Notes what the host took for each of `count` calls, in microseconds, the device idle before."""
    torch.cuda.synchronize()
    with record_function(f"micro:{name}"):
        began = time.perf_counter()
        yield
        took = time.perf_counter() - began
    torch.cuda.synchronize()
    times.setdefault(name, []).append(round(took / count * 1e6, 4))


def micro_calls() -> dict[str, tuple[int, Callable[[], object]]]:
    """Host calls by what the profiler sees of them: ops in ops, runtime calls, launches; how often each is made."""
    with torch.device("cuda"):
        x, y = torch.randn(64, 64), torch.randn(64, 64)
        wide = torch.randn(4, 8, 16)
        many = [torch.randn(64) for _ in range(10)]
        leaf = torch.randn(64, 64).requires_grad_(True)
        mark = torch.cuda.Event()
    linear = nn.Linear(64, 64, device="cuda")
    cpu = torch.randn(8, 8)
    aten = torch.ops.aten

    def backward_chain() -> None:
        z = leaf
        for _ in range(100):
            z = z * 1.5
        z.sum().backward()

    return {
        "python only": (1000, lambda: None),
        "op alias (1 op)": (1000, lambda: aten.alias(x)),
        "op view (1 op)": (1000, lambda: x.view(4096)),
        "op transpose (2 ops)": (1000, lambda: x.transpose(0, 1)),
        "op select (2 ops)": (1000, lambda: wide.select(0, 1)),
        "op t (3 ops)": (1000, lambda: x.t()),
        "op chunk (many ops)": (300, lambda: wide.chunk(2, -1)),
        "op cpu add": (1000, lambda: cpu.add_(1.0)),
        "op empty": (1000, lambda: torch.empty(64, 64, device="cuda")),
        "runtime event record": (1000, lambda: mark.record()),
        "runtime event query": (1000, lambda: mark.query()),
        "launch add_": (400, lambda: x.add_(1.0)),
        "launch mul": (400, lambda: x * y),
        "launch zero_": (400, lambda: x.zero_()),
        "launch mm": (400, lambda: torch.mm(x, y)),
        "launch linear": (400, lambda: linear(y)),
        "launch foreach_add_ (10 tensors)": (400, lambda: torch._foreach_add_(many, 1.0)),
        "record_function": (1000, lambda: _annotated()),
        "backward of 100 mul": (3, backward_chain),
    }


def _annotated() -> None:
    with record_function("nothing"):
        pass


def micro_pass(times: dict[str, list[float]], calls: dict[str, tuple[int, Callable[[], object]]]) -> None:
    """Every call, in loops short enough for the launch queue."""
    for name, (count, call) in calls.items():
        with region(times, name, count):
            for _ in range(count):
                call()


def chains() -> dict[str, tuple[int, Callable[[], object]]]:
    """Kernels of several lengths, each launched many times back to back."""
    with torch.device("cuda"):
        sizes = {f"add {n}": torch.ones(n, dtype=torch.float32) for n in (1 << 10, 1 << 18, 1 << 22, 1 << 24, 1 << 26)}
        square = {n: torch.randn(n, n, dtype=torch.bfloat16) for n in (128, 512, 1024, 2048, 4096)}
        target = {n: torch.empty_like(matrix) for n, matrix in square.items()}
    calls: dict[str, tuple[int, Callable[[], object]]] = {}
    for name, tensor in sizes.items():
        calls[name] = (300, lambda tensor=tensor: tensor.add_(1.0))
    for n, matrix in square.items():
        calls[f"mm {n}"] = (300, lambda n=n, matrix=matrix: torch.mm(matrix, matrix, out=target[n]))
        calls[f"mm {n}, add"] = (150, lambda n=n, matrix=matrix: torch.mm(matrix, matrix, out=target[n]).add_(1.0))
    calls["memset"] = (300, lambda: sizes["add 1024"].zero_())
    return calls


def chain_pass(times: dict[str, list[float]], calls: dict[str, tuple[int, Callable[[], object]]]) -> None:
    """Microseconds of the device per launch where all launches wait behind a long kernel."""
    for name, (count, call) in calls.items():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(60_000_000)
        with record_function(f"chain:{name}"):
            begin.record()
            for _ in range(count):
                call()
            end.record()
        torch.cuda.synchronize()
        times.setdefault(name, []).append(round(begin.elapsed_time(end) / count * 1e3, 4))


def graph_chains(calls: dict[str, tuple[int, Callable[[], object]]]) -> dict[str, list[float]]:
    """Microseconds per launch of the same chains in a graph, and of graphs of a single kernel (`one`)."""
    times: dict[str, list[float]] = {}
    for name, (count, call) in [*calls.items(), ("one", (1, calls["add 1024"][1]))]:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        replays = 200 if name == "one" else 3
        graph.replay()
        torch.cuda.synchronize()
        for _ in range(3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began = time.perf_counter()
            begin.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            issued = time.perf_counter() - began
            torch.cuda.synchronize()
            times.setdefault(name, []).append(round(begin.elapsed_time(end) / replays / count * 1e3, 4))
            times.setdefault(f"{name}: host per replay", []).append(round(issued / replays * 1e6, 3))
    return times


def measure_micro(out: Path) -> dict[str, Any]:
    """Single calls and chains of kernels, unprofiled and in every setting."""
    torch.manual_seed(0)
    calls, kernels = micro_calls(), chains()
    results: dict[str, Any] = {"unprofiled": {}, "chains": {}, "profiled": {}, "chains_profiled": {}}
    for _ in range(2):
        micro_pass({}, calls)
        chain_pass({}, kernels)
    for _ in range(7):
        micro_pass(results["unprofiled"], calls)
        chain_pass(results["chains"], kernels)
    for setting in (*ALL, "cpu only"):
        options = profiler_options(setting)
        if setting == "cpu only":
            options["activities"] = [ProfilerActivity.CPU]
        times: dict[str, list[float]] = {}
        with profile(schedule=schedule(wait=0, warmup=1, active=3, repeat=1), **options) as profiler:
            for number in range(4):
                micro_pass(times if number else {}, calls)
                profiler.step()
        results["profiled"][setting] = times
        export(profiler, out / f"micro.{setting.replace(' ', '_')}.json.gz")
    with profile(schedule=schedule(wait=0, warmup=1, active=2, repeat=1), **profiler_options("plain")) as profiler:
        for number in range(3):
            chain_pass(results["chains_profiled"] if number else {}, kernels)
            profiler.step()
    export(profiler, out / "chains.plain.json.gz")
    results["unprofiled_after"], results["chains_after"] = {}, {}
    for _ in range(5):
        micro_pass(results["unprofiled_after"], calls)
        chain_pass(results["chains_after"], kernels)
    results["chains_graph"] = graph_chains(kernels)
    return results


def machine() -> dict[str, Any]:
    """What ran this."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    query = "--query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem"
    smi = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    cores = sum(line.startswith("processor") for line in lines)
    return {"cpu": cpu, "cores": cores, "gpu": smi, "kernel": platform.release(), **versions}


def run_all(script: str, names: Sequence[str], measured: Callable[[str, Path, list[str] | None], Any]) -> None:
    """The command line of a script: each of its workloads in a process of its own, until time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="where traces and measured.json go")
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no workload after so long")
    parser.add_argument("--only", nargs="*", default=None, help="workloads to run; all where not given")
    parser.add_argument(
        "--settings", nargs="*", default=None, help="of the profiler; each workload's own where not given"
    )
    parser.add_argument("--workload", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.workload:
        (given.out / f"{given.workload}.measured").write_text(
            json.dumps(measured(given.workload, given.out, given.settings))
        )
        return
    ends_at = time.monotonic() + given.seconds
    results: dict[str, Any] = {"machine": machine(), "workloads": {}}
    for name in names if given.only is None else given.only:
        if time.monotonic() >= ends_at:
            print(f"no time left for {name}", flush=True)
            continue
        began = time.monotonic()
        command = [sys.executable, script, "--out", str(given.out), "--workload", name]
        if given.settings:
            command += ["--settings", *given.settings]
        run = subprocess.run(command, capture_output=True, text=True)
        written = given.out / f"{name}.measured"
        if run.returncode or not written.exists():
            print(f"{name} failed: {run.stderr[-1500:]}", flush=True)
            continue
        workload = json.loads(written.read_text())
        written.unlink()
        results["workloads"][name] = workload
        (given.out / "measured.json").write_text(json.dumps(results))
        print(f"{name}: {time.monotonic() - began:.1f} s; {summary(workload)}", flush=True)


def summary(workload: dict[str, Any]) -> str:
    """Medians in a line."""
    if "case" not in workload:
        return "micro"
    parts = ["unprofiled " + " ".join(f"{timing['median_ms']:.3f}" for timing in workload["unprofiled"])]
    parts += [f"{setting} {timing['median_ms']:.3f}" for setting, timing in workload["profiled"].items()]
    parts += ["graph " + " ".join(f"{timing['median_ms']:.3f}" for timing in workload.get("graph", []))]
    return ", ".join(parts) + " ms" + (f" ({workload['graph_error']})" if "graph_error" in workload else "")


def measure_any(name: str, out: Path, settings: list[str] | None) -> dict[str, Any]:
    """A workload, or single calls."""
    return measure_micro(out) if name == "micro" else measure(name, out, settings)


if __name__ == "__main__":
    run_all(__file__, [*WORKLOADS, "micro"], measure_any)
