"""Which measured collectives come before the model, and in what order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace import Machine
from foretrace.cost.kernels.parameters import efficiency
from foretrace.cost.network import MeasuredNetwork, Network, network_of
from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.cost.network.nccl_tests.records import Measurements, MeasurementTable
from foretrace.cost.network.silicon_collectives import NAME, silicon_collectives, slowdown_in_training
from foretrace.cost.silicon import SYSTEMS, installed
from foretrace.cost.sources import measured_collectives
from foretrace.hardware import presets
from foretrace.program.columns import Collective

H100 = presets.cluster("h100-dgx")
AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
tables = pytest.mark.skipif(not installed(), reason="the extra [silicon] is not installed")


def measured(name: str, *tables: tuple[Collective, int, float]) -> Measurements:
    """Tables of one node in which a call of 1 MiB takes so many seconds, and one of 1 GiB a thousand times that."""
    size = np.array([2.0**20, 2.0**30])
    found = tuple(
        MeasurementTable(what, gpus, 1, size, np.array([1.0, 1e3]) * time_s, (name,)) for what, gpus, time_s in tables
    )
    return Measurements((), found, name=name, source=name)


def priced(network: Network, what: Collective, ranks: int) -> tuple[float, str]:
    (layout,), _ = network.layouts(np.arange(ranks)[None])
    found = network.price(what, layout, np.array([2.0**20]))
    return float(found.duration_s[0]), network.sources[int(found.source[0])].name


@tables
def test_nvidias_tables_count_only_where_the_best_prices_are_asked_for() -> None:
    assert [one.source for one in measured_collectives(H100)] == [NAME]
    assert measured_collectives(H100, prices="model") == ()
    assert measured_collectives(H100, silicon=False) == ()
    assert measured_collectives(H100, forced=Forced.of("ring")) == (), "they are of what NCCL chooses by itself"


@tables
def test_a_users_measurements_come_first(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,50\nall_reduce,8,1,8388608,90\n")
    own = read_measurements(path)
    assert [one.source for one in measured_collectives(H100, own)] == ["measured collectives", NAME]
    assert [one.source for one in measured_collectives(H100, own, "model")] == ["measured collectives"]


def test_each_source_prices_what_the_better_ones_do_not_cover() -> None:
    own, general = measured("own", (AR, 8, 50e-6)), measured("general", (AR, 8, 70e-6), (AG, 8, 30e-6))
    network = network_of(H100, 16, measured=(own, general))
    assert priced(network, AR, 8) == (50e-6, "own")
    assert priced(network, AG, 8) == (pytest.approx(30e-6), "general")
    assert priced(network, RS, 8)[1] == "network model, anchored to own"
    assert priced(network, AR, 16)[1] == f"network model of {H100.name}"


def test_other_sizes_of_a_group_are_anchored_to_the_users() -> None:
    own, general = measured("own", (AR, 8, 50e-6)), measured("general", (AR, 8, 100e-6), (AR, 4, 60e-6))
    network = network_of(H100, 16, measured=(own, general))
    time, source = priced(network, AR, 4)
    assert time == pytest.approx(30e-6), "what the other table says, as much faster as the user's machine is"
    assert source == "network model, anchored to own"


def test_the_order_of_sources_is_that_of_their_numbers() -> None:
    own, general = measured("own", (AR, 8, 50e-6)), measured("general", (AG, 8, 30e-6))
    network = network_of(H100, 16, measured=(own, general))
    assert [one.name for one in network.sources] == [
        f"network model of {H100.name}",
        f"network model of {H100.name}, all-to-all over NICs",
        "general",
        "network model, anchored to general",
        "own",
        "network model, anchored to own",
    ]
    (layout,), _ = network.layouts(np.arange(8)[None])
    assert network.explain(AG, layout, 2.0**20).algorithm == "measured"


def test_what_everybody_knows_not_to_be_measured_is_not_said() -> None:
    own = measured("own", (AR, 8, 50e-6))
    loud, quiet = (network_of(H100, 16, measured=one) for one in (own, replace(own, partial=True)))
    for network in (loud, quiet):
        priced(network, AR, 16)
    assert any("16 GPUs over nodes" in note.message for note in loud.notes)
    assert quiet.notes == ()


def test_what_beats_the_line_rates_is_said_even_of_partial_tables() -> None:
    network = network_of(H100, 16, measured=replace(measured("own", (AR, 8, 1e-9)), partial=True))
    assert any(note.code == "beats-line-rate" for note in network.notes)


@tables
@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_nccl_tables_are_of_one_node_and_never_fall(name: str) -> None:
    found = silicon_collectives(presets.gpu(name))
    assert found is not None and found.partial
    assert {table.collective for table in found.tables} >= {AR, AG}
    for table in found.tables:
        assert 2 <= table.gpus <= 8
        assert (table.time_s[1:] >= table.time_s[:-1]).all()


def test_training_slows_nccl_by_what_it_lowers_the_clock() -> None:
    full, less = (presets.gpu(name) for name in ("h100-sxm", "h100-96g-500w"))
    ratio = slowdown_in_training(less) / slowdown_in_training(full)
    assert ratio == pytest.approx(efficiency(full).clock_hz / efficiency(less).clock_hz)
    assert ratio > 1.05, "500 W sustain a lower clock than 700 W"


@tables
def test_tables_are_as_much_slower_as_the_sms() -> None:
    gpu = presets.gpu("h100-sxm")
    usual, slower = silicon_collectives(gpu), silicon_collectives(gpu, 1.25)
    assert usual is not None and slower is not None
    assert slower.tables[0].time_s / usual.tables[0].time_s == pytest.approx(1.25)


def test_links_that_were_cut_have_no_tables() -> None:
    assert silicon_collectives(presets.gpu("h800-sxm")) is None
    assert silicon_collectives(replace(presets.gpu("h100-sxm"), link_bytes_per_s=200e9)) is None


def changed(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mine.yaml"
    gpu = "".join(f"    {line}\n" for line in ("based_on: h100-sxm", *lines))
    path.write_text(f"node:\n  based_on: dgx-h100\n  gpu:\n{gpu}")
    return path


@tables
def test_a_gpu_that_was_changed_elsewhere_keeps_the_tables_of_its_links(tmp_path: Path) -> None:
    kept = presets.cluster(str(changed(tmp_path, "memory: 96GiB"))).gpu
    assert (kept.name, kept.base) == ("h100-sxm-changed", "h100-sxm")
    assert silicon_collectives(kept) is not None


@tables
def test_tables_are_converted_to_links_that_were_changed(tmp_path: Path) -> None:
    size_bytes = np.array([1e6, 1e8, 1e9])
    times = []
    for lines in ("memory: 96GiB", "links: 9"):
        network = Machine(changed(tmp_path, lines)).network_of(8)
        layout = network.layouts(np.arange(8)[None])[0][0]
        times.append(network.price(Collective.ALL_GATHER, layout, size_bytes))
    whole, half = times
    assert (half.source == whole.source).all()
    assert half.duration_s[-1] == pytest.approx(2 * whole.duration_s[-1], rel=0.15)


def test_no_measurements_no_measured_network() -> None:
    assert not isinstance(network_of(H100, 16), MeasuredNetwork)
    assert not isinstance(network_of(H100, 16, measured=()), MeasuredNetwork)
