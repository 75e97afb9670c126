"""Ops and the shapes of their inputs to kernels."""

from __future__ import annotations

import pytest

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.products import kernel_layout
from foretrace.inputs.torch_ops.shapes import kernel_of, kernels_of
from foretrace.inputs.torch_ops.tensors import Tensor
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Stream

BF16, FP32, LONG = "c10::BFloat16", "float", "long int"


def of(
    *dims: object, types: str | tuple[str, ...] = BF16, strides: tuple[object, ...] = (), values: tuple[str, ...] = ()
) -> Inputs:
    """Inputs, all of one type unless types are listed."""
    own = types if isinstance(types, tuple) else tuple(types if one else "Scalar" for one in dims)
    return Inputs(dims, own, values, strides)  # type: ignore[arg-type]


def test_the_three_products_of_a_linear_layer() -> None:
    forward = of((8192, 2048), (2048, 11264), strides=((2048, 1), (1, 2048)))
    gradient = of((8192, 11264), (11264, 2048), strides=((11264, 1), (2048, 1)))
    weights = of((11264, 8192), (8192, 2048), strides=((1, 11264), (2048, 1)))
    assert kernel_of("aten::mm", forward) == Gemm(8192, 11264, 2048, layout="tn")
    assert kernel_of("aten::mm", gradient) == Gemm(8192, 2048, 11264, layout="nn")
    assert kernel_of("aten::mm", weights) == Gemm(11264, 2048, 8192, layout="nt")


