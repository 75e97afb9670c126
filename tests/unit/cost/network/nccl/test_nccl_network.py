"""The network model: prices by hand, and what a call is explained by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.placement import Placement
from foretrace.cost.network import NcclNetwork
from foretrace.cost.network.interface import Explained, Limit
from foretrace.cost.network.nccl.algorithms.pairs import EXCHANGE_SHARE
from foretrace.cost.network.nccl.algorithms.ring import OWN_PART_STEPS
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import NcclMachine, machine_of
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Collective
from foretrace.program.program import Floats

MIB, GIB = 1 << 20, 1 << 30
PLAIN = NcclMachine(launch_s=5e-6, step_scale=1.0, simple_step_s=4e-6, link_share=0.8, network_share=0.9)


def asked(
    cluster: Cluster, ranks: list[int], what: Collective, size: float, world: int | None = None, **more: object
) -> tuple[Explained, Limit]:
    """A call of a group on a packed cluster, and what limits it."""
    world = world or max(ranks) + 1
    network = NcclNetwork(cluster, Placement.packed(world, cluster.node.gpus), **more)  # type: ignore[arg-type]
    layouts, number = network.layouts(np.array([ranks]))
    layout = layouts[number[0]]
    return network.explain(what, layout, size), network.limit(what, layout, size)


def explained(
    cluster: Cluster, ranks: list[int], what: Collective, size: float, world: int | None = None, **more: object
) -> Explained:
    """A call of a group on a packed cluster."""
    return asked(cluster, ranks, what, size, world, **more)[0]


def price(cluster: Cluster, ranks: list[int], what: Collective, size: float, world: int | None = None) -> float:
    return explained(cluster, ranks, what, size, world).time_s


def test_a_ring_of_words_takes_its_hops() -> None:
    """LL: 0.6 µs a hop in NCCL's table."""
    found, limit = asked(presets.cluster("h100-dgx"), list(range(8)), Collective.ALL_REDUCE, 8, machine=PLAIN)
    assert (found.algorithm, found.protocol) == ("ring", "ll")
    assert found.time_s == pytest.approx(5e-6 + 14 * 0.6e-6, rel=0.02)
    assert (limit.kind, limit.name) == ("latency", "latency of 14 hops") and limit.share > 0.9


def test_a_large_ring_takes_what_links_carry() -> None:
    found, limit = asked(presets.cluster("h100-dgx"), list(range(8)), Collective.ALL_GATHER, 1 << 36, machine=PLAIN)
    assert (found.algorithm, found.protocol, found.channels) == ("ring", "simple", 24)
    steps = 7 + OWN_PART_STEPS
    assert found.time_s == pytest.approx(steps / 8 * (1 << 36) / (0.8 * 450e9), rel=0.01)
    assert (limit.kind, limit.name) == ("nvlink", "NVLink") and limit.share > 0.9
    assert found.draws == (("link", pytest.approx(7 / 8 * (1 << 36))),)


def test_reduction_in_the_switch_passes_links_once() -> None:
    found = explained(presets.cluster("h100-dgx"), list(range(8)), Collective.ALL_REDUCE, 1 << 36, machine=PLAIN)
    assert found.algorithm == "nvls" and found.draws == (("link", float(1 << 36)),)
    assert found.time_s == pytest.approx((1 << 36) / (0.8 * 450e9 * 0.85 * 7 / 8), rel=0.01)


def test_a_rail_takes_what_its_nic_carries() -> None:
    found, limit = asked(
        presets.cluster("h100-dgx"), [0, 8, 16, 24], Collective.REDUCE_SCATTER, 1 << 34, 32, machine=PLAIN
    )
    own = OWN_PART_STEPS / 4 / (0.8 * 450e9)
    assert found.time_s == pytest.approx((1 << 34) * (3 / 4 / (0.9 * 50e9) + own), rel=0.01)
    assert (limit.kind, limit.name) == ("nic", "NICs (400 Gb/s each)")
    assert dict(found.draws)["nic"] == pytest.approx(3 / 4 * (1 << 34))


