"""What the kernels of expert layers take on a GPU, and what launching takes its host: JSON lines.

Needs PyTorch with CUDA and Triton, and nvcc for one part: `PYTHONPATH=src python benchmarks/gpu/experts.py -o FILE`.

Parts run one after the other in a child process, each until its time is up. If the child dies or hangs, another one
goes on with the next part. Rows are written as they are measured:

- `facts`: the machine; `part`: a part that starts or ends; `skipped`, `failed`: what is missing, and why;
- `check`: the largest error of a Triton kernel against PyTorch; `tuning`: the configurations of a kernel;
- `kernel`: `burst_s` and `sustained_s` as docs/kernel-profiles.md defines them; `how` says whose kernel, `pattern` how
  rows are spread over experts: `equal`, `random` (multinomial, the same sum) or `skewed`;
- `host`: microseconds of the host for one call, or for one of `count` launches or layers of a call;
- `ratio`: random (skewed) over equal rows, of grouped products.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
import triton
import triton.language as tl
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretrace.calibrate.gpu import timing
from foretrace.calibrate.gpu.case import Bench, Case, Launch
from foretrace.calibrate.gpu.host import _launches as count_launches
from foretrace.calibrate.gpu.host import host_facts
from foretrace.calibrate.gpu.machine import bench_here, facts_of
from foretrace.calibrate.gpu.monitor import Monitor
from foretrace.calibrate.gpu.timing import Clock, Heater, Prepared, bursts, prepare, sustained
from foretrace.program.kernels import Attention, GroupedGemm, Kernel, Stream, kernel_text

DEVICE = "cuda"
GROUP = 40
MAX_GROUP_BYTES = 48 << 30
HANG_S = 75.0
"""A part that goes on for so long after its time was up hangs."""
TOP = 8
FP8_LARGEST = 448.0
EXPERTS = 256
LT_WORKSPACE_BYTES = 32 << 20
STREAMS = 4
timing.ROUNDS = 16  # there is time for no more


# ---------------------------------------------------------------------------------------------------------------------
# Rows and cases


@dataclass(frozen=True)
class Item:
    """A kernel to measure: `how` says whose it is, `labels` what its text does not say."""

    how: str
    case: Case
    labels: dict[str, Any]


def item(how: str, kernel: Kernel, make: Callable[[Bench], Launch], **labels: Any) -> Item:
    """Returns an item of one kernel."""
    return Item(how, Case(kernel, make), labels)


class Session:
    """A child's measurements: the file they go to, and until when."""

    def __init__(self, out: Path, ends_at: float, library: Path) -> None:
        self._file = out.open("a")
        self._end = self.ends_at = ends_at
        self.library = library
        self.part = "start"
        self.bench = bench_here()
        self.clock = Clock(self.bench)
        self.heater = Heater(self.bench, self.clock)
        self.monitor = Monitor()

    def write(self, row: str, **values: Any) -> None:
        """Writes a row at once."""
        text = json.dumps({"row": row, "part": self.part, **values})
        self._file.write(text + "\n")
        self._file.flush()
        if row not in ("kernel", "host"):
            print(text[:300], flush=True)

    def begin(self, part: str, limit_s: float) -> None:
        """Starts a part that has `limit_s` seconds."""
        self.part = part
        self.ends_at = min(self._end, time.monotonic() + limit_s)
        self.write("part", state="started", at_s=round(time.monotonic(), 1))

    @property
    def over(self) -> bool:
        """Whether the part's time is up."""
        return time.monotonic() >= self.ends_at

    def fail(self, what: str, error: BaseException) -> None:
        """Writes why something could not be measured; raises if the GPU's context is lost."""
        self.write("failed", what=what, reason=" ".join(f"{type(error).__name__}: {error}".split())[:400])
        self.bench.normal(8).sum()
        self.clock.wait()

    def check(self, name: str, got: Any, want: Any, tolerance: float = 1e-2) -> None:
        """Writes how far a result is from what it should be: the norm of the difference over that of the result."""
        got, want = got.double(), want.double()
        error = float((got - want).norm() / want.norm().clamp(min=1e-30))
        self.write("check", name=name, error=error, passed=error <= tolerance)

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Reports an error within the block and goes on."""
        try:
            yield
        except Exception as error:
            self.fail(what, error)


def measure(session: Session, items: Iterable[Item]) -> None:
    """Measures items in groups that fit into memory, until the part's time is up."""
    group: list[tuple[Item, Prepared]] = []
    skipped: dict[str, int] = {}
    for entry in items:
        if session.over:
            skipped[entry.how] = skipped.get(entry.how, 0) + 1
            continue
        try:
            group.append((entry, prepare(entry.case, session.bench, session.clock)))
        except Exception as error:
            session.fail(f"{entry.how}: {kernel_text(entry.case.kernel)}", error)
        if len(group) >= GROUP or session.bench.allocated_bytes() > MAX_GROUP_BYTES:
            measure_group(session, group)
    if group:
        measure_group(session, group)
    if skipped:
        session.write("skipped", reason="time was up", counts=skipped)


def measure_group(session: Session, group: list[tuple[Item, Prepared]]) -> None:
    """Times a group alone and under load, writes its rows and frees its operands."""
    prepared = [entry for _, entry in group]
    try:
        alone_s = bursts(prepared, session.heater, session.clock)
        start = time.monotonic()
        amid_s = sustained(prepared, session.heater, session.clock)
        clock_mhz, power_w = session.monitor.mean(start + 0.3, time.monotonic())
    except Exception as error:
        session.fail(f"group of {len(group)}, first {kernel_text(group[0][0].case.kernel)}", error)
    else:
        for (entry, ready), alone, amid in zip(group, alone_s, amid_s, strict=True):
            kernel = entry.case.kernel
            session.write(
                "kernel",
                how=entry.how,
                kernel=kernel_text(kernel),
                burst_s=alone,
                sustained_s=amid,
                tflops=round(kernel.flops / amid * 1e-12, 1),
                gbytes_per_s=round(kernel.moved_bytes / amid * 1e-9, 1),
                host_us=round(ready.host_s * 1e6, 1),
                clock_mhz=round(clock_mhz),
                power_w=round(power_w),
                **entry.labels,
            )
        print(f"  {session.part}: {len(group)} kernels at {clock_mhz:.0f} MHz, {power_w:.0f} W", flush=True)
    group.clear()
    prepared.clear()
    torch.cuda.empty_cache()


