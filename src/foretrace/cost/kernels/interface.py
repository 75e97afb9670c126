"""Defines the interface of sources of kernel prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError, did_you_mean
from foretrace.program.kernels import Kernel
from foretrace.program.program import Source

PriceSource = Literal["best", "model", "roofline"]
"""The best source that knows each kernel, the fitted model alone, or the datasheet."""

MAX_KNOWN: Final = 1 << 17
"""The most kernels whose prices are remembered, about 100 MB; beyond it all are forgotten."""


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """Seconds of each kernel, the number of its source, and its own band as factors of its price."""

    duration_s: Floats
    source: Longs
    low: Floats
    high: Floats


class KnownPrices:
    """Remembers the prices of kernels; `compute` prices those that are asked for the first time.

    A price must not depend on the kernels that are priced together with it.
    """

    def __init__(self, compute: Callable[[list[Kernel]], KernelPrices]) -> None:
        self._compute = compute
        self._prices: dict[Kernel, tuple[float, int, float, float]] = {}

    def of(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Returns the price of each kernel."""
        new = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self._prices))
        if new:
            if len(self._prices) + len(new) > MAX_KNOWN:
                self._prices.clear()
                new = list(dict.fromkeys(kernels))
            priced = self._compute(new)
            columns = (priced.duration_s, priced.source, priced.low, priced.high)
            self._prices.update(zip(new, zip(*(column.tolist() for column in columns), strict=True), strict=True))
        rows = np.array([self._prices[kernel] for kernel in kernels]).reshape(len(kernels), 4)
        return KernelPrices(rows[:, 0], rows[:, 1].astype(np.int64), rows[:, 2], rows[:, 3])


class KernelPricer(Protocol):
    """Prices kernels on one GPU, each from the best source that knows it."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The possible sources of prices; `KernelPrices.source` numbers these."""

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """What a user should know: an approximation, a source that is missing."""

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Prices each kernel alone on an otherwise idle, warm GPU, in seconds, without the host's launch."""


@dataclass(frozen=True, slots=True)
class PriceSources:
    """The sources that price kernels and collectives.

    `source` is `best` (each price from the best source that knows it), `model` (the fitted model alone) or `roofline`
    (the datasheet, for kernels). `silicon` says whether NVIDIA's tables count among the best; None means if they are
    installed. `kernels` is a source of one's own for kernels, used instead of all others.
    """

    source: PriceSource = "best"
    silicon: bool | None = None
    kernels: KernelPricer | None = None

    def __post_init__(self) -> None:
        known = get_args(PriceSource)
        if self.source not in known:
            problem = f'prices "{self.source}" are not known{did_you_mean(str(self.source), known)}'
            raise InputError("unknown-name", problem, hint=f"known: {', '.join(known)}")
