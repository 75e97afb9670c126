"""Channels, held to what NCCL's logs show."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.placement import Placement
from foretrace.cost.network import NcclNetwork
from foretrace.cost.network.nccl.channels import graphs_of, run_channels
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.tuning_tables import LINK_GB, LL_MOST, row_of
from foretrace.hardware import presets


def layout(cluster: str, gpus: int) -> GroupLayout:
    place = presets.cluster(cluster)
    found = NcclNetwork(place, Placement.packed(gpus, place.node.gpus)).layouts(np.arange(gpus)[None])[0][0]
    assert isinstance(found, GroupLayout)
    return found


@pytest.mark.parametrize(
    ("cluster", "channels", "gb_per_s"),
    [("a100-dgx", 24, 240), ("h100-dgx", 24, 360), ("b200-dgx", 32, 720), ("a800-hgx", 16, 160)],
)
def test_rings_within_a_node(cluster: str, channels: int, gb_per_s: float) -> None:
    ring = graphs_of(presets.cluster(cluster).node, layout(cluster, 8))["ring"]
    assert run_channels(ring) == channels
    assert ring.channels * ring.intra_bytes_per_s == pytest.approx(gb_per_s * 1e9)


def test_over_nodes_a_channel_has_a_nic() -> None:
    ring = graphs_of(presets.cluster("a100-dgx").node, layout("a100-dgx", 32))["ring"]
    assert (ring.channels, ring.inter_bytes_per_s) == (8, 24e9)


def test_nvls_has_a_channel_for_each_gpu() -> None:
    assert graphs_of(presets.cluster("h100-dgx").node, layout("h100-dgx", 6))["nvls"].channels == 6


@pytest.mark.parametrize("name", [one for one in presets.names("gpu") if presets.gpu(one).vendor == "NVIDIA"])
def test_nccls_tables_know_every_nvidia_gpu(name: str) -> None:
    family = presets.gpu(name).architecture.lower().partition(" ")[0]
    assert row_of(presets.gpu(name).architecture) == family
    assert family in LINK_GB and family in LL_MOST