def fastest(session: Session, name: str, launches: dict[Any, Launch]) -> Any:
    """Returns the configuration whose launch takes least; one that fails counts as infinitely slow."""
    times: dict[Any, float] = {}
    for config, launch in launches.items():
        with session.trying(f"{name} {config}"):
            launch()
            session.clock.delay(1e-3)
            marks = [session.clock.event()]
            for _ in range(7):
                launch()
                marks.append(session.clock.event())
            session.clock.wait()
            times[config] = median(session.clock.between_s(*pair) for pair in pairwise(marks[2:]))
    if not times:
        raise RuntimeError(f"no configuration of {name} runs")
    best = min(times, key=lambda config: times[config])
    session.write("tuning", name=name, best=str(best), us={str(c): round(s * 1e6, 1) for c, s in times.items()})
    return best


# ---------------------------------------------------------------------------------------------------------------------
# Grouped products


@dataclass(frozen=True)
class ExpertLayer:
    """Experts on one rank: their number, widths and mean rows."""

    model: str
    groups: int
    hidden: int
    ffn: int
    rows: int

    def products(self) -> Iterator[tuple[str, GroupedGemm]]:
        """Forward of both projections, then their weight gradients."""
        for name, (n, k) in (("fc1", (2 * self.ffn, self.hidden)), ("fc2", (self.hidden, self.ffn))):
            yield name, GroupedGemm(self.groups, self.groups * self.rows, n, k)
        for name, (n, k) in (("fc1", (2 * self.ffn, self.hidden)), ("fc2", (self.hidden, self.ffn))):
            yield name, GroupedGemm(self.groups, n, k, self.groups * self.rows, layout="nt")


LAYERS = (
    ExpertLayer("deepseek-v3", 8, 7168, 2048, 1024),
    ExpertLayer("deepseek-v3", 8, 7168, 2048, 4096),
    ExpertLayer("qwen3-235b", 16, 4096, 1536, 2048),
    ExpertLayer("gpt-oss-120b", 16, 2880, 2880, 1024),
    ExpertLayer("qwen3-30b", 16, 2048, 768, 2048),
    ExpertLayer("deepseek-v3", 32, 7168, 2048, 1024),
    ExpertLayer("deepseek-v3", 8, 7168, 2048, 8192),
    ExpertLayer("qwen3-235b", 16, 4096, 1536, 8192),
    ExpertLayer("gpt-oss-120b", 16, 2880, 2880, 4096),
)
SKEWED = (LAYERS[0], LAYERS[2])


@cache
def row_counts(pattern: str, groups: int, rows: int, multiple: int = 1) -> list[int]:
    """Rows of each group, `groups * rows` in all; each a multiple of `multiple`."""
    if pattern == "equal":
        return [rows] * groups
    generator = random.Random(1234)
    weights = [generator.lognormvariate(0.0, 0.5) if pattern == "skewed" else 1.0 for _ in range(groups)]
    drawn = generator.choices(range(groups), weights, k=groups * rows)
    counts = [round(drawn.count(group) / multiple) * multiple for group in range(groups)]
    counts[counts.index(max(counts))] += groups * rows - sum(counts)
    return counts


def spans(counts: Sequence[int]) -> list[slice]:
    """The rows of each group."""
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def offsets(counts: Sequence[int]) -> Any:
    """The end of each group's rows, on the GPU."""
    return torch.tensor([span.stop for span in spans(counts)], dtype=torch.int32, device=DEVICE)


def on_streams(launches: Sequence[Launch], streams: Sequence[Any]) -> None:
    """Deals launches out to side streams that start and end with the current one, as Transformer Engine does."""
    main = torch.cuda.current_stream()
    for place, stream in enumerate(streams):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            for launch in launches[place :: len(streams)]:
                launch()
    for stream in streams:
        main.wait_stream(stream)


@cache
def side_streams(count: int) -> tuple[Any, ...]:
    """Side streams, the same for all launches: each has a cuBLAS workspace."""
    return tuple(torch.cuda.Stream() for _ in range(count))


def looped(launches: Sequence[Launch], streams: int) -> Launch:
    """One launch per group, on so many streams."""
    if streams == 1:
        return lambda: [launch() for launch in launches]
    return partial(on_streams, launches, side_streams(streams))


def bf16_operands(gemm: GroupedGemm, bench: Bench) -> tuple[Any, Any]:
    """Operands of all groups, as a linear layer of each has them."""
    if gemm.layout == "nt":
        return bench.normal(gemm.k, gemm.m).t(), bench.normal(gemm.k, gemm.n)
    return bench.normal(gemm.m, gemm.k), bench.normal(gemm.groups, gemm.n, gemm.k).transpose(-1, -2)


def bf16_grouped(gemm: GroupedGemm, counts: Sequence[int], bench: Bench) -> Launch:
    """One kernel for all groups."""
    a, b = bf16_operands(gemm, bench)
    ends = offsets(counts)
    return lambda: torch._grouped_mm(a, b, offs=ends, out_dtype=torch.bfloat16)


