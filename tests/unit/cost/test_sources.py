"""Which sources a cluster's prices come from."""

from __future__ import annotations

import pytest

from foretrace.cost.kernels.clocks import slowest
from foretrace.cost.kernels.silicon_kernels import KERNEL_SYSTEMS
from foretrace.cost.network.silicon_collectives import NETWORK_SYSTEMS
from foretrace.cost.sources import PriceSources, kernel_prices
from foretrace.hardware import presets
from foretrace.program.kernels import Gemm

H100 = presets.cluster("h100-dgx")


def test_a_job_of_many_gpus_pays_for_the_slowest() -> None:
    one, many = (
        kernel_prices(H100, world, PriceSources("model")).price([Gemm(4096, 4096, 4096)]) for world in (1, 512)
    )
    assert many.duration_s == pytest.approx(one.duration_s * slowest(512))


def test_the_roofline_is_of_no_gpu_in_particular() -> None:
    one, many = (
        kernel_prices(H100, world, PriceSources("roofline")).price([Gemm(4096, 4096, 4096)]) for world in (1, 512)
    )
    assert many.duration_s == one.duration_s


@pytest.mark.parametrize("name", sorted({*KERNEL_SYSTEMS, *NETWORK_SYSTEMS}))
def test_every_gpu_with_tables_is_a_preset(name: str) -> None:
    assert presets.gpu(name).name == name
