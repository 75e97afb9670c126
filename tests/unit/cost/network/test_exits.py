"""What passes the exits of NICs, leaves and pods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.placement import Placement
from foretrace.cost.network.exits import Exit, exits_of
from foretrace.cost.network.peers import Places
from foretrace.cost.network.sharing import Sharing
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.build import fabric_of
from foretrace.hardware.fabric.routing.tiers import tiers_of
from foretrace.hardware.fabric.topology import Topology
from foretrace.hardware.presets import cluster

H100 = cluster("h100-dgx")
LINE = H100.node.nic.bytes_per_s


def on(**topology: object) -> Cluster:
    return replace(H100, topology=Topology(**topology))  # type: ignore[arg-type]


def exits(where: Cluster, world: int, narrow: bool = False) -> tuple[Places, dict[str, Exit]]:
    places = Places.of(where.node, Placement.packed(world, 8))
    found = exits_of(where, places, tiers_of(fabric_of(where, world // 8)), narrow=narrow)
    return places, {one.name: one for one in found}


def test_a_ring_leaves_a_leaf_from_its_last_node() -> None:
    places, found = exits(on(kind="fat-tree", leaf_ports=32), 64)
    groups = np.arange(64).reshape(8, 8).T.copy()
    assert found["nic"].passed(places, groups, spread=False) == pytest.approx(np.ones((8, 8)))
    assert found["leaf"].passed(places, groups, spread=False) == pytest.approx(np.full((8, 8), 1 / 4))


def test_an_all_to_all_leaves_a_leaf_for_every_partner_beyond() -> None:
    places, found = exits(on(kind="fat-tree", leaf_ports=32), 64)
    assert found["leaf"].passed(places, np.arange(64)[None], spread=True) == pytest.approx(np.full((1, 64), 32 / 56))
    assert (found["leaf"].passed(places, np.arange(32)[None], spread=True) == 0).all()


def test_by_rail_nodes_of_the_same_leaves_are_on_one_side() -> None:
    """Rails of 4 nodes to a leaf: within these an all-to-all crosses leaves, unless it keeps to the receiver's rail."""
    for routing, leaves in (("spread", 24 * 7 / 8 / 24), ("rail", 0.0)):
        places, found = exits(on(kind="rail-optimised", leaf_ports=4, routing=routing), 64)
        share = found["leaf"].passed(places, np.arange(32)[None], spread=True)
        assert share == pytest.approx(np.full((1, 32), leaves))


def test_tiers_that_carry_all_that_comes_are_left_out() -> None:
    assert set(exits(on(kind="fat-tree", leaf_ports=32), 64, narrow=True)[1]) == {"nic"}
    narrow = on(kind="fat-tree", leaf_ports=32, oversubscription=2.0)
    assert set(exits(narrow, 64, narrow=True)[1]) == {"nic", "leaf"}


def test_what_an_exit_needs_for_all_its_ranks() -> None:
    _, found = exits(on(kind="fat-tree", leaf_ports=32, oversubscription=2.0), 64)
    leaf = found["leaf"]
    assert leaf.needed_s(np.full(64, 0.5)) == pytest.approx(np.full(64, 32 * 0.5 / (16 * LINE)))


def test_ranks_without_a_nic_of_their_own_share_a_neighbours() -> None:
    lost = on(kind="fat-tree", leaf_ports=32, failed=("node 0 NIC 0",))
    nic = Sharing(lost, Placement.packed(16, 8)).resources[0]
    assert nic.name == "nic"
    capacity = nic.capacity_of(16)
    instance = nic.instance_of(16)
    used = sum(capacity[np.flatnonzero(instance == number)[0]] for number in set(instance[:8].tolist()) - {-1})
    whole = Sharing(on(kind="fat-tree", leaf_ports=32), Placement.packed(16, 8)).resources[0].capacity_per_s
    assert used == pytest.approx(7 * whole)