def bf16_loop(gemm: GroupedGemm, counts: Sequence[int], streams: int, bench: Bench) -> Launch:
    """A product of cuBLAS for each group; weight gradients are added to what is there where the kernel says so."""
    a, b = bf16_operands(gemm, bench)
    if gemm.layout == "nt":
        out = bench.normal(gemm.groups, gemm.m, gemm.n)
        parts = [(a[:, span], b[span], out[group]) for group, span in enumerate(spans(counts))]
    else:
        out = bench.normal(gemm.m, gemm.n)
        parts = [(a[span], b[group], out[span]) for group, span in enumerate(spans(counts))]
    if gemm.accumulate:
        return looped([partial(torch.addmm, d, x, y, out=d) for x, y, d in parts], streams)
    return looped([partial(torch.mm, x, y, out=d) for x, y, d in parts], streams)


def lt_loop(gemm: GroupedGemm, counts: Sequence[int], native: Native, bench: Bench) -> Launch:
    """The forward products of Transformer Engine: cublasLt on 4 streams, from a loop in C++."""
    a, b = bench.normal(gemm.m, gemm.k), bench.normal(gemm.groups, gemm.n, gemm.k)
    out = bench.normal(gemm.m, gemm.n)
    parts = [(a[span], b[group], out[span]) for group, span in enumerate(spans(counts))]
    return native.products(parts, STREAMS)


def fp8_grouped(gemm: GroupedGemm, counts: Sequence[int], bench: Bench) -> Launch:
    """One kernel for all groups, with a scale for each row."""
    ends = offsets(counts)
    if gemm.layout == "nt":
        a = bench.normal(gemm.m, gemm.k, dtype="fp8")
        b = bench.normal(gemm.n, gemm.k, dtype="fp8").t()
        shapes: tuple[Any, Any] = ((gemm.groups * gemm.m,), (gemm.groups * gemm.n,))
    else:
        a = bench.normal(gemm.m, gemm.k, dtype="fp8")
        b = bench.normal(gemm.groups, gemm.n, gemm.k, dtype="fp8").transpose(-1, -2)
        shapes = ((gemm.m,), (gemm.groups, gemm.n))
    scales = [torch.ones(shape, device=DEVICE) for shape in shapes]
    fast = gemm.layout == "tn"
    return lambda: torch._scaled_grouped_mm(a, b, *scales, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=fast)


def fp8_loop(gemm: GroupedGemm, counts: Sequence[int], streams: int, bench: Bench) -> Launch:
    """A product of cuBLAS for each group, with a scale per tensor."""
    scale = torch.ones((), device=DEVICE)
    if gemm.layout == "nt":
        parts = [
            (bench.normal(gemm.m, count, dtype="fp8"), bench.normal(gemm.n, count, dtype="fp8").t()) for count in counts
        ]
    else:
        a, b = bench.normal(gemm.m, gemm.k, dtype="fp8"), bench.normal(gemm.groups, gemm.n, gemm.k, dtype="fp8")
        parts = [(a[span], b[group].t()) for group, span in enumerate(spans(counts))]
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": gemm.layout == "tn"}
    return looped([partial(torch._scaled_mm, x, y, scale, scale, **options) for x, y in parts], streams)


def patterns_of(layer: ExpertLayer) -> tuple[str, ...]:
    """How rows are spread over the experts of a layer."""
    return ("equal", "random", "skewed") if layer in SKEWED else ("equal", "random")


def bf16_items(native: Native | None) -> Iterator[Item]:
    """Grouped products in bf16: one kernel for all, and one each on 4 streams (forward also on one)."""
    for layer in LAYERS:
        for (name, gemm), pattern in product(layer.products(), patterns_of(layer)):
            counts = row_counts(pattern, layer.groups, layer.rows)
            gemm = replace(gemm, largest=max(counts))
            own = replace(gemm, separate=True)
            labels = {"pattern": pattern, "model": layer.model, "linear": name, "rows": counts}
            yield item("grouped_mm", gemm, partial(bf16_grouped, gemm, counts), **labels)
            yield item("mm on 4 streams", own, partial(bf16_loop, own, counts, STREAMS), **labels)
            if gemm.layout == "tn" and native is not None:
                yield item("cublasLt on 4 streams", own, partial(lt_loop, own, counts, native), **labels)
            if gemm.layout == "tn" and name == "fc1":
                yield item("mm on 1 stream", own, partial(bf16_loop, own, counts, 1), **labels)
            if gemm.layout == "nt" and pattern == "random":
                own = replace(own, accumulate=True)
                yield item("addmm on 4 streams", own, partial(bf16_loop, own, counts, STREAMS), **labels)


def fp8_items() -> Iterator[Item]:
    """Grouped products in fp8; rows of each group are padded to 16."""
    for layer in LAYERS[:8]:
        for (name, gemm), pattern in product(layer.products(), patterns_of(layer)):
            counts = row_counts(pattern, layer.groups, layer.rows, 16)
            gemm = replace(gemm, dtype="fp8", largest=max(counts))
            own = replace(gemm, separate=True)
            labels = {"pattern": pattern, "model": layer.model, "linear": name, "rows": counts}
            yield item("scaled_grouped_mm", gemm, partial(fp8_grouped, gemm, counts), **labels)
            yield item("scaled_mm on 4 streams", own, partial(fp8_loop, own, counts, STREAMS), **labels)


def check_grouped(session: Session, native: Native | None) -> None:
    """Compares the ways to multiply random rows, on operands of their own."""
    gemm = GroupedGemm(4, 512, 256, 384)
    counts = row_counts("random", 4, 128)
    a, b = bf16_operands(gemm, session.bench)
    want = torch.cat([a[span].float() @ b[group].float() for group, span in enumerate(spans(counts))])
    got = torch._grouped_mm(a, b, offs=offsets(counts), out_dtype=torch.bfloat16)
    session.check("grouped_mm, random rows", got, want)
    if native is not None:
        weights, out = b.transpose(-1, -2), torch.full((512, 256), torch.nan, device=DEVICE, dtype=torch.bfloat16)
        native.products([(a[span], weights[group], out[span]) for group, span in enumerate(spans(counts))], STREAMS)()
        session.clock.wait()
        session.check("cublasLt on 4 streams, random rows", out, want)


