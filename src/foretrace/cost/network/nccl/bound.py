"""Computes the time that no call can beat: the bytes that must cross the busiest port, at datasheet line rates."""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.tuning_tables import NVLS_EFFICIENCY, row_of
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import ONE_TO_ONE, PAIRWISE, SHARDED, WHOLE, Collective

_ALL_REDUCE: Final = (Collective.ALL_REDUCE, Collective.BARRIER)


def passes(what: Collective, ranks: int) -> float:
    """Returns the bytes that pass the busiest port, as a multiple of the size, where no switch reduces."""
    if what in ONE_TO_ONE or what in WHOLE:
        return 1.0
    return (2 if what in _ALL_REDUCE else 1) * (ranks - 1) / ranks


def bound_s(cluster: Cluster, what: Collective, layout: GroupLayout, size_bytes: Floats) -> Floats:
    """Seconds that the bytes need to cross the busiest port at line rates, by any algorithm: where switches reduce, an
    all-reduce passes each port once, not 2(n − 1)/n times."""
    node, gpu, n = cluster.node, cluster.gpu, layout.size
    near = max(gpu.link_bytes_per_s, gpu.pcie_bytes_per_s)
    far = min(node.nic.bytes_per_s * layout.nics_per_rank, gpu.pcie_bytes_per_s)
    spans = layout.islands > 1
    if what in ONE_TO_ONE:
        return np.asarray(size_bytes / (far if spans else near))
    if what in PAIRWISE:
        # What one root sends or receives may pass the NICs of all GPUs of its island (PXN).
        ports = 1 if what is Collective.ALL_TO_ALL else layout.most_in_island
        beyond_island = (n - layout.least_in_island) / n / (far * ports) if spans else 0.0
        return np.asarray(size_bytes * max((layout.most_in_domain - 1) / n / near, beyond_island))
    port = passes(what, n)
    reduces = row_of(gpu.architecture) in NVLS_EFFICIENCY or spans
    if what in _ALL_REDUCE and reduces:
        port = min(port, 1.0)
    per_byte = port / (near + (far if spans else 0.0))
    if spans:
        # Whatever the algorithm, all of an all-reduce, broadcast or reduce passes the NICs of every island once, of the
        # others the part that is not its own.
        own = layout.least_in_island / n if what in SHARDED else 0.0
        per_byte = max(per_byte, (1 - own) / (far * layout.least_in_island))
        if what in _ALL_REDUCE and not cluster.topology.in_network_reduction:
            # Where no switch of the network sums, islands must send each element I − 1 times to reduce it and as often
            # to spread the sum, over the NICs of all of them together (Patarasuk and Yuan 2009).
            per_byte = max(per_byte, 2 * (layout.islands - 1) / (far * n))
    return np.asarray(size_bytes * per_byte)
