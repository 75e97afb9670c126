"""Screens and plots of collectives."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from foretrace import Machine, load_cluster, network
from foretrace.cost.network.interface import Limit
from foretrace.hardware.fabric.topology import Topology
from foretrace.report.network import network_json, print_network, print_table, table_json, way_text, where_text
from foretrace.report.plots.network_plot import curves_of, network_svg, over_of, size_text
from foretrace.simulation.network.network import NetworkAnswer, NetworkTable

DGX = load_cluster("h100-dgx")


@pytest.fixture(scope="module")
def answer() -> NetworkAnswer:
    return network("all-reduce", "256MiB", Machine(DGX, prices="model"), ranks=64)


def screen_of(answer: NetworkAnswer) -> str:
    stream = StringIO()
    print_network(answer, stream)
    return stream.getvalue()


def test_sizes_are_written_short() -> None:
    assert [size_text(size) for size in (8, 1000, 1024, 1536, 2**28, 1.5 * 2**30)] == [
        "8 B",
        "1000 B",
        "1 KiB",
        "1.50 KiB",
        "256 MiB",
        "1.50 GiB",
    ]


def test_where_a_group_sits(answer: NetworkAnswer) -> None:
    assert where_text(answer) == "64 GPUs of h100-dgx, 8 nodes × 8"
    assert where_text(replace(answer, ranks=8, nodes=1)) == "8 GPUs of h100-dgx, one node"
    assert where_text(replace(answer, ranks=1, nodes=1)) == "1 GPU of h100-dgx"
    uneven = replace(answer, ranks=60, groups=4)
    assert where_text(uneven) == "60 GPUs of h100-dgx, 8 nodes, at most 8 on each · 4 such groups at once"


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (Topology(), ""),
        (Topology(oversubscription=4), " (fat-tree 4:1)"),
        (Topology("rail-optimised", core_oversubscription=7), " (rail-optimised, 7:1 below the cores)"),
        (Topology("torus", dimensions=(4, 2)), " (torus)"),
    ],
)
def test_a_network_that_may_be_narrow_is_named(answer: NetworkAnswer, topology: Topology, words: str) -> None:
    told = replace(answer, cluster=replace(DGX, topology=topology))
    assert where_text(told) == f"64 GPUs of h100-dgx{words}, 8 nodes × 8"


def test_how_it_runs(answer: NetworkAnswer) -> None:
    assert way_text(replace(answer, algorithm="ring", protocol="ll", channels=1)) == "ring, ll, 1 channel"
    assert way_text(replace(answer, algorithm="deepep", protocol="", channels=20, way="dispatch …")) == "deepep, 20 SMs"
    assert way_text(replace(answer, algorithm="pairs", protocol="", channels=0)) == "pairs"


def test_the_screen(answer: NetworkAnswer) -> None:
    limit = Limit("nic", "NICs (400 Gb/s each)", 0.9)
    told = replace(answer, time_s=2e-3, band_s=(1.6e-3, 2.8e-3), bound_s=1e-3, limit=limit)
    screen = screen_of(told)
    assert "2.00 ms  +800 µs −400 µs" in screen
    assert "1.00 ms, 50.0 % of the time" in screen
    assert "NICs (400 Gb/s each)" in screen
    assert screen.count("chosen") == 1
    certain = screen_of(replace(told, band_s=(2e-3, 2e-3), source_band=(1.0, 1.0)))
    assert "+" not in certain.splitlines()[1]


def test_the_bound_says_what_it_counts(answer: NetworkAnswer) -> None:
    assert "at line rate through GPUs' links, PCIe and NICs alone\n" in screen_of(answer)
    assert "at line rate through the GPUs' links\n" in screen_of(replace(answer, nodes=1))


def test_a_table_with_two_sources_marks_each_row(answer: NetworkAnswer) -> None:
    other = replace(answer, size_bytes=2**29, source="measured collectives", source_band=(0.95, 1.05))
    stream = StringIO()
    print_table(NetworkTable((answer, other)), stream)
    lines = stream.getvalue().splitlines()
    rows = [line for line in lines if "MiB " in line]
    assert [row.split()[-1] for row in rows] == ["a", "b"]
    assert any("b: measured collectives (−5 to +5 %)" in line for line in lines)


def test_an_empty_table_is_one_too() -> None:
    stream = StringIO()
    print_table(NetworkTable((), interrupted=True), stream)
    assert "0 rows are finished" in stream.getvalue()
    assert table_json(NetworkTable((), interrupted=True))["points"] == []


def test_what_varies(answer: NetworkAnswer) -> None:
    larger, wider = replace(answer, size_bytes=2**30), replace(answer, ranks=128)
    assert over_of([answer, larger]) == "size"
    assert over_of([answer, wider]) == "ranks"
    assert over_of([answer, larger, wider]) == "both"
    assert [curve.name for curve in curves_of([answer, larger, wider])] == [
        "64 ranks",
        "bound at line rates",
        "128 ranks",
        "bound at line rates",
    ]


def test_what_takes_no_time_is_not_plotted(answer: NetworkAnswer) -> None:
    alone = replace(answer, ranks=1, time_s=0.0, algbw_bytes_per_s=None, busbw_bytes_per_s=None)
    assert len(curves_of([alone, answer])[0].dots) == 1
    assert "<svg" in network_svg([alone])
    assert network_json(alone)["bound_share"] is None


def test_ways_are_compared_by_estimates(answer: NetworkAnswer) -> None:
    head = next(line for line in screen_of(answer).splitlines() if "how NCCL could run it" in line)
    assert head.count("estimate") == 2
