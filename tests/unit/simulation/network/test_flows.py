"""Collectives on the links of a cluster: closed forms, bounds, narrow and failed links, late ranks, groups at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from foretrace import load_cluster
from foretrace.basics.errors import InputError
from foretrace.engine.network.collectives import ring, ring_orders, routed
from foretrace.engine.network.flows import run_flows
from foretrace.engine.network.messages import repeated
from foretrace.hardware.fabric.topology import Topology
from foretrace.program.columns import Collective
from foretrace.simulation.network.flow_network import FlowNetwork, flow_network
from foretrace.simulation.network.flows import FlowAnswer, difference, flow_time
from small_fabric import LATENCY, NIC, leaf_spine

SIZE = 2.0**28


def dgx(nodes: int, topology: Topology | None = None) -> FlowNetwork:
    cluster = replace(load_cluster("h100-dgx"), nodes=None)
    return flow_network(cluster if topology is None else replace(cluster, topology=topology), nodes)


def small(leaves: int, gpus_of_leaf: int, oversubscription: float = 1.0) -> FlowNetwork:
    fabric, routing = leaf_spine(leaves, gpus_of_leaf, oversubscription=oversubscription)
    return FlowNetwork(fabric, routing, fabric.bytes_per_s)


@pytest.mark.parametrize(
    ("collective", "steps"), [(Collective.ALL_REDUCE, 14), (Collective.ALL_GATHER, 7), (Collective.REDUCE_SCATTER, 7)]
)
def test_a_ring_on_one_leaf_takes_the_closed_form(collective: Collective, steps: int) -> None:
    answer = flow_time(collective, SIZE, np.arange(8), small(1, 8))
    assert answer.time_s == pytest.approx(steps * (2 * LATENCY + SIZE / 8 / NIC), rel=1e-12)
    assert answer.exact
    assert answer.messages == 8 * steps
    assert answer.link_bytes.max() == pytest.approx(SIZE * steps / 8)


def test_trees_are_for_all_reduces() -> None:
    ring, tree = (
        flow_time(Collective.ALL_GATHER, SIZE, np.arange(8), small(1, 8), algorithm=one) for one in ("ring", "tree")
    )
    assert (ring.algorithm, ring.time_s) == (tree.algorithm, tree.time_s)


def test_latency_of_the_call_takes_the_place_of_the_links() -> None:
    answer = flow_time(Collective.ALL_REDUCE, SIZE, np.arange(8), small(1, 8), latency_s=1e-3)
    assert answer.time_s == pytest.approx(1e-3 + 14 * SIZE / 8 / NIC, rel=1e-12)


def test_an_all_to_all_waits_for_oversubscribed_uplinks() -> None:
    for factor in (1.0, 2.0, 4.0):
        answer = flow_time(Collective.ALL_TO_ALL, 16e6, np.arange(16), small(4, 4, factor))
        narrowest = max(15e6 / NIC, 12e6 * factor / NIC)
        assert answer.time_s == pytest.approx(narrowest + 4 * LATENCY, rel=1e-2)
        assert answer.utilisation.max() == pytest.approx(1.0, rel=1e-2)


def test_uneven_bytes_are_limited_by_whoever_receives_most() -> None:
    sizes = np.zeros((8, 8))
    sizes[:, 3] = 1e6
    answer = flow_time(Collective.ALL_TO_ALL, sizes, np.arange(8), small(2, 4))
    assert answer.time_s == pytest.approx(7e6 / NIC + 2 * LATENCY, rel=1e-9)  # from its own leaf they come sooner
    assert answer.hottest[0][0] == "device 8 - device 3"


def test_many_uneven_messages_stay_near_the_busiest_link() -> None:
    sizes = np.random.default_rng(0).lognormal(0, 1, (32, 32)) * 1e6
    answer = flow_time(Collective.ALL_TO_ALL, sizes, np.arange(32), small(4, 8))
    busiest = float((answer.link_bytes / NIC)[: 2 * 32].max())
    assert busiest <= answer.time_s <= 1.1 * busiest
    assert "give their links back together" in answer.rough


def test_groups_at_once_share_the_uplinks_they_meet_on() -> None:
    network = small(2, 4, oversubscription=4.0)
    pairs = np.array([[0, 4], [1, 5], [2, 6], [3, 7]])
    alone = flow_time(Collective.TRANSFER, 1e8, pairs[:1], network)
    together = flow_time(Collective.TRANSFER, 1e8, pairs, network)
    assert alone.time_s == pytest.approx(1e8 / NIC + 4 * LATENCY)
    assert together.time_s == pytest.approx(4e8 / NIC + 4 * LATENCY)


def test_a_late_rank_delays_everybody_and_an_early_one_nobody() -> None:
    network, late = small(1, 8), np.zeros((1, 8))
    late[0, 2] = 1e-3
    on_time = flow_time(Collective.ALL_REDUCE, 1e6, np.arange(8), network)
    answer = flow_time(Collective.ALL_REDUCE, 1e6, np.arange(8), network, arrival_s=late)
    assert (answer.end_s >= 1e-3).all()
    assert answer.time_s == pytest.approx(on_time.time_s + 1e-3, rel=1e-9)


def test_a_slow_link_holds_the_whole_ring_up() -> None:
    network = small(1, 8)
    capacity = network.capacity.copy()
    capacity[0] /= 4
    slow = replace(network, capacity=capacity)
    answer = flow_time(Collective.ALL_REDUCE, SIZE, np.arange(8), slow)
    assert answer.time_s == pytest.approx(14 * SIZE / 8 / (NIC / 4), rel=0.01)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_an_all_reduce_never_beats_the_links_and_comes_near_them(
    algorithm: Literal["ring", "tree"], nodes: int
) -> None:
    network = dgx(nodes)
    answer = flow_time(Collective.ALL_REDUCE, SIZE, np.arange(8 * nodes), network, algorithm=algorithm)
    assert answer.algorithm == algorithm
    busiest = float((answer.link_bytes / network.capacity).max())
    assert busiest <= answer.time_s <= 1.25 * busiest


def test_rings_that_share_links_run_alike_hops_once_and_exactly() -> None:
    """Eight channels over two nodes meet on every GPU's links: hop kinds give what all messages give one by one."""
    network, gpus = dgx(2), np.arange(16)
    sends = ring(ring_orders(gpus // 8), 1e7)
    hops = routed(sends, gpus, network.routing, network.fabric.latency_s, np.zeros(16))
    whole = run_flows(network.capacity, repeated(hops, 2, 30), folded=False)
    answer = flow_time(Collective.ALL_REDUCE, 1e7, gpus, network, chunks=2)
    assert answer.exact
    assert answer.time_s == pytest.approx(whole.time_s, rel=1e-9)
    np.testing.assert_allclose(answer.link_bytes, whole.link_bytes, rtol=1e-9)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_a_broadcast_streams_through_all_ranks(collective: Collective) -> None:
    answer = flow_time(collective, 2.0**30, np.arange(8), small(1, 8))
    assert 2.0**30 / NIC < answer.time_s < 1.02 * 2.0**30 / NIC


def test_gather_and_scatter_are_limited_by_the_root() -> None:
    for collective in (Collective.GATHER, Collective.SCATTER):
        answer = flow_time(collective, 8e8, np.arange(8), small(1, 8))
        assert answer.time_s == pytest.approx(7e8 / NIC + 2 * LATENCY)


def test_a_failed_leaf_link_shows_its_price() -> None:
    whole = dgx(16, Topology(kind="fat-tree"))
    failed = dgx(16, Topology(kind="fat-tree", failed=("leaf 0 - spine 0",)))
    times = [flow_time(Collective.ALL_TO_ALL, 2.0**30, np.arange(128), network).time_s for network in (whole, failed)]
    assert times[1] > times[0] * 1.01


def test_a_thousand_ranks_are_run_by_kinds_of_sources() -> None:
    network = dgx(128, Topology(kind="fat-tree", oversubscription=2.0))
    answer = flow_time(Collective.ALL_TO_ALL, 2.0**30, np.arange(1024), network)
    assert answer.messages == 1024 * 1023
    assert answer.exact
    assert answer.hottest[0][0].startswith("leaf 0 - spine")
    assert answer.utilisation.max() == pytest.approx(1.0, rel=1e-3)


def test_one_rank_and_no_bytes_take_no_more_than_latency() -> None:
    assert flow_time(Collective.ALL_REDUCE, SIZE, np.array([[3]]), small(1, 8)).time_s == 0.0
    assert flow_time(Collective.BARRIER, 0.0, np.arange(8), small(1, 8), latency_s=1e-5).time_s == 1e-5
    assert flow_time(Collective.ALL_REDUCE, 0.0, np.arange(8), small(1, 8)).time_s == pytest.approx(28 * LATENCY)


@pytest.mark.parametrize(
    ("collective", "groups", "code"),
    [
        (Collective.ALL_REDUCE, [0, 9], "out-of-range"),
        (Collective.ALL_REDUCE, [0, 0], "duplicate-name"),
        (Collective.TRANSFER, [0, 1, 2], "unknown-collective"),
    ],
)
def test_what_cannot_be_run_is_an_error(collective: Collective, groups: list[int], code: str) -> None:
    with pytest.raises(InputError) as caught:
        flow_time(collective, SIZE, np.array(groups), small(1, 8))
    assert caught.value.code == code


def test_what_differs_is_said_in_words() -> None:
    answer = flow_time(Collective.ALL_REDUCE, SIZE, np.arange(8), small(1, 8))
    assert difference(answer.time_s * 1.01, "NICs", answer) is None
    assert (
        difference(answer.time_s * 2, "NICs", answer)
        == "on links it takes 0.50× the formulas' time, whose limit is NICs"
    )
    slower = difference(answer.time_s / 2, "NICs", answer)
    assert slower is not None
    assert "2.00× the formulas' time: device 0 - device 8 carries 100% of what it can" in slower


def test_answers_of_equal_questions_are_equal() -> None:
    one, other = (flow_time(Collective.ALL_REDUCE, 1e7, np.arange(16), dgx(2)) for _ in range(2))
    assert isinstance(one, FlowAnswer)
    assert one.time_s == other.time_s
    assert one.link_bytes.tobytes() == other.link_bytes.tobytes()
