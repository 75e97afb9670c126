"""Who sends to whom beyond its island."""

from __future__ import annotations

import numpy as np

from foretrace.basics.placement import Placement
from foretrace.cost.network.peers import Places
from foretrace.hardware.presets import cluster

NODE = cluster("h100-dgx").node


def packed(world: int) -> Places:
    return Places.of(NODE, Placement.packed(world, 8))


def test_a_ring_goes_from_node_to_node_along_rails() -> None:
    peers = packed(24).ring_peers(np.arange(24)[None])
    assert peers.tolist() == [[*range(8, 24), *range(8)]]


def test_a_group_on_one_island_needs_no_nic() -> None:
    assert (packed(16).ring_peers(np.arange(16).reshape(2, 8)) == -1).all()


def test_nodes_come_in_the_order_in_which_the_group_reaches_them() -> None:
    peers = packed(32).ring_peers(np.array([[24, 0, 8]]))
    assert peers.tolist() == [[0, 8, 24]]


def test_where_the_next_node_has_fewer_ranks_several_send_to_one() -> None:
    peers = packed(16).ring_peers(np.array([[0, 1, 2, 8, 9]]))
    assert peers.tolist() == [[8, 8, 9, 0, 1]]


def test_within_an_island_each_sends_to_the_next() -> None:
    assert packed(16).island_peers(np.array([[0, 8, 1, 9, 2]])).tolist() == [[1, 9, 2, 8, 0]]
    assert packed(16).island_peers(np.array([[0, 8]])).tolist() == [[-1, -1]]


def test_partners_share_what_a_rank_sends_over_nics_and_over_links() -> None:
    places = packed(16)
    pairs = places.partners(np.arange(16)[None], 1 << 16)
    assert len(pairs.source) == 16 * 15
    for beyond in (False, True):
        sums = np.bincount(pairs.source[pairs.beyond == beyond], weights=pairs.share[pairs.beyond == beyond])
        assert np.allclose(sums, 1.0)


def test_of_too_many_partners_some_stand_for_all() -> None:
    pairs = packed(64).partners(np.arange(64)[None], 64 * 4)
    assert len(pairs.source) == 64 * 4
    assert np.allclose(np.bincount(pairs.source, weights=pairs.share * pairs.beyond), 1.0)


def test_trees_join_islands_by_ranks_in_the_same_place() -> None:
    """Over four nodes 0 - 2 - {1, 3} and, mirrored, 3 - 1 - {0, 2}: an inner node sends 4 halves, a root's 2."""
    pairs = packed(32).tree_partners(np.arange(32)[None])
    assert ((pairs.target - pairs.source) % 8 == 0).all()
    sent = np.bincount(pairs.source, weights=pairs.share).reshape(4, 8)
    assert sent.tolist() == [[0.5] * 8, [1.0] * 8, [1.0] * 8, [0.5] * 8]
    received = np.bincount(pairs.target, weights=pairs.share).reshape(4, 8)
    assert received.tolist() == sent.tolist()


def test_trees_of_groups_on_different_numbers_of_islands() -> None:
    pairs = packed(32).tree_partners(np.array([[0, 1, 2], [8, 16, 24], [0, 8, 9]]))
    assert pairs.group.tolist().count(0) == 0
    assert set(pairs.source[pairs.group == 1].tolist()) == {8, 16, 24}
    assert set(zip(pairs.source[pairs.group == 2].tolist(), pairs.target[pairs.group == 2].tolist(), strict=True)) == {
        (0, 8),
        (8, 0),
        (9, 0),
    }
