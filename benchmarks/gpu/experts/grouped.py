"""Measures grouped products of experts in bf16 and fp8: one kernel for all experts, or one each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import torch

from experts.measuring import DEVICE, STREAMS, Item, Session, item, measure
from experts.native import Native
from foretrace.calibrate.gpu.case import Bench, Launch
from foretrace.program.kernels import GroupedGemm


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
