"""Recorded times to those of full clocks and of a long run."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.calibrate.sustained import at_clocks
from foretrace.cost.kernels.model import EfficiencyModel
from foretrace.cost.kernels.parameters import efficiency
from foretrace.hardware import presets
from foretrace.program.kernels import Gemm, Stream

H200 = EfficiencyModel(presets.gpu("h200-sxm"), efficiency(presets.gpu("h200-sxm")))
KERNELS = [Gemm(8192, 8192, 4096), Gemm(8192, 4096, 8192, layout="nt"), Stream("add", 2**28, 2**27)]


def test_a_burst_is_slowed_down_to_a_long_run() -> None:
    burst, sustained = H200.seconds(KERNELS, sustained=False), H200.seconds(KERNELS)
    found = at_clocks(KERNELS, burst, H200, by_power=1.0)
    assert found.slower == pytest.approx(1.0)
    assert found.burst_s == pytest.approx(burst)
    assert found.sustained_s == pytest.approx(sustained)


def test_a_long_run_stays_as_it_is() -> None:
    burst, sustained = H200.seconds(KERNELS, sustained=False), H200.seconds(KERNELS)
    found = at_clocks(KERNELS, sustained, H200, by_power=float(sustained[0] / burst[0]))
    assert found.sustained_s == pytest.approx(sustained, rel=0.01)
    assert found.burst_s == pytest.approx(burst, rel=0.01)
    assert found.slower == pytest.approx(sustained[0] / burst[0], rel=0.01)


def test_what_both_do_not_explain_is_the_machine_s() -> None:
    burst = H200.seconds(KERNELS, sustained=False)
    found = at_clocks(KERNELS, 0.9 * burst, H200, by_power=1.0)
    assert found.burst_s == pytest.approx(0.9 * burst), "faster than any clock: not the clock"


def test_power_weighs_more_than_the_model_of_which_all_products_may_be_off() -> None:
    """Variances of 3 % and of 4 %: power has 16 parts of 25."""
    burst, by_power = H200.seconds(KERNELS, sustained=False), 1.1
    found = at_clocks(KERNELS, burst, H200, by_power=by_power)
    assert found.slower == pytest.approx(by_power ** (16 / 25))


def test_streams_keep_their_time() -> None:
    seconds = np.array([1e-3])
    found = at_clocks(KERNELS[2:], seconds, H200, by_power=1.1)
    assert (found.sustained_s[0], found.burst_s[0], found.slower) == (1e-3, 1e-3, 1.0)
