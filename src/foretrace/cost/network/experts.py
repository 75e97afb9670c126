"""Prices the all-to-alls that bring tokens to their experts and back, by the library that runs them.

An island is a set of GPUs that need no NIC to reach each other: a host, or a rack of NVL72. Ranks of the same number in
their islands are on one rail of NICs.

| way | over links | over NICs | together |
| --- | --- | --- | --- |
| hierarchical | every copy, to the rank of the right number | every copy, along its rail | one after the other |
| deepep | once for each rank reached | once for each island reached, along its rail | the slower of the two |
| hybridep | as deepep | as deepep | the root of the sum of their squares |
| low_latency | nothing | every copy, to ranks of the same host too | |

The first is two all-to-alls of NCCL and has their prices, also measured ones. The others are kernels of their own: they
run at the rates at which SMs and NICs of the machine copy, without the costs of NCCL's channels and its CPU thread.
Tokens are forwarded in chunks while more arrive, so links and NICs work concurrently. The way back is symmetric: copies
are summed where they were spread, and return once.

Sources: DeepEP, csrc/kernels/internode.cu (tokens cross once per node, to the GPU of the sender's number, and are
forwarded over NVLink as chunks arrive) and internode_ll.cu (GPUs write every message themselves); Tutel
(arXiv:2206.03382, 2D hierarchical all-to-all).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import hypot, log2
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import InputError
from foretrace.cost.network.interface import CallPrices, Explained, Limit, Network
from foretrace.cost.network.measured_network import nccl_model
from foretrace.cost.network.nccl.bottleneck import limit_of
from foretrace.cost.network.nccl.group import PCIE_PAYLOAD, NcclGroup
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.program.columns import Collective, label
from foretrace.program.dispatch import COPIES, Dispatch, parse_dispatch

HELD_SMS: Final = {"deepep": 20, "hybridep": 16, "low_latency": 0}
"""SMs that a way holds while it runs, where these are not NCCL's channels and the way does not say: the defaults of
Megatron's `--moe-deepep-num-sms` and `--moe-hybridep-num-sms`; messages of low_latency need none once they are on their
way."""

HYBRIDEP_RANKS: Final = (8, 16, 32, 36)
HYBRIDEP_RATES: Final = {16: (717.0, 631.5, 588.5, 578.0), 32: (750.5, 686.5, 623.5, 614.5)}
"""GB/s at which HybridEP's kernels receive tokens, those of their own rank included. The keys are the SMs that they
hold; the rates of each belong to the ranks of `HYBRIDEP_RANKS`, of an NVL72 rack.

They are the mean of dispatch and combine in bf16 on GB200 (DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md; 4,096
tokens of 7,168, top-8). A B200 of an 8-GPU node shows 704.5 with 16."""
HYBRIDEP_LINK: Final = 900e9
"""The links of the GPU that showed these rates, in bytes/s."""

AGREED: Final = 2
"""Kernels of a dispatch or combine: in the first, ranks agree on counts and that buffers are free (`notify_dispatch`,
`cached_notify_combine`); the second moves tokens. low_latency has one."""

NIC_SHARE: Final = 0.9
"""The share of a NIC's line rate that GPUs reach that write to it themselves: 45 of 50 GB/s in the dispatches between
two nodes of DeepEP's README (V2; half of the 90 GB/s there stay in the node). Its other figures were not used."""


def price_call(network: Network, what: Collective, layout: Hashable, size_bytes: Floats, way: str = "") -> CallPrices:
    """Prices calls of these sizes in a group of this layout; `way` names how an all-to-all of tokens runs."""
    assert isinstance(layout, GroupLayout)
    dispatch = _way(what, layout, way)
    if dispatch is None:
        return network.price(what, layout, size_bytes)
    if dispatch.style == "hierarchical":
        steps = [network.price(what, part, size_bytes) for part in _steps(layout)]
        slower = np.argmax([step.duration_s for step in steps], axis=0)
        return CallPrices(
            np.sum([step.latency_s for step in steps], axis=0),
            np.sum([step.duration_s for step in steps], axis=0),
            np.choose(slower, [step.source for step in steps]),
        )
    road = _road(_group_of(network, layout), dispatch)
    size = np.asarray(size_bytes, dtype=np.float64)
    latency = np.full(size.shape, road.latency_s)
    # Measurements of NCCL say nothing about kernels of another library: the model's own source comes first.
    return CallPrices(latency, latency + size * road.seconds_per_byte, np.zeros(size.shape, dtype=np.int64))