def grouped_bf16(session: Session) -> None:
    """Part 1: grouped products in bf16."""
    native = None
    with session.trying("nvcc's library"):
        native = Native(session.library)
    with session.trying("check of grouped products"):
        check_grouped(session, native)
    measure(session, bf16_items(native))


def grouped_fp8(session: Session) -> None:
    """Part 2: grouped products in fp8."""
    measure(session, fp8_items())


# ---------------------------------------------------------------------------------------------------------------------
# Permutations


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


# ---------------------------------------------------------------------------------------------------------------------
# Quantisation


@triton.jit
def largest_of(x, out, block: tl.constexpr):
    """The largest magnitude of a tensor whose size is a multiple of the block."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    tl.atomic_max(out, tl.max(tl.abs(tl.load(x + at).to(tl.float32)), 0))


@triton.jit
def cast_scaled(x, scale, out, block: tl.constexpr):
    """Values times a scale, in fp8."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    values = tl.load(x + at).to(tl.float32) * tl.load(scale)
    tl.store(out + at, tl.clamp(values, -448.0, 448.0).to(tl.float8e4nv))


@triton.jit
def cast_transposed(x, scale, out, out_t, rows, columns, tile_m: tl.constexpr, tile_n: tl.constexpr):
    """Values times a scale, in fp8, as they lie and transposed."""
    m = tl.program_id(0).to(tl.int64) * tile_m + tl.arange(0, tile_m)
    n = tl.program_id(1).to(tl.int64) * tile_n + tl.arange(0, tile_n)
    at = m[:, None] * columns + n[None, :]
    values = tl.clamp(tl.load(x + at).to(tl.float32) * tl.load(scale), -448.0, 448.0).to(tl.float8e4nv)
    tl.store(out + at, values)
    tl.store(out_t + n[:, None] * rows + m[None, :], tl.trans(values))


@triton.jit
def quantize_block(
    x, out, scales, out_t, scales_t, rows, columns, tile_m: tl.constexpr, both: tl.constexpr, tile_n: tl.constexpr
):
    """Scales over 128 elements of a row; with `both` (tiles of 128 rows) also over 128 of a column, transposed."""
    m = tl.program_id(0).to(tl.int64) * tile_m + tl.arange(0, tile_m)
    n = tl.program_id(1).to(tl.int64) * tile_n + tl.arange(0, tile_n)
    at = m[:, None] * columns + n[None, :]
    values = tl.load(x + at).to(tl.float32)
    magnitudes = tl.abs(values)
    largest = tl.maximum(tl.max(magnitudes, 1), 1e-12)
    tl.store(scales + tl.program_id(1).to(tl.int64) * rows + m, largest / 448.0)
    tl.store(out + at, (values * (448.0 / largest)[:, None]).to(tl.float8e4nv))
    if both:
        largest_t = tl.maximum(tl.max(magnitudes, 0), 1e-12)
        tl.store(scales_t + tl.program_id(0).to(tl.int64) * columns + n, largest_t / 448.0)
        values_t = (values * (448.0 / largest_t)[None, :]).to(tl.float8e4nv)
        tl.store(out_t + n[:, None] * rows + m[None, :], tl.trans(values_t))


