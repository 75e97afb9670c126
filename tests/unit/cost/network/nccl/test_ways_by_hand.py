"""What each way takes, term by term: formulas with figures that can be reckoned by hand."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.placement import Placement
from foretrace.cost.network.nccl.algorithms.pairs import PER_PEER_S
from foretrace.cost.network.nccl.algorithms.ring import LAST_RECEIVE_STEPS
from foretrace.cost.network.nccl.channels import graphs_of, run_channels
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.layout import GroupLayout, Seats
from foretrace.cost.network.nccl.machine import NcclMachine
from foretrace.cost.network.nccl.plan import way_s
from foretrace.cost.network.nccl.tuning import Way, reckoned_s, ways
from foretrace.hardware import presets
from foretrace.program.columns import Collective

PLAIN = NcclMachine(launch_s=5e-6, step_scale=1.0, simple_step_s=4e-6, link_share=0.8, network_share=0.9)
LINK, NIC = 0.8 * 450e9, 0.9 * 50e9
NO_LATENCY = NcclMachine(launch_s=0.0, step_scale=0.0, simple_step_s=0.0, link_share=0.8, network_share=0.9)
LARGE = float(1 << 36)


def group(nodes: int, per_node: int, machine: NcclMachine = PLAIN, cluster: str = "h100-dgx") -> NcclGroup:
    """So many GPUs of each of so many nodes, one to a NIC."""
    place = presets.cluster(cluster)
    placement = Placement.packed(nodes * place.node.gpus, place.node.gpus)
    ranks = (np.arange(nodes)[:, None] * place.node.gpus + np.arange(per_node)).ravel()
    layout = Seats(place, placement).layouts(ranks[None])[0][0]
    assert isinstance(layout, GroupLayout)
    return NcclGroup(place, layout, machine, graphs_of(place.node, layout))


def taken(one: NcclGroup, what: Collective, way: Way, size: float) -> tuple[float, float]:
    latency, seconds = way_s(one, what, way, np.array([size]))
    return latency, float(seconds[0])


def test_a_tree_goes_up_and_down_chains_and_nodes() -> None:
    """LL of a tree in NCCL's tables: 0.6 µs a hop of a chain, 5 µs and a CPU thread's 1 µs a hop over NICs."""
    latency, _ = taken(group(4, 8), Collective.ALL_REDUCE, ("tree", "ll"), 8.0)
    assert latency == pytest.approx(5e-6 + 2 * (7 * 0.6e-6 + 2 * 6e-6))


@pytest.mark.parametrize(("nodes", "sent"), [(2, 1), (4, 2), (16, 2)])
def test_a_tree_sends_all_once_between_two_nodes_and_twice_among_more(nodes: int, sent: int) -> None:
    latency, seconds = taken(group(nodes, 1), Collective.ALL_REDUCE, ("tree", "simple"), LARGE)
    assert seconds - latency == pytest.approx(sent * LARGE / NIC / 0.9)  # NCCL's correction of large sizes


def test_between_two_nodes_twice_as_many_trees_fit_as_rings() -> None:
    two, four = group(2, 4).graphs, group(4, 4).graphs
    assert two["tree"].channels == 2 * two["ring"].channels
    assert four["tree"] == four["ring"]
    assert run_channels(two["tree"]) == 2 * two["tree"].channels


@pytest.mark.parametrize(
    ("what", "parts"), [(Collective.ALL_REDUCE, 8 / 7), (Collective.ALL_GATHER, 1.0), (Collective.REDUCE_SCATTER, 1.0)]
)
def test_through_the_switch_each_gpu_sends_all_or_all_but_its_own(what: Collective, parts: float) -> None:
    latency, seconds = taken(group(1, 8), what, ("nvls", "simple"), LARGE)
    assert seconds - latency == pytest.approx(parts * LARGE / (0.85 * LINK), rel=1e-3)


@pytest.mark.parametrize(("ranks", "size", "channels"), [(8, 1 << 18, 8), (4, 1 << 18, 16), (8, 1 << 20, 24)])
def test_ll_takes_a_channel_for_every_thread_of_every_rank(ranks: int, size: int, channels: int) -> None:
    """512 threads of 8 bytes for each rank fill a channel; 24 move 141 GB/s in NCCL's table."""
    rate = channels * 141e9 / 24
    expected = (2 * (ranks - 1) * size / rate + LAST_RECEIVE_STEPS * size / max(rate, LINK / 2)) / ranks
    found = taken(group(1, ranks, NO_LATENCY), Collective.ALL_REDUCE, ("ring", "ll"), float(size))
    assert found[1] == pytest.approx(expected)


