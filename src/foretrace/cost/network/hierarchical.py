"""Latency and bandwidth over links, PCIe and NICs: rings and trees through the places where the ranks sit.

GPUs of a link domain reach each other over links; domains of one host over PCIe; everything else over NICs. An *island*
is what needs no NIC within: a host, or a domain that reaches over hosts. A ring enters and leaves an island through as
many NICs as it has ranks there, all groups of a communicator being at work at once, and every NIC carries its share.
Within an island of k ranks, k − 1 of the k hops of a ring go over links.

The cheapest of NCCL's protocols is taken, and for an all-reduce the cheaper of ring and tree, as NCCL takes it. What
is left out: reduction in the switch, channel counts, and collectives of other communicators on the same links.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.cost.network.interface import CallPrices
from foretrace.cost.network.protocols import (
    LINK_SHARE,
    LINK_SHARE_ELSEWHERE,
    LL_LIMITS,
    NETWORK_SHARE,
    PCIE_PAYLOAD,
    PCIE_SHARE,
    PROTOCOLS,
    Protocol,
)
from foretrace.errors import Diagnostic, InputError
from foretrace.hardware.cluster import Cluster, Gpu
from foretrace.placement import Placement
from foretrace.program.columns import Collective, label
from foretrace.program.program import Floats, Longs, Source

PER_PEER_S: Final = 1e-6
"""What the CPU thread that drives a NIC spends on each partner of an all-to-all (NCCL's network overhead,
tuning.cc)."""

BAND: Final = (0.8, 1.6)
"""How far the model may be off, as factors: set so that it holds nine in ten of 121 published nccl-tests results of 16
MB and more on hardware that presets describe (`benchmarks/collectives.py`), to which no other constant was fitted.
Smaller messages take longer than it says."""

_STEPS: Final = {
    Collective.ALL_REDUCE: 2,
    Collective.ALL_GATHER: 1,
    Collective.REDUCE_SCATTER: 1,
    Collective.BROADCAST: 1,
    Collective.REDUCE: 1,
}
"""How many times a ring goes round, less one hop."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the ranks of a group sit: how many in all, over how many islands and link domains, and how many in the
    island and in the domain that hold the fewest and the most; and the NICs that each rank has to itself."""

    size: int
    islands: int
    domains: int
    least_in_island: int
    least_in_domain: int
    most_in_island: int
    most_in_domain: int
    nics_per_rank: float


class HierarchicalNetwork:
    """The network of a cluster with ranks in their places."""

    notes: tuple[Diagnostic, ...] = ()

    def __init__(self, cluster: Cluster, placement: Placement) -> None:
        node = cluster.node
        _check_placement(cluster, placement)
        self.cluster = cluster
        self.sources: tuple[Source, ...] = (Source(f"network model of {cluster.name}", *BAND),)
        place = placement.host.astype(np.int64) * node.gpus + placement.slot
        self._domain = place // node.domain_gpus
        self._island = place // max(node.domain_gpus, node.gpus)
        ranks_here = placement.ranks_per_host()[placement.host]
        # A rank uses the NICs next to it; those that other ranks of the job leave idle do not make it faster.
        self._nics = np.minimum(node.nics / ranks_here, max(1.0, node.nics / node.gpus))

    def layouts(self, groups: NDArray[np.integer]) -> tuple[list[Hashable], Longs]:
        """The kinds of groups among these, and which kind each is."""
        islands, least_in_island, most_in_island = _spread(self._island[groups])
        domains, least_in_domain, most_in_domain = _spread(self._domain[groups])
        nics = self._nics[groups].min(axis=1)
        facts = (islands, domains, least_in_island, least_in_domain, most_in_island, most_in_domain, nics)
        first, number = _kinds(facts)
        size = groups.shape[1]
        return [Layout(size, *(fact[group].item() for fact in facts)) for group in first.tolist()], number

    def price(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> CallPrices:
        """What these sizes take in a group of this layout."""
        assert isinstance(layout, Layout)
        size = np.asarray(size_bytes, dtype=np.float64)
        source = np.zeros(size.shape, dtype=np.int64)
        if layout.size == 1:
            return CallPrices(np.zeros(size.shape), np.zeros(size.shape), source)
        options = list(self._options(collective, layout, size))
        durations = np.array([latency + moving for latency, moving in options])
        best = durations.argmin(axis=0)
        latency = np.array([latency for latency, _ in options])[best]
        return CallPrices(latency, durations.min(axis=0), source)

    def _options(self, collective: Collective, layout: Layout, size: Floats) -> Iterator[tuple[float, Floats]]:
        """(latency, seconds that the bytes take) in each way it can be done."""
        match collective:
            case Collective.ALL_REDUCE | Collective.BARRIER:
                yield from (self._ring(Collective.ALL_REDUCE, layout, size, one) for one in PROTOCOLS)
                yield from (self._tree(layout, size, one) for one in PROTOCOLS)
            case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.BROADCAST | Collective.REDUCE:
                yield from (self._ring(collective, layout, size, one) for one in PROTOCOLS)
            case Collective.ALL_TO_ALL:
                yield self._all_to_all(layout, size)
            case Collective.GATHER | Collective.SCATTER:
                yield self._all_to_all(layout, size)
            case Collective.TRANSFER | Collective.EXCHANGE:
                yield from (self._transfer(layout, size, one) for one in PROTOCOLS)
            case _:
                raise InputError(f"the network model has no price for {label(collective)}")

    def _ring(self, what: Collective, layout: Layout, size: Floats, protocol: Protocol) -> tuple[float, Floats]:
        n, turns = layout.size, _STEPS[what]
        hops = turns * (n - 1)
        far = turns * (layout.islands - 1)
        near = self._near(layout, protocol.ring_link_s, protocol.ring_pcie_s)
        if layout.islands > 1:
            near = max(near, protocol.overhead_s)
        latency = protocol.ring_base_s + (hops - far) * near + far * protocol.ring_network_s
        # All of a broadcast passes every hop; of the others each hop is spared one part in n.
        passes = 1.0 if what in (Collective.BROADCAST, Collective.REDUCE) else hops / n
        return latency, passes * size / self._rate(layout, protocol, protocol.ring_share)

    def _tree(self, layout: Layout, size: Floats, protocol: Protocol) -> tuple[float, Floats]:
        """Up and down a tree over the islands, with a chain through each (NCCL's double binary tree)."""
        depth = int(np.log2(layout.islands))
        near = self._near(layout, protocol.tree_link_s, protocol.tree_pcie_s)
        latency = protocol.tree_base_s + 2 * ((layout.most_in_island - 1) * near + depth * protocol.tree_network_s)
        return latency, 2 * size / self._rate(layout, protocol, protocol.tree_share)

    def _all_to_all(self, layout: Layout, size: Floats) -> tuple[float, Floats]:
        """Every rank to every other at once: over links, PCIe and NICs side by side, the slowest deciding."""
        simple = PROTOCOLS[-1]
        n = layout.size
        far = n - layout.least_in_island
        across = max(layout.most_in_island - layout.least_in_domain, 0) if layout.domains > layout.islands else 0
        slowest = size * (across / n) / self._pcie_rate()
        if layout.most_in_domain > 1:
            linked = size * ((layout.most_in_domain - 1) / n) / self._link_rate(layout.most_in_domain)
            slowest = np.maximum(slowest, linked)
        latency = simple.ring_base_s + self._near(layout, simple.ring_link_s, simple.ring_pcie_s)
        if far:
            slowest = np.maximum(slowest, size * (far / n) / self._nic_rate(layout))
            latency = simple.ring_base_s + simple.ring_network_s + far * PER_PEER_S
        return latency, slowest

    def _transfer(self, layout: Layout, size: Floats, protocol: Protocol) -> tuple[float, Floats]:
        """One rank to another; an exchange goes both ways at once, as links and NICs do."""
        if layout.islands > 1:
            hop, rate = protocol.ring_network_s, self._nic_rate(layout)
        elif layout.domains > 1:
            hop, rate = protocol.ring_pcie_s, self._pcie_rate()
        else:
            hop, rate = protocol.ring_link_s, self._link_rate(2)
        return protocol.ring_base_s + hop, size / self._limited(rate, layout, protocol, protocol.ring_share)

    def _near(self, layout: Layout, link_s: float, pcie_s: float) -> float:
        """The latency of a hop within an island."""
        return link_s if layout.domains <= layout.islands and self._has_links else pcie_s

    def _rate(self, layout: Layout, protocol: Protocol, share: float) -> float:
        """What a ring or tree moves past every rank, in bytes per second ("bus bandwidth")."""
        rates = []
        k = layout.most_in_domain
        if k > 1:
            # k − 1 of the k hops of a ring in a domain that it leaves again go over links.
            rates.append(self._link_rate(k) * (k / (k - 1) if layout.domains > 1 else 1.0))
        if layout.domains > layout.islands:
            rates.append(layout.least_in_domain * self._pcie_rate())
        if layout.islands > 1:
            rates.append(layout.least_in_island * self._nic_rate(layout))
        return self._limited(min(rates), layout, protocol, share)

    def _limited(self, rate: float, layout: Layout, protocol: Protocol, share: float) -> float:
        limits = LL_LIMITS.get(_family(self.cluster.gpu))
        if protocol.name == "LL" and limits:
            return min(share * rate, limits[min(layout.islands, 3) - 1])
        return share * rate

    @property
    def _has_links(self) -> bool:
        return self.cluster.gpu.links > 0 and self.cluster.node.domain_gpus > 1

    def _link_rate(self, ranks: int) -> float:
        """What a rank can send to the others of so many in its domain, all together."""
        node, gpu = self.cluster.node, self.cluster.gpu
        if not self._has_links:
            return self._pcie_rate()
        rate = gpu.link_bytes_per_s * LINK_SHARE.get(_family(self.cluster.gpu), LINK_SHARE_ELSEWHERE)
        return rate if node.switched else rate * (ranks - 1) / (node.domain_gpus - 1)

    def _pcie_rate(self) -> float:
        return self.cluster.gpu.pcie_bytes_per_s * PCIE_SHARE

    def _nic_rate(self, layout: Layout) -> float:
        """What a rank can send out of its island."""
        rate = self.cluster.node.nic.bytes_per_s * NETWORK_SHARE * layout.nics_per_rank
        return min(rate / self.cluster.oversubscription, self.cluster.gpu.pcie_bytes_per_s * PCIE_PAYLOAD)


def _check_placement(cluster: Cluster, placement: Placement) -> None:
    """Raises an error where ranks sit on GPUs or nodes that the cluster does not have."""
    node = cluster.node
    if int(placement.slot.max()) >= node.gpus:
        rank = int(placement.slot.argmax())
        raise InputError(
            f"rank {rank} is placed on GPU {int(placement.slot[rank])}, but nodes of {cluster.name} have {node.gpus}",
            hint=f"GPUs of a node are numbered from 0 to {node.gpus - 1}",
        )
    if cluster.nodes is not None and placement.hosts > cluster.nodes:
        raise InputError(
            f"the placement has {placement.hosts:,} hosts, the cluster {cluster.name} {cluster.nodes:,} nodes",
            hint=f"place the ranks on fewer, or raise nodes in {cluster.where or 'the cluster'}",
        )


def _spread(places: NDArray[np.int64]) -> tuple[Longs, Longs, Longs]:
    """Per row of [groups, size]: how many places it has, and how many ranks the emptiest and the fullest of them
    hold."""
    groups, size = places.shape
    together = places[:, 1:] == places[:, :-1]
    one, every = np.ones(groups, dtype=np.int64), np.full(groups, size)
    if size == 2:
        same = together[:, 0].astype(np.int64)
        return 2 - same, 1 + same, 1 + same
    if together.all():
        return one, every, every
    if (places[:, 1:] > places[:, :-1]).all():
        return every, one, one
    ordered = np.sort(places, axis=1)
    starts = np.ones(ordered.shape, dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    flat = np.flatnonzero(starts)
    held = np.diff(np.append(flat, starts.size))
    counts = starts.sum(axis=1)
    first = np.cumsum(counts) - counts
    return counts, np.minimum.reduceat(held, first), np.maximum.reduceat(held, first)


def _kinds(facts: Sequence[NDArray[np.generic]]) -> tuple[Longs, Longs]:
    """The first of the groups of each kind, and the number of each group's kind: those of a kind have the same
    facts."""
    number = np.zeros(len(facts[0]), dtype=np.int64)
    for fact in facts:
        if (fact != fact[0]).any():
            values, place = np.unique(fact, return_inverse=True)
            number = np.unique(number * len(values) + place.ravel(), return_inverse=True)[1].ravel()
    first = np.unique(number, return_index=True)[1] if number.any() else np.zeros(1, dtype=np.int64)
    return first, number


def reaching(cluster: Cluster, *, link_bytes_per_s: float | None, nic_bytes_per_s: float | None) -> Cluster:
    """A cluster on which this model's links and NICs reach these rates, whatever their datasheets say."""
    node, gpu, nic = cluster.node, cluster.gpu, cluster.node.nic
    if link_bytes_per_s is not None:
        share = LINK_SHARE.get(_family(gpu), LINK_SHARE_ELSEWHERE)
        gpu = replace(gpu, link_bytes_per_s=link_bytes_per_s / share)
    if nic_bytes_per_s is not None:
        nic = replace(nic, bytes_per_s=nic_bytes_per_s / NETWORK_SHARE)
        gpu = replace(gpu, pcie_bytes_per_s=max(gpu.pcie_bytes_per_s, nic_bytes_per_s / PCIE_PAYLOAD))
    return replace(cluster, node=replace(node, gpu=gpu, nic=nic))


def _family(gpu: Gpu) -> str:
    """A GPU's architecture without what comes after it: "Blackwell Ultra" is blackwell."""
    return gpu.architecture.lower().partition(" ")[0]
