"""Laws of kernels with more samples: work grows as they do, and what holds no samples stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.program.kernels import (
    Attention,
    Copy,
    Gemm,
    GroupedGemm,
    Kernel,
    Stream,
    grown,
    kernel_text,
    parse_kernels,
)

SIZES = st.integers(1, 2**20)
LAYOUTS = st.sampled_from(["tn", "nn", "nt"])
PRODUCTS = st.one_of(
    st.builds(Gemm, SIZES, SIZES, SIZES, layout=LAYOUTS, batch=st.integers(1, 64)),
    st.builds(GroupedGemm, st.integers(1, 64), SIZES, SIZES, SIZES, layout=LAYOUTS),
    st.builds(
        Attention, st.integers(1, 64), SIZES, SIZES, SIZES, SIZES, st.just(64), st.just(64), SIZES, st.booleans()
    ),
)
STREAMS = st.builds(Stream, st.just("add"), SIZES, SIZES, fixed=st.integers(0, 2**20))
KERNELS = st.one_of(PRODUCTS, STREAMS, st.builds(Copy, SIZES))
FACTORS = st.floats(1 / 64, 64)


@given(PRODUCTS, FACTORS)
def test_products_grow_with_the_samples(kernel: Kernel, factor: float) -> None:
    new, left = grown(kernel, factor)
    assert new.flops * left == pytest.approx(kernel.flops * factor, rel=1e-9)


@given(STREAMS, FACTORS)
def test_a_stream_grows_but_for_what_is_fixed(kernel: Stream, factor: float) -> None:
    new, left = grown(kernel, factor)
    fixed = min(kernel.fixed, kernel.moved_bytes)
    assert left == 1.0
    assert new.moved_bytes == pytest.approx(fixed + (kernel.moved_bytes - fixed) * factor, abs=2)


@given(KERNELS)
def test_the_same_samples_are_the_same_kernel(kernel: Kernel) -> None:
    assert grown(kernel, 1.0) == (kernel, 1.0)


@given(KERNELS, FACTORS)
def test_what_is_grown_can_be_written_and_read(kernel: Kernel, factor: float) -> None:
    new, _ = grown(kernel, factor)
    assert parse_kernels(kernel_text(new)) == ((1, new),)