def test_two_nodes_reduce_by_trees_that_send_every_byte_once() -> None:
    """As measured on 2 × 2 A100: 49 GB/s, twice what one NIC carries and more than a ring of two could."""
    found = explained(presets.cluster("a100-dgx"), [0, 1, 8, 9], Collective.ALL_REDUCE, GIB, 16, machine=PLAIN)
    assert (found.algorithm, found.protocol) == ("tree", "ll128")
    assert found.time_s == pytest.approx(GIB / (2 * 0.9 * 25e9 * 120 / 128), rel=0.01)


def test_a_rack_of_72_needs_no_nic_within() -> None:
    rack = presets.cluster("gb200-nvl72")
    inside = price(rack, list(range(64, 72)), Collective.ALL_GATHER, GIB, world=144)
    across = price(rack, list(range(68, 76)), Collective.ALL_GATHER, GIB, world=144)
    assert inside < 0.4 * across
    assert across == pytest.approx(price(rack, [0, 1, 2, 3, 72, 73, 74, 75], Collective.ALL_GATHER, GIB, 144))


def test_links_dealt_out_serve_pairs_worse_than_a_switch() -> None:
    mesh = presets.cluster("mi300x")
    switched = replace(mesh, node=replace(mesh.node, switched=True))
    assert price(mesh, [0, 1], Collective.TRANSFER, GIB) > 6 * price(switched, [0, 1], Collective.TRANSFER, GIB)
    assert price(mesh, list(range(8)), Collective.ALL_GATHER, GIB) == price(
        switched, list(range(8)), Collective.ALL_GATHER, GIB
    )


def test_fewer_nics_than_gpus_are_shared() -> None:
    full = presets.cluster("h100-dgx")
    half = replace(full, node=replace(full.node, nics=4))
    assert price(half, [0, 8], Collective.TRANSFER, GIB, 16) == pytest.approx(
        2 * price(full, [0, 8], Collective.TRANSFER, GIB, 16), rel=1e-2
    )


def test_a_nic_sends_no_faster_than_pcie_feeds_it() -> None:
    slow = presets.cluster("h100-dgx")
    fast = replace(slow, node=replace(slow.node, nic=presets.nic("cx8")))
    assert 1e9 / 64e9 < price(fast, [0, 8], Collective.TRANSFER, 1e9) < 1e9 / slow.node.nic.bytes_per_s


def test_all_to_all_over_nodes_goes_out_by_every_nic() -> None:
    found, limit = asked(presets.cluster("h100-dgx"), list(range(32)), Collective.ALL_TO_ALL, GIB)
    sent = dict(found.draws)
    assert sent["nic"] == pytest.approx(24 / 32 * GIB) and sent["link"] == pytest.approx(7 / 32 * GIB)
    assert found.algorithm == "pairs" and limit.kind == "nic"


@pytest.mark.parametrize("gbps", [400, 800, 1600])
def test_nccls_channels_limit_a_reduction_over_many_nodes_however_fast_the_nics(gbps: int) -> None:
    """16 channels of nvls-tree move 8 × 45.5 GB/s by NCCL's table for Hopper, less than 400 Gb/s a GPU."""
    node = presets.cluster("h100-dgx").node
    cluster = replace(
        presets.cluster("h100-dgx"), node=replace(node, nic=replace(node.nic, bytes_per_s=gbps * 1e9 / 8))
    )
    found, limit = asked(cluster, list(range(64)), Collective.ALL_REDUCE, GIB)
    assert (found.algorithm, limit.kind) == ("nvls-tree", "channels") and "16 " in limit.name
    assert found.time_s == explained(presets.cluster("h100-dgx"), list(range(64)), Collective.ALL_REDUCE, GIB).time_s


def test_fast_nics_leave_an_all_to_all_to_pcie() -> None:
    node = presets.cluster("h100-dgx").node
    cluster = replace(presets.cluster("h100-dgx"), node=replace(node, nic=replace(node.nic, bytes_per_s=100e9)))
    found, limit = asked(cluster, list(range(64)), Collective.ALL_TO_ALL, GIB)
    assert limit.kind == "pcie" and limit.share > 0.9
    assert found.time_s == pytest.approx(56 / 64 * GIB / (64e9 * 256 / 280), rel=0.02)


