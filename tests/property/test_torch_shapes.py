"""Whatever a profiler recorded of an op's inputs, its kernel is sound or there is none."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost.kernels import kernel_pricer
from foretrace.hardware.presets import gpu
from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.fused_attention import SIGNATURES
from foretrace.inputs.torch_ops.kinds import WorkKind, kind_of_kernel, kind_of_op
from foretrace.inputs.torch_ops.multi_tensor import LISTS
from foretrace.inputs.torch_ops.products import FACTORS
from foretrace.inputs.torch_ops.shapes import kernel_of
from foretrace.inputs.torch_ops.streams import PLAIN, REDUCTIONS, RULES
from foretrace.program.kernels import kernel_text, parse_kernels

NAMES = st.sampled_from(
    [*FACTORS, *SIGNATURES, *RULES, *PLAIN, *LISTS, *REDUCTIONS, "grouped_mm", "cat", "fill", "add", "triton_poi"]
)
SIZES = st.one_of(st.sampled_from([-1, 0, 1, 64]), st.integers(-2, 2**40))
DIMS = st.one_of(
    st.just(()),
    st.lists(SIZES, max_size=5).map(tuple),
    st.lists(st.lists(SIZES, max_size=3).map(tuple), max_size=3).map(tuple),
)
TYPES = st.sampled_from(
    [
        "c10::BFloat16",
        "float",
        "double",
        "long int",
        "bool",
        "c10::Float8_e4m3fn",
        "Scalar",
        "TensorList",
        "",
        "unheard",
    ]
)
VALUES = st.sampled_from(["", "True", "False", "[0]", "[-1, 5]", "1000", "0.5", "[]", "nonsense"])
INPUTS = st.builds(
    Inputs,
    st.lists(DIMS, max_size=8).map(tuple),
    st.lists(TYPES, max_size=8).map(tuple),
    st.lists(VALUES, max_size=16).map(tuple),
    st.lists(DIMS, max_size=8).map(tuple),
)
PRICER = kernel_pricer(gpu("h100-sxm"), "model")


@given(NAMES, st.sampled_from(["aten::{}", "aten::_{}", "aten::{}_"]), INPUTS, st.text(max_size=20))
def test_a_kernel_can_be_written_and_priced_or_there_is_none(
    name: str, form: str, inputs: Inputs, gpu_kernel: str
) -> None:
    kernel = kernel_of(form.format(name), inputs, gpu_kernel)
    if kernel is None:
        return
    assert parse_kernels(kernel_text(kernel)) == ((1, kernel),)
    seconds = PRICER.price([kernel]).duration_s[0]
    assert np.isfinite(seconds)
    assert seconds > 0


@given(st.text())
def test_every_name_is_of_some_kind(name: str) -> None:
    assert isinstance(kind_of_kernel(name), WorkKind)
    assert isinstance(kind_of_op(name), WorkKind)
