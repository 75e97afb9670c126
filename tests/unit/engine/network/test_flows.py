"""Messages on links: a few that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.engine.network.collectives import pairs, ring, ring_orders, routed, tree, tree_parents
from foretrace.engine.network.flows import fair_rates, run_flows
from foretrace.engine.network.fold import fold
from foretrace.engine.network.messages import Messages, independent, repeated
from foretrace.hardware.fabric.fabric import Routes
from small_fabric import leaf_spine


def over(*rows: list[int]) -> Routes:
    """Routes over these links, each with all bytes."""
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Routes(start, np.array([link for row in rows for link in row], dtype=np.int64), np.ones(int(start[-1])))


def test_two_messages_halve_a_link_until_one_has_ended() -> None:
    messages = independent(np.array([1e6, 3e6]), over([0], [0]), np.zeros(2))
    ran = run_flows(np.array([1e9]), messages)
    assert ran.end_s.tolist() == pytest.approx([2e-3, 4e-3])
    assert ran.link_busy_s.tolist() == pytest.approx([4e-3])
    assert ran.link_bytes.tolist() == [4e6]


def test_a_message_that_another_link_holds_back_leaves_its_share() -> None:
    messages = independent(np.array([1e6, 1e6]), over([0], [0, 1]), np.zeros(2))
    fair, alone = fair_rates(np.array([1e9, 0.2e9]), messages)
    assert fair.tolist() == pytest.approx([0.8e9, 0.2e9])
    assert alone.tolist() == [1e9, 0.2e9]


def test_latency_release_and_what_comes_after() -> None:
    messages = Messages(
        bytes=np.array([1e6, 1e6, 0.0]),
        latency_s=np.array([1e-3, 2e-3, 5e-4]),
        release_s=np.array([1e-2, 0.0, 0.0]),
        route=np.array([0, 0, 0]),
        routes=over([0]),
        after_start=np.array([0, 0, 1, 3]),
        after=np.array([0, 0, 1]),
        ahead=np.full(3, -1),
        step=np.zeros(3, dtype=np.int64),
    )
    ran = run_flows(np.array([1e9]), messages)
    assert ran.start_s.tolist() == pytest.approx([1e-2, 12e-3, 15e-3])
    assert ran.end_s.tolist() == pytest.approx([12e-3, 15e-3, 15.5e-3])
    assert ran.link_busy_s.tolist() == pytest.approx([2e-3])  # idle before, and while the second's latency runs


def test_bytes_in_turn_follow_at_once_and_latencies_overlap() -> None:
    messages = independent(np.array([1e6, 1e6]), over([0], [0]), np.full(2, 1e-3))
    messages.ahead[1] = 0
    assert run_flows(np.array([1e9]), messages).end_s.tolist() == pytest.approx([2e-3, 3e-3])


def test_messages_that_wait_for_each_other_are_an_error() -> None:
    messages = independent(np.array([1e6, 1e6]), over([0], [0]), np.zeros(2))
    messages.ahead[:] = [1, 0]
    with pytest.raises(InputError) as caught:
        run_flows(np.array([1e9]), messages)
    assert caught.value.code == "deadlock"


def test_a_link_that_carries_nothing_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        run_flows(np.array([0.0]), independent(np.array([1.0]), over([0]), np.zeros(1)))
    assert caught.value.code == "no-route"


def test_alike_messages_are_run_once() -> None:
    fabric, routing = leaf_spine(4, 4, oversubscription=2.0)
    messages = routed(pairs(np.full((16, 16), 1e6)), np.arange(16), routing, fabric.latency_s, np.zeros(16))
    ran = run_flows(fabric.bytes_per_s, messages)
    assert (len(messages), ran.kinds) == (240, 2)  # to the own leaf, and to another
    whole = run_flows(fabric.bytes_per_s, messages, folded=False)
    np.testing.assert_allclose(ran.end_s, whole.end_s, rtol=1e-12)
    np.testing.assert_allclose(ran.link_busy_s, whole.link_busy_s, rtol=1e-12)
    # 12 of a rank's 15 messages leave its leaf, whose uplinks carry half of what comes up
    assert ran.time_s == pytest.approx(4e-6 + 4 * 12 * 1e6 / (4 * 50e9 / 2))


def test_one_rank_that_is_late_is_not_folded_with_the_others() -> None:
    fabric, routing = leaf_spine(4, 4)
    late = np.zeros(16)
    late[3] = 1e-3
    messages = routed(pairs(np.full((16, 16), 1e6)), np.arange(16), routing, fabric.latency_s, late)
    folded, whole = (run_flows(fabric.bytes_per_s, messages, folded=fold) for fold in (True, False))
    assert 2 < folded.kinds < 240
    np.testing.assert_allclose(folded.end_s, whole.end_s, rtol=1e-9)


def test_a_long_ring_folds_to_a_message_a_step() -> None:
    fabric, routing = leaf_spine(64, 1, spines=1)
    hops = routed(ring(np.arange(64)[None], 1e6), np.arange(64), routing, fabric.latency_s, np.zeros(64))
    folded = fold(repeated(hops, 2, 126), fabric.bytes_per_s)
    assert folded is not None
    assert len(folded.messages) == 126 * 2


def test_rings_of_several_channels_leave_each_node_at_another_gpu() -> None:
    orders = ring_orders(np.repeat([0, 1], 4))
    assert orders.tolist()[1] == [1, 2, 3, 0, 5, 6, 7, 4]
    assert sorted(orders[:, 3].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 8])
def test_both_trees_reach_everybody_and_give_each_node_at_most_three_partners(nodes: int) -> None:
    parents = tree_parents(np.arange(nodes))
    inner = []
    for parent in parents:
        place = np.arange(nodes)
        for _ in range(nodes):
            place = np.where(parent[place] >= 0, parent[place], place)
        assert len(set(place.tolist())) == 1
        children = np.bincount(parent[parent >= 0], minlength=nodes)
        assert children.max() <= 2
        inner.append({int(one) for one in np.flatnonzero(children == 2)})
    assert not inner[0] & inner[1]


def test_a_tree_waits_for_both_children_and_brings_the_sum_down() -> None:
    parent = np.array([-1, 0, 0])
    sends = tree(parent[None], 1e6)
    fabric, routing = leaf_spine(1, 3)
    ran = run_flows(fabric.bytes_per_s, routed(sends, np.arange(3), routing, fabric.latency_s, np.array([0, 0, 1e-3])))
    up, down = 1e6 / 50e9 + 2e-6, 2e6 / 50e9 + 2e-6  # the root sends to both at once
    assert ran.time_s == pytest.approx(1e-3 + up + down)