def test_an_all_to_all_over_nodes_reaches_what_was_published_per_nic() -> None:
    """46 to 49 of 50 GB/s at best, 20 in bad cases (nccl-tests issues 267 and 290, nccl issue 1792)."""
    cluster = presets.cluster("h100-dgx")
    network = NcclNetwork(cluster, Placement.packed(64, 8))
    (layout,), _ = network.layouts(np.arange(64)[None])
    priced = network.price(Collective.ALL_TO_ALL, layout, np.array([1e3, 64 * GIB]))
    small, large = (network.sources[number] for number in priced.source.tolist())
    per_nic = 56 / 64 * 64 * GIB / priced.duration_s[1]
    assert per_nic == pytest.approx(0.92 * 50e9, rel=0.01)
    assert per_nic / large.low == pytest.approx(49e9, rel=0.01) and per_nic / large.high == pytest.approx(
        20e9, rel=0.01
    )
    assert small.high < large.high


def test_figures_beyond_what_the_model_knows_are_reported() -> None:
    dgx = presets.cluster("h100-dgx")
    node, gpu = dgx.node, dgx.gpu
    fast_nics = replace(dgx, node=replace(node, nic=replace(node.nic, bytes_per_s=100e9)))
    fast_links = replace(dgx, node=replace(node, gpu=replace(gpu, link_bytes_per_s=900e9)))

    def codes(cluster: Cluster, world: int) -> list[str]:
        return [note.code for note in NcclNetwork(cluster, Placement.packed(world, 8)).notes]

    assert codes(dgx, 64) == [] and codes(fast_nics, 64) == ["extrapolated"] == codes(fast_links, 8)
    assert codes(fast_nics, 8) == []  # no NIC is used


def test_groups_of_one_kind_are_found_together() -> None:
    network = NcclNetwork(presets.cluster("h100-dgx"), Placement.packed(24, 8))
    layouts, number = network.layouts(np.arange(24).reshape(8, 3))
    assert number.tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert isinstance(layouts[0], GroupLayout) and isinstance(layouts[1], GroupLayout)
    assert (layouts[0].islands, layouts[0].least_in_island) == (1, 3)
    assert (layouts[1].islands, layouts[1].least_in_island, layouts[1].most_in_island) == (2, 1, 2)


def test_a_crowded_network_slows_what_leaves_a_node() -> None:
    def crowding(groups: np.ndarray) -> tuple[Floats, Floats, Floats, Floats]:  # type: ignore[type-arg]
        one = np.ones(len(groups))
        return 2 * one, 3 * one, 4 * one, 1e-6 * one

    cluster = presets.cluster("h100-dgx")
    rail = [0, 8, 16, 24]
    # What the network beyond carries is full before the NICs reach less than their line rate in an all-to-all.
    exchange = 4 * EXCHANGE_SHARE / machine_of(cluster.gpu).network_share
    for what, factor in ((Collective.ALL_GATHER, 2), (Collective.ALL_TO_ALL, exchange)):
        (free, _), (crowded, limit) = (
            asked(cluster, rail, what, 1 << 34, 32, crowding=one) for one in (None, crowding)
        )
        assert crowded.time_s == pytest.approx(factor * free.time_s, rel=0.01)
        assert limit.kind == "uplink"


def test_training_slows_the_sms_that_copy_and_no_nic() -> None:
    cluster = presets.cluster("h100-dgx")
    for ranks, size, factor in ((list(range(8)), 1 << 34, 1.25), ([0, 8], 1 << 34, 1.0), (list(range(8)), 8, 1.25)):
        alone, training = (explained(cluster, ranks, Collective.ALL_GATHER, size, slowdown=by) for by in (1.0, 1.25))
        assert training.time_s == pytest.approx(factor * alone.time_s, rel=0.02)


def test_gpus_without_measurements_take_those_of_their_architecture() -> None:
    assert machine_of(presets.gpu("h20")) == machine_of(presets.gpu("h100-sxm"))
    assert machine_of(presets.gpu("gb200")).like == "b200"
