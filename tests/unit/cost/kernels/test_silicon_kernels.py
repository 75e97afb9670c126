"""NVIDIA's tables, where they are installed."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.cost.kernels import silicon_kernels as silicon
from foretrace.cost.kernels.pricer import kernel_pricer
from foretrace.cost.silicon import installed
from foretrace.hardware import presets
from foretrace.program.kernels import Gemm

pytestmark = pytest.mark.skipif(not installed(), reason="the extra [silicon] is not installed")


def test_rows_are_distinct_and_sane() -> None:
    kernels, seconds = silicon.gemm_table("h100_sxm", "bf16")
    assert len(kernels) == len(set(kernels)) > 5000
    rates = np.array([one.flops for one in kernels]) / seconds
    assert rates.max() < presets.gpu("h100-sxm").peak_flops["bf16"]


def test_repeated_rows_count_once_by_their_median() -> None:
    keys = np.array([[2, 1], [1, 1], [2, 1], [0, 1], [2, 1]])
    assert silicon._medians(keys, np.array([3.0, 5.0, 9.0, 1.0, 4.0]))[0] == [(1, 1), (2, 1)]
    assert silicon._medians(keys, np.array([3.0, 5.0, 9.0, 1.0, 4.0]))[1].tolist() == [5.0, 4.0]


def test_newer_versions_first() -> None:
    assert sorted(["1.0.0", "1.3.0rc20", "1.3.0rc5", "0.24.0"], key=silicon._version)[-1] == "1.3.0rc20"


def test_a_dtype_that_is_not_there_has_no_rows() -> None:
    assert silicon.gemm_table("a100_sxm", "fp8")[0] == ()
    assert silicon.gemm_table("h100_sxm", "mxfp8")[0] == ()


def test_the_table_prices_its_own_shapes() -> None:
    kernels, seconds = silicon.gemm_table("a100_sxm", "bf16")
    pricer = kernel_pricer(presets.gpu("a100-80g-sxm"), silicon=True)
    priced = pricer.price([Gemm(8192, 8192, 8192)])
    assert priced.duration_s[0] == pytest.approx(seconds[kernels.index(Gemm(8192, 8192, 8192))], rel=0.05)
    assert "NVIDIA" in pricer.sources[int(priced.source[0])].name
    assert priced.low[0] > 0.85


def test_a_burst_is_not_sustained() -> None:
    # The B200 table has 1,450 TFLOP/s for a short while; published products that run back to back 1,000 to 1,240.
    priced = kernel_pricer(presets.gpu("b200"), silicon=True).price([Gemm(8192, 8192, 8192)])
    assert 1000e12 < 2 * 8192**3 / priced.duration_s[0] < 1240e12


def test_a_siblings_profile_comes_before_the_tables() -> None:
    pricer = kernel_pricer(presets.gpu("h100-sxm"), silicon=True)
    priced = pricer.price([Gemm(8192, 8192, 8192)])
    assert "kernel profile h200-sxm" in pricer.sources[int(priced.source[0])].name
