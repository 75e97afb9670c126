"""Spreads the nodes of a job over link domains that reach over nodes, such as the racks of an NVL72.

The rule is that of launchers: `sbatch --segment` takes the number of nodes if one domain holds them, else the largest
divisor of that number that a domain holds (Megatron-Bridge, scripts/performance/utils/executors.py). Nodes of one
segment are in one domain. If this splits a tp, cp or ep group that a smaller segment keeps whole, the largest such
segment is taken. Segments are spread evenly over as few domains as hold them, so that no domain is nearly empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import DEFAULT_ORDER, Axis, Mesh
from foretrace.basics.placement import Placement
from foretrace.cost.network.peers import Places
from foretrace.hardware.cluster import Cluster, Node

_KEPT_WHOLE: Final = (Axis.TP, Axis.CP, Axis.EP, Axis.ETP)
"""Axes whose groups communicate in every layer."""


@dataclass(frozen=True, slots=True)
class DomainUse:
    """The link domains that a job uses, where a domain reaches over nodes."""

    domain_gpus: int
    """GPUs of a domain."""
    domains: int
    """Domains that the job uses."""
    least_gpus: int
    """GPUs that it uses of the domain of which it uses fewest."""
    most_gpus: int
    """GPUs that it uses of the domain of which it uses most."""
    segment: int
    """Nodes that must be in one domain: what `sbatch --segment` takes."""
    launcher_segment: int
    """The segment that launchers take, whichever groups it splits."""

    def note(self) -> Diagnostic | None:
        """Returns what a user should know of the domains; nothing where the job has one node or one whole domain."""
        if self.segment == self.domains == 1 or (self.domains == 1 and self.most_gpus == self.domain_gpus):
            return None
        of = f"{self.domain_gpus}-GPU domain"
        if self.domains == 1:
            text = f"all {self.most_gpus} GPUs are in one {of}: sbatch --segment {self.segment}"
        else:
            text = f"{self.gpus_text} GPUs of each {of} are used: "
            text += f"sbatch --segment {self.segment}" if self.segment > 1 else "no sbatch --segment can ask for that"
        if self.segment != self.launcher_segment:
            text += f" (launchers take {self.launcher_segment})"
        return Diagnostic("note", "domain-gpus", text)

    def of_ranks(self, placement: Placement, cluster: Cluster) -> DomainUse:
        """Returns the use of the domains by the ranks of a placement, which may leave GPUs of a node free."""
        size = cluster.node.island_gpus // cluster.node.gpus
        used = np.bincount(placement.host.astype(np.int64) // size)
        used = used[used > 0]
        return replace(self, least_gpus=int(used.min()), most_gpus=int(used.max()))

    @property
    def gpus_text(self) -> str:
        """How many GPUs of a domain the job uses: "64", or "36 to 40"."""
        return str(self.most_gpus) if self.least_gpus == self.most_gpus else f"{self.least_gpus} to {self.most_gpus}"


def spread_nodes(cluster: Cluster, nodes: int, groups: Sequence[Longs] = ()) -> tuple[Longs, DomainUse | None]:
    """Returns the number in the cluster of each node of a job, and the domains it uses; None where a domain is a node.

    Args:
        cluster: Where the job runs. A `domain_gpus` of its own is followed: that many GPUs of each domain in turn.
        nodes: Nodes of the job.
        groups: Nodes that should be in one domain, [groups, size] for each kind, counted from 0 within the job.
    """
    size = cluster.node.island_gpus // cluster.node.gpus
    if size == 1:
        return np.arange(nodes), None
    segments = [segment for segment in range(min(nodes, size), 0, -1) if nodes % segment == 0]
    if cluster.domain_gpus is not None:
        used = cluster.domain_gpus // cluster.node.gpus
        choices = [(math.gcd(nodes, min(used, nodes)), _filled(nodes, used))]
    else:
        choices = [(segment, _spread(nodes, segment, size)) for segment in segments]
        if cluster.nodes is not None:
            last = [(len(counts) - 1) * size + int(counts[-1]) for _, counts in choices]
            choices = [choice for choice, needed in zip(choices, last, strict=True) if needed <= cluster.nodes]
        choices = choices or [(math.gcd(nodes, size), _filled(nodes, size))]
    segment, counts = min(choices, key=lambda choice: _split(np.repeat(np.arange(len(choice[1])), choice[1]), groups))
    first = np.cumsum(counts) - counts
    domain = np.repeat(np.arange(len(counts)), counts)
    gpus = counts * cluster.node.gpus
    use = DomainUse(size * cluster.node.gpus, len(counts), int(gpus.min()), int(gpus.max()), segment, segments[0])
    return domain * size + np.arange(nodes) - first[domain], use


def place_job(cluster: Cluster, world: int, mesh: Mesh | None = None) -> tuple[Placement, DomainUse | None]:
    """Places the ranks of a job in order on the nodes that `spread_nodes` gives it, and returns the domains it uses."""
    gpus = cluster.node.gpus
    has_choice = mesh is not None and mesh.world == world and cluster.node.island_gpus > gpus
    groups = [ranks // gpus for _, ranks in inner_groups(mesh)] if mesh is not None and has_choice else []
    numbers, use = spread_nodes(cluster, -(-world // gpus), groups)
    placement = Placement.packed(world, gpus, numbers)
    return placement, None if use is None else use.of_ranks(placement, cluster)


def inner_groups(mesh: Mesh) -> list[tuple[Axis, Longs]]:
    """Returns the ranks of the groups that communicate in every layer, [groups, size] for each axis longer than 1."""
    has_experts = mesh.ep > 1 or mesh.size(Axis.ETP) != mesh.tp
    axes = [axis for axis in _KEPT_WHOLE if mesh.size(axis) > 1 and (axis is not Axis.ETP or has_experts)]
    return [(axis, mesh.groups(axis).astype(np.int64)) for axis in axes]


def crossing_note(node: Node, placement: Placement, mesh: Mesh) -> Diagnostic | None:
    """Returns a warning where groups of tp, cp or ep cross link domains; a node without links counts as a domain."""
    domain, size = Places.of(node, placement).island, node.island_gpus
    crossing = {axis: ranks for axis, ranks in inner_groups(mesh) if (domain[ranks] != domain[ranks[:, :1]]).any()}
    if not crossing:
        return None
    named = ", ".join(f"{axis} groups of {ranks.shape[1]}{_apart(ranks)}" for axis, ranks in crossing.items())
    text = f"{named} cross domains of {size} GPUs and communicate over NICs"
    # With tp innermost, as usual, neighbours on cp are tp ranks apart.
    etp = mesh.size(Axis.ETP)
    span = {Axis.TP: mesh.tp, Axis.CP: mesh.tp * mesh.cp, Axis.EP: etp * mesh.ep, Axis.ETP: etp}
    if any(span[axis] <= size for axis in crossing):
        options = ["--domain-gpus"] if size > node.gpus else []
        options += ["--rank-order"] if mesh.order != DEFAULT_ORDER else []
        text += ", though a domain can hold one" + (f": see {' and '.join(options)}" if options else "")
    return Diagnostic("warning", "group-crosses-domain", text)


def _apart(ranks: Longs) -> str:
    """Returns how far apart the ranks of groups are, where they are not neighbours."""
    distance = int(ranks[0, 1] - ranks[0, 0])
    return f" ({distance} ranks apart)" if distance > 1 else ""


def _spread(nodes: int, segment: int, size: int) -> Longs:
    """Returns the nodes of each domain: segments, evenly over as few domains as hold them."""
    segments = nodes // segment
    domains = -(-segments // (size // segment))
    each, more = divmod(segments, domains)
    return np.asarray(segment * (each + (np.arange(domains) < more)))


def _filled(nodes: int, used: int) -> Longs:
    """Returns the nodes of each domain: `used` of each in turn, and the rest of the last."""
    return np.minimum(used, nodes - used * np.arange(-(-nodes // used)))


def _split(domain: Longs, groups: Sequence[Longs]) -> int:
    """Returns of how many kinds groups are split over domains; `domain` is that of each node."""
    return sum(bool((domain[members] != domain[members[:, :1]]).any()) for members in groups)
