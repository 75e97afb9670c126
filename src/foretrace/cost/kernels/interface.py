"""Defines the interface of sources of kernel prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import numpy as np

from foretrace.basics.arguments import check_fields, checked_methods
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
        rows = [self._prices.get(kernel) for kernel in kernels]
        if None in rows:
            self._add(dict.fromkeys(kernel for kernel, row in zip(kernels, rows, strict=True) if row is None), kernels)
            rows = [self._prices[kernel] for kernel in kernels]
        columns = np.array(rows, dtype=np.float64).reshape(len(kernels), 4).T
        return KernelPrices(columns[0], columns[1].astype(np.int64), columns[2], columns[3])

    def _add(self, new: Iterable[Kernel], all_kernels: Iterable[Kernel]) -> None:
        """Prices new kernels; all that are asked for where the others have to be forgotten."""
        kernels = list(new)
        if len(self._prices) + len(kernels) > MAX_KNOWN:
            self._prices.clear()
            kernels = list(dict.fromkeys(all_kernels))
        priced = self._compute(kernels)
        columns = (priced.duration_s, priced.source, priced.low, priced.high)
        self._prices.update(zip(kernels, zip(*(column.tolist() for column in columns), strict=True), strict=True))


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


@checked_methods
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
        check_fields(self)
        known = get_args(PriceSource)
        if self.source not in known:
            problem = f'prices "{self.source}" are not known{did_you_mean(str(self.source), known)}'
            raise InputError("unknown-name", problem, hint=f"known: {', '.join(known)}")
