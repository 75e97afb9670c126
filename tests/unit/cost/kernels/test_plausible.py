"""Measured kernels that their GPU cannot run in that time are left out, and those far off the model are reported."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.cost.kernels.model import floor_s, peak_flops
from foretrace.cost.kernels.plausible import plausible_kernels
from foretrace.hardware.presets import gpu
from foretrace.program.kernels import Gemm, Kernel, Stream

H100 = gpu("h100-sxm")
PRODUCT = Gemm(8192, 8192, 8192)
COPY = Stream("copy", read=1 << 30, write=1 << 30)


@pytest.mark.parametrize(
    ("kernel", "least_s", "part", "usable"),
    [
        (PRODUCT, PRODUCT.flops / peak_flops(H100, "bf16"), 0.93, True),  # the highest clock is 8 % above the boost
        (PRODUCT, PRODUCT.flops / peak_flops(H100, "bf16"), 0.8, False),
        (COPY, float(floor_s(H100, [COPY])[0]), 0.6, True),
        (COPY, float(floor_s(H100, [COPY])[0]), 0.4, False),
    ],
)
def test_times_that_a_gpu_can_reach(kernel: Kernel, least_s: float, part: float, usable: bool) -> None:
    seconds = np.array([part * least_s])
    mask, notes = plausible_kernels(H100, [kernel], seconds, seconds, "my.profile")
    assert mask.tolist() == [usable]
    assert [note.code for note in notes] == ([] if usable else ["beats-peak"])


@pytest.mark.parametrize(("factor", "codes"), [(9.0, []), (11.0, ["off-model"]), (1 / 11, ["off-model"])])
def test_times_off_the_model_are_used_and_reported(factor: float, codes: list[str]) -> None:
    seconds = np.array([1.0])
    mask, notes = plausible_kernels(H100, [PRODUCT], seconds, seconds / factor, "my.profile")
    assert mask.all() and [note.code for note in notes] == codes
