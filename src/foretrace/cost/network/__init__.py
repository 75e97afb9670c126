"""Prices communication: the interface of every network model, the models, and the one that is used.

Read `interface` first, then `nccl/`, the model, and `measured_network`, which corrects it by measured collectives.
`experts` and `uneven_all_to_all` price the special all-to-alls. `call_book` remembers prices. `layouts` sorts the
groups of a program into kinds to price; `peers` says which ranks send to each other. `exits` are the narrow places of a
network: `crowding` slows groups by them, `sharing` lets concurrent calls divide them. `domains` spreads the nodes of a
job over racks of NVL72. `nccl_tests/` and `silicon_collectives` read measurements, `nccl_log/` reads what NCCL printed
on a machine.
"""

from collections.abc import Sequence

from foretrace.basics.errors import InputError
from foretrace.basics.placement import Placement
from foretrace.cost.network.crowding import crowding_of
from foretrace.cost.network.domains import place_job
from foretrace.cost.network.interface import CallPrices, Explained, Network
from foretrace.cost.network.measured_network import MeasuredNetwork
from foretrace.cost.network.nccl.network import NcclNetwork, reaching
from foretrace.cost.network.nccl.settings import NcclSettings
from foretrace.cost.network.nccl_tests.records import Measurements
from foretrace.hardware.cluster import Cluster

__all__ = [
    "CallPrices",
    "Explained",
    "MeasuredNetwork",
    "NcclNetwork",
    "NcclSettings",
    "Network",
    "network_of",
    "reaching",
]


def network_of(
    cluster: Cluster,
    world: int,
    placement: Placement | None = None,
    measured: Measurements | Sequence[Measurements] = (),
    nccl: NcclSettings | None = None,
    slowdown: float = 1.0,
) -> Network:
    """Returns the network of a cluster for a job of `world` ranks.

    It is priced by NCCL's model, or by measured collectives as far as these go.

    Args:
        cluster: the cluster; an error where the job does not fit on it.
        world: the ranks of the job.
        placement: the places of the ranks; None fills the nodes that `domains` chooses, in order.
        measured: measured collectives, best first.
        nccl: what a user states about NCCL.
        slowdown: how many times slower SMs run than in a measurement of collectives alone.
    """
    cluster.check_fits(world)
    if placement is not None and placement.world != world:
        raise InputError(
            "bad-placement",
            f"the placement has {placement.world:,} ranks, the job {world:,}",
            hint="place every rank once",
        )
    placed = placement or place_job(cluster, world)[0]
    settings = nccl or NcclSettings()
    network: NcclNetwork | MeasuredNetwork = NcclNetwork(
        cluster,
        placed,
        forced=settings.forced or None,
        observed=settings.observed,
        crowding=crowding_of(cluster, placed),
        slowdown=slowdown,
    )
    for measurements in reversed((measured,) if isinstance(measured, Measurements) else measured):
        network = MeasuredNetwork(network, measurements)
    return network