@triton.jit
def power_scale(largest):
    """The biased exponent of a block's scale (a power of two, 8 below that of its largest element), and the factor."""
    exponent = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - 8, 1)
    return exponent, ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def quantize_mx(
    x, out, scales, out_t, scales_t, columns, both: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr
):
    """Power-of-two scales over 32 elements of a row; with `both` also over 32 of a column, not transposed."""
    m = tl.program_id(0).to(tl.int64) * tile_m + tl.arange(0, tile_m)
    n = tl.program_id(1).to(tl.int64) * tile_n + tl.arange(0, tile_n)
    at = m[:, None] * columns + n[None, :]
    values = tl.load(x + at).to(tl.float32)
    parts = tl.reshape(values, (tile_m, tile_n // 32, 32))
    exponent, factor = power_scale(tl.max(tl.abs(parts), 2))
    blocks = tl.program_id(1).to(tl.int64) * (tile_n // 32) + tl.arange(0, tile_n // 32)
    tl.store(scales + m[:, None] * (columns // 32) + blocks[None, :], exponent.to(tl.uint8))
    scaled = tl.reshape(parts * factor[:, :, None], (tile_m, tile_n))
    tl.store(out + at, tl.clamp(scaled, -448.0, 448.0).to(tl.float8e4nv))
    if both:
        parts_t = tl.reshape(values, (tile_m // 32, 32, tile_n))
        exponent_t, factor_t = power_scale(tl.max(tl.abs(parts_t), 1))
        blocks_t = tl.program_id(0).to(tl.int64) * (tile_m // 32) + tl.arange(0, tile_m // 32)
        tl.store(scales_t + blocks_t[:, None] * columns + n[None, :], exponent_t.to(tl.uint8))
        scaled_t = tl.reshape(parts_t * factor_t[:, None, :], (tile_m, tile_n))
        tl.store(out_t + at, tl.clamp(scaled_t, -448.0, 448.0).to(tl.float8e4nv))


class Quantized:
    """A bf16 matrix and room for its fp8 copies and their scales."""

    def __init__(self, x: Any) -> None:
        self.x = x
        rows, columns = self.shape = x.shape
        self.out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        self.out_t = torch.empty(columns, rows, device=x.device, dtype=torch.float8_e4m3fn)
        self.largest, self.scale = torch.zeros((), device=x.device), torch.ones((), device=x.device)
        self.scales = torch.empty(x.numel() // 128, device=x.device)
        self.scales_t = torch.empty_like(self.scales)
        self.powers = torch.empty(x.numel() // 32, device=x.device, dtype=torch.uint8)
        self.powers_t = torch.empty_like(self.powers)

    def amax(self, config: tuple[int, int]) -> None:
        """The largest magnitude."""
        block, warps = config
        largest_of[(self.x.numel() // block,)](self.x, self.largest, block, num_warps=warps)

    def cast(self, config: tuple[int, int]) -> None:
        """One fp8 copy, the scale being known."""
        block, warps = config
        cast_scaled[(self.x.numel() // block,)](self.x, self.scale, self.out, block, num_warps=warps)

    def cast_both(self, config: tuple[int, int, int]) -> None:
        """Both fp8 copies, the scale being known."""
        tile_m, tile_n, warps = config
        rows, columns = self.shape
        grid = (rows // tile_m, columns // tile_n)
        cast_transposed[grid](self.x, self.scale, self.out, self.out_t, rows, columns, tile_m, tile_n, num_warps=warps)

    def current(self, amax: tuple[int, int], cast: Launch) -> None:
        """Current scaling: the largest magnitude, the scale, the copies."""
        self.largest.zero_()
        self.amax(amax)
        torch.reciprocal(self.largest, out=self.scale)
        self.scale.mul_(FP8_LARGEST)
        cast()

    def block(self, both: bool, config: tuple[int, int]) -> None:
        """Scales over 128 elements."""
        tile_m, warps = config
        rows, columns = self.shape
        quantize_block[(rows // tile_m, columns // 128)](
            self.x, self.out, self.scales, self.out_t, self.scales_t, rows, columns, tile_m, both, 128, num_warps=warps
        )

    def mx(self, both: bool, config: tuple[int, int, int]) -> None:
        """Scales over 32 elements."""
        tile_m, tile_n, warps = config
        rows, columns = self.shape
        quantize_mx[(rows // tile_m, columns // tile_n)](
            self.x, self.out, self.powers, self.out_t, self.powers_t, columns, both, tile_m, tile_n, num_warps=warps
        )


MATRICES = ((8192, 8192), (4096, 7168), (16384, 2048))
FLAT_CONFIGS = ((4096, 4), (4096, 8), (8192, 8), (2048, 4))
TILE_CONFIGS = ((64, 64, 4), (128, 64, 4), (64, 128, 4), (128, 128, 8))
QUANTIZE_CONFIGS: dict[str, tuple[Any, ...]] = {
    "amax": FLAT_CONFIGS,
    "cast": FLAT_CONFIGS,
    "cast_both": TILE_CONFIGS,
    "block": ((8, 4), (16, 4), (32, 4), (64, 8)),
    "block_both": ((128, 4), (128, 8), (128, 16)),
    "mx": ((16, 256, 4), (8, 512, 4), (4, 1024, 4), (32, 256, 8)),
    "mx_both": ((32, 64, 4), (32, 128, 4), (64, 64, 4), (64, 128, 8), (32, 256, 8)),
}


def quantizer(name: str, operands: Quantized) -> Callable[[Any], None]:
    """The launch of a kernel by its name, given a configuration."""
    if name.startswith(("block", "mx")):
        return partial(getattr(operands, name.removesuffix("_both")), name.endswith("_both"))
    return getattr(operands, name)


def _different(got: Any, want: Any) -> Any:
    return (got.flatten().view(torch.uint8) != want.flatten().view(torch.uint8)).float().mean()


def check_quantizers(session: Session, configs: dict[str, Any]) -> None:
    """Compares each kernel with PyTorch: `error` is the part of the bytes that differ (a rounding may)."""
    fp8 = torch.float8_e4m3fn
    x = (torch.randn(256, 1024, device=DEVICE) * torch.rand(256, 1024, device=DEVICE).exp2()).bfloat16()
    wide = x.float()

    def check(name: str, got: Any, want: Any) -> None:
        error = float(_different(got, want))
        session.write("check", name=name, error=error, passed=error < 2e-3)

    operands = Quantized(x)
    operands.current(configs["amax"], partial(operands.cast, configs["cast"]))
    session.check("amax", operands.largest, wide.abs().max(), 0.0)
    want = (wide * operands.scale).clamp(-FP8_LARGEST, FP8_LARGEST).to(fp8)
    check("cast", operands.out, want)
    operands.cast_both(configs["cast_both"])
    check("cast_both, transposed", operands.out_t, want.t().contiguous())
    rows = wide.view(256, 8, 128)
    largest = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    columns = wide.view(2, 128, 1024)
    largest_t = columns.abs().amax(1, keepdim=True).clamp(min=1e-12)
    for name in ("block", "block_both"):
        quantizer(name, operands)(configs[name])
        check(f"{name}, rows", operands.out, (rows * (448.0 / largest)).to(fp8))
        session.check(f"{name}, scales", operands.scales.view(8, 256), largest.squeeze(-1).t() / 448.0, 1e-6)
    check(
        "block_both, transposed",
        operands.out_t,
        (columns * (448.0 / largest_t)).view(256, 1024).t().contiguous().to(fp8),
    )
    for name in ("mx", "mx_both"):
        quantizer(name, operands)(configs[name])
        for axis, got, scales in ((2, operands.out, operands.powers), (1, operands.out_t, operands.powers_t))[
            : 2 if name == "mx_both" else 1
        ]:
            blocks = wide.view(256, 32, 32) if axis == 2 else wide.view(8, 32, 1024)
            exponent = (blocks.abs().amax(axis, keepdim=True).view(torch.int32) >> 23) - 8
            scaled = blocks * torch.exp2(127.0 - exponent)
            check(f"{name}, axis {axis}", got, scaled.clamp(-FP8_LARGEST, FP8_LARGEST).to(fp8))
            check(f"{name}, axis {axis}, scales", scales, exponent.to(torch.uint8))


def quantize_items(best: dict[str, Any]) -> Iterator[Item]:
    """Each kernel, and current scaling as a whole, over three matrices."""
    # Bytes written by element, by kernel; scales included.
    written = {"amax": 0.0, "cast": 1, "cast_both": 2, "block": 1 + 4 / 128, "block_both": 2 + 8 / 128}
    written |= {"mx": 1 + 1 / 32, "mx_both": 2 + 2 / 32}
    for rows, columns in MATRICES:
        size = rows * columns
        labels = {"elements": [rows, columns]}
        for name, factor in written.items():
            if name not in best:
                continue
            kernel = Stream(f"quantize_{name}_fused", 2 * size, int(factor * size) or 4)
            yield item("triton", kernel, partial(_make_quantizer, name, best[name], rows, columns), **labels)
        for cast in ("cast", "cast_both"):
            if "amax" in best and cast in best:
                kernel = Stream(f"quantize_current_{cast}_fused", 4 * size, int(written[cast]) * size, launches=5)
                make = partial(_make_current, best["amax"], cast, best[cast], rows, columns)
                yield item("triton", kernel, make, **labels)


def _make_quantizer(name: str, config: Any, rows: int, columns: int, bench: Bench) -> Launch:
    return partial(quantizer(name, Quantized(bench.normal(rows, columns))), config)


def _make_current(amax: Any, cast: str, config: Any, rows: int, columns: int, bench: Bench) -> Launch:
    operands = Quantized(bench.normal(rows, columns))
    return partial(operands.current, amax, partial(getattr(operands, cast), config))


def quantization(session: Session) -> None:
    """Part 4: bf16 to 8 bits."""
    best: dict[str, Any] = {}
    operands = Quantized(session.bench.normal(*MATRICES[0]))
    for name, configs in QUANTIZE_CONFIGS.items():
        with session.trying(f"tuning of {name}"):
            launch = quantizer(name, operands)
            best[name] = fastest(session, name, {config: partial(launch, config) for config in configs})
    del operands
    with session.trying("check of quantisation"):
        check_quantizers(session, best)
    measure(session, quantize_items(best))


# ---------------------------------------------------------------------------------------------------------------------
# Gated activations, as Megatron-core writes and compiles them (fusions/fused_bias_swiglu.py, fused_bias_geglu.py)


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


def _make_activation(function: Callable[..., Any], shape: tuple[int, int, bool], bench: Bench) -> Launch:
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
    return item(how, kernel, partial(_make_activation, function, (rows, ffn, dynamic)), shape=[rows, ffn])


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


# ---------------------------------------------------------------------------------------------------------------------
# Router


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


# ---------------------------------------------------------------------------------------------------------------------
# Attention


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


# ---------------------------------------------------------------------------------------------------------------------
# Host

NATIVE_SOURCE = r"""
// Launches in a loop of C++, as Transformer Engine does: kernels (split_quantize) and cublasLt's products
// (multi_stream_cublas_gemm). cublasLt is found in the process by dlsym; its enumerators are written as numbers.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace {
constexpr int kStreams = 4;
cudaStream_t side[kStreams];
cudaEvent_t forked, joined[kStreams];
void *library = nullptr, *handle = nullptr;

__global__ void tiny(float *x, int size) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < size) x[at] += 1.0f;
}

void fork(cudaStream_t main, int streams) {
  cudaEventRecord(forked, main);
  for (int s = 0; s < streams; ++s) cudaStreamWaitEvent(side[s], forked, 0);
}

void join(cudaStream_t main, int streams) {
  for (int s = 0; s < streams; ++s) {
    cudaEventRecord(joined[s], side[s]);
    cudaStreamWaitEvent(main, joined[s], 0);
  }
}

struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

template <typename Function>
Function *find(const char *name) {
  return reinterpret_cast<Function *>(dlsym(library, name));
}
}  // namespace

extern "C" int native_open(const char *path) {
  for (int s = 0; s < kStreams; ++s) {
    cudaStreamCreateWithFlags(&side[s], cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&joined[s], cudaEventDisableTiming);
  }
  cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
  library = dlopen(path, RTLD_NOW);
  if (library == nullptr) return 1000;
  auto create = find<int(void **)>("cublasLtCreate");
  return create == nullptr ? 1001 : create(&handle);
}

extern "C" int native_kernels(void *stream, int count, int streams, float *x, int size) {
  auto main = static_cast<cudaStream_t>(stream);
  if (streams > 1) fork(main, streams);
  for (int i = 0; i < count; ++i) tiny<<<(size + 255) / 256, 256, 0, streams > 1 ? side[i % streams] : main>>>(x, size);
  if (streams > 1) join(main, streams);
  return cudaGetLastError();
}

// out[rows, n] = x[rows, k] * w[n, k]^T for each group; `reuse` keeps the first group's algorithm for all.
extern "C" int native_products(void *stream, int groups, int streams, int reuse, const int *rows, int n, int k,
                               void **x, void **w, void **out, char *workspace, size_t workspace_bytes) {
  using Desc = void *;
  static auto desc_create = find<int(Desc *, int, int)>("cublasLtMatmulDescCreate");
  static auto desc_set = find<int(Desc, int, const void *, size_t)>("cublasLtMatmulDescSetAttribute");
  static auto desc_destroy = find<int(Desc)>("cublasLtMatmulDescDestroy");
  static auto layout_create = find<int(Desc *, int, uint64_t, uint64_t, int64_t)>("cublasLtMatrixLayoutCreate");
  static auto layout_destroy = find<int(Desc)>("cublasLtMatrixLayoutDestroy");
  static auto wish_create = find<int(Desc *)>("cublasLtMatmulPreferenceCreate");
  static auto wish_set = find<int(Desc, int, const void *, size_t)>("cublasLtMatmulPreferenceSetAttribute");
  static auto wish_destroy = find<int(Desc)>("cublasLtMatmulPreferenceDestroy");
  static auto choose = find<int(void *, Desc, Desc, Desc, Desc, Desc, Desc, int, Heuristic *, int *)>(
      "cublasLtMatmulAlgoGetHeuristic");
  static auto multiply =
      find<int(void *, Desc, const void *, const void *, Desc, const void *, Desc, const void *, const void *, Desc,
               void *, Desc, const void *, void *, size_t, cudaStream_t)>("cublasLtMatmul");
  constexpr int kFloat = 0, kBf16 = 14, kCompute = 68, kTransA = 3, kTransB = 4, kEpilogue = 7;
  constexpr int kWorkspace = 1, kAlignment = 5;
  auto main = static_cast<cudaStream_t>(stream);
  const float one = 1.0f, zero = 0.0f;
  const int transposed = 1, plain = 0, epilogue = 1;
  Heuristic found = {};
  int error = 0;
  if (streams > 1) fork(main, streams);
  for (int g = 0; g < groups; ++g) {
    Desc desc = nullptr, a = nullptr, b = nullptr, c = nullptr, d = nullptr;
    error |= layout_create(&a, kBf16, k, n, k) | layout_create(&b, kBf16, k, rows[g], k);
    error |= layout_create(&c, kBf16, n, rows[g], n) | layout_create(&d, kBf16, n, rows[g], n);
    error |= desc_create(&desc, kCompute, kFloat);
    error |= desc_set(desc, kTransA, &transposed, sizeof(int)) | desc_set(desc, kTransB, &plain, sizeof(int));
    error |= desc_set(desc, kEpilogue, &epilogue, sizeof(int));
    if (!reuse || g == 0) {
      int results = 0;
      Desc wish = nullptr;
      error |= wish_create(&wish);
      error |= wish_set(wish, kWorkspace, &workspace_bytes, sizeof(size_t));
      const void *operands[] = {w[g], x[g], out[g], out[g]};
      for (int at = 0; at < 4; ++at) {
        uint32_t alignment = 256;
        while (reinterpret_cast<uintptr_t>(operands[at]) % alignment != 0) alignment /= 2;
        error |= wish_set(wish, kAlignment + at, &alignment, sizeof(alignment));
      }
      error |= choose(handle, desc, a, b, c, d, wish, 1, &found, &results);
      if (results == 0) error |= 1 << 20;
      wish_destroy(wish);
    }
    int s = g % streams;
    if (error == 0)
      error |= multiply(handle, desc, &one, w[g], a, x[g], b, &zero, out[g], c, out[g], d, found.algorithm,
                        workspace + s * workspace_bytes, workspace_bytes, streams > 1 ? side[s] : main);
    layout_destroy(a), layout_destroy(b), layout_destroy(c), layout_destroy(d), desc_destroy(desc);
    if (error != 0) return error;
  }
  if (streams > 1) join(main, streams);
  return cudaGetLastError();
}
"""


class Native:
    """The loops in C++, compiled by nvcc while Python starts."""

    def __init__(self, library: Path) -> None:
        log, until = library.with_suffix(".log"), time.monotonic() + 60
        while not library.exists():
            if library.with_suffix(".failed").exists() or time.monotonic() > until:
                raise RuntimeError(f"nvcc gave no library: {log.read_text()[-300:] if log.exists() else 'no log'}")
            time.sleep(0.1)
        self._lib = ctypes.CDLL(str(library))
        torch.mm(torch.ones(16, 16, device=DEVICE), torch.ones(16, 16, device=DEVICE))
        loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
        paths = sorted(path for path in loaded if "libcublasLt.so" in path)
        if not paths:
            raise RuntimeError("cublasLt is not loaded")
        self._check(self._lib.native_open(paths[0].encode()))
        self._workspace = torch.empty(STREAMS * LT_WORKSPACE_BYTES, dtype=torch.uint8, device=DEVICE)

    def kernels(self, count: int, streams: int, x: Any) -> None:
        """Launches so many kernels that add one to `x`."""
        self._check(self._lib.native_kernels(self._stream(), count, streams, ctypes.c_void_p(x.data_ptr()), x.numel()))

    def products(self, parts: Sequence[tuple[Any, Any, Any]], streams: int, reuse: bool = False) -> Launch:
        """Returns what launches a product for each (inputs, weights, result) in bf16."""
        count = len(parts)
        (n, k), rows = parts[0][1].shape, (ctypes.c_int * count)(*(part[0].shape[0] for part in parts))
        pointers = [(ctypes.c_void_p * count)(*(part[at].data_ptr() for part in parts)) for at in range(3)]
        sizes = (ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(LT_WORKSPACE_BYTES))

        def launch(kept: Sequence[tuple[Any, Any, Any]] = parts) -> None:
            del kept  # operands live as long as what launches them
            stream = self._stream()
            self._check(self._lib.native_products(stream, count, streams, int(reuse), rows, n, k, *pointers, *sizes))

        return launch

    @staticmethod
    def _stream() -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    @staticmethod
    def _check(error: int) -> None:
        if error:
            raise RuntimeError(f"error {error} of CUDA or cublasLt")


class EngineLinear(torch.autograd.Function):
    """What a linear layer of Transformer Engine at least does: one product forward, two backward, in Python."""

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
            launches = [count_launches(torch, self.session.clock, call) for call in (forward, partial(y.backward, g))]
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
        launch = _make_activation(weighted_swiglu, (64, 256, True), session.bench)
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
    """What the host waits for the GPU, and graphs."""
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


# ---------------------------------------------------------------------------------------------------------------------
# Parts and the process that watches over them

PARTS: dict[str, tuple[Callable[[Session], None], float]] = {
    "host": (host, 55.0),
    "grouped bf16": (grouped_bf16, 70.0),
    "grouped fp8": (grouped_fp8, 40.0),
    "permutations": (permutations, 30.0),
    "quantisation": (quantization, 35.0),
    "activations": (activations, 45.0),
    "attention": (attention, 50.0),
    "router": (router, 35.0),
    "nccl": (nccl, 15.0),
}
"""Each part and the seconds it may take; most end before."""


def child(names: Sequence[str], out: Path, ends_at: float, library: Path, state: Any) -> None:
    """Measures parts; `state` tells the parent which one, and when its time is up."""
    state[0], state[1] = 0, time.monotonic() + 60
    session = Session(out, ends_at, library)
    session.write("facts", **facts_of(session.bench), triton=triton.__version__, host=platform.platform())
    for place, name in enumerate(names):
        function, limit_s = PARTS[name]
        session.begin(name, limit_s)
        state[0], state[1] = place, session.ends_at
        began = time.monotonic()
        try:
            if session.over:
                session.write("skipped", reason="time was up", what=name)
            else:
                function(session)
        except Exception as error:
            session.fail(name, error)
        torch.cuda.empty_cache()
        session.write("part", state="ended", seconds=round(time.monotonic() - began, 1))
    session.monitor.close()


def watch(parts: Sequence[str], out: Path, ends_at: float, library: Path) -> None:
    """Runs children until all parts are done or time is up."""
    context = multiprocessing.get_context("fork")  # what is imported need not be again
    left = list(parts)
    while left and time.monotonic() < ends_at - 20:
        state = context.RawArray("d", 2)
        process = context.Process(target=child, args=(left, out, ends_at, library, state))
        state[1] = time.monotonic() + 60
        process.start()
        while process.is_alive():
            process.join(0.5)
            if process.is_alive() and time.monotonic() > min(state[1] + HANG_S, ends_at + 25):
                process.kill()
                process.join()
        if process.exitcode == 0:
            return
        died = left[int(state[0])]
        with out.open("a") as file:
            file.write(
                json.dumps({"row": "failed", "part": died, "what": "process", "reason": process.exitcode}) + "\n"
            )
        print(f"the process died in {died}: {process.exitcode}", flush=True)
        left = left[int(state[0]) + 1 :]


def compile_native(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Starts nvcc; the library appears when it is whole."""
    source, library = folder / "native.cu", folder / "libnative.so"
    source.write_text(NATIVE_SOURCE)
    built, log, failed = library.with_suffix(".tmp"), library.with_suffix(".log"), library.with_suffix(".failed")
    flags = "-arch=sm_90 -O2 -std=c++17 -shared -Xcompiler -fPIC"
    command = f"(nvcc {flags} -o {built} {source} -ldl && mv {built} {library}) > {log} 2>&1 || touch {failed}"
    return subprocess.Popen(["/bin/sh", "-c", command]), library


def ratios(out: Path) -> Iterator[dict[str, Any]]:
    """Yields the times of random and skewed rows over those of equal ones."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    products_ = [row for row in rows if row["row"] == "kernel" and "pattern" in row]

    def shape(row: dict[str, Any]) -> tuple[str, str]:
        words = [word for word in row["kernel"].split() if not word.startswith("largest=")]
        return row["how"], " ".join(words)

    equal = {shape(row): row for row in products_ if row["pattern"] == "equal"}
    for row in products_:
        base = equal.get(shape(row))
        if base is not None and row["pattern"] != "equal":
            yield {
                "row": "ratio",
                "how": row["how"],
                "kernel": shape(row)[1],
                "pattern": row["pattern"],
                "burst": round(row["burst_s"] / base["burst_s"], 4),
                "sustained": round(row["sustained_s"] / base["sustained_s"], 4),
            }


def summarise(out: Path) -> None:
    """Adds ratios to the file and prints a short table."""
    with out.open("a") as file:
        found = list(ratios(out))
        for ratio in found:
            file.write(json.dumps(ratio) + "\n")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for ratio in sorted({(row["how"], row["pattern"]) for row in found}):
        values = [row["sustained"] for row in found if (row["how"], row["pattern"]) == ratio]
        print(f"{ratio[1]:7} over equal, {ratio[0]:24} {median(values):.3f} of {len(values)}")
    for row in rows:
        if row["row"] == "host":
            print(f"{row['us']:9.2f} us {row.get('us_each', ''):>8}  {row['what']} {row.get('tokens', '')}")
    failed = [row for row in rows if row["row"] == "failed" or row.get("passed") is False]
    for row in failed:
        print("NOT RIGHT:", json.dumps(row)[:250])
    print(f"{sum(row['row'] == 'kernel' for row in rows)} kernels, {len(failed)} failures, in {out}")


def main() -> int:
    """Measures all parts, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", "-o", type=Path, required=True, help="the JSON lines to write")
    parser.add_argument("--seconds", type=float, default=330.0, help="stop measuring after so long")
    parser.add_argument("--only", nargs="*", default=(), help="parts to measure, by a word of their name")
    given = parser.parse_args()
    ends_at = time.monotonic() + given.seconds
    chosen = [name for name in PARTS if not given.only or any(word in name for word in given.only)]
    given.out.write_text("")
    with tempfile.TemporaryDirectory() as folder:
        compiler, library = compile_native(Path(folder))
        watch(chosen, given.out, ends_at, library)
        compiler.wait(timeout=60)
    summarise(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
