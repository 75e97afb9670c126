"""How evenly tokens are spread over experts, and what that costs.

Experts compute between the all-to-all that brings them tokens (dispatch) and the one that takes them back (combine). A
rank gives as many tokens to every dispatch as it has, but to a combine as many as its experts were sent, so the bytes
of combines vary and say what was received. All-to-alls of a rank over ep alternate; which of the two kinds come
second is not assumed but seen: the combines are those whose bytes vary more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.program.columns import Collective, Kind
from foretrace.readings.explain.rows import OpRows
from foretrace.readings.explain.stragglers import RankLateness


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """The experts of one ep coordinate on one pipeline stage, means over the ranks that hold them.

    `received_bytes` is per all-to-all; `load` is that by the mean of the stage. `compute_s` is what its experts compute
    per step. `held_others_s` is what partners, pipeline stages apart, lost waiting for these ranks, added up.
    """

    stage: int
    ep: int
    ranks: tuple[int, ...]
    received_bytes: float
    load: float
    compute_s: float
    held_others_s: float


@dataclass(frozen=True, slots=True)
class ExpertBalance:
    """The load of all experts, in the order of stages.

    `max_load` is the largest load. `busiest_compute_s` is what the busiest of a group compute per microbatch on the
    stage where the excess over the mean is largest, `mean_compute_s` the mean there. `balanced_saves_s` bounds what
    balanced routing would save of expert compute: that excess in each of the m + pp - 1 microbatches that follow each
    other through a pipeline. It is a bound, not a forecast: where the critical path runs elsewhere, less is gained.
    """

    loads: tuple[ExpertLoad, ...]
    max_load: float
    busiest_compute_s: float
    mean_compute_s: float
    balanced_saves_s: float

    @property
    def busiest(self) -> ExpertLoad:
        """The most loaded."""
        return max(self.loads, key=lambda load: load.load)


def experts(rows: OpRows, ranks: tuple[RankLateness, ...], microbatches: int) -> ExpertBalance | None:
    """Returns the load of experts; None where no all-to-all runs over an expert axis of more than one rank."""
    mesh = rows.graph.program.mesh
    calls = np.flatnonzero((rows.collective == Collective.ALL_TO_ALL) & (rows.axis == "ep"))
    if mesh.ep == 1 or not len(calls) or rows.bytes[calls].max() <= 0:
        return None
    combines, compute = _sections(rows, calls)
    if not len(combines):
        return None
    stages, coordinate = mesh.coordinate("pp"), mesh.coordinate("ep")
    classes = rows.graph.classes
    seen = np.bincount(rows.owner[combines], minlength=len(classes))
    sums = np.bincount(rows.owner[combines], weights=rows.bytes[combines], minlength=len(classes))
    received = (sums / np.maximum(seen, 1))[classes.of_rank]
    busy = np.bincount(rows.owner[combines], weights=compute, minlength=len(classes))[classes.of_rank]
    guilt = np.array([rank.held_others_s for rank in ranks])[classes.of_rank]
    loads = []
    for stage in range(mesh.pp):
        here = np.flatnonzero((stages == stage) & (seen[classes.of_rank] > 0))
        mean = float(received[here].mean()) if len(here) else 0.0
        for ep in range(mesh.ep):
            mine = here[coordinate[here] == ep]
            if len(mine):
                got = float(received[mine].mean())
                load = got / mean if mean > 0 else 1.0
                held = float(guilt[mine].sum())
                loads.append(ExpertLoad(stage, ep, tuple(mine.tolist()), got, load, float(busy[mine].mean()), held))
    most, mean = _excess(rows, combines, compute, max(microbatches, 1))
    passes = max(microbatches, 1) + mesh.pp - 1
    return ExpertBalance(tuple(loads), max(load.load for load in loads), most, mean, (most - mean) * passes)


def _sections(rows: OpRows, calls: Longs) -> tuple[Longs, Floats]:
    """Returns the all-to-alls that give back what experts received, and the expert compute of each rank before."""
    starts = np.searchsorted(rows.owner[calls], rows.owner[calls])
    turn = (np.arange(len(calls)) - starts) % 2
    # Backward passes go the same way: gradients of what was combined come to the experts first.
    varies = [_variation(rows.bytes[calls[turn == parity]]) for parity in (0, 1)]
    second = 0 if varies[0] > varies[1] else 1
    combines = calls[turn == second]
    spent = np.cumsum(np.where(rows.kind == Kind.COMPUTE, rows.running_s, 0.0))
    number = np.searchsorted(calls, combines)
    dispatch = calls[np.maximum(number - 1, 0)]
    paired = (number > 0) & (rows.owner[dispatch] == rows.owner[combines])
    return combines, np.where(paired, spent[combines] - spent[dispatch], 0.0)


def _variation(values: Longs) -> float:
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.std()) / mean if mean > 0 else 0.0


def _excess(rows: OpRows, combines: Longs, compute: Floats, microbatches: int) -> tuple[float, float]:
    """Returns the busiest's and the mean expert compute of one microbatch in seconds.

    They are of the stage where the two differ most, added up group by group and layer by layer.
    """
    units = rows.graph.units
    weight = np.bincount(rows.unit[combines], weights=rows.ranks[combines], minlength=units)
    total = np.bincount(rows.unit[combines], weights=compute * rows.ranks[combines], minlength=units)
    most = np.zeros(units)
    np.maximum.at(most, rows.unit[combines], compute)
    meetings = np.flatnonzero(weight)
    mean = total[meetings] / weight[meetings]
    # The meetings of one group follow each other; those of other groups of the stage run concurrently.
    owners = np.full(units, len(rows.graph.classes))
    np.minimum.at(owners, rows.unit[combines], rows.owner[combines])
    group = owners[meetings]
    sums = [
        np.bincount(group, weights=seconds, minlength=int(group.max()) + 1) / microbatches
        for seconds in (most[meetings], mean)
    ]
    worst = int(np.argmax(sums[0] - sums[1]))
    return float(sums[0][worst]), float(sums[1][worst])
