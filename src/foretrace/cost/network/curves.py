"""What a call takes by its size, once measurements are at hand, and the bound that no call can beat.

A curve has knots, sizes at which its time is known. Between them it is straight; below the first a call takes what the
first takes; beyond the last, the network model says by how much more. So a curve never falls and never jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.cost.network.hierarchical import Layout
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Collective
from foretrace.program.program import Floats

REDUCING_SWITCHES: Final = frozenset({"hopper", "blackwell", "rubin"})
"""GPU architectures whose NVSwitch can reduce (NVLink SHARP, from the third generation of the switch on): an
all-reduce then passes each port once, not 2(n − 1)/n times."""

_ONE_TO_ONE: Final = (Collective.TRANSFER, Collective.EXCHANGE)
_WHOLE: Final = (Collective.BROADCAST, Collective.REDUCE)
_SHARDED: Final = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
_PAIRWISE: Final = (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER)

Seconds = Callable[[Floats], Floats]
"""Seconds by bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Seconds by size: knots in rising order, with the model and the bound that hold beyond them."""

    size_bytes: Floats
    time_s: Floats
    model: Seconds
    bound: Seconds

    def __call__(self, size_bytes: Floats) -> Floats:
        """Seconds that these sizes take."""
        inside = np.interp(size_bytes, self.size_bytes, self.time_s)
        beyond = size_bytes > self.size_bytes[-1]
        if beyond.any():
            inside[beyond] = self._beyond(size_bytes[beyond])
        return inside

    def _beyond(self, size_bytes: Floats) -> Floats:
        last, time = self.size_bytes[-1:], self.time_s[-1]
        modelled = time * (self.model(size_bytes) / self.model(last))
        # Where the last measurement is faster than the model, the model's growth may lead below the bound; where it
        # beats the bound itself, the bound is taken down with it, so that there is no jump.
        least = self.bound(last)
        held = self.bound(size_bytes) * min(1.0, float(time / least[0]) if least[0] > 0 else 1.0)
        return np.asarray(np.maximum(modelled, held))


def passes(what: Collective, ranks: int) -> float:
    """What goes through the busiest port, as a multiple of the size."""
    if what in _ONE_TO_ONE or what in _WHOLE:
        return 1.0
    turns = 2 if what in (Collective.ALL_REDUCE, Collective.BARRIER) else 1
    return turns * (ranks - 1) / ranks


def bound_s(cluster: Cluster, what: Collective, layout: Layout, size_bytes: Floats) -> Floats:
    """Seconds that the bytes need to cross the busiest port at the line rates of datasheets, by any algorithm."""
    node, gpu = cluster.node, cluster.gpu
    near = max(gpu.link_bytes_per_s, gpu.pcie_bytes_per_s)
    far = min(node.nic.bytes_per_s * layout.nics_per_rank, gpu.pcie_bytes_per_s)
    n, spans = layout.size, layout.islands > 1
    if what in _ONE_TO_ONE:
        per_byte = 1 / (far if spans else near)
    elif what in _PAIRWISE:
        beyond_island = (n - layout.least_in_island) / n / far if spans else 0.0
        per_byte = max((layout.most_in_domain - 1) / n / near, beyond_island)
    elif spans:
        # Whatever the algorithm, all of an all-reduce, broadcast or reduce passes the NICs of every island once, of the
        # others the part that is not its own.
        own = layout.least_in_island / n if what in _SHARDED else 0.0
        per_byte = (1 - own) / (far * layout.least_in_island)
    else:
        family = gpu.architecture.lower().partition(" ")[0]
        per_byte = (min(1.0, passes(what, n)) if family in REDUCING_SWITCHES else passes(what, n)) / near
    return np.asarray(size_bytes * per_byte)
