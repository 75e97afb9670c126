"""Max-min fair rates by progressive filling.

All rates grow together; a flow stops at its full rate, and the flows of a resource stop when it is used up. The
result is the one allocation in which every flow runs at its full rate or crosses a used-up resource on which no
flow is faster (Bertsekas & Gallager, Data Networks, §6.5.2).

Written for lists and for compiled arrays alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Filling(NamedTuple):
    """The flows and what each uses now (rows `use_first` up to `use_last`), and room for one filling: what each
    resource has left to give, how many flows still grow on it and load it with, and the rates that result."""

    full_rate: Any
    use_first: Any
    use_last: Any
    use_resource: Any
    use_load: Any
    residual: Any
    growing: Any
    load: Any
    rate: Any


def fill(f: Filling, flows: Any, n_flows: int, resources: Any, n_resources: int) -> None:
    """Rates of the first `n_flows` flows listed, which must be all that cross the resources listed; `f.residual` must
    hold what each of these has to give."""
    for i in range(n_resources):
        f.load[resources[i]] = 0.0
        f.growing[resources[i]] = 0
    for i in range(n_flows):
        flow = flows[i]
        f.rate[flow] = -1.0
        for use in range(f.use_first[flow], f.use_last[flow]):
            if f.use_load[use] > 0.0:
                f.load[f.use_resource[use]] += f.use_load[use]
                f.growing[f.use_resource[use]] += 1
    unsettled = n_flows
    while unsettled > 0:
        share = 1e300
        tightest = -1
        for i in range(n_resources):
            resource = resources[i]
            if f.growing[resource] > 0 and f.residual[resource] < share * f.load[resource]:
                share = f.residual[resource] / f.load[resource]
                tightest = resource
        settled = settle(f, flows, n_flows, -1, share)
        if settled == 0:
            settled = settle(f, flows, n_flows, tightest, max(share, 0.0))
        unsettled -= settled


def settle(f: Filling, flows: Any, n_flows: int, tightest: int, share: float) -> int:
    """Stops the flows of the tightest resource at the share; with none given, those whose full rate is within it."""
    settled = 0
    for i in range(n_flows):
        flow = flows[i]
        if f.rate[flow] >= 0.0:
            continue
        stops = tightest < 0 and f.full_rate[flow] <= share
        if tightest >= 0:
            for use in range(f.use_first[flow], f.use_last[flow]):
                if f.use_resource[use] == tightest and f.use_load[use] > 0.0:
                    stops = True
        if stops:
            rate = min(share, f.full_rate[flow])
            f.rate[flow] = rate
            settled += 1
            for use in range(f.use_first[flow], f.use_last[flow]):
                if f.use_load[use] > 0.0:
                    resource = f.use_resource[use]
                    f.residual[resource] -= f.use_load[use] * rate
                    f.load[resource] -= f.use_load[use]
                    f.growing[resource] -= 1
    return settled
