"""Defines the interface of network models: the price of a collective or a transfer, for a kind of group and a size.

A price depends on the places of the ranks of a group, not on which ranks they are. So pricing takes two steps:
`layouts` sorts the groups of a communicator, which run concurrently, into kinds, usually one; `price` prices sizes for
a kind. A layout is private to its model; to everyone else it is a value that can be compared.

Sizes are those of nccl-tests: the whole buffer of an all-reduce, broadcast or reduce; the whole, unsharded buffer of an
all-gather, reduce-scatter, gather or scatter; the bytes that one rank sends to all others, its own share included, for
an all-to-all; the bytes of a transfer; the larger direction of an exchange.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic
from foretrace.program.columns import Collective
from foretrace.program.program import Source


@dataclass(frozen=True, slots=True)
class CallPrices:
    """Per size: seconds in all, the part of them that is latency, and which of the network's sources says so."""

    latency_s: Floats
    duration_s: Floats
    source: Longs


LimitKind = Literal["nic", "uplink", "nvlink", "pcie", "channels", "latency", "none"]
"""The figures that can limit a call: the NICs; the network beyond them; links between GPUs, whoever makes them; PCIe;
the copying of NCCL's channels; latency, which is all that does not grow with bytes; none for one rank alone."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The figure that decides most of the time of a call: twice as much of it alone makes the call shorter."""

    kind: LimitKind
    name: str
    """In words: "latency of 14 hops", "NICs (400 Gb/s each)", "NVLink", "16 NCCL channels (22.8 GB/s each)"."""
    share: float
    """The part of the time that the figure decides, in proportion to which it shrinks."""


@dataclass(frozen=True, slots=True)
class Explained:
    """How one call runs."""

    time_s: float
    latency_s: float
    """The part of it that does not grow with bytes."""
    bound_s: float
    """The least time in which the bytes cross the busiest port at line rates, with any algorithm."""
    algorithm: str
    """As NCCL calls it: ring, tree, nvls, nvls-tree, collnet-direct, collnet-chain, pat; pairs for all-to-all and
    transfers; hierarchical, deepep, hybridep and low-latency where tokens go to experts in such a way; measured where
    no model was asked."""
    protocol: str
    """ll, ll128 or simple; empty where that is not known."""
    channels: int
    """The channels that run concurrently; 0 where that is not known."""
    draws: tuple[tuple[str, float], ...] = ()
    """The bytes that each rank sends over shared resources in one call: ("link", …), ("nic", …)."""


class Network(Protocol):
    """A priced network: ranks in their places, and the links between them."""

    sources: tuple[Source, ...]
    """The sources of its prices: a model, a measured table."""

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Diagnostics for readers of the prices given so far."""
        ...

    def layouts(self, groups: NDArray[np.integer]) -> tuple[list[Hashable], Longs]:
        """The kinds of groups of one communicator, [groups, size], and the number of the kind of each."""
        ...

    def as_slowest(self, layouts: Sequence[Hashable]) -> list[Hashable]:
        """Returns for each layout of one communicator one that is as slow as the slowest of those that differ from it
        only by traffic in the network beyond the NICs."""
        ...

    def price(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> CallPrices:
        """Prices these sizes in a group of this layout, alone on an idle network.

        A price is never less than the bytes need that must cross the busiest port, and never falls with more bytes.
        """
        ...

    def explain(self, collective: Collective, layout: Hashable, size_bytes: float) -> Explained:
        """Explains how a call of this size runs; `time_s` is the price of `price`."""
        ...

    def explain_all(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> list[Explained]:
        """Explains how calls of these sizes run."""
        ...

    def limit(self, collective: Collective, layout: Hashable, size_bytes: float) -> Limit:
        """Finds what limits a call of this size."""
        ...
