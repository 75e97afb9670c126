"""What NCCL takes, held to what it was seen to take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.placement import Placement
from foretrace.cost.network import NcclNetwork
from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.hardware import presets
from foretrace.program.columns import Collective

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def way(cluster: str, gpus: int, what: Collective, size: float, forced: Forced | None = None) -> tuple[str, str]:
    """Algorithm and protocol of a call among the first GPUs of a packed cluster."""
    place = presets.cluster(cluster)
    network = NcclNetwork(place, Placement.packed(gpus, place.node.gpus), forced=forced)
    layout = network.layouts(np.arange(gpus)[None])[0][0]
    assert isinstance(layout, GroupLayout)
    found = network.explain(what, layout, size)
    return found.algorithm, found.protocol


def test_eight_h200_reduce_in_the_switch_from_two_mib_on() -> None:
    """As published with NCCL 2.27: ring and LL up to 1 MiB, NVLS from 2 MiB."""
    for size in (32 * KIB, 256 * KIB, MIB):
        assert way("h200-dgx", 8, Collective.ALL_REDUCE, size) == ("ring", "ll")
    for size in (2 * MIB, 64 * MIB, 16 * GIB):
        assert way("h200-dgx", 8, Collective.ALL_REDUCE, size) == ("nvls", "simple")


@pytest.mark.parametrize(
    ("cluster", "gpus", "algorithm"),
    [
        ("h200-dgx", 4, "ring"),
        ("h200-dgx", 5, "nvls"),
        ("h200-dgx", 8, "nvls"),
        ("b200-dgx", 4, "ring"),
        ("b200-dgx", 5, "ring"),
        ("b200-dgx", 7, "nvls"),
        ("b200-dgx", 8, "nvls"),
    ],
)
def test_how_many_gpus_make_the_switch_worth_while(cluster: str, gpus: int, algorithm: str) -> None:
    """8 GiB, as published by number of GPUs; on a B200 six take it too, where NCCL 2.30's table says a ring."""
    assert way(cluster, gpus, Collective.ALL_REDUCE, 8 * GIB)[0] == algorithm


@pytest.mark.parametrize(
    ("cluster", "gpus", "what", "last_ll"),
    [
        ("a100-dgx", 4, Collective.ALL_GATHER, MIB),
        ("a100-dgx", 2, Collective.ALL_REDUCE, 512 * KIB),
        ("h100-dgx", 2, Collective.ALL_REDUCE, MIB),
        ("b200-dgx", 4, Collective.ALL_GATHER, 4 * MIB),
        ("b200-dgx", 8, Collective.ALL_GATHER, 8 * MIB),
        ("b200-dgx", 4, Collective.ALL_REDUCE, 4 * MIB),
    ],
)
def test_where_ll_ends(cluster: str, gpus: int, what: Collective, last_ll: int) -> None:
    """The jumps in NVIDIA's tables of these GPUs."""
    assert way(cluster, gpus, what, last_ll) == ("ring", "ll")
    assert way(cluster, gpus, what, 2 * last_ll)[1] != "ll"


def test_trees_reduce_small_buffers_over_nodes_and_rings_large_ones() -> None:
    assert way("a100-dgx", 128, Collective.ALL_REDUCE, 8 * KIB) == ("tree", "ll")
    assert way("a100-dgx", 128, Collective.ALL_REDUCE, 8 * GIB) == ("ring", "simple")


def test_only_rings_broadcast() -> None:
    for size in (KIB, GIB):
        assert way("h100-dgx", 64, Collective.BROADCAST, size)[0] == "ring"


def test_one_gpu_a_node_gathers_by_pat() -> None:
    place = presets.cluster("h100-dgx")
    network = NcclNetwork(place, Placement.packed(64, 8))
    layout = network.layouts(np.arange(0, 64, 8)[None])[0][0]
    found = network.explain(Collective.ALL_GATHER, layout, 64 * KIB)
    assert found.algorithm in ("pat", "ring") and found.draws[0][0] == "nic"


def test_ll128_is_not_sent_over_pcie() -> None:
    ways = {way("a100-pcie", 8, Collective.ALL_GATHER, 2.0**power)[1] for power in range(8, 34)}
    assert ways == {"ll", "simple"}


def test_what_is_forced_is_taken() -> None:
    assert way("h200-dgx", 8, Collective.ALL_REDUCE, GIB, Forced.of("ring")) == ("ring", "simple")
    assert way("h200-dgx", 8, Collective.ALL_REDUCE, GIB, Forced.of(None, "ll")) == ("ring", "ll")
    assert way("h200-dgx", 8, Collective.ALL_GATHER, GIB, Forced.of("allreduce:tree")) == ("ring", "simple")
    with pytest.raises(InputError) as caught:
        way("a100-dgx", 8, Collective.ALL_REDUCE, GIB, Forced.of("nvls"))
    assert caught.value.code == "unknown-collective"


def test_switches_that_sum_make_collnet_worth_while() -> None:
    place = presets.cluster("a100-dgx")
    reducing = replace(place, topology=replace(place.topology, in_network_reduction=True))
    found = []
    for cluster in (place, reducing):
        network = NcclNetwork(cluster, Placement.packed(256, 8))
        layout = network.layouts(np.arange(256)[None])[0][0]
        found.append(network.explain(Collective.ALL_REDUCE, layout, GIB))
    assert not found[0].algorithm.startswith("collnet") and found[1].algorithm.startswith("collnet")
    assert dict(found[1].draws)["nic"] == pytest.approx(GIB / 8) and found[1].time_s < found[0].time_s
