"""Which sources a cluster's prices come from."""

from __future__ import annotations

import pytest

from foretrace.cost.compute.parameters import efficiency
from foretrace.cost.compute.silicon import KERNEL_SYSTEMS
from foretrace.cost.compute.slowest import slowest
from foretrace.cost.network.silicon import NETWORK_SYSTEMS, silicon_collectives
from foretrace.cost.silicon import SYSTEMS, installed
from foretrace.cost.sources import collective_prices, kernel_prices
from foretrace.hardware import presets
from foretrace.program.columns import Collective
from foretrace.program.kernels import Gemm

H100 = presets.cluster("h100-dgx")
tables = pytest.mark.skipif(not installed(), reason="the extra [silicon] is not installed")


def test_a_job_of_many_gpus_pays_for_the_slowest() -> None:
    one, many = (kernel_prices(H100, world, "model").price([Gemm(4096, 4096, 4096)]) for world in (1, 512))
    assert many.duration_s == pytest.approx(one.duration_s * slowest(512))


def test_the_roofline_is_of_no_gpu_in_particular() -> None:
    one, many = (kernel_prices(H100, world, "roofline").price([Gemm(4096, 4096, 4096)]) for world in (1, 512))
    assert many.duration_s == one.duration_s


@pytest.mark.parametrize("name", sorted({*KERNEL_SYSTEMS, *NETWORK_SYSTEMS}))
def test_every_gpu_with_tables_is_a_preset(name: str) -> None:
    assert presets.gpu(name).name == name


@tables
def test_collectives_are_measured_only_where_the_best_prices_are_asked_for() -> None:
    assert collective_prices(H100) is not None
    assert collective_prices(H100, "model") is None
    assert collective_prices(H100, silicon=False) is None


@tables
@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_nccl_tables_are_of_one_node_and_never_fall(name: str) -> None:
    found = silicon_collectives(presets.gpu(name))
    assert found is not None
    assert {table.collective for table in found.tables} >= {Collective.ALL_REDUCE, Collective.ALL_GATHER}
    for table in found.tables:
        assert 2 <= table.gpus <= 8
        assert (table.time_s[1:] >= table.time_s[:-1]).all()


@tables
def test_nccl_is_as_much_slower_as_training_lowers_the_clock() -> None:
    full, less = (presets.gpu(name) for name in ("h100-sxm", "h100-96g-500w"))
    usual, slower = (silicon_collectives(gpu) for gpu in (full, less))
    assert usual is not None and slower is not None
    ratio = slower.tables[0].time_s / usual.tables[0].time_s
    assert ratio == pytest.approx(efficiency(full).clock_hz / efficiency(less).clock_hz)
    assert ratio.min() > 1.05, "500 W sustain a lower clock than 700 W"


def test_links_that_were_cut_have_no_tables() -> None:
    assert silicon_collectives(presets.gpu("h800-sxm")) is None
