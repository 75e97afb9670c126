"""Gates of modelled kernel prices: finite, above the datasheet's roofline, and never less for more work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost.kernels.model import EfficiencyModel, floor_s
from foretrace.cost.kernels.parameters import efficiency
from foretrace.cost.kernels.pricer import kernel_pricer
from foretrace.hardware import presets
from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel, Stream

GPUS = ("a100-80g-sxm", "h100-sxm", "h20", "b200", "mi300x")
MODELS = {name: EfficiencyModel(presets.gpu(name), efficiency(presets.gpu(name))) for name in GPUS}
SIZES = st.integers(1, 2**20)
DTYPES = st.sampled_from(["bf16", "fp8", "fp8_block", "mxfp8", "nvfp4", "fp32"])
LAYOUTS = st.sampled_from(["tn", "nn", "nt"])
BACKENDS = st.sampled_from(["flash1", "flash2", "flash3", "cudnn"])
HEADS = st.sampled_from([32, 64, 80, 128, 192, 256])

GEMMS = st.builds(Gemm, SIZES, SIZES, SIZES, DTYPES, LAYOUTS, st.integers(1, 4096))
GROUPED = st.builds(
    GroupedGemm, st.integers(1, 256), SIZES, SIZES, SIZES, DTYPES, LAYOUTS, separate=st.booleans(), out=st.just("bf16")
)
ATTENTION = st.builds(
    Attention, SIZES, SIZES, SIZES, SIZES, SIZES, HEADS, HEADS, st.integers(1, 2**40), st.booleans(), BACKENDS
)
STREAMS = st.builds(
    Stream,
    st.sampled_from(["add", "adam", "unheard", "gelu", "softmax", "embedding_backward", "nll", "permute_fused"]),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    rows=st.integers(0, 2**20),
)
COPIES = st.builds(Copy, st.integers(0, 2**50))

GROWS = {
    Gemm: ("m", "n", "k", "batch"),
    GroupedGemm: ("m", "n", "k"),
    Attention: ("batch", "heads", "pairs"),
    Stream: ("read", "write", "launches"),
    Copy: ("bytes",),
}


@given(
    gpu=st.sampled_from(GPUS),
    kernel=st.one_of(GEMMS, GROUPED, ATTENTION, STREAMS, COPIES),
    which=st.integers(0, 3),
    more=st.integers(1, 5000),
)
def test_more_work_never_costs_less(gpu: str, kernel: Kernel, which: int, more: int) -> None:
    names = GROWS[type(kernel)]
    name = names[which % len(names)]
    larger = replace(kernel, **{name: getattr(kernel, name) + more})  # type: ignore[arg-type]
    less, greater = MODELS[gpu].seconds([kernel, larger]).tolist()
    assert greater >= less * (1 - 1e-12)


@given(gpu=st.sampled_from(GPUS), kernel=st.one_of(GEMMS, GROUPED, ATTENTION, STREAMS, COPIES))
def test_prices_are_finite_and_above_the_roofline(gpu: str, kernel: Kernel) -> None:
    pricer = kernel_pricer(presets.gpu(gpu), silicon=False)
    priced = pricer.price([kernel])
    assert np.isfinite(priced.duration_s).all()
    assert priced.duration_s[0] > 0
    assert priced.duration_s[0] >= floor_s(presets.gpu(gpu), [kernel])[0]
    assert 0 < priced.low[0] <= 1 <= priced.high[0]


@given(kernels=st.lists(st.one_of(GEMMS, ATTENTION, STREAMS), max_size=8))
def test_a_kernel_costs_the_same_in_any_company(kernels: list[Kernel]) -> None:
    model = MODELS["h100-sxm"]
    assert np.allclose(model.seconds(kernels), [model.seconds([one])[0] for one in kernels], rtol=1e-12)
