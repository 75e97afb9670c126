"""What ways of bringing tokens to experts take, beside NCCL's all-to-all and DeepEP's published figures."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network import Network, network_of
from foretrace.cost.network.experts import explain_call, limit_call, one_island, price_call
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import machine_of
from foretrace.cost.network.nccl_tests.records import Measurements, MeasurementTable
from foretrace.hardware.presets import cluster
from foretrace.program.columns import Collective
from foretrace.program.dispatch import STYLES, Dispatch, dispatch_text
from shared_files import shared

TO_ALL = Collective.ALL_TO_ALL
SIZES = np.array([1e6, 1e8])


def _on(name: str, ranks: int) -> tuple[Network, GroupLayout]:
    network = network_of(cluster(name), ranks)
    layout = network.layouts(np.arange(ranks)[None])[0][0]
    assert isinstance(layout, GroupLayout)
    return network, layout


def _way(style: str, groups: int = 1, chosen: int = 1) -> str:
    return dispatch_text(Dispatch(style, 256, 8, groups, chosen))


def test_without_a_way_it_is_the_networks_own() -> None:
    network, layout = _on("h100-dgx", 16)
    assert price_call(network, TO_ALL, layout, SIZES).duration_s.tolist() == pytest.approx(
        network.price(TO_ALL, layout, SIZES).duration_s.tolist()
    )


@pytest.mark.parametrize("style", STYLES)
def test_one_rank_sends_nothing(style: str) -> None:
    network, layout = _on("h100-dgx", 1)
    assert price_call(network, TO_ALL, layout, SIZES, _way(style)).duration_s.tolist() == [0, 0]


def test_deepep_crosses_nics_once_for_each_node_met() -> None:
    """Two nodes: of the 6.52 ranks a token meets, 1.99 nodes; half of that leaves the node."""
    network, layout = _on("h100-dgx", 16)
    one = Dispatch("deepep", 256, 8)
    drawn = dict(explain_call(network, TO_ALL, layout, 1e9, _way("deepep")).draws)
    assert drawn["nic"] == pytest.approx(1e9 * one.destinations(2) / one.destinations(16) / 2)
    assert drawn["link"] == pytest.approx(1e9 * 7 / 8)


def test_limited_routing_spares_nics() -> None:
    network, layout = _on("h100-dgx", 64)
    tokens = 4096 * 7168 * 2
    free, limited = (
        price_call(network, TO_ALL, layout, np.array([tokens * one.given(64)]), dispatch_text(one)).duration_s[0]
        for one in (Dispatch("deepep", 256, 8), Dispatch("deepep", 256, 8, 8, 4))
    )
    assert limited < 0.8 * free


def test_within_a_node_deepep_needs_no_nic() -> None:
    network, layout = _on("h100-dgx", 8)
    told = explain_call(network, TO_ALL, layout, 1e9, _way("deepep"))
    assert told.draws == (("link", pytest.approx(1e9 * 7 / 8)),)
    assert (told.algorithm, told.channels) == ("deepep", 20)
    assert limit_call(network, TO_ALL, layout, 1e9, _way("deepep")).kind == "nvlink"


def test_low_latency_goes_over_nics_within_a_node_too() -> None:
    network, layout = _on("h800-hgx", 8)
    told = explain_call(network, TO_ALL, layout, 1e9, _way("low_latency"))
    assert told.draws == (("nic", pytest.approx(1e9 * 7 / 8)),)
    assert (told.algorithm, told.channels) == ("low-latency", 0)
    assert limit_call(network, TO_ALL, layout, 1e9, _way("low_latency")).kind == "nic"


def test_ranks_first_agree_on_counts_but_in_low_latency() -> None:
    network, layout = _on("h100-dgx", 8)
    machine = machine_of(cluster("h100-dgx").gpu)
    told = explain_call(network, TO_ALL, layout, 1e6, _way("deepep"))
    assert told.latency_s == pytest.approx(2 * (machine.launch_s + machine.simple_step_s))
    told = explain_call(network, TO_ALL, layout, 1e6, _way("low_latency"))
    assert told.latency_s == pytest.approx(machine.launch_s + machine.step_scale * 17e-6)  # NCCL's table: 14 + 3 µs


def test_a_narrow_network_slows_dispatches_too() -> None:
    network, layout = _on("h100-dgx", 16)
    crowded = replace(layout, exchange_crowding=3.0)
    free, slow = (explain_call(network, TO_ALL, one, 1e9, _way("deepep")) for one in (layout, crowded))
    assert slow.time_s - slow.latency_s == pytest.approx(3 * dict(free.draws)["nic"] / (0.9 * 50e9))
    assert limit_call(network, TO_ALL, layout, 1e9, _way("deepep")).kind == "nic"
    assert limit_call(network, TO_ALL, crowded, 1e9, _way("deepep")).kind == "uplink"
    assert limit_call(network, TO_ALL, layout, 1e3, _way("deepep")).kind == "latency"


def test_two_steps_follow_each_other() -> None:
    network, layout = _on("h100-dgx", 32)
    told = explain_call(network, TO_ALL, layout, 1e9, _way("hierarchical"))
    whole = price_call(network, TO_ALL, layout, np.array([1e9]), _way("hierarchical"))
    drawn = dict(told.draws)
    assert told.time_s == pytest.approx(whole.duration_s[0])
    assert told.algorithm == "hierarchical"
    assert drawn["link"] == pytest.approx(1e9 * 7 / 8)
    assert drawn["nic"] == pytest.approx(1e9 * 3 / 4)
    apart = [network.price(TO_ALL, part, np.array([1e9])).duration_s[0] for part in _parts(32, 8)]
    assert whole.duration_s[0] == pytest.approx(sum(apart))


def _parts(ranks: int, node: int) -> list[GroupLayout]:
    """The groups of the two steps: a node, and one rank of each."""
    nodes = ranks // node
    return [GroupLayout(node, 1, 1, node, node, node, node, 1.0), GroupLayout(nodes, nodes, nodes, 1, 1, 1, 1, 1.0)]


def test_what_was_measured_of_nccl_does_not_touch_kernels_of_others() -> None:
    table = MeasurementTable(TO_ALL, 8, 1, np.array([1e3, 1e9]), np.array([1.0, 2.0]), ("slow.log",))
    measured = network_of(cluster("h100-dgx"), 8, measured=Measurements((), (table,), name="slow", source="slow"))
    network, layout = _on("h100-dgx", 8)
    deepep, two = (price_call(measured, TO_ALL, layout, SIZES, _way(style)) for style in ("deepep", "hierarchical"))
    assert deepep.duration_s.tolist() == price_call(network, TO_ALL, layout, SIZES, _way("deepep")).duration_s.tolist()
    assert [measured.sources[number].name for number in deepep.source] == ["network model of h100-dgx"] * 2
    assert (two.duration_s >= 1).all(), "two steps are NCCL's own"


def test_a_way_is_of_an_all_to_all() -> None:
    network, layout = _on("h100-dgx", 16)
    with pytest.raises(InputError) as caught:
        price_call(network, Collective.ALL_GATHER, layout, SIZES, _way("deepep"))
    assert caught.value.code == "unknown-collective"


def _published() -> list[tuple[str, str, float]]:
    """Rows of DeepEP's READMEs: (release, kind, measured over modelled)."""
    with shared("data", "collectives", "nccl_busbw.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["collective"].startswith("moe_all2all")]
    return [(row["source"][-7:], row["collective"], _measured(row) / _modelled(row)) for row in rows]


def _setting(row: dict[str, str]) -> tuple[Dispatch, int, float]:
    """How tokens go, how many, and the bytes of one: dispatch in fp8 with a scale for each 128, combine in bf16."""
    nodes = int(row["nodes"])
    size = 7168 * (1 + 4 / 128) if "dispatch" in row["collective"] else 7168 * 2
    if "lowlat" in row["collective"]:
        return Dispatch("low_latency", 256, 8), 128, size
    return Dispatch("deepep", 256, 8, nodes, min(4, nodes)), 4096 if "H800" in row["hardware"] else 8192, size


def _measured(row: dict[str, str]) -> float:
    """READMEs count bytes that stay in the node, or on the GPU, as if they crossed NICs, or links."""
    if row["time_us"]:
        return float(row["time_us"]) * 1e-6
    one, tokens, size = _setting(row)
    met = one.destinations(int(row["nodes"]) if int(row["nodes"]) > 1 else int(row["gpus"]))
    return tokens * size * met / float(row["busbw_GBps"]) / 1e9


def _modelled(row: dict[str, str]) -> float:
    words = {"H800": "h800-hgx", "Blackwell": "b200-dgx"}
    network, layout = _on(next((words[one] for one in words if one in row["hardware"]), "h100-dgx"), int(row["gpus"]))
    one, tokens, size = _setting(row)
    given = np.array([tokens * size * one.given(layout.size)])
    return float(price_call(network, TO_ALL, layout, given, dispatch_text(one)).duration_s[0])


def test_published_figures_of_deepep() -> None:
    """The dispatches between two nodes of the second release gave what NICs reach, the rest is judged by it. The first
    release did not keep its NICs busy."""
    rows = _published()
    low_latency = [ratio for _, kind, ratio in rows if "lowlat" in kind]
    first = [ratio for release, kind, ratio in rows if release == "e130cc6" and "lowlat" not in kind]
    second = [ratio for release, _, ratio in rows if release == "dd758ca"]
    assert (len(low_latency), len(first), len(second)) == (12, 8, 10)
    assert min(low_latency) > 0.9
    assert max(low_latency) < 1.1
    assert min(second) > 0.9
    assert max(second) < 1.2
    assert min(first) > 1.0
    assert max(first) < 1.4
    assert float(np.median([ratio for *_, ratio in rows])) == pytest.approx(1.0, abs=0.1)


def _hybridep(sms: int = 0) -> str:
    return dispatch_text(Dispatch("hybridep", 256, 8, sms=sms))


def _received_per_s(name: str, ranks: int, sms: int = 0) -> float:
    """Returns the bytes per second that a rank receives, those of its own included."""
    network, layout = _on(name, ranks)
    told = explain_call(network, TO_ALL, layout, 1e9, _hybridep(sms))
    assert told.bound_s <= told.time_s - told.latency_s, "never above the links"
    return 1e9 / (told.time_s - told.latency_s)


@pytest.mark.parametrize(
    ("ranks", "sms", "rate"),
    [(8, 16, 717e9), (16, 16, 631.5e9), (36, 16, 578e9), (8, 32, 750.5e9), (32, 32, 623.5e9), (8, 24, 733.75e9)],
)
def test_hybridep_in_a_rack_as_published(ranks: int, sms: int, rate: float) -> None:
    assert _received_per_s("gb200-nvl72", ranks, sms) == pytest.approx(rate)


def test_a_b200_receives_as_published() -> None:
    assert _received_per_s("b200-dgx", 8, 16) == pytest.approx(704.5e9, rel=0.03)


@pytest.mark.parametrize("sms", [0, 16, 20, 32])
def test_hybridep_is_slower_among_more_ranks(sms: int) -> None:
    rates = [_received_per_s("gb200-nvl72", ranks, sms) for ranks in (8, 12, 16, 24, 32, 36, 48, 64, 72)]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == len(rates)
    few = [_received_per_s("gb200-nvl72", ranks, sms) for ranks in (2, 4, 8)]
    assert few == pytest.approx([few[-1]] * 3), "what is not known below 8 ranks is as with 8"


@pytest.mark.parametrize("ranks", [8, 36, 72])
def test_hybridep_is_faster_with_more_sms(ranks: int) -> None:
    rates = [_received_per_s("gb200-nvl72", ranks, sms) for sms in (16, 20, 24, 32)]
    assert rates == sorted(rates) and len(set(rates)) == len(rates)
    assert _received_per_s("gb200-nvl72", ranks) == _received_per_s("gb200-nvl72", ranks, 8) == rates[0]
    assert _received_per_s("gb200-nvl72", ranks, 64) == rates[-1]


def test_hybridep_holds_the_sms_of_its_way() -> None:
    network, layout = _on("gb200-nvl72", 8)
    held = [explain_call(network, TO_ALL, layout, 1e6, _hybridep(sms)).channels for sms in (0, 16, 32)]
    assert held == [16, 16, 32]


def test_hybridep_within_a_hopper_node_is_as_fast_as_deepep() -> None:
    network, layout = _on("h100-dgx", 8)
    both = [explain_call(network, TO_ALL, layout, 1e9, way).time_s for way in (_way("deepep"), _hybridep(32))]
    assert both[0] == both[1]


def test_nics_decide_where_hybridep_leaves_its_rack() -> None:
    network, layout = _on("gb200-nvl72", 144)
    told = explain_call(network, TO_ALL, layout, 1e9, _hybridep(32))
    assert limit_call(network, TO_ALL, layout, 1e9, _hybridep(32)).kind == "nic"
    over_nics_s = dict(told.draws)["nic"] / (0.9 * 50e9)
    within = explain_call(network, TO_ALL, one_island(layout), 1e9, _hybridep(32))
    assert over_nics_s < told.time_s - told.latency_s
    assert told.time_s < np.hypot(over_nics_s, within.time_s) + told.latency_s, "squares of both times add up"
