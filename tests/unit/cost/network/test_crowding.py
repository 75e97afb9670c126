"""What the network beyond the NICs does to groups that are at work at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.placement import Placement
from foretrace.cost.network import network_of
from foretrace.cost.network.crowding import Crowding, crowding_of
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.topology import Topology
from foretrace.hardware.presets import cluster
from foretrace.program.columns import Collective

H100 = cluster("h100-dgx")


def on(**topology: object) -> Cluster:
    return replace(H100, topology=Topology(**topology))  # type: ignore[arg-type]


def crowded(on_cluster: Cluster, groups: np.ndarray, world: int | None = None) -> tuple[list[float], list[float]]:
    placement = Placement.packed(world or int(groups.max()) + 1, 8)
    ring, _, exchange, _ = Crowding(on_cluster, placement)(groups)
    return ring.tolist(), exchange.tolist()


def rails(nodes: int) -> np.ndarray:
    """Groups of the GPUs of the same number on so many nodes."""
    return np.arange(8 * nodes).reshape(nodes, 8).T.copy()


@pytest.mark.parametrize("kind", ["fat-tree", "rail-optimised", "spectrum-x", "dcn+"])
def test_non_blocking_networks_slow_nothing_and_are_not_built(kind: str) -> None:
    ample = on(kind=kind)
    assert crowding_of(ample, Placement.packed(64, 8)) is None
    for groups in (rails(16), np.arange(128).reshape(2, 64)):
        ring, exchange = crowded(ample, groups)
        assert set(ring) == {1.0}
        assert exchange == pytest.approx([1.0] * len(groups))


def test_oversubscription_counts_for_what_leaves_a_leaf() -> None:
    """Leaves of 4 nodes with a quarter of the uplinks: a ring over 16 nodes leaves each leaf once, which the 8 uplinks
    carry; over one leaf it leaves none; of the partners of an all-to-all 12 of 15 nodes are beyond."""
    narrow = on(kind="fat-tree", leaf_ports=32, oversubscription=4.0)
    assert crowded(narrow, rails(16)) == ([1.0] * 8, pytest.approx([4 * 12 / 15] * 8))
    assert crowded(narrow, rails(4), world=128) == ([1.0] * 8, [1.0] * 8)


def test_trees_leave_leaves_more_often_than_rings() -> None:
    """Of both trees over 16 nodes, a leaf of 4 nodes with a quarter of the uplinks sends 5 or 6 halves of the buffer
    beyond, where a NIC of the busiest node sends 4: 8 uplinks for what fills 12 NICs."""
    narrow = on(kind="fat-tree", leaf_ports=32, oversubscription=4.0)
    _, tree, _, _ = Crowding(narrow, Placement.packed(128, 8))(np.arange(128)[None])
    assert tree.tolist() == [1.5]
    _, tree, _, _ = Crowding(narrow, Placement.packed(128, 8))(np.arange(32)[None])
    assert tree.tolist() == [1.0]


def test_two_nodes_are_joined_alike_by_trees_and_rings() -> None:
    apart = on(kind="fat-tree", leaf_ports=8, oversubscription=2.0)
    ring, tree, _, _ = Crowding(apart, Placement.packed(16, 8))(np.arange(16)[None])
    assert ring.tolist() == tree.tolist() == [2.0]


def test_islands_of_different_size_are_no_crowd() -> None:
    """Three racks of 72 and 40 GPUs of a fourth: the small one sets the pace of a ring, and what goes there is less."""
    racks = cluster("gb200-nvl72")
    ring, _, exchange, _ = Crowding(racks, Placement.packed(256, 4))(np.arange(256)[None])
    assert ring[0] < 1.12
    assert exchange[0] == pytest.approx(1.0)


def test_a_ring_that_leaves_the_leaf_from_every_node_pays_all_of_it() -> None:
    """Nodes of two leaves by turns: every neighbour is beneath the other leaf."""
    narrow = on(kind="fat-tree", leaf_ports=32, oversubscription=4.0)
    turns = np.arange(64).reshape(8, 8)[[0, 4, 1, 5, 2, 6, 3, 7]].T.copy()
    ring, _ = crowded(narrow, turns)
    assert ring == pytest.approx([4.0] * 8)


def test_a_failed_uplink_slows_the_groups_that_cross_it_alone() -> None:
    whole = on(kind="fat-tree", leaf_ports=32)
    half = replace(whole, topology=replace(whole.topology, failed=("leaf 0 - spine 0",)))
    assert Crowding(whole, Placement.packed(128, 8)).fabric.links > 0
    crossing = np.arange(128).reshape(2, 64)  # nodes 0-7 and 8-15: leaves 0, 1 and 2, 3
    _, exchange = crowded(half, crossing)
    assert exchange[0] > 1.0
    assert exchange[1] == 1.0


def test_other_traffic_on_the_nics_slows_them() -> None:
    shared = on(kind="fat-tree", background=(("nodes", 25e9),))
    ring, exchange = crowded(shared, rails(4))
    assert ring == pytest.approx([2.0] * 8)
    assert exchange == pytest.approx([2.0] * 8)


def test_a_hash_puts_flows_on_one_cable() -> None:
    """Of 8 rings between 4 leaves some share a cable, others have one to themselves."""
    hashed = on(kind="fat-tree", leaf_ports=32, routing="ecmp")
    ring, _ = crowded(hashed, rails(16))
    assert max(ring) >= 2.0
    assert all(factor == round(factor) for factor in ring)
    assert crowded(on(kind="fat-tree", leaf_ports=32, routing="spread"), rails(16))[0] == [1.0] * 8


def test_many_pairs_by_what_leaves_leaves_agree_with_few_by_every_link() -> None:
    narrow = on(kind="fat-tree", leaf_ports=32, oversubscription=2.0)
    placement = Placement.packed(256, 8)
    by_link = Crowding(narrow, placement)(np.arange(256)[None])[2]
    sends = np.full((1, 256), narrow.node.nic.bytes_per_s)
    by_exit = Crowding(narrow, placement)._by_exits(np.arange(256)[None], sends)
    assert by_exit == pytest.approx(by_link)


def test_far_switches_add_to_a_hop() -> None:
    torus = on(kind="torus", dimensions=(8, 8))
    *_, added = Crowding(torus, Placement.packed(512, 8))(np.arange(512)[None])
    assert added[0] >= 0.0
    slow = on(kind="fat-tree", leaf_ports=32, hop_latency_s=5e-6)
    *_, added = Crowding(slow, Placement.packed(64, 8))(rails(8))
    assert (added > 1e-6).all()


def test_prices_take_it() -> None:
    """An all-to-all that leaves oversubscribed leaves takes longer; one beneath a leaf takes what it always did."""
    narrow, wide = on(kind="fat-tree", leaf_ports=32, oversubscription=4.0), on(kind="fat-tree", leaf_ports=32)
    size = np.array([float(1 << 30)])

    def taken(where: Cluster, groups: np.ndarray) -> float:
        network = network_of(where, 128)
        kinds, _ = network.layouts(groups)
        return float(network.price(Collective.ALL_TO_ALL, kinds[0], size).duration_s[0])

    assert taken(narrow, np.arange(128)[None]) > 2 * taken(wide, np.arange(128)[None])
    assert taken(narrow, np.arange(32)[None]) == taken(wide, np.arange(32)[None])
