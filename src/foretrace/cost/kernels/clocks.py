"""Converts kernel prices to the frequency at which the GPUs of a job run.

A GPU at its power limit lowers its frequency until its load fits. The power that a kernel draws has a part that does
not depend on the frequency, for the module and its memory, and a part that grows with its cube (the voltage follows the
frequency: P = C V² f), for arithmetic and the memory controllers. Both parts, averaged over the kernels of a job by
their time, give the frequency:

    c³ = (limit − Σ share · fixed) / Σ share · dynamic

Kernel prices hold for the mix in which kernel profiles are measured: products for 70 % of the time, passes over memory
for the rest. In a job of other proportions, products are faster or slower by the ratio of the two frequencies
(`ClockedPricer`).

GPUs of one kind also differ from each other, since each chip needs another frequency to stay within its power. Ranks
wait for each other, so compute-bound kernels are priced for the slowest GPU of the job (`SlowestPricer`); memory-bound
kernels hardly differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Mask
from foretrace.basics.errors import Diagnostic
from foretrace.cost.kernels.interface import KernelPricer, KernelPrices
from foretrace.cost.kernels.model import UNKNOWN_UNITS, peak_flops
from foretrace.cost.kernels.parameters import efficiency
from foretrace.cost.kernels.streams import is_bound_by_instructions
from foretrace.hardware.cluster import Gpu
from foretrace.program.kernels import Copy, Kernel, Stream
from foretrace.program.program import Source

# Shares of a module's power limit, of an H200 (benchmarks/gpu/clocks.py: bf16 products and attention amid passes over
# memory in eleven proportions, clock and power by nvidia-smi): clocks come out within 5 %, those of three training
# steps within 2 %.
LIMIT: Final = 0.993
"""The share of the limit that is drawn on average when it is reached."""
FIXED: Final = 0.25
MEMORY_FIXED: Final = 0.25
"""At the memory's full rate, besides."""
MEMORY_DYNAMIC: Final = 0.44
"""At the memory's full rate and the highest clock."""
ARITHMETIC_DYNAMIC: Final = 2.35
"""At the datasheet's peak rate and the highest clock: no kernel reaches that."""
FULL_RATE: Final = 0.9
"""The share of the datasheet's memory rate that a plain stream reaches."""
CLOCK_POWER: Final = 0.9
"""A product's time goes as this power of the clock: its operands come from memory, which keeps its own."""

PROFILED: Final = (0.7, 0.78)
"""The mix of kernel profiles: the share of products, and what of the peak rate they reach at full clocks."""
HOLDS: Final = 0.95
"""The share of a burst's speed from which on a GPU's clocks count as holding (an A100's)."""

IDLE: Final = 0.2
"""The share of the limit that a module draws while it waits for its host for moments: an H200 whose frequency is held,
by nvidia-smi."""

SPREAD: Final = 0.015
"""The standard deviation of one GPU's speed among its like. Sinha et al., Not All GPUs Are Created Equal (SC 2022,
arXiv:2208.11035), find 8 % between the ends of a box plot's whiskers, on average over clusters and applications; of a
normal distribution these lie 5.4 deviations apart."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The kernels of a job and how often each runs, in whatever unit; `busy` is the share of the time in which any
    does."""

    calls: Mapping[Kernel, float]
    busy: float = 1.0


def clock_of(fixed: float, dynamic: float) -> float:
    """The clock, as a share of the highest, at which kernels of this mean draw fit into the limit."""
    return float(min(1.0, (max(LIMIT - fixed, 0.05) / max(dynamic, 1e-9)) ** (1 / 3)))


def profiled_clock() -> float:
    """The clock amid the mix that kernel profiles are measured in."""
    share, reached = PROFILED
    fixed = FIXED + MEMORY_FIXED * (1 - share)
    return clock_of(fixed, share * ARITHMETIC_DYNAMIC * reached + (1 - share) * MEMORY_DYNAMIC)


