"""A collective on the links of a cluster, message by message, beside what formulas say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from foretrace.analysis.flow_network import FlowNetwork, flow_network
from foretrace.analysis.flows import FlowAnswer, difference, flow_time
from foretrace.analysis.links import LinkLoads
from foretrace.analysis.packets import check_installed, packet_time
from foretrace.analysis.seats import SeatedGroups
from foretrace.errors import Diagnostic
from foretrace.program.columns import Collective

if TYPE_CHECKING:
    from foretrace.analysis.network import Mode, NetworkAnswer
    from foretrace.hardware.cluster import Cluster

TREES = ("tree", "nvls-tree")
"""Algorithms of NCCL that go up and down a tree over nodes."""

OWN = ("ring", "tree", "pairs")
"""Algorithms whose messages are run as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkRun:
    """What a collective took on links: its seconds, those by formulas, and what each link carried of what it can."""

    mode: Mode
    time_s: float
    analytic_time_s: float
    messages: int
    loads: LinkLoads
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OnLinks:
    """Groups in their places on the links of a cluster."""

    collective: Collective
    seats: SeatedGroups
    network: FlowNetwork
    mode: Mode = "flow"

    @classmethod
    def of(cls, collective: Collective, seats: SeatedGroups, cluster: Cluster, mode: Mode) -> OnLinks:
        """The links of a cluster with groups on them."""
        if mode == "packets":
            check_installed()
        return cls(collective, seats, flow_network(cluster, cluster.nodes or seats.placement.hosts), mode)

    def run(self, analytic: NetworkAnswer) -> LinkRun:
        """Runs a collective that formulas have answered; the part that does not grow with bytes is theirs."""
        fabric, what = self.network.fabric, self.collective
        algorithm: Literal["ring", "tree"] = "tree" if analytic.algorithm in TREES else "ring"
        if self.mode == "packets":
            return self._packets(analytic, algorithm)
        found = flow_time(
            what,
            float(analytic.size_bytes),
            self.seats.gpu_numbers(fabric.gpus_per_node),
            self.network,
            algorithm=algorithm,
            latency_s=analytic.latency_s,
        )
        carries = replace(fabric, bytes_per_s=self.network.capacity)
        loads = LinkLoads(carries, (analytic.collective,), found.link_bytes[None], found.time_s)
        notes = _notes(analytic, found, algorithm if what is Collective.ALL_REDUCE else "ring")
        return LinkRun("flow", found.time_s, analytic.time_s, found.messages, loads, notes)

    def _packets(self, analytic: NetworkAnswer, algorithm: Literal["ring", "tree"]) -> LinkRun:
        """Runs it packet by packet; the part that does not grow with bytes is added."""
        fabric, size = self.network.fabric, float(analytic.size_bytes)
        groups = self.seats.gpu_numbers(fabric.gpus_per_node)
        found = packet_time(self.collective, size, groups, self.network, algorithm=algorithm)
        time_s = found.time_s + analytic.latency_s
        carries = replace(fabric, bytes_per_s=self.network.capacity)
        loads = LinkLoads(carries, (analytic.collective,), found.link_bytes[None], time_s)
        notes = (Diagnostic("note", found.note),)
        return LinkRun("packets", time_s, analytic.time_s, found.flows, loads, notes)


def _notes(analytic: NetworkAnswer, found: FlowAnswer, algorithm: str) -> tuple[Diagnostic, ...]:
    """What the messages leave out of what NCCL does."""
    notes = []
    if analytic.algorithm not in (*OWN, "measured"):
        text = f"messages on links are those of a {algorithm}: links do not reduce, as {analytic.algorithm} would"
        notes.append(Diagnostic("note", text))
    if found.rough:
        notes.append(Diagnostic("note", found.rough))
    differs = difference(analytic.time_s, analytic.limited_by, found)
    if differs is not None:
        notes.append(Diagnostic("note", differs))
    return tuple(notes)