def explain_call(network: Network, what: Collective, layout: Hashable, size_bytes: float, way: str = "") -> Explained:
    """Explains how a call of this size runs; `time_s` is the price of `price_call`."""
    return explain_calls(network, what, layout, np.array([size_bytes], dtype=np.float64), way)[0]


def explain_calls(
    network: Network, what: Collective, layout: Hashable, size_bytes: Floats, way: str = ""
) -> list[Explained]:
    """Explains how calls of these sizes run."""
    assert isinstance(layout, GroupLayout)
    dispatch = _way(what, layout, way)
    if dispatch is None:
        return network.explain_all(what, layout, size_bytes)
    if dispatch.style == "hierarchical":
        steps = [network.explain_all(what, part, size_bytes) for part in _steps(layout)]
        return [_together(list(parts)) for parts in zip(*steps, strict=True)]
    road = _road(_group_of(network, layout), dispatch)
    return [
        Explained(
            time_s=road.latency_s + size * road.seconds_per_byte,
            latency_s=road.latency_s,
            bound_s=size * road.line_seconds_per_byte,
            algorithm=dispatch.style.replace("_", "-"),
            protocol="",
            channels=dispatch.sms or HELD_SMS[dispatch.style],
            draws=tuple((name, size * share) for name, share in road.shares if share),
        )
        for size in size_bytes.tolist()
    ]


def limit_call(network: Network, what: Collective, layout: Hashable, size_bytes: float, way: str = "") -> Limit:
    """Finds what limits a call of this size; of two steps, that of the slower."""
    assert isinstance(layout, GroupLayout)
    dispatch = _way(what, layout, way)
    if dispatch is None:
        return network.limit(what, layout, size_bytes)
    if dispatch.style == "hierarchical":
        slower = max(_steps(layout), key=lambda part: network.explain(what, part, size_bytes).time_s)
        return network.limit(what, slower, size_bytes)

    def seconds(group: NcclGroup) -> float:
        road = _road(group, dispatch)
        return road.latency_s + size_bytes * road.seconds_per_byte

    return limit_of(_group_of(network, layout), seconds, (dispatch.style, ""), "latency of a hop")


def priced_layouts(what: Collective, layout: Hashable, way: str) -> list[GroupLayout]:
    """Returns the layouts that the network itself prices for a call: none where another library runs it."""
    assert isinstance(layout, GroupLayout)
    dispatch = _way(what, layout, way)
    hierarchical = dispatch is not None and dispatch.style == "hierarchical"
    parts = _steps(layout) if hierarchical else [] if dispatch is not None else [layout]
    return [part for part in parts if part.size > 1]


