"""Models the network of a cluster as NCCL uses it: what it chooses for a call, and how long the choice takes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.placement import Placement
from foretrace.cost.network.interface import CallPrices, Explained, Limit
from foretrace.cost.network.nccl.algorithms.pairs import EXCHANGE_BAND
from foretrace.cost.network.nccl.bottleneck import GBPS
from foretrace.cost.network.nccl.channels import fastest_nic_bytes_per_s, graphs_of
from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl.group import PCIE_PAYLOAD, NcclGroup
from foretrace.cost.network.nccl.layout import CrowdingRule, GroupLayout, Seats, as_slowest
from foretrace.cost.network.nccl.machine import NcclMachine, machine_of
from foretrace.cost.network.nccl.plan import PAIR_WAYS, CallPlan, way_s
from foretrace.cost.network.nccl.tuning import all_reckoned_s, ways
from foretrace.cost.network.nccl.tuning_tables import GB
from foretrace.cost.network.nccl_log.observations import Observed, Way
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.presets import gpu as preset_gpu
from foretrace.program.columns import ONE_TO_ONE, PAIRWISE, Collective
from foretrace.program.program import Source

BAND: Final = (0.85, 1.4)
"""The error of the model, as factors, with the constants of `machines.yaml`: set so that the band holds nine in ten of
250 published all-reduce times of 16 MiB and more, on one node and several (a test does it again). Smaller messages take
as long as their launch, which differs more from script to script than from GPU to GPU. All-to-alls over NICs that take
longer than twice their latency have a band of their own."""

ALLOWANCE: Final = 1.01
"""How many times as fast as what the model knows links and NICs may be before a note reports it."""


class NcclNetwork:
    """The network of a cluster with ranks in their places.

    `slowdown`: by how much SMs run slower than in a measurement of collectives alone, as they do under training's load.
    `crowding`: what the network beyond the NICs does to groups; without it, the cluster's oversubscription."""

    def __init__(
        self,
        cluster: Cluster,
        placement: Placement,
        machine: NcclMachine | None = None,
        forced: Forced | None = None,
        observed: Observed | None = None,
        crowding: CrowdingRule | None = None,
        slowdown: float = 1.0,
    ) -> None:
        self.cluster = cluster
        self.machine = (machine or machine_of(cluster.gpu)).slowed(slowdown)
        self._slowdown = slowdown
        self.forced = forced
        self.observed = observed
        self.sources: tuple[Source, ...] = (
            Source(f"network model of {cluster.name}", *BAND),
            Source(f"network model of {cluster.name}, all-to-all over NICs", *EXCHANGE_BAND),
        )
        self._seats = Seats(cluster, placement, crowding)
        self.notes: tuple[Diagnostic, ...] = (
            *_not_modelled(cluster),
            *_extrapolated(cluster, self.machine, self._seats),
        )
        self._oversubscription = 1.0 if crowding is not None else cluster.oversubscription
        self._plans: dict[tuple[Collective, GroupLayout], CallPlan] = {}

    def on_cluster(self, cluster: Cluster) -> NcclNetwork:
        """Returns the network with the figures of another cluster; groups are placed as on this one."""
        other = copy(self)
        other.cluster, other.machine = cluster, machine_of(cluster.gpu).slowed(self._slowdown)
        other._plans = {}
        return other

    def layouts(self, groups: NDArray[np.integer]) -> tuple[list[Hashable], Longs]:
        """The kinds of groups among these, and which kind each is."""
        return self._seats.layouts(groups)

    def as_slowest(self, layouts: Sequence[Hashable]) -> list[Hashable]:
        """Returns each layout with the traffic of the slowest of its shape."""
        return as_slowest(layouts)

    def price(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> CallPrices:
        """Prices these sizes in a group of this layout."""
        assert isinstance(layout, GroupLayout)
        size = np.asarray(size_bytes, dtype=np.float64)
        source = np.zeros(size.shape, dtype=np.int64)
        if layout.size == 1:
            return CallPrices(np.zeros(size.shape), np.zeros(size.shape), source)
        latency, duration = self.plan(collective, layout).price(size)
        if collective in PAIRWISE and layout.islands > 1:
            source = (2 * latency < duration).astype(np.int64)
        return CallPrices(latency, duration, source)

    def explain(self, collective: Collective, layout: Hashable, size_bytes: float) -> Explained:
        """Explains how a call of this size runs."""
        return self.explain_all(collective, layout, np.array([size_bytes], dtype=np.float64))[0]

    def explain_all(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> list[Explained]:
        """Explains how calls of these sizes run."""
        assert isinstance(layout, GroupLayout)
        if layout.size == 1:
            return [Explained(0.0, 0.0, 0.0, "", "", 0)] * len(size_bytes)
        return self.plan(collective, layout).explain(size_bytes)

    def limit(self, collective: Collective, layout: Hashable, size_bytes: float) -> Limit:
        """Finds what limits a call of this size."""
        assert isinstance(layout, GroupLayout)
        if layout.size == 1:
            return Limit("none", "nothing: one rank alone", 0.0)
        return self.plan(collective, layout).limit(size_bytes)

    def plan(self, collective: Collective, layout: GroupLayout) -> CallPlan:
        """Returns the plan of calls of a collective in a group of this layout."""
        what = Collective.ALL_REDUCE if collective is Collective.BARRIER else collective
        key = (what, layout)
        if key not in self._plans:
            graphs = graphs_of(self.cluster.node, layout)
            if self.observed is not None:
                graphs = self.observed.applied_to(graphs, layout.size, layout.islands)
            group = NcclGroup(self.cluster, layout, self.machine, graphs, self._oversubscription)
            self._plans[key] = CallPlan(group, what, self._ways(group, what), self.observed)
        return self._plans[key]

    def _ways(self, group: NcclGroup, what: Collective) -> list[Way]:
        if what in PAIRWISE or what in ONE_TO_ONE:
            return PAIR_WAYS
        possible = self._possible(group, what)
        if self.forced is None or not self.forced.touches(what):
            return possible
        allowed = [way for way in possible if self.forced.allows(what, *way)]
        if not allowed:
            nodes = "one node" if group.nodes == 1 else f"{group.nodes:,} nodes"
            raise self.forced.nothing_left(what, f"{group.layout.size:,} GPUs on {nodes}", possible)
        return allowed

    def _possible(self, group: NcclGroup, what: Collective) -> list[Way]:
        """Returns the ways that NCCL can choose from, by its rules and by what the user's machine reports to have."""
        insisted = self.forced is not None and self.forced.insists_on(what, "ll128")
        collnet = self.cluster.topology.in_network_reduction
        usual = ways(group, what, collnet, ll128=insisted)
        if self.observed is None:
            return usual
        ranks, nodes = group.layout.size, group.nodes
        printed, seen = self.observed.expectations(what, ranks, nodes), self.observed.seen(what, ranks, nodes)
        trusted = self.observed.trusts_ll128(group.row in ("hopper", "blackwell"), ranks, nodes)
        if not printed and trusted is not None and not insisted:
            usual = [way for way in ways(group, what, collnet, ll128=trusted) if trusted or way[1] != "ll128"]
        known = {*(printed or usual), *seen}
        return [way for way in ways(group, what, collnet=True, ll128=True) if way in known] or usual


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a call. `nccl_time_s` is what NCCL chooses by, `time_s` what this model expects of the way."""

    algorithm: str
    protocol: str
    channels: int
    nccl_time_s: float
    time_s: float
    chosen: bool


def candidates(
    network: NcclNetwork, collective: Collective, layout: GroupLayout, size_bytes: float
) -> tuple[Candidate, ...]:
    """Returns the allowed ways to run a call, fastest by NCCL's estimate first; empty if NCCL has no choice to make."""
    if layout.size == 1 or collective in PAIRWISE or collective in ONE_TO_ONE:
        return ()
    plan, size = network.plan(collective, layout), np.array([size_bytes], dtype=np.float64)
    (choice,) = plan.explain(size)
    reckoned = all_reckoned_s(plan.group, plan.what, plan.ways, size, network.observed)
    options = []
    for way, seconds in zip(plan.ways, reckoned, strict=True):
        chosen = way == (choice.algorithm, choice.protocol)
        own = choice.time_s if chosen else max(float(way_s(plan.group, plan.what, way, size)[1][0]), choice.bound_s)
        options.append(Candidate(*way, plan.group.channels(way[0]), float(seconds[0]), own, chosen))
    return tuple(sorted(options, key=lambda candidate: candidate.nccl_time_s))


def reaching(cluster: Cluster, *, link_bytes_per_s: float | None, nic_bytes_per_s: float | None) -> Cluster:
    """Returns the cluster with links and NICs that reach these rates for large messages in the network model."""
    node, gpu, nic = cluster.node, cluster.gpu, cluster.node.nic
    machine = machine_of(gpu)
    if link_bytes_per_s is not None:
        gpu = replace(gpu, link_bytes_per_s=link_bytes_per_s / machine.link_share)
    if nic_bytes_per_s is not None:
        nic = replace(nic, bytes_per_s=nic_bytes_per_s / machine.network_share)
        gpu = replace(gpu, pcie_bytes_per_s=max(gpu.pcie_bytes_per_s, nic_bytes_per_s / PCIE_PAYLOAD))
    return replace(cluster, node=replace(node, gpu=gpu, nic=nic))


def _extrapolated(cluster: Cluster, machine: NcclMachine, seats: Seats) -> tuple[Diagnostic, ...]:
    """Returns notes about links and NICs of the job that are faster than those that the model knows."""
    texts = []
    gpu, rate = cluster.gpu, cluster.node.nic.bytes_per_s
    fastest = fastest_nic_bytes_per_s(gpu)
    if seats.several_islands and rate > ALLOWANCE * fastest:
        texts.append(
            f"NICs of {rate * GBPS:g} Gb/s: NCCL's tables for this GPU know NICs of up to {fastest * GBPS:.0f} Gb/s; "
            "its channels and choices on faster ones are taken to be the same"
        )
    fitted = preset_gpu(machine.like).link_bytes_per_s if machine.like else gpu.link_bytes_per_s
    if seats.several_in_domain and gpu.link_bytes_per_s > ALLOWANCE * fitted:
        texts.append(
            f"links of {gpu.link_bytes_per_s / GB:g} GB/s: the share of them that NCCL moves was fitted on "
            f"{machine.like}, with {fitted / GB:g} GB/s"
        )
    return tuple(Diagnostic("note", "extrapolated", text) for text in texts)


def _not_modelled(cluster: Cluster) -> tuple[Diagnostic, ...]:
    """Returns a warning about failed links within nodes, which the formulas do not model."""
    links = "link switch", "gpu"
    beyond = "nic", "leaf", "spine", "core"
    failed = [name for name in cluster.topology.failed if any(word in name.casefold() for word in links)]
    within = [name for name in failed if not any(word in name.casefold() for word in beyond)]
    if not within:
        return ()
    text = f"formulas take the links within a node to be whole, without what failed: {', '.join(within[:4])}"
    return (Diagnostic("warning", "not-modelled", text),)
