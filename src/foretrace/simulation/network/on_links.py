"""Runs a collective on the links of a cluster, message by message, next to what formulas say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from foretrace.basics.errors import Diagnostic
from foretrace.cost.machine import NetworkMode
from foretrace.cost.network.nccl.algorithms.pairs import EXCHANGE_SHARE
from foretrace.cost.network.nccl.algorithms.ring import LINK_SHARES
from foretrace.cost.network.nccl.algorithms.tree import CHAIN
from foretrace.cost.network.nccl.machine import machine_of
from foretrace.cost.network.nccl.tuning_tables import NVLS_EFFICIENCY, row_of
from foretrace.engine.network.loop import SAME_TIME
from foretrace.program.columns import PAIRWISE, Collective
from foretrace.readings.links import LinkLoads
from foretrace.simulation.network.flow_network import FlowNetwork, flow_network
from foretrace.simulation.network.flows import NEAR, FlowAnswer, difference, flow_time, runs_as
from foretrace.simulation.network.packets import check_installed, packet_time
from foretrace.simulation.network.placed_groups import PlacedGroups

if TYPE_CHECKING:
    from foretrace.hardware.cluster import Cluster
    from foretrace.simulation.network.network import NetworkAnswer

TREES = ("tree", "nvls-tree")
"""Algorithms of NCCL that go up and down a tree over nodes."""

SLICES = 2
"""NCCL's rings pass on what a step moves in two slices (`ALLREDUCE_SLICESTEPS`): the next hop starts with the first."""

OWN = ("ring", "tree", "pairs")
"""Algorithms whose messages are run as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkRun:
    """A collective on links: its seconds, those by formulas, and how much of its capacity each link carried."""

    mode: NetworkMode
    time_s: float
    analytic_time_s: float
    messages: int
    loads: LinkLoads
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OnLinks:
    """Groups in their places on the links of a cluster."""

    collective: Collective
    groups: PlacedGroups
    network: FlowNetwork
    mode: NetworkMode = "flow"

    @classmethod
    def of(cls, collective: Collective, groups: PlacedGroups, cluster: Cluster, mode: NetworkMode) -> OnLinks:
        """The links of a cluster with groups on them."""
        if mode == "packets":
            check_installed()
        return cls(collective, groups, flow_network(cluster, cluster.nodes or groups.placement.hosts), mode)

    def run(self, analytic: NetworkAnswer) -> LinkRun:
        """Runs a collective that formulas have answered; the part that does not grow with bytes is theirs."""
        fabric, what = self.network.fabric, self.collective
        algorithm: Literal["ring", "tree"] = "tree" if analytic.algorithm in TREES else "ring"
        if self.mode == "packets":
            return self._packets(analytic, algorithm)
        groups = self.groups.gpu_numbers(fabric.gpus_per_node)
        together = int(np.bincount(self.network.nodes_of(groups[0])).max())
        network = self.network.with_shares(_link_share(analytic, what, together), _nic_share(analytic, what))
        flows = flow_time(
            what,
            _wire_bytes(analytic),
            groups,
            network,
            algorithm=algorithm,
            chunks=SLICES if runs_as(what, algorithm) == "ring" else None,
            latency_s=analytic.latency_s,
        )
        carries = replace(fabric, bytes_per_s=network.capacity)
        # LL is held up by the threads that write its flags, of which links know nothing.
        time_s = max(flows.time_s, analytic.time_s) if analytic.protocol == "ll" else flows.time_s
        loads = LinkLoads(carries, (analytic.collective,), flows.link_bytes[None], time_s)
        notes = _notes(analytic, flows, algorithm if what is Collective.ALL_REDUCE else "ring")
        return LinkRun("flow", time_s, analytic.time_s, flows.messages, loads, notes)

    def _packets(self, analytic: NetworkAnswer, algorithm: Literal["ring", "tree"]) -> LinkRun:
        """Runs it packet by packet; the part that does not grow with bytes is added."""
        fabric, size = self.network.fabric, _wire_bytes(analytic)
        groups = self.groups.gpu_numbers(fabric.gpus_per_node)
        packets = packet_time(self.collective, size, groups, self.network, algorithm=algorithm)
        time_s = packets.time_s + analytic.latency_s
        carries = replace(fabric, bytes_per_s=self.network.capacity)
        loads = LinkLoads(carries, (analytic.collective,), packets.link_bytes[None], time_s)
        notes = (Diagnostic("note", "not-modelled", packets.note),)
        return LinkRun("packets", time_s, analytic.time_s, packets.flows, loads, notes)


def _link_share(analytic: NetworkAnswer, what: Collective, together: int) -> float:
    """Returns how many times the bytes of rings links carry in the same time, according to the formulas.

    `together` is how many ranks of the group an island holds. SMs that pass a chain on also reduce; what NVLS reduces
    in the switch crosses links once.
    """
    within, row = (together - 1) / together, row_of(analytic.cluster.gpu.architecture)
    if together == 1 or analytic.algorithm not in (*TREES, "nvls"):
        return 1.0
    if analytic.algorithm == "tree":
        return 2 * within * CHAIN
    turns = 2 * within if what is Collective.ALL_REDUCE else 1.0
    return turns * within * NVLS_EFFICIENCY.get(row, 0.5)


def _nic_share(analytic: NetworkAnswer, what: Collective) -> float:
    """Returns the share of the NICs' usual rate that they reach when all exchange with all, according to the
    formulas."""
    usual = machine_of(analytic.cluster.gpu).network_share
    return min(EXCHANGE_SHARE / usual, 1.0) if what in PAIRWISE else 1.0


def _wire_bytes(analytic: NetworkAnswer) -> float:
    """The size with the flags that the protocol sends along."""
    return analytic.size_bytes / LINK_SHARES.get(analytic.protocol, 1.0)


def _notes(analytic: NetworkAnswer, flows: FlowAnswer, algorithm: str) -> tuple[Diagnostic, ...]:
    """Returns notes on what the messages leave out of what NCCL does."""
    notes = []
    if analytic.algorithm.startswith("nvls"):
        text = f"messages on links are those of a {algorithm}, as fast there as {analytic.algorithm}, which sends fewer"
        notes.append(Diagnostic("note", "not-modelled", text))
    elif analytic.algorithm not in (*OWN, "measured"):
        text = f"messages on links are those of a {algorithm}: links do not reduce, as {analytic.algorithm} would"
        notes.append(Diagnostic("note", "not-modelled", text))
    if flows.time_s < (1 - SAME_TIME) * analytic.bound_s:
        text = f"links of the network are faster than those of {analytic.cluster.name}, by which the bound is computed"
        notes.append(Diagnostic("warning", "conflicting-values", text))
    if flows.rough:
        notes.append(Diagnostic("note", "simplified-messages", flows.rough))
    if analytic.protocol == "ll" and flows.time_s < (1 - NEAR) * analytic.time_s:
        text = (
            f"links would take {flows.time_s / analytic.time_s:.2f}× the time: LL is held up by what its threads move"
        )
        return (*notes, Diagnostic("note", "links-differ", text))
    differs = difference(analytic.time_s, analytic.limit.name, flows)
    if differs is not None:
        notes.append(Diagnostic("note", "links-differ", differs))
    return tuple(notes)
