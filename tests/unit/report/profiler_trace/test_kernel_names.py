"""Names of kernels as a screen has room for them."""

from __future__ import annotations

import pytest

from foretrace.report.profiler_trace.kernel_names import short_kernel

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}> >(int, at::native::gpu_kernel_impl)"
)
CUTLASS = (
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4>"
    "(cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4::Params)"
)
NORM = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(float const*, float const*, "
    "float const*, float const*, float const*, float*, int)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        (ADD, "elementwise_kernel (CUDAFunctor_add)"),
        (COPY, "elementwise_kernel (direct_copy_kernel_cuda)"),
        (CUTLASS, "cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_ali…"),
        (NORM, "layer_norm_grad_input_kernel"),
        ("x" * 60, "x" * 47 + "…"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_kernel(name) == short
    assert len(short) <= 48
