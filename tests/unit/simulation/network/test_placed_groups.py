"""Where groups sit that communicate at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace import load_cluster
from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.placement import Placement
from foretrace.simulation.network.placed_groups import groups_of_placement, placed_groups

DGX = load_cluster("h100-dgx")


def test_a_group_fills_nodes() -> None:
    placed = placed_groups(DGX, 20)
    assert placed.nodes == 3 and placed.max_on_a_node == 8
    assert placed.gpu_numbers(8).tolist() == [list(range(20))]


def test_small_groups_share_a_node() -> None:
    placed = placed_groups(DGX, 2, groups=5)
    assert placed.nodes == 1
    assert placed.gpu_numbers(8).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_groups_across_nodes_lie_beside_each_other() -> None:
    """Eight dp groups of four ranks, one on each node: all on the same four nodes."""
    placed = placed_groups(DGX, 4, groups=9, ranks_per_node=1)
    assert placed.nodes == 4 and placed.max_on_a_node == 1
    numbers = placed.gpu_numbers(8)
    assert numbers[0].tolist() == [0, 8, 16, 24]
    assert numbers[7].tolist() == [7, 15, 23, 31]
    assert numbers[8].tolist() == [32, 40, 48, 56]  # the ninth takes nodes of its own
    assert len(set(numbers.ravel().tolist())) == numbers.size  # no GPU twice


def test_what_does_not_fit() -> None:
    with pytest.raises(UsageError) as caught:
        placed_groups(DGX, 64, ranks_per_node=9)
    assert caught.value.code == "cluster-too-small"
    small = replace(DGX, nodes=4)
    assert placed_groups(small, 32).nodes == 4
    with pytest.raises(InputError, match="need 5 nodes, the cluster h100-dgx has 4"):
        placed_groups(small, 33)
    with pytest.raises(InputError) as caught:
        placed_groups(small, 5, ranks_per_node=1)
    assert caught.value.code == "cluster-too-small"


def test_a_placement_is_dealt_out_in_order() -> None:
    placed = groups_of_placement(Placement.packed(16, 8), 4, 4)
    assert placed.ranks.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert placed.nodes == 1
