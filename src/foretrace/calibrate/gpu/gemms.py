"""Lists matrix products to measure: those of real layers in all three layouts, and a regular grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from foretrace.calibrate.gpu.case import Bench, Case, Launch
from foretrace.program.kernels import Gemm, GroupedGemm

MIN_FLOPS: Final = 1e9
MAX_FLOPS: Final = 3e13
GRID: Final = (256, 512, 1024, 2048, 4096, 8192, 16384)
SCALE_BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class LayerWidths:
    """Widths of one transformer layer on one tensor-parallel rank; `gate` is 2 where the MLP is gated."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    gate: int = 2
    vocab: int = 0
    tp: int = 1

    def linears(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of its linear layers."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim // self.tp
        ffn = self.ffn // self.tp
        shapes = [
            (qkv, self.hidden),
            (self.hidden, self.heads * self.head_dim // self.tp),
            (self.gate * ffn, self.hidden),
            (self.hidden, ffn),
        ]
        return (*shapes, (self.vocab // self.tp, self.hidden)) if self.vocab else tuple(shapes)


_LAYERS: Final = (
    (LayerWidths(4096, 14336, 32, 8, 128, vocab=128256), (4096, 8192, 16384)),
    (LayerWidths(8192, 28672, 64, 8, 128, vocab=128256, tp=4), (4096, 8192)),
    (LayerWidths(8192, 28672, 64, 8, 128, tp=8), (8192,)),
    (LayerWidths(8192, 28672, 64, 8, 128), (4096, 16384)),
    (LayerWidths(2048, 5632, 32, 4, 64, vocab=32000), (8192, 16384)),
    (LayerWidths(4096, 11008, 32, 32, 128, vocab=32000), (4096, 16384)),
    (LayerWidths(5120, 13824, 40, 40, 128), (8192,)),
    (LayerWidths(16384, 53248, 128, 8, 128, vocab=128256, tp=8), (8192,)),
    (LayerWidths(12288, 49152, 96, 96, 128, gate=1, vocab=51200, tp=8), (2048, 4096)),
    (LayerWidths(2560, 10240, 32, 32, 80, gate=1, vocab=50304), (8192, 32768)),
    (LayerWidths(2048, 8192, 16, 16, 128, gate=1, vocab=50304), (8192, 65536)),
    (LayerWidths(4096, 16384, 32, 32, 128, gate=1, vocab=50304), (16384, 65536)),
    (LayerWidths(5120, 20480, 40, 40, 128, gate=1, vocab=50304), (4096, 32768)),
    (LayerWidths(7168, 28672, 56, 56, 128, gate=1, vocab=50304), (8192, 32768)),
    (LayerWidths(6144, 24576, 64, 64, 96, gate=1, tp=8), (8192,)),
    (LayerWidths(20480, 81920, 128, 128, 160, gate=1, tp=8), (2048,)),
    (LayerWidths(3072, 8192, 24, 8, 128, vocab=128256), (8192,)),
    (LayerWidths(1024, 4096, 16, 16, 64, gate=1, vocab=50304), (32768,)),
    (LayerWidths(1280, 5120, 20, 20, 64, gate=1), (16384,)),
    (LayerWidths(7168, 2048, 128, 128, 128), (4096,)),
    (LayerWidths(2048, 768, 32, 4, 128), (4096, 16384)),
)
"""Llama 3 8B, 70B (tp 4, 8, 1), TinyLlama, Llama 2 7B and 13B, Llama 3 405B, GPT-3 175B, GPT and MPT down to 350M,
Korthikanti's 22B and 530B, a 3B Llama, projections of DeepSeek-V3 and Qwen3-30B; with tokens per microbatch."""


def layer_gemms() -> list[Case]:
    """Forward, input gradient and weight gradient of every linear layer, of the commonest models first."""
    return _cases(_of_layers(_LAYERS))


def grid_forward() -> list[Case]:
    """A regular grid in the layout of the forward pass."""
    return _cases(Gemm(m, n, k) for m, n, k in product(GRID, GRID, GRID))


def grid_backward() -> list[Case]:
    """A coarser grid in the layouts of the backward pass."""
    coarse = (512, 2048, 8192, 16384)
    return _cases(Gemm(m, n, k, layout=layout) for layout, m, n, k in product(("nn", "nt"), coarse, coarse, coarse))


def accumulating_gemms() -> list[Case]:
    """Weight gradients added to fp32, as Megatron does; and fp32 results without adding."""
    layers = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (7168, 8192), (8192, 3584)]
    return _cases(
        Gemm(n, k, tokens, layout="nt", out="fp32", accumulate=accumulate)
        for tokens, (n, k), accumulate in product((4096, 8192), layers, (True, False))
    )


def fp8_gemms() -> list[Case]:
    """Per-tensor scaled e4m3, and 128-blocks as DeepSeek-V3 scales them."""
    layers = [pair for layer, _ in _LAYERS[:4] for pair in layer.linears()]
    square = ((1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (16384, 16384), (7168, 2048), (2048, 7168))
    shapes = list(dict.fromkeys([*layers, *square]))
    tensor = [Gemm(m, n, k, dtype="fp8") for (n, k), m in product(shapes, (2048, 8192, 16384))]
    # Transformer Engine keeps the sums of gradients' products in full precision, which a Hopper GPU does more slowly.
    for (n, k), m in product(shapes, (4096, 8192, 16384)):
        tensor += [Gemm(m, k, n, dtype="fp8", layout="nn"), Gemm(n, k, m, dtype="fp8", layout="nt")]
    blocks = [Gemm(m, n, k, dtype="fp8_block") for (n, k), m in product(shapes[:4] + shapes[-7:], (4096, 8192))]
    return _cases([*tensor, *blocks])


def other_gemms() -> list[Case]:
    """Returns a few products in fp16, tf32 and fp32, to compare with bf16."""
    square = ((2048, 2048), (4096, 4096), (8192, 8192), (4096, 14336))
    gemms = [Gemm(8192, n, k, dtype="fp16", out="fp16") for n, k in square]
    for dtype in ("tf32", "fp32"):
        gemms += [Gemm(4096, n, k, dtype=dtype, out="fp32") for n, k in square[:3]]
    return _cases(gemms)


def batched_gemms() -> list[Case]:
    """Scores and context of attention that is not fused: batch is sequences times heads."""
    gemms = []
    for batch, seq, dim in (
        (8, 2048, 128),
        (12, 2048, 128),
        (32, 2048, 128),
        (96, 2048, 64),
        (128, 2048, 80),
        (32, 4096, 128),
    ):
        gemms += [
            Gemm(seq, seq, dim, batch=batch),
            Gemm(seq, dim, seq, layout="nn", batch=batch),
            Gemm(seq, dim, seq, layout="nt", batch=batch),
        ]
    return _cases(gemms)


def grouped_gemms() -> list[Case]:
    """Experts of Mixtral, DeepSeek-V2 and -V3, Qwen3-30B and -235B, with an even load."""
    experts = (
        (8, 4096, 14336, (256, 1024, 4096)),
        (8, 7168, 2048, (512, 2048)),
        (32, 7168, 2048, (128, 512, 2048)),
        (16, 2048, 768, (256, 1024)),
        (128, 2048, 768, (64, 256, 1024)),
        (16, 4096, 1536, (512, 2048)),
        (20, 5120, 1536, (512,)),
        (64, 2048, 1408, (128, 512)),
    )
    gemms = []
    for groups, hidden, ffn, loads in experts:
        for load, (n, k) in product(loads, ((2 * ffn, hidden), (hidden, ffn))):
            tokens = groups * load
            gemms += [
                GroupedGemm(groups, tokens, n, k, largest=load),
                GroupedGemm(groups, tokens, k, n, layout="nn", largest=load),
                GroupedGemm(groups, n, k, tokens, layout="nt", largest=load),
            ]
    few = [replace(gemm, separate=True) for gemm in gemms if gemm.groups in (8, 16, 20)]
    return [Case(gemm, partial(_grouped, gemm)) for gemm in gemms] + [
        Case(gemm, partial(_separate, gemm)) for gemm in few
    ]


def _of_layers(layers: Iterable[tuple[LayerWidths, tuple[int, ...]]]) -> Iterator[Gemm]:
    for layer, many in layers:
        for tokens, (n, k) in product(many, layer.linears()):
            yield Gemm(tokens, n, k)
            yield Gemm(tokens, k, n, layout="nn")
            yield Gemm(n, k, tokens, layout="nt")


def _cases(gemms: Iterable[Gemm]) -> list[Case]:
    kept = dict.fromkeys(gemm for gemm in gemms if MIN_FLOPS <= gemm.flops <= MAX_FLOPS)
    return [Case(gemm, partial(_gemm, gemm)) for gemm in kept]


def _gemm(gemm: Gemm, bench: Bench) -> Launch:
    torch = bench.torch
    a, b = _operands(gemm, bench)
    if gemm.dtype in ("fp8", "fp8_block"):
        return _scaled(gemm, bench, a, b)
    if gemm.accumulate:
        into = bench.normal(gemm.m, gemm.n, dtype=gemm.out)
        return lambda: torch.addmm(into, a, b, out_dtype=bench.dtype(gemm.out), out=into)
    if gemm.out == "fp32" and gemm.dtype == "bf16":
        return lambda: torch.mm(a, b, out_dtype=torch.float32)
    multiply = torch.bmm if gemm.batch > 1 else torch.mm
    if gemm.dtype == "tf32":
        return partial(_with_tf32, torch, multiply, a, b)
    return partial(multiply, a, b)


def _operands(gemm: Gemm, bench: Bench) -> tuple[Any, Any]:
    """[m, k] and [k, n], stored as the layout says: a transposed operand is a view of its contiguous transpose."""
    lead = (gemm.batch,) if gemm.batch > 1 else ()
    if gemm.dtype in ("fp8", "fp8_block"):  # these tensor cores take one layout only
        gemm = replace(gemm, layout="tn")
    if gemm.layout == "nt":
        a = bench.normal(*lead, gemm.k, gemm.m, dtype=gemm.dtype).transpose(-1, -2)
    else:
        a = bench.normal(*lead, gemm.m, gemm.k, dtype=gemm.dtype)
    if gemm.layout == "tn":
        return a, bench.normal(*lead, gemm.n, gemm.k, dtype=gemm.dtype).transpose(-1, -2)
    return a, bench.normal(*lead, gemm.k, gemm.n, dtype=gemm.dtype)


def _with_tf32(torch: Any, multiply: Any, a: Any, b: Any) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        multiply(a, b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _scaled(gemm: Gemm, bench: Bench, a: Any, b: Any) -> Launch:
    """Blocks: one scale for 1 x 128 of the activations and 128 x 128 of the weights, both outer dimension first."""
    torch, fast = bench.torch, gemm.dtype == "fp8" and gemm.layout == "tn"
    if gemm.dtype == "fp8":
        scale = torch.ones((), device=bench.device)
        scales = (scale, scale)
    else:
        k = gemm.k // SCALE_BLOCK
        scales = (
            torch.ones((k, gemm.m), device=bench.device).t(),
            torch.ones((gemm.n // SCALE_BLOCK, k), device=bench.device).t(),
        )
    return lambda: torch._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _separate(gemm: GroupedGemm, bench: Bench) -> Launch:
    """A product for each expert, one after the other."""
    each = gemm.groups
    if gemm.layout == "nt":
        expert_gemm = Gemm(gemm.m, gemm.n, gemm.k // each, layout="nt")
    else:
        expert_gemm = Gemm(gemm.m // each, gemm.n, gemm.k, layout=gemm.layout)
    launches = [_gemm(expert_gemm, bench) for _ in range(each)]

    def launch() -> None:
        for launch_expert in launches:
            launch_expert()

    return launch


def _grouped(gemm: GroupedGemm, bench: Bench) -> Launch:
    torch = bench.torch
    rows = gemm.k if gemm.layout == "nt" else gemm.m
    ends = torch.arange(1, gemm.groups + 1, device=bench.device, dtype=torch.int32) * (rows // gemm.groups)
    if gemm.layout == "nt":
        a, b = bench.normal(gemm.k, gemm.m).t(), bench.normal(gemm.k, gemm.n)
    elif gemm.layout == "nn":
        a, b = bench.normal(gemm.m, gemm.k), bench.normal(gemm.groups, gemm.k, gemm.n)
    else:
        a, b = bench.normal(gemm.m, gemm.k), bench.normal(gemm.groups, gemm.n, gemm.k).transpose(-1, -2)
    multiply = getattr(torch, "_grouped_mm", None) or torch.nn.functional.grouped_mm
    return lambda: multiply(a, b, offs=ends, out_dtype=torch.bfloat16)
