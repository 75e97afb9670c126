"""What a source of kernel prices answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from foretrace.errors import Diagnostic
from foretrace.program.kernels import Kernel
from foretrace.program.program import Floats, Longs, Source

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
        """Where prices may come from; `KernelPrices.source` numbers these."""

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """What a user should know: an approximation, a source that is missing."""

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """What each kernel takes alone on an otherwise idle, warm GPU, in seconds, without the host's launch."""
