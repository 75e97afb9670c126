"""Computes max-min fair rates by progressive filling.

All rates grow together. A flow stops at its full rate, and the flows of a resource stop when it is used up. The result
is the unique allocation in which every flow runs at its full rate or crosses a used-up resource on which no flow is
faster (Bertsekas & Gallager, Data Networks, §6.5.2). Resources that are used up at the same rate stop together, so
there are as many rounds as different rates.

The functions are written for lists and for compiled arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TOGETHER = 1.0 + 1e-12
"""Resources whose flows would stop within this of the least rate stop at it: they differ by rounding alone."""


class Filling(NamedTuple):
    """The flows and what each uses now (rows `use_first` up to `use_last`), and room for one filling: what each
    resource has left to give, how many flows still grow on it and load it with, its uses as a list (`first` and `next`,
    with the flow of each), and the rates that result."""

    full_rate: Any
    use_first: Any
    use_last: Any
    use_resource: Any
    use_load: Any
    residual: Any
    growing: Any
    load: Any
    first: Any
    next: Any
    use_flow: Any
    rate: Any


def fill(f: Filling, flows: Any, n_flows: int, resources: Any, n_resources: int) -> None:
    """Rates of the first `n_flows` flows listed, which must be all that cross the resources listed; `f.residual` must
    hold what each of these has to give. Both lists may come out in another order."""
    lowest = load_resources(f, flows, n_flows, resources, n_resources)
    unsettled = n_flows
    while unsettled > 0:
        share = 1e300
        i = 0
        while i < n_resources:
            resource = resources[i]
            if f.growing[resource] <= 0:
                n_resources -= 1
                resources[i] = resources[n_resources]
                resources[n_resources] = resource
                continue
            # By rounding, the load of flows that still grow may be 0 or less; it limits nobody then.
            if f.load[resource] > 0.0 and f.residual[resource] < share * f.load[resource]:
                share = f.residual[resource] / f.load[resource]
            i += 1
        if lowest <= share:
            settled = settle_limited(f, flows, n_flows, share)
            lowest = lowest_limit(f, flows, n_flows)
        else:
            settled = settle_tightest(f, resources, n_resources, max(share, 0.0))
            if settled == 0:  # rates that no number can express, which would be looked for without end
                settled = stop_all(f, flows, n_flows)
        unsettled -= settled


def load_resources(f: Filling, flows: Any, n_flows: int, resources: Any, n_resources: int) -> float:
    """Puts all flows on their resources, not yet at any rate; returns the lowest full rate."""
    for i in range(n_resources):
        f.load[resources[i]] = 0.0
        f.growing[resources[i]] = 0
        f.first[resources[i]] = -1
    lowest = 1e301
    for i in range(n_flows):
        flow = flows[i]
        f.rate[flow] = -1.0
        lowest = min(lowest, f.full_rate[flow])
        for use in range(f.use_first[flow], f.use_last[flow]):
            if f.use_load[use] > 0.0:
                resource = f.use_resource[use]
                f.load[resource] += f.use_load[use]
                f.growing[resource] += 1
                f.use_flow[use] = flow
                f.next[use] = f.first[resource]
                f.first[resource] = use
    return lowest


def lowest_limit(f: Filling, flows: Any, n_flows: int) -> float:
    """The lowest full rate of the flows that still grow."""
    lowest = 1e301
    for i in range(n_flows):
        if f.rate[flows[i]] < 0.0:
            lowest = min(lowest, f.full_rate[flows[i]])
    return lowest


def settle_limited(f: Filling, flows: Any, n_flows: int, share: float) -> int:
    """Stops the flows whose full rate is within the share; returns how many."""
    settled = 0
    for i in range(n_flows):
        flow = flows[i]
        if f.rate[flow] < 0.0 and f.full_rate[flow] <= share:
            stop(f, flow, f.full_rate[flow])
            settled += 1
    return settled


def settle_tightest(f: Filling, resources: Any, n_resources: int, share: float) -> int:
    """Stops the flows of all resources that the share uses up; returns how many."""
    settled = 0
    for i in range(n_resources):
        resource = resources[i]
        if f.growing[resource] > 0 and f.residual[resource] <= share * f.load[resource] * TOGETHER:
            use = f.first[resource]
            while use >= 0:
                flow = f.use_flow[use]
                if f.rate[flow] < 0.0:
                    stop(f, flow, share)
                    settled += 1
                use = f.next[use]
    return settled


def stop_all(f: Filling, flows: Any, n_flows: int) -> int:
    """Stops all flows that still grow, at no rate; returns how many."""
    stopped = 0
    for i in range(n_flows):
        if not f.rate[flows[i]] >= 0.0:
            f.rate[flows[i]] = 0.0
            stopped += 1
    return stopped


def stop(f: Filling, flow: int, rate: float) -> None:
    """The flow grows no more; what it does not use is left to the others."""
    f.rate[flow] = rate
    for use in range(f.use_first[flow], f.use_last[flow]):
        if f.use_load[use] > 0.0:
            resource = f.use_resource[use]
            f.residual[resource] -= f.use_load[use] * rate
            f.load[resource] -= f.use_load[use]
            f.growing[resource] -= 1
