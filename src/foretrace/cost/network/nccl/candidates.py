"""How NCCL could have run a call: each way with what NCCL reckons it takes, and what it takes by our reckoning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.network import NcclNetwork
from foretrace.cost.network.nccl.plan import way_s
from foretrace.cost.network.nccl.tuning import all_reckoned_s
from foretrace.program.columns import ONE_TO_ONE, PAIRWISE, Collective


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a call. `nccl_time_s` is what NCCL chooses by, `time_s` what this model expects of the way."""

    algorithm: str
    protocol: str
    channels: int
    nccl_time_s: float
    time_s: float
    chosen: bool


def candidates(
    network: NcclNetwork, collective: Collective, layout: GroupLayout, size_bytes: float
) -> tuple[Candidate, ...]:
    """Every way that is allowed, the fastest by NCCL's reckoning first; none where NCCL has no choice to make."""
    if layout.size == 1 or collective in PAIRWISE or collective in ONE_TO_ONE:
        return ()
    plan, size = network.plan(collective, layout), np.array([size_bytes], dtype=np.float64)
    choice = plan.explain(size_bytes)
    reckoned = all_reckoned_s(plan.group, plan.what, plan.ways, size, network.observed)
    ways = []
    for way, seconds in zip(plan.ways, reckoned, strict=True):
        chosen = way == (choice.algorithm, choice.protocol)
        own = choice.time_s if chosen else max(float(way_s(plan.group, plan.what, way, size)[1][0]), choice.bound_s)
        ways.append(Candidate(*way, plan.group.channels(way[0]), float(seconds[0]), own, chosen))
    return tuple(sorted(ways, key=lambda candidate: candidate.nccl_time_s))