def test_an_all_to_all_counts_peers_and_nodes() -> None:
    """A hop over NICs of Simple: 14 µs and 3 µs of the CPU thread; 1 µs of it for each other node."""
    latency, _ = taken(group(4, 1), Collective.ALL_TO_ALL, ("pairs", "simple"), 8.0)
    assert latency == pytest.approx(5e-6 + 2 * PER_PEER_S + 3 * 1e-6 + 17e-6)


def test_what_leaves_a_rail_crosses_links_first() -> None:
    """Of 16 parts 7 stay on links and 8 leave: 7 of 8 of these through the GPU of their own rail."""
    slow = NcclMachine(launch_s=0.0, step_scale=0.0, simple_step_s=0.0, link_share=0.02, network_share=0.9)
    _, seconds = taken(group(2, 8, slow), Collective.ALL_TO_ALL, ("pairs", "simple"), LARGE)
    assert seconds == pytest.approx((7 + 7) / 16 * LARGE / (0.02 * 450e9) * (1 + 0.3 / 15), rel=1e-3)


def test_a_ring_is_as_fast_as_the_narrowest_of_links_and_nics() -> None:
    slow = NcclMachine(launch_s=0.0, step_scale=0.0, simple_step_s=0.0, link_share=0.05, network_share=0.9)
    assert group(2, 2, slow).ring_rate == group(1, 2, slow).ring_rate == pytest.approx(0.05 * 450e9)
    assert group(2, 1).ring_rate == pytest.approx(NIC)
    assert group(2, 4).ring_rate == pytest.approx(4 * NIC)


def test_nccl_raises_the_latency_of_rings_of_simple_over_nodes() -> None:
    one, size = group(2, 8), np.array([1.0, 1 << 30])
    found = reckoned_s(one, Collective.ALL_REDUCE, ("ring", "simple"), size, (1e-3, np.inf))
    assert found.tolist() == pytest.approx([1e-3, 1.4e-3])


@pytest.mark.parametrize(
    ("cluster", "nodes", "per_node", "way", "there"),
    [
        ("h100-dgx", 1, 8, ("ring", "ll128"), True),
        ("b200-dgx", 1, 8, ("ring", "ll128"), False),
        ("b200-dgx", 2, 8, ("ring", "ll128"), True),
        ("h100-dgx", 1, 2, ("nvls", "simple"), False),
        ("h100-dgx", 1, 3, ("nvls", "simple"), True),
        ("h100-dgx", 2, 2, ("nvls-tree", "simple"), False),
    ],
)
def test_where_nccl_has_a_way(cluster: str, nodes: int, per_node: int, way: Way, there: bool) -> None:
    assert (way in ways(group(nodes, per_node, cluster=cluster), Collective.ALL_REDUCE)) == there


def test_slower_sms_slow_hops_and_what_they_copy_but_no_nic() -> None:
    fast, slow = group(1, 8), group(1, 8, PLAIN.slowed(2.0))
    assert slow.link_rate == fast.link_rate / 2
    assert slow.near_s("ring", "simple") == 2 * fast.near_s("ring", "simple")
    assert slow.nic_rate(1.0) == fast.nic_rate(1.0)
