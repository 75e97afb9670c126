"""What a network model answers: the price of a collective or a transfer, for a kind of group and a size.

A price depends on where the ranks of a group sit, not on which they are, so pricing takes two steps: `layouts` sorts
the groups of a communicator, which are at work at the same time, into kinds, usually one; `price` prices sizes for a
kind. What a layout holds is the model's own business; to everyone else it is a value that can be compared.

Sizes are those of nccl-tests: the whole buffer of an all-reduce, broadcast or reduce; the whole, unsharded buffer of an
all-gather, reduce-scatter, gather or scatter; what one rank sends to all others, its own share included, for an
all-to-all; the bytes of a transfer, the larger way of an exchange.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import Diagnostic
from foretrace.program.columns import Collective
from foretrace.program.program import Floats, Longs, Source


@dataclass(frozen=True, slots=True)
class CallPrices:
    """Per size: seconds in all, the part of them that is latency, and which of the network's sources says so."""

    latency_s: Floats
    duration_s: Floats
    source: Longs


class Network(Protocol):
    """A priced network: ranks in their places, and the links between them."""

    sources: tuple[Source, ...]
    """Where its prices come from: a model, a measured table."""

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """What a reader of the prices given so far should know."""
        ...

    def layouts(self, groups: NDArray[np.integer]) -> tuple[list[Hashable], Longs]:
        """The kinds of groups of one communicator, [groups, size], and the number of the kind of each."""
        ...

    def price(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> CallPrices:
        """What these sizes take in a group of this layout, alone on an idle network: never less than the bytes need
        that must cross its busiest port, and never less for more bytes."""
        ...
