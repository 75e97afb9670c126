"""Models the time of any kernel from its shape, the datasheet of the GPU and a few fitted constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.kernels.attention import (
    AttentionWork,
    attention_fit,
    attention_s,
    computed_flops,
    computed_pairs,
    side_bytes,
)
from foretrace.cost.kernels.gemm import DeviceRates, Products, gemm_s, grouped_s
from foretrace.cost.kernels.parameters import Efficiency, GemmFit, GroupedFit
from foretrace.cost.kernels.streams import streams_s
from foretrace.hardware.cluster import Gpu
from foretrace.program.kernels import DTYPE_BYTES, PEAK_OF, Attention, Copy, Gemm, GroupedGemm, Kernel, Stream

WIDER: Final = {"fp4": "fp8", "fp8": "bf16", "bf16": "fp16", "fp16": "tf32", "tf32": "fp32"}
"""The dtype whose units multiply what a GPU has no units for."""

COPY_SHARE: Final = 0.85
"""The share of the link's rate before encoding that a large pinned copy reaches: PCIe's headers and credits take 15 %
(54 of 64 GB/s on Gen5 x16, as NVIDIA's bandwidthTest shows)."""

COPY_FIXED_S: Final = 8e-6
"""The least time of a copy between GPU and host."""

ATTENTION_MEMORY_SHARE: Final = 0.88
"""The share of the memory rate that the operands of attention reach where that decides: as a plain stream."""

UNKNOWN_UNITS: Final = 132
"""SMs of a GPU whose file does not say."""


def peak_flops(gpu: Gpu, dtype: str) -> float:
    """The datasheet's dense peak for a dtype; of the next wider one that the GPU has, where it lacks this one."""
    name = PEAK_OF.get(dtype, dtype)
    while name not in gpu.peak_flops and name in WIDER:
        name = WIDER[name]
    return gpu.peak_flops.get(name) or max(gpu.peak_flops.values())


def floor_s(gpu: Gpu, kernels: Sequence[Kernel]) -> Floats:
    """The datasheet's roofline: what no kernel beats, in seconds."""
    flops, moved, peak = np.zeros((3, len(kernels)))
    rate = np.full(len(kernels), gpu.memory_bytes_per_s)
    for i, kernel in enumerate(kernels):
        flops[i], moved[i] = kernel.flops, kernel.moved_bytes
        peak[i] = peak_flops(gpu, getattr(kernel, "dtype", "bf16"))
        if isinstance(kernel, Copy):
            rate[i] = _host_bytes_per_s(gpu)
    return np.asarray(np.maximum(flops / peak, moved / rate))


class EfficiencyModel:
    """Prices any kernel on one GPU. `sustained` prices are those of a training run that has gone on for a while;
    otherwise those of a short measurement, before heat and power lower the clocks."""

    def __init__(self, gpu: Gpu, constants: Efficiency) -> None:
        self.gpu = gpu
        self.constants = constants
        self._units = gpu.compute_units or UNKNOWN_UNITS

    def seconds(self, kernels: Sequence[Kernel], sustained: bool = True) -> Floats:
        """Returns the seconds of each kernel, never less than the datasheet's roofline."""
        ways: dict[object, Callable[[list[Any], bool], Floats]] = {
            Gemm: self._gemm,
            GroupedGemm: self._grouped,
            Attention: self._attention,
            Stream: self._stream,
            Copy: self._copy,
        }
        seconds = np.zeros(len(kernels))
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, kernel in enumerate(kernels):
            groups.setdefault(_family(kernel), []).append(i)
        for family, members in groups.items():
            seconds[members] = ways[family[0]]([kernels[i] for i in members], sustained)
        return np.asarray(np.maximum(seconds, floor_s(self.gpu, kernels)))

    def _clock(self, dtype: str, sustained: bool) -> float:
        factors = self.constants.sustained
        return factors[_nearest_dtype(factors, dtype)] if sustained else 1.0

    def _fit(self, dtype: str) -> GemmFit:
        fits = self.constants.gemm
        nearest = _nearest_dtype(fits, dtype)
        return fits[nearest] if nearest == dtype else self._carried(fits[nearest], nearest, dtype)

    def _carried(self, fit: GemmFit, of: str, dtype: str) -> GemmFit:
        """Returns the constants of products of `dtype`, carried over from those of another. Loading panels and starting
        tiles takes the same time for both, so that slower units lose fewer FLOPs meanwhile."""
        slower = min(peak_flops(self.gpu, dtype) / peak_flops(self.gpu, of), 1.0)
        wider = DTYPE_BYTES[dtype] / DTYPE_BYTES[of]
        return replace(fit, panel=fit.panel * min(slower * wider, 1.0), depth=fit.depth * slower)

    def _rate(self, dtype: str, layout: str, sustained: bool) -> float:
        return peak_flops(self.gpu, dtype) * self.constants.layout.get(layout, 1.0) * self._clock(dtype, sustained)

    def _gemm(self, kernels: list[Gemm], sustained: bool) -> Floats:
        first = kernels[0]
        m, n, k, batch, moved = _columns(
            [(kernel.m, kernel.n, kernel.k, kernel.batch, kernel.moved_bytes) for kernel in kernels]
        )
        rate = self._rate(first.dtype, first.layout, sustained)
        device = DeviceRates(rate, self.gpu.memory_bytes_per_s, self._units)
        return gemm_s(Products(m, n, k, batch, moved), self._fit(first.dtype), device)

    def _grouped(self, kernels: list[GroupedGemm], sustained: bool) -> Floats:
        first = kernels[0]
        groups, m, n, k, busiest, separate, moved = _columns(
            [
                (kernel.groups, kernel.m, kernel.n, kernel.k, kernel.largest, kernel.separate, kernel.moved_bytes)
                for kernel in kernels
            ]
        )
        # Rows are of all groups together: of the result, or, where weights' gradients are summed over them, of K.
        rows = np.ceil((k if first.layout == "nt" else m) / groups)
        most = np.maximum(rows, busiest)
        own, single = self.constants.grouped.get(first.layout, GroupedFit()), np.ones(groups.shape)
        if first.layout == "nt":
            mean = Products(m, n, rows + own.rows, groups, moved)
            largest = Products(m, n, most + own.rows, single, moved / groups)
        else:
            mean = Products(rows, n, k, groups, moved, most > rows, own.rows)
            largest = Products(most, n, k, single, moved / groups, lost_rows=own.rows)
        rate = peak_flops(self.gpu, first.dtype) * own.efficiency * self._clock(first.dtype, sustained)
        device = DeviceRates(rate, self.gpu.memory_bytes_per_s, self._units)
        return grouped_s(mean, largest, separate, self._fit(first.dtype), device)

    def _attention(self, kernels: list[Attention], sustained: bool) -> Floats:
        fits = [
            attention_fit(
                self.constants.attention, kernel.backend, kernel.backward, (kernel.head_dim + kernel.v_dim) // 2
            )
            for kernel in kernels
        ]
        flops, pairs, q, sequences, moved, launches, side = _columns(
            [
                (
                    computed_flops(kernel),
                    computed_pairs(kernel),
                    kernel.q,
                    kernel.batch * kernel.heads,
                    kernel.moved_bytes,
                    kernel.launches,
                    side_bytes(kernel),
                )
                for kernel in kernels
            ]
        )
        reached, keys = _columns([(fit.efficiency, fit.keys) for fit in fits])
        tail = np.array([self.constants.attention_tail[kernel.backward] for kernel in kernels])
        clocks = self.constants.attention_sustained
        rates = np.array([peak_flops(self.gpu, kernel.dtype) for kernel in kernels])
        if sustained:
            rates = rates * np.array([clocks.get(kernel.backend, clocks["cudnn"]) for kernel in kernels])
        memory = self.gpu.memory_bytes_per_s * ATTENTION_MEMORY_SHARE
        work = AttentionWork(flops, pairs, q, sequences, moved, reached, keys, tail, side, launches)
        return attention_s(work, DeviceRates(rates, memory, self._units))

    def _stream(self, kernels: list[Stream], _: bool) -> Floats:
        clocks = self._units * self.constants.clock_hz
        own = self.constants
        return streams_s(kernels, own.streams, own.extra_launch_s, self.gpu.memory_bytes_per_s, clocks, self._units)

    def _copy(self, kernels: list[Copy], _: bool) -> Floats:
        (moved,) = _columns([(kernel.moved_bytes,) for kernel in kernels])
        return np.asarray(COPY_FIXED_S + moved / (_host_bytes_per_s(self.gpu) * COPY_SHARE))


def _host_bytes_per_s(gpu: Gpu) -> float:
    return gpu.host_bytes_per_s or gpu.pcie_bytes_per_s


def _nearest_dtype(known: Mapping[str, object], dtype: str) -> str:
    """The dtype itself, or that of those known whose products are most like it."""
    while dtype not in known:
        dtype = {"mxfp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp8"}.get(dtype, "bf16")
    return dtype


def _family(kernel: Kernel) -> tuple[object, ...]:
    """Returns what kernels must have in common to be priced together."""
    if isinstance(kernel, Gemm | GroupedGemm):
        return (type(kernel), kernel.dtype, kernel.layout)
    return (type(kernel),)


def _columns(rows: Sequence[tuple[float, ...]]) -> Floats:
    return np.asarray(np.array(rows, dtype=np.float64).T)