@pytest.mark.parametrize(
    ("gpu_kernel", "layout"),
    [
        ("nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NTN", "nt"),
        ("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT", "tn"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", "nn"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "tn"),
        ("Cijk_Ailk_Bjlk_SB_Bias_AS", "nt"),
        ("triton_mm", ""),
    ],
)
def test_layouts_by_a_kernels_name(gpu_kernel: str, layout: str) -> None:
    assert kernel_layout(gpu_kernel) == layout


def test_without_strides_the_kernels_name_says_the_layout() -> None:
    inputs = of((64, 32), (32, 16))
    assert kernel_of("aten::mm", inputs, "nvjet_sm90_tst_64x64_NTN") == Gemm(64, 16, 32, layout="nt")
    assert kernel_of("aten::mm", inputs) == Gemm(64, 16, 32, layout="tn")


def test_fp32_is_tf32_where_the_kernel_says_so() -> None:
    inputs = of((64, 32), (32, 16), types=FP32)
    assert kernel_of("aten::mm", inputs, "ampere_sgemm_128x64_nn") == Gemm(64, 16, 32, "fp32", "nn", out="fp32")
    tensor_cores = "cutlass_80_tensorop_s1688gemm_64x64_32x6_tn_align4"
    assert kernel_of("aten::mm", inputs, tensor_cores) == Gemm(64, 16, 32, "tf32", "tn", out="fp32")


def test_batches_and_sums() -> None:
    assert kernel_of("aten::bmm", of((8, 64, 32), (8, 32, 16))) == Gemm(64, 16, 32, layout="nn", batch=8)
    assert kernel_of("aten::linear", of((4, 16, 32), (8, 32), ())) == Gemm(64, 8, 32)
    bias = kernel_of("aten::addmm", of((16,), (64, 32), (32, 16), (), ()))
    added = kernel_of("aten::addmm", of((64, 16), (64, 32), (32, 16), (), ()))
    assert (bias.accumulate, added.accumulate) == (False, True)  # type: ignore[union-attr]


def test_products_in_eight_bits() -> None:
    fp8, scale = "c10::Float8_e4m3fn", (FP32,)
    types = (fp8, fp8, *scale, *scale, "", "", "Scalar")
    rows = of((64, 128), (128, 32), (), (), (), (), (), types=types, values=("", "", "", "", "", "", "15"))
    assert kernel_of("aten::_scaled_mm", rows) == Gemm(64, 32, 128, "fp8", out="bf16")
    blocks = (fp8, fp8, "c10::Float8_e8m0fnu", "c10::Float8_e8m0fnu")
    assert kernel_of("aten::_scaled_mm", of((64, 128), (128, 32), (256,), (128,), types=blocks)) == Gemm(
        64, 32, 128, "mxfp8", out="bf16"
    )


def test_grouped_products() -> None:
    inputs = of((4096, 512), (8, 512, 1024), (8,), types=(BF16, BF16, "int"))
    assert kernel_of("aten::_grouped_mm", inputs) == GroupedGemm(8, 4096, 1024, 512, layout="nn")
    weights = of((512, 4096), (4096, 1024), (8,), types=(BF16, BF16, "int"))
    assert kernel_of("aten::_grouped_mm", weights) == GroupedGemm(8, 512, 1024, 4096, layout="nt")


def test_attention_forward_and_backward() -> None:
    q, k = (4, 32, 2048, 64), (4, 4, 2048, 64)
    values = (*[""] * 6, "2048", "2048", "True", "0.", "True", "False", "")
    forward = of(q, k, k, *[()] * 10, types=(BF16, BF16, BF16, *["Scalar"] * 10), values=values)
    known = Attention(4, 32, 4, 2048, 2048, 64, 64, 2048 * 2048 // 2)
    assert kernel_of("aten::_cudnn_attention_forward", forward) == known
    values = (*[""] * 11, "2048", "2048", "0.", "False", "")
    backward = of(
        q, q, k, k, q, (4, 32, 2048, 1), *[()] * 10, types=(*[BF16] * 5, FP32, *["Scalar"] * 10), values=values
    )
    found = kernel_of("aten::_cudnn_attention_backward", backward)
    assert isinstance(found, Attention)
    assert (found.backward, found.pairs, found.kv_heads) == (True, 2048 * 2048, 4)


def test_flash_attention_has_lengths_before_heads() -> None:
    inputs = of((2, 512, 16, 128), (2, 512, 16, 128), (2, 512, 16, 128), (), (), (), (), (), ())
    found = kernel_of("aten::_flash_attention_forward", inputs)
    assert found == Attention(2, 16, 16, 512, 512, 128, 128, 512 * 512 // 2, backend="flash2")


@pytest.mark.parametrize(
    ("op", "inputs", "kernel"),
    [
        ("aten::add", of((64, 32), (64, 32), ()), Stream("add", 8192, 4096)),
        ("aten::mul", of((64, 32), (64, 32), strides=((32, 1), (64, 1))), Stream("mul_strided", 8192, 4096)),
        ("aten::mul", of((4, 64, 32), (32,)), Stream("mul_rows", 16448, 16384)),
        ("aten::mul_", of((64, 32), ()), Stream("scale", 4096, 4096)),
        ("aten::mul", of((64, 32), ()), Stream("elementwise", 4096, 4096)),
        ("aten::silu", of((64, 32)), Stream("silu", 4096, 4096)),
        ("aten::eq", of((64, 32), (64, 32)), Stream("elementwise", 8192, 2048)),
        ("aten::copy_", of((64, 32), (64, 32), (), types=(FP32, BF16, "Scalar")), Stream("cast", 4096, 8192)),
        ("aten::copy_", of((64, 32), (64, 32), strides=((32, 1), (1, 64))), Stream("transpose", 4096, 4096)),
        ("aten::fill_", of((64, 32), ()), Stream("zero", 0, 4096)),
        ("aten::cat", of(((64, 32), (64, 32)), (), types=("TensorList", "Scalar")), Stream("cat", 8192, 8192)),
        ("aten::sum", of((64, 32), (), values=("", "[0]")), Stream("reduce", 4096, 64, rows=64)),
        ("aten::native_dropout", of((64, 32)), Stream("dropout", 4096, 4096 + 2048)),
        ("aten::_softmax", of((64, 32), (), ()), Stream("softmax", 4096, 4096, rows=32)),
        ("aten::_log_softmax", of((64, 32), (), (), types=FP32),
         Stream("log_softmax", 8192, 8192, rows=32, element=4)),
        ("aten::_fused_rms_norm", of((4, 16, 32), (), (32,)), Stream("rmsnorm", 4096, 4096, rows=32)),
        ("aten::native_layer_norm_backward", of((64, 32), (64, 32), (), (64, 1), (64, 1), (32,)),
         Stream("layernorm_backward", 8192, 4096, launches=2, rows=32)),
        ("aten::embedding", of((1000, 32), (4, 16), types=(BF16, LONG)), Stream("embedding", 4096, 4096, rows=32)),
        ("aten::index_select", of((64, 32), (), (128,), types=(BF16, "Scalar", LONG)),
         Stream("permute", 8192, 8192, rows=32)),
        ("aten::embedding_dense_backward",
         of((64, 32), (64,), (), types=(BF16, LONG, "Scalar"), values=("", "", "1000")),
         Stream("embedding_backward", 4096, 64000, launches=22, rows=32, fixed=64000)),
        ("triton_poi_fused_add_cos_sin_0", of((10, 10), (10, 10), (10, 10), (), types=FP32),
         Stream("triton_fused", 800, 400)),
    ],
)  # fmt: skip
def test_streams(op: str, inputs: Inputs, kernel: Stream) -> None:
    assert kernel_of(op, inputs) == kernel


def test_optimizers_over_lists() -> None:
    lists = of(((64, 32), (32,)), ((64, 32), (32,)), types=("TensorList", "TensorList"))
    found = kernel_of("aten::_fused_adamw_", lists, assumed=FP32)
    elements = 64 * 32 + 32
    assert found == Stream("adam", 16 * elements, 12 * elements, fixed=28 * elements)
    assert kernel_of("aten::_fused_adamw_", of((), types=("TensorList",))) is None


@pytest.mark.parametrize(
    "op", ["MulBackward0", "autograd::engine::evaluate_function: MmBackward0", "forward", "aten::item"]
)
def test_what_only_runs_other_ops_has_no_kernel(op: str) -> None:
    assert kernel_of(op, of((64, 32), (32, 16))) is None


def test_inputs_that_do_not_fit_are_no_product() -> None:
    for dims in (((64, 32),), ((64, 32), (16, 8)), ((64,), (64,)), ((), ())):
        assert kernel_of("aten::mm", of(*dims)) is None
    assert kernel_of("aten::mm", of((4, 8), (8, 2), types="double")) is None


def test_types_not_recorded_are_assumed() -> None:
    untyped = Inputs(((64, 32), (64, 32)))
    assert kernel_of("aten::add", untyped) == Stream("add", 8192, 4096)
    assert kernel_of("aten::add", untyped, assumed=FP32) == Stream("add", 16384, 8192, element=4)


def test_how_tensors_lie_in_memory() -> None:
    transposed = Tensor((64, 32), BF16, (1, 64))
    half = Tensor((64, 32), BF16, (64, 1))
    assert (transposed.is_contiguous, transposed.is_dense, transposed.is_transposed) == (False, True, True)
    assert (half.is_contiguous, half.is_dense, half.is_transposed) == (False, False, False)
    assert Tensor((64, 32), BF16).is_transposed is None


def written(*dims: int, type_: str = BF16) -> tuple[Tensor, ...]:
    return (Tensor(dims, type_),)


def test_a_part_of_zeros_is_written_after_them() -> None:
    inputs = of((4, 32), (), (), (), values=("", "[8, 32]", "0", "0"))
    assert kernels_of("aten::slice_backward", inputs, written(8, 32)) == (
        Stream("zero", 0, 512),
        Stream("copy", 256, 256),
    )


def test_a_loss_along_an_outer_dimension_copies_what_is_not_contiguous() -> None:
    inputs = of((2, 100, 64), (), (), strides=((6400, 1, 100), (), ()), values=("", "1", "False"))
    copied, walked = kernels_of("aten::_log_softmax", inputs, written(2, 100, 64))
    assert (copied.name, walked.name, walked.rows) == ("transpose", "spatial_log_softmax", 100)  # type: ignore[union-attr]


def test_permuted_parts_are_joined_by_another_kernel_than_slices() -> None:
    parts = ((2, 8, 4, 16), (2, 8, 4, 16))
    permuted = of(parts, (), types=("TensorList", "Scalar"), strides=(((512, 16, 128, 1),) * 2, ()))
    sliced = of(parts, (), types=("TensorList", "Scalar"), strides=(((1024, 128, 32, 1),) * 2, ()))
    assert kernel_of("aten::cat", permuted) == Stream("cat_permuted", 4096, 4096)
    assert kernel_of("aten::cat", sliced) == Stream("cat_strided", 4096, 4096)


def test_rows_that_are_added_are_read_and_their_targets_too() -> None:
    inputs = of((64, 32), (), (10,), (10, 32), types=(BF16, "Scalar", LONG, BF16))
    assert kernel_of("aten::index_add_", inputs) == Stream("add_rows", 2 * 640 + 80, 640, rows=32)


def test_numbers_of_rows_are_not_rotations() -> None:
    assert kernel_of("aten::mul", of((64, 32), (64, 1))).name == "mul_rows"  # type: ignore[union-attr]
    assert kernel_of("aten::mul", of((4, 64, 8, 32), (1, 64, 1, 32))).name == "mul_broadcast"  # type: ignore[union-attr]