def products_factor(gpu: Gpu, mix: Mix, pricer: KernelPricer) -> float:
    """Returns how many times as long a job's products take as in the mix of kernel profiles."""
    sustained = efficiency(gpu).sustained["bf16"]
    kernels = [call for call in mix.calls if not isinstance(call, Copy)]
    if sustained >= HOLDS or not any(kernel.flops > 0 for kernel in kernels):
        return 1.0
    computes = np.array([kernel.flops > 0 for kernel in kernels], dtype=bool)
    # At full clocks; what is bound by memory takes the same at any.
    each_s = pricer.price(kernels).duration_s * np.where(computes, sustained, 1.0)
    fixed, dynamic = _draws(gpu, kernels, each_s)
    spent_s = each_s * np.array([mix.calls[kernel] for kernel in kernels])
    share = mix.busy * spent_s / spent_s.sum()
    idle = IDLE * (1 - mix.busy)
    ratio = profiled_clock() / clock_of(float((share * fixed).sum()) + idle, float((share * dynamic).sum()))
    return float(max(sustained, ratio**CLOCK_POWER))


def least_products_factor(gpu: Gpu) -> float:
    """Returns the least that `products_factor` returns for any job."""
    return min(float(efficiency(gpu).sustained["bf16"]), 1.0)


def _draws(gpu: Gpu, kernels: Sequence[Kernel], seconds: Floats) -> tuple[Floats, Floats]:
    """Returns the draw of each kernel as shares of the limit: the part that no frequency changes, and the part at the
    highest frequency."""
    flops, moved, peak = (np.zeros(len(kernels)) for _ in range(3))
    for i, kernel in enumerate(kernels):
        flops[i], moved[i] = kernel.flops, kernel.moved_bytes
        peak[i] = peak_flops(gpu, getattr(kernel, "dtype", "bf16"))
    memory = np.minimum(moved / seconds / (FULL_RATE * gpu.memory_bytes_per_s), 1.0)
    arithmetic = np.minimum(flops / seconds / peak, 1.0)
    return FIXED + MEMORY_FIXED * memory, ARITHMETIC_DYNAMIC * arithmetic + MEMORY_DYNAMIC * memory


@dataclass(frozen=True, slots=True)
class ClockedPricer:
    """Prices of another source, of which products take `factor` times as long. So do the streams that are bound by
    instructions on `gpu` (None: no stream)."""

    pricer: KernelPricer
    factor: float
    gpu: Gpu | None = None

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those of the other."""
        return self.pricer.sources

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Those of the other, and what the job's own mix does."""
        if abs(self.factor - 1) < 0.005:
            return self.pricer.notes
        way = "longer" if self.factor > 1 else "shorter"
        text = (
            f"products take {abs(self.factor - 1):.1%} {way} than amid a kernel profile's mix: the power this job draws"
        )
        return (*self.pricer.notes, Diagnostic("note", "power-clock", f"{text} leaves the GPU another clock"))

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Prices each kernel at the job's own frequency."""
        prices = self.pricer.price(kernels)
        follows = np.array([kernel.flops > 0 for kernel in kernels], dtype=bool) | self._held_up(kernels)
        return replace(prices, duration_s=prices.duration_s * np.where(follows, self.factor, 1.0))

    def _held_up(self, kernels: Sequence[Kernel]) -> Mask:
        """Returns which kernels are streams that are bound by instructions."""
        if self.gpu is None:
            return np.zeros(len(kernels), dtype=bool)
        own, bytes_per_s = efficiency(self.gpu), self.gpu.memory_bytes_per_s
        clocks_per_s = (self.gpu.compute_units or UNKNOWN_UNITS) * own.clock_hz
        return np.array(
            [
                isinstance(kernel, Stream) and is_bound_by_instructions(kernel, own.streams, bytes_per_s, clocks_per_s)
                for kernel in kernels
            ],
            dtype=bool,
        )


def slowest(gpus: int) -> float:
    """Returns the expected time of the slowest of `gpus` GPUs, relative to a median one (Blom's approximation)."""
    if gpus < 2:
        return 1.0
    return 1 + SPREAD * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


@dataclass(frozen=True, slots=True)
class SlowestPricer:
    """Prices of another source for a job of `gpus` GPUs."""

    pricer: KernelPricer
    gpus: int

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those of the other."""
        return self.pricer.sources

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Those of the other, and how much slower the slowest is."""
        longer = f"{100 * (slowest(self.gpus) - 1):.1f} %"
        text = f"slowest of {self.gpus:,} GPUs sets the pace: compute includes {longer} more than on a median one"
        return (*self.pricer.notes, Diagnostic("note", "slowest-gpu", text))

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Prices each kernel on the slowest GPU."""
        prices = self.pricer.price(kernels)
        computes = np.array([kernel.flops > 0 for kernel in kernels], dtype=bool)
        return replace(prices, duration_s=prices.duration_s * np.where(computes, slowest(self.gpus), 1.0))
