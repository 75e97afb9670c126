"""Gates of calibrated prices: measured kernels take what they took, and twice the work never takes less."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost.calibration import Calibration
from foretrace.cost.kernels.calibrated import CalibratedPricer
from foretrace.cost.kernels.clocks import clock_of
from foretrace.cost.kernels.kernel_profile import KernelProfile
from foretrace.cost.kernels.pricer import kernel_pricer
from foretrace.hardware import presets
from foretrace.program.kernels import Attention, Gemm, Kernel, Stream

GPU = presets.gpu("h200-sxm")
MODEL = kernel_pricer(GPU, prices="model")
SIZES = st.sampled_from([2**n for n in range(7, 16)])
LAYOUTS = st.sampled_from(["tn", "nn", "nt"])
KERNELS = st.one_of(
    st.builds(Gemm, SIZES, SIZES, SIZES, layout=LAYOUTS),
    st.builds(
        Stream, st.sampled_from(["add", "cat_strided", "rmsnorm"]), SIZES.map(lambda n: n * 4096), st.just(2**20)
    ),
    st.builds(
        lambda q, heads, backward: Attention(1, heads, heads, q, q, 128, 128, q * q // 2, backward),
        SIZES,
        st.sampled_from([8, 32]),
        st.booleans(),
    ),
)
FACTORS = st.floats(0.75, 1.35)


def pricer(times: dict[Kernel, float]) -> CalibratedPricer:
    kernels = tuple(times)
    seconds = MODEL.price(kernels).duration_s * np.array(list(times.values()))
    unknown = np.zeros(len(kernels))
    profile = KernelProfile({}, kernels, seconds, seconds, unknown, unknown)
    return CalibratedPricer(MODEL, Calibration("my.yaml", GPU.name, kernels=profile), GPU)


@given(st.dictionaries(KERNELS, FACTORS, min_size=1, max_size=12))
def test_a_calibration_prices_its_own_kernels_exactly(measured: dict[Kernel, float]) -> None:
    kernels = list(measured)
    found = pricer(measured).price(kernels)
    expected = MODEL.price(kernels).duration_s * np.array(list(measured.values()))
    assert found.duration_s.tolist() == expected.tolist()
    assert (found.source == 0).all()
    assert ((found.low < 1) & (found.high > 1)).all()


@given(st.dictionaries(KERNELS, FACTORS, min_size=1, max_size=12), KERNELS)
def test_no_price_leaves_what_was_seen(measured: dict[Kernel, float], kernel: Kernel) -> None:
    """The factor on a kernel lies between 1 and those that were measured."""
    found = pricer(measured).price([kernel])
    usual = MODEL.price([kernel])
    factor = found.duration_s[0] / usual.duration_s[0]
    seen = [1.0, *measured.values()]
    assert min(seen) - 1e-6 <= factor <= max(seen) + 1e-6


@given(st.dictionaries(st.builds(Gemm, SIZES, SIZES, SIZES), FACTORS, min_size=1, max_size=8), SIZES, SIZES, SIZES)
def test_twice_the_work_never_takes_less(measured: dict[Gemm, float], m: int, n: int, k: int) -> None:
    """Of products that fill a GPU; factors of neighbours may differ by nearly two."""
    sizes = [Gemm(m * 4 * 2**i, max(n, 4096), max(k, 4096)) for i in range(5)]
    seconds = pricer(dict(measured)).price(sizes).duration_s
    assert (np.diff(seconds) > 0).all()


@given(st.floats(0.0, 0.9), st.floats(0.01, 5.0), st.floats(0.0, 1.0))
def test_what_draws_more_leaves_a_lower_clock(fixed: float, dynamic: float, more: float) -> None:
    assert 0 < clock_of(fixed, dynamic + more) <= clock_of(fixed, dynamic) <= 1
    assert clock_of(fixed + more, dynamic) <= clock_of(fixed, dynamic)
