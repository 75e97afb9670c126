"""What holds of every network: each pair of GPUs has a way, nothing is lost on it, and merging changes no load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.build import fabric_of
from foretrace.hardware.fabric.fabric import Device
from foretrace.hardware.fabric.routing.router import Router
from foretrace.hardware.fabric.routing.tiers import tiers_of
from foretrace.hardware.fabric.topology import Topology
from property.fabrics import all_pairs, clusters, excess, reckoned_spread


@given(clusters())
def test_every_pair_has_a_way_and_nothing_is_lost(drawn: tuple[Cluster, int]) -> None:
    cluster, nodes = drawn
    fabric = fabric_of(cluster, nodes)
    router = Router(fabric, cluster.topology)
    source, target = all_pairs(fabric.gpus)
    routes = router.routes(source, target)
    assert len(routes.start) == len(source) + 1
    assert (routes.share > 0).all()
    for flow in range(0, len(source), max(1, len(source) // 100)):
        assert excess(fabric, routes, flow, int(source[flow]), int(target[flow])) < 1e-9
    # No link twice in one way: whoever divides rates counts flows on links.
    flow_of = np.repeat(np.arange(len(source)), np.diff(routes.start))
    assert len(np.unique(flow_of * fabric.links + routes.link)) == len(routes.link)


@given(clusters("spread"))
def test_the_router_agrees_with_a_search_by_hand(drawn: tuple[Cluster, int]) -> None:
    cluster, nodes = drawn
    fabric = fabric_of(cluster, nodes, merge=False)
    router = Router(fabric, cluster.topology)
    source, target = all_pairs(fabric.gpus)
    routes = router.routes(source, target)
    for flow in range(0, len(source), max(1, len(source) // 6)):
        links = routes.link[routes.start[flow] : routes.start[flow + 1]]
        if not (fabric.kind[fabric.target[links]] == Device.LEAF).any():
            continue  # stays within a node or domain
        wanted = reckoned_spread(fabric, int(source[flow]), int(target[flow]))
        if wanted is not None:
            share = routes.share[routes.start[flow] : routes.start[flow + 1]]
            found = dict(zip(links.tolist(), share.tolist(), strict=True))
            assert found == pytest.approx(wanted)


@given(clusters("spread"))
def test_merging_changes_no_load(drawn: tuple[Cluster, int]) -> None:
    cluster, nodes = drawn
    apart, together = fabric_of(cluster, nodes, merge=False), fabric_of(cluster, nodes)
    assert together.devices <= apart.devices
    loads = []
    for fabric in (apart, together):
        source, target = all_pairs(fabric.gpus)
        routes = Router(fabric, cluster.topology).routes(source, target)
        load = np.bincount(routes.link, routes.share, minlength=fabric.links)
        kinds = fabric.kind[fabric.source].astype(np.int64) * 16 + fabric.kind[fabric.target]
        loads.append((np.bincount(kinds, load, minlength=256), np.bincount(kinds, fabric.bytes_per_s, minlength=256)))
        relative = load / fabric.bytes_per_s
        loads[-1] += (np.array([relative[kinds == kind].max(initial=0.0) for kind in range(256)]),)
    for first, second in zip(*loads, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-9)


@given(
    st.sampled_from(["fat-tree", "rail-optimised", "spectrum-x", "dcn+", "hpn"]),
    st.integers(2, 12),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 4, 8]),
)
def test_all_to_all_on_a_network_without_oversubscription_is_bound_by_nics(
    kind: str, nodes: int, gpus: int, leaf_ports: int
) -> None:
    base = presets.cluster("h100-dgx")
    node = replace(base.node, gpus=gpus, nics=gpus, domain_gpus=gpus, switched=gpus > 1)
    ports = leaf_ports if kind != "hpn" else 0
    topology = Topology(kind=kind, leaf_ports=ports)  # type: ignore[arg-type]
    cluster = replace(base, node=node, topology=topology)
    fabric = fabric_of(cluster, nodes, merge=False)
    source, target = all_pairs(fabric.gpus)
    routes = Router(fabric, topology).routes(source, target)
    load = np.bincount(routes.link, routes.share, minlength=fabric.links) / fabric.bytes_per_s
    outer = fabric.kind[fabric.source] >= Device.NIC
    nic = load[(fabric.kind[fabric.source] == Device.NIC) & (fabric.kind[fabric.target] == Device.LEAF)]
    # HPN has 60 uplinks of twice the rate of 128 ports: 1.067:1 as published.
    assert load[outer].max() <= nic.max() * (128 / 120 if kind == "hpn" else 1) * (1 + 1e-9)


@given(clusters("spread", ("fat-tree", "rail-optimised", "spectrum-x", "dcn+", "hpn")), st.integers(0, 10_000))
@settings(max_examples=50)
def test_a_redundant_link_may_fail(drawn: tuple[Cluster, int], number: int) -> None:
    cluster, nodes = drawn
    whole = fabric_of(cluster, nodes, merge=False)
    between = np.flatnonzero((whole.kind[whole.source] >= Device.LEAF) & (whole.kind[whole.target] >= Device.LEAF))
    assume(len(between) > 0)
    link = int(between[number % len(between)])
    ends = whole.source[link], whole.target[link]
    # Redundant if the leaf below has another switch above it.
    below = [device for device in ends if whole.kind[device] == Device.LEAF]
    out = [np.unique(whole.target[whole.source == device]) for device in below]
    assume(below and all((whole.kind[one] > Device.LEAF).sum() > 1 for one in out))
    failing = replace(cluster, topology=replace(cluster.topology, failed=(whole.link_label(link),)))
    fabric = fabric_of(failing, nodes)
    source, target = all_pairs(fabric.gpus)
    routes = Router(fabric, failing.topology).routes(source, target)
    for flow in range(0, len(source), max(1, len(source) // 50)):
        assert excess(fabric, routes, flow, int(source[flow]), int(target[flow])) < 1e-9


@given(clusters("ecmp"))
@settings(max_examples=50)
def test_a_hash_takes_one_of_the_shortest_ways_always_the_same(drawn: tuple[Cluster, int]) -> None:
    cluster, nodes = drawn
    fabric = fabric_of(cluster, nodes)
    source, target = all_pairs(fabric.gpus)
    assume(len(source) > 0)
    routes = Router(fabric, cluster.topology).routes(source, target)
    again = Router(fabric_of(cluster, nodes), cluster.topology).routes(source[::-1].copy(), target[::-1].copy())
    beyond = fabric.kind[fabric.source] >= Device.NIC
    assert set(routes.share[beyond[routes.link]].tolist()) <= {1.0}
    last = routes.link[routes.start[-2] : routes.start[-1]]
    np.testing.assert_array_equal(last, again.link[: again.start[1]])
    spread = replace(cluster.topology, routing="spread")
    even = Router(fabric, spread).routes(source, target)
    for flow in range(0, len(source), max(1, len(source) // 50)):
        taken = set(routes.link[routes.start[flow] : routes.start[flow + 1]].tolist())
        assert taken <= set(even.link[even.start[flow] : even.start[flow + 1]].tolist())


@given(clusters())
def test_tiers_cover_all_gpus_and_narrow_outwards_only_by_what_is_stated(drawn: tuple[Cluster, int]) -> None:
    cluster, nodes = drawn
    fabric = fabric_of(cluster, nodes)
    for tier in tiers_of(fabric):
        assert tier.part_of.shape == (fabric.gpus,)
        assert (tier.bytes_per_s > 0).all()
        assert tier.part_of.max() + 1 == len(tier.bytes_per_s)
