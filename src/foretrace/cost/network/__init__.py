"""What communication takes: the interface of every network model, the models, and the one that is used."""

from foretrace.cost.network.hierarchical import HierarchicalNetwork, reaching
from foretrace.cost.network.interface import CallPrices, Network
from foretrace.cost.network.measured import MeasuredNetwork
from foretrace.errors import InputError
from foretrace.formats.nccl_tests import Measurements
from foretrace.hardware.cluster import Cluster
from foretrace.placement import Placement

__all__ = ["CallPrices", "HierarchicalNetwork", "MeasuredNetwork", "Network", "network_of", "reaching"]


def network_of(
    cluster: Cluster, world: int, placement: Placement | None = None, measured: Measurements | None = None
) -> Network:
    """The network of a cluster as a job of so many ranks meets it: ranks fill nodes in order, or sit as a placement
    says; priced by the cluster's model, or by measured collectives as far as these go."""
    cluster.check_fits(world)
    if placement is not None and placement.world != world:
        raise InputError(
            f"the placement has {placement.world:,} ranks, the job {world:,}", hint="place every rank once"
        )
    model = HierarchicalNetwork(cluster, placement or Placement.packed(world, cluster.node.gpus))
    return model if measured is None else MeasuredNetwork(model, measured)
