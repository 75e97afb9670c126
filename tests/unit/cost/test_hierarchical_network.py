"""The first network model: its prices by hand, and the gates every price must pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost.network.hierarchical import HierarchicalNetwork, Layout
from foretrace.cost.network.protocols import LINK_SHARE, LL_LIMITS, NETWORK_SHARE
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.placement import Placement
from foretrace.program.columns import Collective

US = 1e-6
CLUSTERS = presets.names("cluster")
PRICED = [one for one in Collective if one is not Collective.NONE]
H100_LINK = 450e9 * 20.6 / 25
H100_NIC = 50e9 * NETWORK_SHARE


def price(cluster: Cluster, ranks: list[int], what: Collective, size: float, world: int | None = None) -> float:
    """Seconds that a group takes on a packed cluster."""
    world = world or max(ranks) + 1
    network = HierarchicalNetwork(cluster, Placement.packed(world, cluster.node.gpus))
    layouts, number = network.layouts(np.array([ranks]))
    return float(network.price(what, layouts[number[0]], np.array([size])).duration_s[0])


def test_a_ring_within_a_node_by_hand() -> None:
    gather = price(presets.cluster("h100-dgx"), list(range(8)), Collective.ALL_GATHER, 1 << 30)
    assert gather == pytest.approx((8.4 + 7 * 3.4) * US + 7 / 8 * (1 << 30) / H100_LINK)
    reduce = price(presets.cluster("h100-dgx"), list(range(8)), Collective.ALL_REDUCE, 1 << 30)
    assert reduce == pytest.approx((8.4 + 14 * 3.4) * US + 14 / 8 * (1 << 30) / H100_LINK)


def test_a_ring_over_nodes_goes_through_the_nic_of_each_rank() -> None:
    one_rail = price(presets.cluster("h100-dgx"), [0, 8, 16, 24], Collective.ALL_GATHER, 1 << 30, world=32)
    assert one_rail == pytest.approx((8.4 + 3 * 14.0) * US + 3 / 4 * (1 << 30) / H100_NIC)
    two_rails = price(presets.cluster("h100-dgx"), [0, 1, 8, 9], Collective.ALL_GATHER, 1 << 30, world=16)
    assert two_rails == pytest.approx((8.4 + 2 * 3.4 + 14.0) * US + 3 / 4 * (1 << 30) / (2 * H100_NIC))


def test_eight_rails_are_held_up_by_links() -> None:
    """NICs could carry 8 × 49 GB/s; of the 8 hops in a node, 7 go over links of 371 GB/s."""
    time = price(presets.cluster("h100-dgx"), list(range(16)), Collective.ALL_GATHER, 1 << 34)
    rate = min(H100_LINK * 8 / 7, 8 * H100_NIC)
    assert time == pytest.approx((8.4 + 14 * 3.4 + 14.0) * US + 15 / 16 * (1 << 34) / rate)


def test_small_messages_go_by_the_fastest_protocol() -> None:
    assert price(presets.cluster("h100-dgx"), [0, 1], Collective.TRANSFER, 8) == pytest.approx(7.2 * US, rel=1e-3)
    assert price(presets.cluster("h100-dgx"), [0, 8], Collective.TRANSFER, 8) == pytest.approx(9.3 * US, rel=1e-3)


def test_a_rack_of_72_needs_no_nic_within() -> None:
    rack = presets.cluster("gb200-nvl72")
    inside = price(rack, list(range(64, 72)), Collective.ALL_GATHER, 1 << 30, world=144)
    across = price(rack, list(range(68, 76)), Collective.ALL_GATHER, 1 << 30, world=144)
    assert inside < 0.1 * across + (1 << 30) / 700e9
    assert across == pytest.approx(price(rack, [0, 1, 2, 3, 72, 73, 74, 75], Collective.ALL_GATHER, 1 << 30, 144))


def test_links_dealt_out_serve_pairs_worse_than_a_switch() -> None:
    mesh = presets.cluster("mi300x")
    switched = replace(mesh, node=replace(mesh.node, switched=True))
    size = 1 << 30
    assert price(mesh, [0, 1], Collective.TRANSFER, size) > 6 * price(switched, [0, 1], Collective.TRANSFER, size)
    assert price(mesh, list(range(8)), Collective.ALL_GATHER, size) == price(
        switched, list(range(8)), Collective.ALL_GATHER, size
    )


def test_fewer_nics_than_gpus_are_shared() -> None:
    full = presets.cluster("h100-dgx")
    half = replace(full, node=replace(full.node, nics=4))
    size = 1 << 30
    pair = [0, 8]
    assert price(half, pair, Collective.TRANSFER, size, 16) == pytest.approx(
        2 * price(full, pair, Collective.TRANSFER, size, 16), rel=1e-2
    )


@pytest.mark.parametrize("name", [one for one in presets.names("gpu") if presets.gpu(one).vendor == "NVIDIA"])
def test_nccls_tables_know_every_nvidia_gpu(name: str) -> None:
    family = presets.gpu(name).architecture.lower().partition(" ")[0]
    assert family in LINK_SHARE
    assert family in LL_LIMITS


def test_generations_that_share_links_share_prices() -> None:
    gather = [
        price(presets.cluster(f"{name}-dgx"), list(range(8)), Collective.ALL_GATHER, 1e9) for name in ("b200", "b300")
    ]
    assert gather[0] == gather[1]


def test_a_nic_sends_no_faster_than_pcie_feeds_it() -> None:
    slow = presets.cluster("h100-dgx")
    fast = replace(slow, node=replace(slow.node, nic=presets.nic("cx8")))
    time = price(fast, [0, 8], Collective.TRANSFER, 1e9)
    assert 1e9 / 64e9 < time < 1e9 / slow.node.nic.bytes_per_s


def test_groups_of_one_kind_are_found_together() -> None:
    network = HierarchicalNetwork(presets.cluster("h100-dgx"), Placement.packed(24, 8))
    layouts, number = network.layouts(np.arange(24).reshape(8, 3))
    assert number.tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert isinstance(layouts[0], Layout) and isinstance(layouts[1], Layout)
    assert (layouts[0].islands, layouts[0].least_in_island) == (1, 3)
    assert (layouts[1].islands, layouts[1].least_in_island, layouts[1].most_in_island) == (2, 1, 2)


groups = st.tuples(st.sampled_from(CLUSTERS), st.integers(2, 40), st.integers(1, 9), st.integers(0, 30))


@given(groups, st.sampled_from(PRICED), st.floats(0, 1e11), st.floats(1, 100))
def test_more_bytes_never_take_less(
    group: tuple[str, int, int, int], what: Collective, size: float, more: float
) -> None:
    name, ranks, stride, first = group
    members = [first + stride * i for i in range(ranks)]
    assert price(presets.cluster(name), members, what, size) <= price(presets.cluster(name), members, what, size * more)


@given(groups, st.sampled_from(PRICED), st.floats(1, 1e11))
def test_no_collective_beats_its_busiest_port(group: tuple[str, int, int, int], what: Collective, size: float) -> None:
    """At datasheet rates: what a rank must send, near over its links or PCIe, far over its NICs, fed by its PCIe."""
    name, ranks, stride, first = group
    cluster = presets.cluster(name)
    node, gpu = cluster.node, cluster.gpu
    members = np.array([first + stride * i for i in range(ranks)])
    island = members // max(node.domain_gpus, node.gpus)
    spans = len(set(island.tolist())) > 1
    near = max(gpu.link_bytes_per_s, gpu.pcie_bytes_per_s)
    far = min(node.nic.bytes_per_s * max(1.0, node.nics / node.gpus), gpu.pcie_bytes_per_s)
    held = np.bincount(np.unique(island, return_inverse=True)[1])
    match what:
        case Collective.TRANSFER | Collective.EXCHANGE:
            bound = size / (far if spans else near)
        case Collective.ALL_TO_ALL | Collective.GATHER | Collective.SCATTER:
            bound = max((held.max() - 1) / ranks * size / near, (ranks - held.min()) / ranks * size / far * spans)
        case Collective.BARRIER:
            bound = 0.0
        case _:
            turns = 2 if what is Collective.ALL_REDUCE else 1
            ring = turns * (ranks - 1) / ranks * size
            # A ring leaves an island through the NICs of its ranks there; within, all but one of its hops are near.
            bound = ring / (far * held.min()) if spans else ring / near
    assert price(cluster, members.tolist(), what, size) >= bound * (1 - 1e-12)


@given(groups, st.sampled_from(PRICED), st.floats(0, 1e11), st.floats(1, 10), st.sampled_from(["link", "nic", "pcie"]))
def test_more_bandwidth_never_makes_it_slower(
    group: tuple[str, int, int, int], what: Collective, size: float, more: float, part: str
) -> None:
    name, ranks, stride, first = group
    cluster = presets.cluster(name)
    members = [first + stride * i for i in range(ranks)]
    node, gpu = cluster.node, cluster.gpu
    if part == "nic":
        node = replace(node, nic=replace(node.nic, bytes_per_s=node.nic.bytes_per_s * more))
    elif part == "link":
        node = replace(node, gpu=replace(gpu, link_bytes_per_s=gpu.link_bytes_per_s * more))
    else:
        node = replace(node, gpu=replace(gpu, pcie_bytes_per_s=gpu.pcie_bytes_per_s * more))
    assert price(replace(cluster, node=node), members, what, size) <= price(cluster, members, what, size)
