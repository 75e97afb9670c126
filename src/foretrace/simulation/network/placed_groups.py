"""Places the ranks of groups that communicate at once: packed into nodes, or a given number to a node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.placement import Placement
from foretrace.cost.network.domains import DomainUse, spread_nodes
from foretrace.hardware.cluster import Cluster


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGroups:
    """Groups of ranks on their GPUs: `ranks` [groups, ranks of a group] holds rank numbers of `placement`."""

    placement: Placement
    ranks: Longs
    domains: DomainUse | None = None
    """The link domains of all groups, where a domain reaches over nodes and no placement was given."""

    @property
    def nodes(self) -> int:
        """Nodes that the first group is on."""
        return len(np.unique(self.placement.host[self.ranks[0]]))

    @property
    def max_on_a_node(self) -> int:
        """Ranks of the first group on the node that has most of them."""
        return int(np.bincount(self.placement.host[self.ranks[0]]).max())

    def gpu_numbers(self, gpus_per_node: int) -> Longs:
        """Returns the GPU of each rank of each group, counted through all nodes."""
        place = self.placement.host.astype(np.int64) * gpus_per_node + self.placement.slot
        return np.asarray(place[self.ranks])


def placed_groups(cluster: Cluster, ranks: int, groups: int = 1, ranks_per_node: int | None = None) -> PlacedGroups:
    """Places groups on the nodes of a cluster in order; the next groups take the GPUs that a group leaves free.

    Nodes are spread over link domains as those of a job whose groups should not cross domains.

    Args:
        cluster: Where the groups run.
        ranks: Ranks of each group.
        groups: Groups that communicate at once.
        ranks_per_node: Ranks of a group on each of its nodes; None is as many as a node has GPUs.

    Raises:
        UsageError: A node has fewer GPUs than `ranks_per_node`.
        InputError: The cluster has too few nodes.
    """
    gpus = cluster.node.gpus
    dense = min(ranks, gpus) if ranks_per_node is None else ranks_per_node
    if not 1 <= dense <= gpus:
        raise UsageError("cluster-too-small", f"{dense} ranks do not fit a node of {cluster.name}: it has {gpus} GPUs")
    nodes, groups_per_node = -(-ranks // dense), gpus // dense
    group, rank = np.divmod(np.arange(groups * ranks, dtype=np.int64), ranks)
    host = group // groups_per_node * nodes + rank // dense
    slot = group % groups_per_node * dense + rank % dense
    needed = int(host[-1]) + 1
    if cluster.nodes is not None and needed > cluster.nodes:
        raise InputError(
            "cluster-too-small",
            f"{groups * ranks:,} ranks need {needed:,} nodes, the cluster {cluster.name} has {cluster.nodes:,} of "
            f"{gpus} GPUs",
            hint=f"ask for fewer --ranks, or raise nodes in {cluster.where or 'the cluster'}",
        )
    numbers, domains = spread_nodes(cluster, needed, [host.reshape(groups, ranks)])
    placement = Placement(numbers[host].astype(np.int32), slot.astype(np.int32))
    domains = None if domains is None else domains.of_ranks(placement, cluster)
    return PlacedGroups(placement, np.arange(groups * ranks).reshape(groups, ranks), domains)


def groups_of_placement(placement: Placement, ranks: int, groups: int) -> PlacedGroups:
    """Splits the ranks of a placement, in order, into groups of `ranks`."""
    if placement.world != groups * ranks:
        expected = f"{groups:,} groups of {ranks:,}" if groups > 1 else f"the group {ranks:,}"
        raise InputError(
            "bad-placement", f"the placement has {placement.world:,} ranks, {expected}", hint="place every rank once"
        )
    return PlacedGroups(placement, np.arange(placement.world).reshape(groups, ranks))
