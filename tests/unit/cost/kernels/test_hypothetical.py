"""Prices of kernels on GPUs that change some figures of a preset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost.kernels.hypothetical import FasterKernels
from foretrace.cost.kernels.interface import PriceSources
from foretrace.cost.kernels.parameters import base_of, efficiency
from foretrace.cost.sources import gpu_pricer
from foretrace.hardware.changes import changed_cluster
from foretrace.hardware.cluster import Gpu
from foretrace.hardware.presets import cluster, gpu, names
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Stream

H100 = gpu("h100-sxm")
PRODUCT = Gemm(8192, 8192, 8192)
STREAM = Stream("elementwise", 1 << 28, 1 << 28)
ATTENTION = Attention(1, 32, 8, 8192, 8192, 128, 128, 8192 * 4096)
EXPERTS = GroupedGemm(8, 8192, 4096, 4096)


def seconds(on: Gpu, *kernels: object) -> list[float]:
    return gpu_pricer(on, PriceSources(), None).price(kernels).duration_s.tolist()  # type: ignore[arg-type]


def changed(**changes: float | str) -> Gpu:
    return changed_cluster(cluster("h100-dgx"), changes).gpu


def test_a_changed_figure_acts_on_what_it_limits_alone() -> None:
    product, stream = seconds(H100, PRODUCT, STREAM)
    faster, same = seconds(changed(flops=3.0), PRODUCT, STREAM)
    assert faster < product / 2.5
    assert same == stream
    _, half = seconds(changed(hbm=2.0), PRODUCT, STREAM)
    assert half == pytest.approx(stream / 2, rel=0.1)


def test_power_acts_through_the_frequency_up_to_the_highest() -> None:
    product, stream = seconds(H100, PRODUCT, STREAM)
    slower, same = seconds(changed(power="500W"), PRODUCT, STREAM)
    # (500 - 140) / (700 - 140) of the dynamic power is the cube of the frequency.
    assert slower / product == pytest.approx((360 / 560) ** (-1 / 3), rel=0.02)
    assert same == pytest.approx(stream, rel=0.01)
    more, most = seconds(changed(power="2000W"), PRODUCT)[0], seconds(changed(power="7000W"), PRODUCT)[0]
    assert more == most < product


@pytest.mark.parametrize("name", names("gpu"))
def test_presets_are_priced_as_themselves(name: str) -> None:
    preset = gpu(name)
    assert base_of(preset) is None
    assert base_of(replace(preset, name="mine", base=name)) == preset


def test_a_gpu_described_in_full_is_that_of_the_nearest_preset() -> None:
    copied = replace(H100, name="ours")
    assert seconds(copied, PRODUCT, STREAM) == seconds(H100, PRODUCT, STREAM)
    doubled = replace(copied, peak_flops={dtype: 2 * peak for dtype, peak in H100.peak_flops.items()})
    assert seconds(doubled, PRODUCT)[0] < 0.6 * seconds(H100, PRODUCT)[0]


def test_what_does_not_change_keeps_its_source_and_the_rest_is_less_certain() -> None:
    pricer = gpu_pricer(changed(flops=2.0), PriceSources(), None)
    usual = gpu_pricer(H100, PriceSources(), None)
    prices, before = pricer.price([PRODUCT, STREAM]), usual.price([PRODUCT, STREAM])
    assert prices.source[1] == before.source[1]
    assert prices.source[0] == before.source[0] + len(usual.sources)
    assert prices.high[0] > before.high[0] and prices.high[1] == before.high[1]
    assert np.isfinite(prices.duration_s).all()


def test_the_frequency_never_exceeds_the_highest() -> None:
    constants = efficiency(changed(power="7000W"))
    assert max(constants.sustained.values()) <= 1.0
    assert constants.clock_hz <= constants.most_clock_hz


def test_kernels_of_a_kind_can_be_faster() -> None:
    usual = gpu_pricer(H100, PriceSources(), None)
    kernels = [PRODUCT, EXPERTS, ATTENTION, STREAM]
    ratio = FasterKernels(usual, {"gemm": 2.0, "attention": 4.0}).price(kernels).duration_s
    assert (ratio / usual.price(kernels).duration_s).tolist() == pytest.approx([0.5, 0.5, 0.25, 1.0])
