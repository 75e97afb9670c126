"""Of many GPUs the slowest sets the pace."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.clocks import SPREAD, SlowestPricer, slowest
from foretrace.hardware import presets
from foretrace.program.kernels import Attention, Copy, Gemm, Kernel, Stream


def test_one_gpu_is_as_fast_as_the_middling_one() -> None:
    assert slowest(1) == 1.0


@pytest.mark.parametrize("gpus", [2, 8, 512, 16384])
def test_the_slowest_is_as_the_largest_of_so_many_draws(gpus: int) -> None:
    drawn = np.random.default_rng(0).normal(1.0, SPREAD, (4000, gpus) if gpus < 1000 else (200, gpus))
    assert slowest(gpus) == pytest.approx(drawn.max(axis=1).mean(), abs=0.002)
    assert slowest(2 * gpus) > slowest(gpus)


def test_kernels_that_compute_take_longer_and_streams_do_not() -> None:
    alone = kernel_pricer(presets.gpu("h200-sxm"), "model")
    of_many = SlowestPricer(alone, 512)
    kernels: list[Kernel] = [
        Gemm(4096, 4096, 4096),
        Attention(1, 32, 8, 4096, 4096, 128, 128, 4096**2 // 2),
        Stream("add", 10**8, 10**8),
        Copy(10**8),
    ]
    ratio = of_many.price(kernels).duration_s / alone.price(kernels).duration_s
    assert ratio == pytest.approx([slowest(512), slowest(512), 1.0, 1.0])
    assert of_many.sources == alone.sources
    assert of_many.notes[-1].code == "slowest-gpu" and "512 GPUs" in of_many.notes[-1].message
