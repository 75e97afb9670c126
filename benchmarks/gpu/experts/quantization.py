"""Measures casts to 8 bits: scales per tensor, of blocks of 128 elements, and of 32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from experts.measuring import DEVICE, FP8_LARGEST, Item, Session, fastest, item, measure
from foretrace.calibrate.gpu.case import Bench, Launch
from foretrace.program.kernels import Stream


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