def one_island(layout: GroupLayout) -> GroupLayout:
    """The fullest island of a layout by itself."""
    held = layout.most_in_island
    return replace(
        layout,
        size=held,
        islands=1,
        domains=-(-layout.domains // layout.islands),
        least_in_island=held,
        least_in_domain=min(layout.least_in_domain, held),
    )


def _way(what: Collective, layout: GroupLayout, way: str) -> Dispatch | None:
    """Returns the dispatch of a call that does not run as NCCL's own; None for others, and for one rank alone."""
    if not way or way == COPIES:
        return None
    if what != Collective.ALL_TO_ALL:
        raise InputError("unknown-collective", f'"{way}" says how an all-to-all goes, not a {label(what)}')
    return parse_dispatch(way) if layout.size > 1 else None


def _group_of(network: Network, layout: GroupLayout) -> NcclGroup:
    return nccl_model(network).plan(Collective.ALL_TO_ALL, layout).group


def _steps(layout: GroupLayout) -> list[GroupLayout]:
    """The groups of the two steps of a hierarchical all-to-all, as far as there are both."""
    n = layout.islands
    alone = {"least_in_island": 1, "least_in_domain": 1, "most_in_island": 1, "most_in_domain": 1}
    rail = replace(layout, size=n, islands=n, domains=n, **alone)
    return [part for part in (one_island(layout), rail) if part.size > 1]


def _together(steps: list[Explained]) -> Explained:
    """Steps one after the other."""
    slower = max(steps, key=lambda step: step.time_s)
    names = dict.fromkeys(name for step in steps for name, _ in step.draws)
    return replace(
        slower,
        time_s=sum(step.time_s for step in steps),
        latency_s=sum(step.latency_s for step in steps),
        bound_s=max(step.bound_s for step in steps),
        algorithm="hierarchical",
        draws=tuple((name, sum(dict(step.draws).get(name, 0.0) for step in steps)) for name in names),
    )


@dataclass(frozen=True, slots=True)
class _Road:
    """The bytes that each byte of an all-to-all puts on the busiest rank's links and NICs, and their time."""

    shares: tuple[tuple[str, float], ...]
    latency_s: float
    seconds_per_byte: float
    line_seconds_per_byte: float
    """At the line rates of datasheets."""


def _road(group: NcclGroup, dispatch: Dispatch) -> _Road:
    layout = group.layout
    n, held = layout.size, layout.most_in_island
    if dispatch.style == "low_latency" and layout.nics_per_rank > 0:
        over_links, over_nics = 0.0, (n - 1) / n
    else:
        one_copy_each = dispatch.style == "low_latency"
        copies = 1.0 if one_copy_each else dispatch.destinations(layout.islands) / dispatch.destinations(n)
        over_links, over_nics = (held - 1) / held, copies * (layout.islands - 1) / layout.islands
    return _timed(group, dispatch, over_links, over_nics, 1 if dispatch.style == "low_latency" else AGREED)


def _link_rate(group: NcclGroup, dispatch: Dispatch) -> float:
    """Returns the rate at which SMs bring tokens over links, in bytes/s, those that stay on their rank not counted.

    HybridEP's falls with the number of ranks. It is known on Blackwell, where the copy engine of SMs moves bytes, whose
    rate does not follow their frequency; on other GPUs it is NCCL's.
    """
    if not group.over_links:
        return group.pcie_rate
    gpu, ranks = group.cluster.gpu, group.layout.most_in_island
    if dispatch.style != "hybridep" or not gpu.architecture.startswith("Blackwell"):
        return group.link_rate
    few, many = sorted(HYBRIDEP_RATES)
    sms = min(max(dispatch.sms or HELD_SMS["hybridep"], few), many)
    weight = (sms - few) / (many - few)
    rates = [(1 - weight) * low + weight * high for low, high in zip(*HYBRIDEP_RATES.values(), strict=True)]
    places, at = [log2(count) for count in HYBRIDEP_RANKS], log2(max(ranks, HYBRIDEP_RANKS[0]))
    slope = (rates[-1] - rates[0]) / (places[-1] - places[0])
    received = rates[-1] + slope * (at - places[-1]) if at > places[-1] else float(np.interp(at, places, rates))
    return max(received, 1.0) * 1e9 * (ranks - 1) / ranks * gpu.link_bytes_per_s / HYBRIDEP_LINK


def _timed(group: NcclGroup, dispatch: Dispatch, over_links: float, over_nics: float, kernels: int) -> _Road:
    gpu, nic, layout = group.cluster.gpu, group.cluster.node.nic, group.layout
    near_rate = _link_rate(group, dispatch)
    near_line = max(gpu.link_bytes_per_s, gpu.pcie_bytes_per_s)
    # Where a domain has one rank of the group, its links join it to nobody and have no rate.
    near_s, near_line_s = (over_links / near_rate, over_links / near_line) if over_links else (0.0, 0.0)
    far_s = far_line_s = 0.0
    if over_nics:
        line = nic.bytes_per_s * layout.nics_per_rank
        rate = line * NIC_SHARE / (layout.exchange_crowding * group.oversubscription)
        far_s = over_nics / min(rate, gpu.pcie_bytes_per_s * PCIE_PAYLOAD)
        far_line_s = over_nics / min(line, gpu.pcie_bytes_per_s)
    hops = (over_links > 0) * group.near_s("ring", "simple") + (over_nics > 0) * group.far_s("ring", "simple")
    # Chunks of HybridEP pass over NICs and links one after the other. The squares of the two times add up: with 16, 32
    # and 64 ranks on H100s that gives 1.65, 3.74 and 6.17 ms, where its README shows 1.63 and 1.86, 3.66 and 3.72, and
    # 6.19 ms.
    near_and_far_s = hypot(near_s, far_s) if dispatch.style == "hybridep" else max(near_s, far_s)
    return _Road(
        (("link", over_links), ("nic", over_nics)),
        kernels * (group.machine.launch_s + hops),
        near_and_far_s,
        max(near_line_s, far_line_s),
    )
