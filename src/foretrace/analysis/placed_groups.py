"""Where the ranks of groups sit that communicate at once: packed into nodes, or a given number to a node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.errors import InputError, UsageError
from foretrace.hardware.cluster import Cluster
from foretrace.placement import Placement
from foretrace.program.program import Longs


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGroups:
    """Groups of ranks on their GPUs: `ranks` [groups, ranks of a group] holds rank numbers of `placement`."""

    placement: Placement
    ranks: Longs

    @property
    def nodes(self) -> int:
        """Nodes that the first group sits on."""
        return len(np.unique(self.placement.host[self.ranks[0]]))

    @property
    def most_on_a_node(self) -> int:
        """Ranks of the first group on the node that has most of them."""
        return int(np.bincount(self.placement.host[self.ranks[0]]).max())

    def gpu_numbers(self, gpus_per_node: int) -> Longs:
        """The GPU of each rank of each group, counted through all nodes."""
        place = self.placement.host.astype(np.int64) * gpus_per_node + self.placement.slot
        return np.asarray(place[self.ranks])


def placed_groups(cluster: Cluster, ranks: int, groups: int = 1, ranks_per_node: int | None = None) -> PlacedGroups:
    """Groups of so many ranks each. A group fills its nodes in order, with `ranks_per_node` on each (None: as many as a
    node has GPUs); groups that leave GPUs of their nodes free are joined there by the next ones."""
    gpus = cluster.node.gpus
    dense = min(ranks, gpus) if ranks_per_node is None else ranks_per_node
    if not 1 <= dense <= gpus:
        raise UsageError("cluster-too-small", f"{dense} ranks do not fit a node of {cluster.name}: it has {gpus} GPUs")
    nodes, beside = -(-ranks // dense), gpus // dense
    group, rank = np.divmod(np.arange(groups * ranks, dtype=np.int64), ranks)
    host = group // beside * nodes + rank // dense
    slot = group % beside * dense + rank % dense
    needed = int(host[-1]) + 1
    if cluster.nodes is not None and needed > cluster.nodes:
        raise InputError(
            "cluster-too-small",
            f"{groups * ranks:,} ranks need {needed:,} nodes, the cluster {cluster.name} has {cluster.nodes:,} of "
            f"{gpus} GPUs",
            hint=f"ask for fewer --ranks, or raise nodes in {cluster.where or 'the cluster'}",
        )
    placement = Placement(host.astype(np.int32), slot.astype(np.int32))
    return PlacedGroups(placement, np.arange(groups * ranks).reshape(groups, ranks))


def groups_of_placement(placement: Placement, ranks: int, groups: int) -> PlacedGroups:
    """The ranks of a placement in groups of so many, one after the other."""
    if placement.world != groups * ranks:
        said = f"{groups:,} groups of {ranks:,}" if groups > 1 else f"the group {ranks:,}"
        raise InputError(
            "bad-placement", f"the placement has {placement.world:,} ranks, {said}", hint="place every rank once"
        )
    return PlacedGroups(placement, np.arange(placement.world).reshape(groups, ranks))
