"""Of many GPUs that wait for each other, the slowest sets the pace.

GPUs of one kind differ, since each lowers its clock as far as its own chip needs to stay within its power. Kernels that
arithmetic bounds are priced for the slowest of as many as a job has; those that memory bounds hardly differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from foretrace.basics.errors import Diagnostic
from foretrace.cost.kernels.interface import KernelPricer, KernelPrices
from foretrace.program.kernels import Kernel
from foretrace.program.program import Source

SPREAD: Final = 0.015
"""The standard deviation of one GPU's speed among its like. Sinha et al., Not All GPUs Are Created Equal (SC 2022,
arXiv:2208.11035), find 8 % between the ends of a box plot's whiskers, on average over clusters and applications; of a
normal distribution these lie 5.4 deviations apart."""


def slowest(gpus: int) -> float:
    """How many times as long as a middling GPU the slowest of so many is expected to take (Blom's approximation)."""
    if gpus < 2:
        return 1.0
    return 1 + SPREAD * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


@dataclass(frozen=True, slots=True)
class SlowestPricer:
    """The prices of another source for a job of so many GPUs."""

    pricer: KernelPricer
    gpus: int

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those of the other."""
        return self.pricer.sources

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Those of the other, and how much slower the slowest is."""
        text = f"of {self.gpus:,} GPUs the slowest sets the pace: products take {slowest(self.gpus) - 1:.1%} longer"
        return (*self.pricer.notes, Diagnostic("note", "slowest-gpu", f"{text} than on a middling one"))

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """What each kernel takes on the slowest GPU."""
        prices = self.pricer.price(kernels)
        computes = np.array([kernel.flops > 0 for kernel in kernels], dtype=bool)
        return replace(prices, duration_s=prices.duration_s * np.where(computes, slowest(self.gpus), 1.0))
