"""What recorded ops compute and move, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from foretrace.inputs.profiler_trace.format.records import Dims, Inputs
from foretrace.inputs.script.host_costs import HostCosts, host_s
from foretrace.inputs.script.kernels import kernels_of_signature
from foretrace.inputs.script.recording import (
    HostCopy,
    HostEffort,
    HostWait,
    KernelLaunch,
    Place,
    Signature,
    TensorShape,
)
from foretrace.inputs.torch_ops.shapes import is_known
from foretrace.program.columns import Phase
from foretrace.program.kernels import Gemm, Kernel, Stream

BF16, FP32, LONG = "c10::BFloat16", "float", "long int"

Shape = tuple[int, ...]


def contiguous(shape: Shape) -> Shape:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def tensor(*shape: int, type: str = BF16, strides: Shape | None = None) -> TensorShape:
    """A tensor, contiguous unless strides are given."""
    return TensorShape(shape, type, contiguous(shape) if strides is None else strides)


Argument = TensorShape | list[TensorShape] | str


def op(name: str, *arguments: Argument, to: tuple[TensorShape, ...] = ()) -> tuple[Kernel, ...]:
    """The kernels of an op; arguments are tensors, lists of tensors, or values as text."""
    dims: list[Dims] = []
    strides: list[Dims] = []
    types: list[str] = []
    values: list[str] = []
    for argument in arguments:
        values.append(argument if isinstance(argument, str) else "")
        if isinstance(argument, TensorShape):
            dims.append(argument.dims)
            types.append(argument.type)
            strides.append(argument.strides)
        elif isinstance(argument, list):
            dims.append(tuple(one_tensor.dims for one_tensor in argument))
            types.append(f"GenericList[{','.join(one_tensor.type for one_tensor in argument)}]")
            strides.append(tuple(one_tensor.strides for one_tensor in argument))
        else:
            dims.append(())
            types.append("Scalar")
            strides.append(())
    inputs = Inputs(tuple(dims), tuple(types), tuple(values), tuple(strides))
    kernels = kernels_of_signature(Signature(name, inputs, to))
    assert all(count == 1 for count, _ in kernels)
    return tuple(kernel for _, kernel in kernels)


def test_an_expanded_input_counts_what_it_has_in_memory() -> None:
    """A gradient of one number, expanded to 64 x 32, is read once; the result of 64 x 32 is written."""
    scalar = tensor(64, 32, type=FP32, strides=(0, 0))
    kernel = op("aten::mul.Tensor", scalar, tensor(64, 32, type=FP32), to=(tensor(64, 32, type=FP32),))[0]
    assert (kernel.read, kernel.write) == (4 + 8192, 8192)  # type: ignore[union-attr]


def test_an_unknown_op_is_one_pass() -> None:
    rows, listed = tensor(8, 8), [tensor(4, 4), tensor(2, 2)]
    assert op("mylib::op", rows, listed, to=(tensor(8, 8, type=FP32),)) == (
        Stream("elementwise", 128 + 40, 256, element=4),
    )
    assert (is_known("mylib::op"), is_known("aten::relu_")) == (False, True)


def test_an_unknown_op_in_place_writes_its_first_tensor() -> None:
    assert op("mylib::op_", tensor(8, 8), tensor(8, 8)) == (Stream("elementwise", 256, 128),)


def test_nothing_runs_for_empty_tensors() -> None:
    assert op("aten::mm", tensor(0, 8), tensor(8, 8), to=(tensor(0, 8),)) == ()
    assert op("aten::mm", tensor(8, 0), tensor(0, 8), to=(tensor(8, 8),)) == (Stream("elementwise", 0, 128),)
    assert op("aten::relu", tensor(0, 8), to=(tensor(0, 8),)) == ()


@pytest.mark.parametrize("type_", [BF16, FP32])
def test_a_convolution_and_its_backward_have_the_same_flops(type_: str) -> None:
    """2 images of 64 channels of 56 x 56 to 128 channels, 3 x 3 at a stride of 2: 2 * 2*28*28 * 128 * 64*9 each."""
    x, weight, y = (
        tensor(2, 64, 56, 56, type=type_),
        tensor(128, 64, 3, 3, type=type_),
        tensor(2, 128, 28, 28, type=type_),
    )
    facts = ("[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1")
    forward = op("aten::convolution", x, weight, "", *facts, to=(y,))
    backward = op("aten::convolution_backward", y, x, weight, "[128]", *facts, "[True, True, True]", to=(x, weight))
    dtype, out = ("bf16", "bf16") if type_ == BF16 else ("tf32", "fp32")
    assert forward == (Gemm(1568, 128, 576, dtype, "tn", out=out),)
    assert backward[:2] == (Gemm(1568, 576, 128, dtype, "nn", out=out), Gemm(128, 576, 1568, dtype, "nt", out=out))
    assert {kernel.flops for kernel in (*forward, *backward[:2])} == {2.0 * 1568 * 128 * 576}
    size = 2 if type_ == BF16 else 4
    assert backward[2] == Stream("reduce", 2 * 128 * 28 * 28 * size, 128 * size)


def test_the_first_convolution_has_no_input_gradient() -> None:
    facts = ("[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, False]")
    x, weight, y = tensor(1, 3, 8, 8), tensor(16, 3, 1, 1), tensor(1, 16, 8, 8)
    assert op("aten::convolution_backward", y, x, weight, "", *facts, to=(weight,)) == (Gemm(16, 3, 64, layout="nt"),)


def test_grouped_depthwise_and_transposed_convolutions() -> None:
    facts = ("[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]")
    x = tensor(2, 32, 8, 8)
    grouped = op("aten::convolution", x, tensor(64, 8, 3, 3), "", *facts, "4", to=(tensor(2, 64, 8, 8),))
    assert grouped == (Gemm(128, 16, 72, batch=4),)
    depthwise = op("aten::convolution", x, tensor(32, 1, 3, 3), "", *facts, "32", to=(x,))
    assert depthwise == (Stream("depthwise", 8192, 8192),)
    wider = ("[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1")
    up = op("aten::convolution", x, tensor(32, 16, 2, 2), "", *wider, to=(tensor(2, 16, 16, 16),))
    assert up == (Gemm(128, 64, 32, layout="nn"),)


def test_the_bias_of_a_convolution_is_added_to_its_result() -> None:
    facts = ("[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1")
    result = tensor(1, 16, 8, 8)
    kernels = op("aten::convolution", tensor(1, 4, 8, 8), tensor(16, 4, 1, 1), tensor(16), *facts, to=(result,))
    assert kernels == (Gemm(64, 16, 4), Stream("add", 2048, 2048))


def test_adam_reads_four_lists_and_writes_three() -> None:
    """bf16 parameters and gradients, fp32 states: 2 + 2 + 4 + 4 bytes an element in, 2 + 4 + 4 out."""
    shapes = ((1000, 100), (100,))
    elements = 100_100
    narrow, wide = [tensor(*s) for s in shapes], [tensor(*s, type=FP32) for s in shapes]
    steps = [tensor(type=FP32), tensor(type=FP32)]
    lists = (narrow, narrow, wide, wide, "", steps)
    assert op("aten::_fused_adamw_", *lists) == (
        Stream("adam_bf16", 12 * elements, 10 * elements, fixed=22 * elements),
    )
    lists = (wide, wide, wide, wide, "", steps)
    assert op("aten::_fused_adam_", *lists) == (Stream("adam", 16 * elements, 12 * elements, fixed=28 * elements),)


def test_multi_tensor_kernels_take_a_limited_number_of_blocks_and_tensors() -> None:
    """100 million elements are 1,526 blocks of 65,536, five kernels of 320; 200 small tensors of three lists are 5."""
    large = [tensor(100_000_000)]
    assert op("aten::_foreach_mul_.Scalar", large, "2")[0].launches == 5
    small = [tensor(10) for _ in range(200)]
    addcmul = op("aten::_foreach_addcmul_.Scalar", small, small, small, "1")[0]
    assert addcmul == Stream("elementwise", 3 * 4000, 4000, 5, fixed=16000, looped=True)


@pytest.mark.parametrize(
    ("name", "arguments", "read", "write"),
    [
        ("aten::_foreach_add_.Scalar", 1, 1, 1),
        ("aten::_foreach_add_.List", 2, 2, 1),
        ("aten::_foreach_mul.List", 2, 2, 1),
        ("aten::_foreach_lerp_.Scalar", 2, 2, 1),
        ("aten::_foreach_lerp_.List", 3, 3, 1),
        ("aten::_foreach_addcdiv_.ScalarList", 3, 3, 1),
        ("aten::_foreach_sqrt", 1, 1, 1),
        ("aten::_foreach_norm.Scalar", 1, 1, 0),
        ("aten::_foreach_copy_", 2, 1, 1),
        ("aten::_foreach_zero_", 1, 0, 1),
    ],
)
def test_ops_over_lists(name: str, arguments: int, read: int, write: int) -> None:
    parts = [tensor(100), tensor(10, 10)]
    (kernel,) = op(name, *([parts] * arguments))
    assert (kernel.read, kernel.write) == (400 * read, 400 * write)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "arguments", "outputs", "moved"),
    [
        ("aten::_to_copy", (tensor(64, 32),), (tensor(64, 32, type=FP32),), Stream("cast", 4096, 8192)),
        ("aten::zeros", ("[64, 32]",), (tensor(64, 32),), Stream("zero", 0, 4096)),
        ("aten::max_pool2d_with_indices", (tensor(1, 4, 8, 8), "[2, 2]"),
         (tensor(1, 4, 4, 4), tensor(1, 4, 4, 4, type=LONG)), Stream("max_pool", 512, 128 + 512)),
        ("aten::index.Tensor", (tensor(1000, 32), [tensor(10, type=LONG)]), (tensor(10, 32),),
         Stream("permute", 640 + 80, 640, rows=32)),
        ("aten::index_put_", (tensor(1000, 32), [tensor(10, type=LONG)], tensor(10, 32), "False"), (tensor(1000, 32),),
         Stream("unpermute", 640 + 80, 640, rows=32)),
        ("aten::scatter.src", (tensor(8, 32), "1", tensor(8, 4, type=LONG), tensor(8, 4)), (tensor(8, 32),),
         Stream("unpermute", 256 + 64 + 512, 64 + 512, rows=32)),
        ("aten::topk", (tensor(64, 128), "2"), (tensor(64, 2), tensor(64, 2, type=LONG)),
         Stream("topk", 2 * 16384, 256 + 1024, launches=3, rows=128)),
        ("aten::sort", (tensor(1 << 20, type=LONG),), (tensor(1 << 20, type=LONG), tensor(1 << 20, type=LONG)),
         Stream("sort", 8 * 16 << 20, 8 * 16 << 20, launches=10, rows=1 << 20)),
        ("aten::native_batch_norm_backward", (tensor(8, 4, 2, 2), tensor(8, 4, 2, 2), tensor(4)),
         (tensor(8, 4, 2, 2), tensor(4), tensor(4)), Stream("batchnorm_backward", 512, 256 + 16, launches=2, rows=4)),
        ("fsdp::all_gather_copy_in", ([tensor(100), tensor(28)], tensor(1024)), (tensor(128), tensor(1024)),
         Stream("copy", 256, 256)),
        ("fsdp::split_with_sizes_copy", (tensor(4, 128), "[100, 28]", "1"), (), Stream("cat", 1024, 1024)),
        ("fsdp::chunk_cat", ([tensor(100), tensor(28)], "0", "4", tensor(4, 32)), (), Stream("cat", 256, 256)),
    ],
)  # fmt: skip
def test_streams(name: str, arguments: tuple[Argument, ...], outputs: tuple[TensorShape, ...], moved: Stream) -> None:
    assert op(name, *arguments, to=outputs) == (moved,)


def test_the_hosts_time_of_an_event() -> None:
    costs = HostCosts(launch_s=8e-6, view_s=2e-6, python_s=6e-6, kernel_s=5e-6, list_op_s=40e-6, listed_tensor_s=1e-6)
    plain = Signature("aten::relu", Inputs(((4,),)))
    launch = KernelLaunch(0, 0, Place(Phase.BACKWARD, -1, 0), HostEffort(views=3, calls=3))
    assert host_s(launch, plain, costs) == pytest.approx(8e-6 + 3 * 2e-6 + 3 * 6e-6)
    over_lists = Signature("aten::_fused_adamw_", Inputs((((4,), (5,), (6,)),)))
    update = KernelLaunch(0, 0, Place(Phase.OPTIMIZER, -1, 0), HostEffort())
    assert host_s(update, over_lists, costs) == pytest.approx(40e-6 + 3e-6)
    assert host_s(launch, plain, costs, kernels=4) - host_s(launch, plain, costs) == pytest.approx(3 * 5e-6)
    place, effort = Place(Phase.FORWARD, -1, 0), HostEffort()
    for blocking, seconds in ((True, costs.read_s), (False, costs.copy_s)):
        assert host_s(HostCopy(8, True, blocking, 0, place, effort), None, costs) == seconds
    assert host_s(HostWait((), 0, "item"), None, costs) == costs.wait_s
