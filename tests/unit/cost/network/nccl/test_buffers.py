"""The memory of communicators, worked by hand from NCCL's formulas."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost.network.nccl.buffers import PAGE_BYTES, Peers, SizedCall, communicator_bytes, tables_bytes
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.presets import cluster
from foretrace.program.columns import Collective
from shared_files import ROOT

MIB = 1 << 20
LARGE = 1e9
CLUSTERS = ("h100-dgx", "a100-dgx", "gb200-nvl72", "mi300x", "h100-pcie")


def layout_of(size: int, islands: int = 1) -> GroupLayout:
    each = size // islands
    return GroupLayout(size, islands, islands, each, each, each, each, 1.0)


@pytest.fixture
def dgx() -> Cluster:
    return cluster("h100-dgx")


def all_to_all(size: int, islands: int = 1) -> Peers:
    each = size // islands
    return Peers(near=each - 1, far=size - each, relayed=each)


def test_a_group_of_one_rank_makes_no_communicator(dgx: Cluster) -> None:
    assert communicator_bytes(dgx, layout_of(1), [(Collective.ALL_REDUCE, LARGE)]) == 0


def test_tables_are_as_large_as_measured() -> None:
    """A communicator of one rank makes 64 channels and connects none, so it holds its tables alone."""
    measured = json.loads((ROOT / "benchmarks" / "truth" / "h200_process_memory.json").read_text(encoding="utf-8"))
    grown = measured["communicators_of_one_rank"]["grown_bytes"]
    further = [size for name, size in grown.items() if name != "communicator 1"]
    assert all(0 <= size - tables_bytes(64, 1, 1) <= PAGE_BYTES for size in further)


def test_rings_of_eight_gpus_on_a_dgx(dgx: Cluster) -> None:
    # 32 channels of three pages each, NVLS's 16 and its counters, two pages of the communicator.
    tables = 32 * 3 * 2 + (16 + 1) * 2 + 2 * 2
    # 24 channels: 0.5 + 4.6875 + 4 MiB of buffers are five pages, the sender's flags one.
    rings = 24 * (10 + 2)
    assert communicator_bytes(dgx, layout_of(8)) == tables * MIB
    assert communicator_bytes(dgx, layout_of(8), [(Collective.ALL_GATHER, LARGE)]) == (tables + rings) * MIB


def test_an_all_to_all_within_a_dgx_has_32_channels_to_each_of_seven_peers(dgx: Cluster) -> None:
    # NCCL issue 1685 reports 32 channels to each peer, allocations of 10 and 2 MiB and 3.28 GB in all.
    exchange = 7 * 32 * (10 + 2)
    expected = (communicator_bytes(dgx, layout_of(8)) // MIB + exchange) * MIB
    assert communicator_bytes(dgx, layout_of(8), (), all_to_all(8)) == expected
    assert expected == pytest.approx(3.28e9, rel=0.1)


def test_an_all_to_all_over_eight_nodes_shares_buffers_over_nics(dgx: Cluster) -> None:
    # 16 channels. Four for each peer by a NIC of 50 GB/s; 4 · 64 / 8 > 16, so two.
    tables = 16 * 3 * 2 + (16 + 1) * 2 + 2 * 2
    near = 7 * 2 * (10 + 2)
    # 16 channels · 16 slots of 128 KiB: one for what is received, one for each GPU that sends by this rank's NIC.
    far = 32 * (8 + 1)
    assert communicator_bytes(dgx, layout_of(64, 8), (), all_to_all(64, 8)) == (tables + near + far) * MIB


def test_a_rank_alone_on_its_node_has_all_its_rings_over_nics(dgx: Cluster) -> None:
    # Four channels; LL128's and Simple's buffers of each side are five pages.
    tables = 4 * 3 * 2 + 2 * 2
    assert communicator_bytes(dgx, layout_of(32, 32), [(Collective.ALL_GATHER, LARGE)]) == (tables + 4 * 20) * MIB


def test_tables_grow_with_the_ranks_of_a_job(dgx: Cluster) -> None:
    small, large = (communicator_bytes(dgx, layout_of(8 * nodes, nodes)) for nodes in (64, 2048))
    # 608 bytes for each of 16,384 ranks are 9.5 MiB, five pages instead of one, in 16 channels.
    assert large - small == 16 * 8 * MIB


def test_nvls_has_a_buffer_for_each_gpu_of_the_switch(dgx: Cluster) -> None:
    held = communicator_bytes(dgx, layout_of(8), [(Collective.ALL_REDUCE, LARGE)])
    # 16 channels of 1 MiB to reduce and 16 to spread, for each of eight GPUs.
    assert held - communicator_bytes(dgx, layout_of(8)) == 8 * 2 * 16 * MIB


def test_nvls_divides_its_buffers_among_32_gpus_of_a_rack_at_most() -> None:
    rack, call = cluster("gb200-nvl72"), [(Collective.ALL_REDUCE, LARGE)]
    held = [communicator_bytes(rack, layout_of(size), call) for size in (16, 32, 64)]
    assert held[1] - held[0] == 16 * 2 * 24 * MIB
    assert held[1] == held[2]


@given(name=st.sampled_from(CLUSTERS), size=st.sampled_from((2, 4, 8)), islands=st.sampled_from((1, 2, 4, 64)))
def test_more_use_never_needs_less(name: str, size: int, islands: int) -> None:
    machine, layout = cluster(name), layout_of(size * islands, islands)
    calls: list[SizedCall] = []
    before = communicator_bytes(machine, layout)
    for what in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        for size_bytes in (8.0, 1e6, LARGE):
            calls.append((what, size_bytes))
            after = communicator_bytes(machine, layout, calls)
            assert after >= before > 0
            before = after
    assert communicator_bytes(machine, layout, calls, Peers(near=1)) > before


@pytest.mark.parametrize("name", CLUSTERS)
def test_an_all_to_all_within_an_island_grows_with_its_peers(name: str) -> None:
    sizes = [communicator_bytes(cluster(name), layout_of(size), (), all_to_all(size)) for size in (2, 4, 8)]
    assert sizes == sorted(set(sizes))
