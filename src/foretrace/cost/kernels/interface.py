"""Defines the interface of sources of kernel prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError, did_you_mean
from foretrace.program.kernels import Kernel
from foretrace.program.program import Source

PriceSource = Literal["best", "model", "roofline"]
"""The best source that knows each kernel, the fitted model alone, or the datasheet."""


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """Seconds of each kernel, the number of its source, and its own band as factors of its price."""

    duration_s: Floats
    source: Longs
    low: Floats
    high: Floats


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
