"""What is measured on a GPU: the kernels that programs hold, each once, none too small or too large to time."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from foretrace.calibrate.gpu import attention, gemms, streams
from foretrace.calibrate.gpu.measure import QUICK_EVERY, all_parts
from foretrace.calibrate.gpu.timing import COLD_BYTES, MAX_SET_BYTES, MAX_SETS, operand_sets
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Kernel, Stream, kernel_text, parse_kernels

STREAMS = (
    "elementwise",
    "add",
    "mul",
    "gelu",
    "gelu_backward",
    "silu",
    "silu_backward",
    "relu2",
    "relu2_backward",
    "swiglu",
    "swiglu_backward",
    "bias_gelu",
    "bias_gelu_backward",
    "bias_dropout_add",
    "bias_dropout_add_backward",
    "dropout",
    "dropout_backward",
    "neg",
    "cat",
    "copy",
    "add_strided",
    "mul_strided",
    "silu_strided",
    "silu_backward_strided",
    "neg_strided",
    "copy_strided",
    "rmsnorm",
    "rmsnorm_backward",
    "layernorm",
    "layernorm_backward",
    "rope",
    "rope_backward",
    "softmax",
    "softmax_backward",
    "log_softmax",
    "log_softmax_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "nll",
    "cast",
    "quantize",
    "quantize_mx",
    "transpose",
    "reduce",
    "zero",
    "embedding",
    "embedding_backward",
    "permute",
    "unpermute",
    "router",
    "adam",
    "grad_norm",
    "scale",
)


def kernels() -> list[Kernel]:
    return [case.kernel for part in all_parts() for case in part.cases]


def test_every_name_of_a_stream_is_measured_at_several_sizes() -> None:
    sizes = Counter(one.name for one in kernels() if isinstance(one, Stream))
    assert set(STREAMS) <= set(sizes)
    assert min(sizes[name] for name in STREAMS) >= 3


@pytest.mark.parametrize("name", ["add", "copy_strided", "cast"])
def test_sizes_of_a_stream_reach_from_a_megabyte_to_a_gigabyte(name: str) -> None:
    moved = sorted({one.moved_bytes for one in kernels() if isinstance(one, Stream) and one.name == name})
    assert moved[0] <= 4e6
    assert moved[-1] >= 1e9
    assert max(large / small for small, large in pairwise(moved)) <= 8


def test_kernels_survive_their_text() -> None:
    assert all(parse_kernels(kernel_text(one)) == ((1, one),) for one in kernels())


def test_products_are_neither_too_small_to_time_nor_too_large() -> None:
    flops = [one.flops for one in kernels() if isinstance(one, Gemm)]
    assert min(flops) >= gemms.MIN_FLOPS
    assert max(flops) <= gemms.MAX_FLOPS


def test_each_linear_layer_comes_in_three_layouts() -> None:
    found = {case.kernel for case in gemms.layer_gemms()}
    forward = Gemm(8192, 28672, 4096)
    assert {forward, Gemm(8192, 4096, 28672, layout="nn"), Gemm(28672, 4096, 8192, layout="nt")} <= found
    layouts = Counter(one.layout for one in found if isinstance(one, Gemm))
    # Shapes that two layers share are measured once, so the counts are near each other, not equal.
    assert max(layouts.values()) <= 1.1 * min(layouts.values())


def test_groups_share_rows_evenly() -> None:
    for case in gemms.grouped_gemms():
        one = case.kernel
        assert isinstance(one, GroupedGemm)
        rows = one.k if one.layout == "nt" else one.m
        assert rows == one.groups * one.largest


def test_attention_comes_forward_and_backward() -> None:
    for backend in ("cudnn", "flash2"):
        found = [case.kernel for case in attention.attentions(backend)]
        assert len(set(found)) == len(found)
        backward = sum(isinstance(one, Attention) and one.backward for one in found)
        assert 2 * backward == len(found)


def test_the_wider_keys_of_mla_are_left_to_cudnn() -> None:
    widths = {
        backend: {(one.head_dim, one.v_dim) for case in attention.attentions(backend) if (one := case.kernel)}  # type: ignore[union-attr]
        for backend in ("cudnn", "flash2")
    }
    assert (192, 128) in widths["cudnn"]
    assert (192, 128) not in widths["flash2"]


def test_a_quick_profile_still_has_something_of_every_part() -> None:
    assert all(part.cases[::QUICK_EVERY] for part in all_parts())


@pytest.mark.parametrize("moved_bytes", [1e3, 1e6, 5e7, 1e9])
def test_operands_rotate_through_more_than_the_cache(moved_bytes: float) -> None:
    sets = operand_sets(moved_bytes, moved_bytes)
    assert sets * moved_bytes >= COLD_BYTES or sets == MAX_SETS
    assert sets == 1 or (sets - 1) * moved_bytes < COLD_BYTES


def test_operands_that_hold_more_than_they_move_are_few() -> None:
    sets = operand_sets(12 * 8192, 4 * 8192 * 128256)
    assert sets == 1
    assert operand_sets(1e3, 1e9) * 1e9 <= MAX_SET_BYTES


def test_adam_moves_four_tensors_in_and_three_out() -> None:
    one = next(case.kernel for case in streams.optimizers())
    assert isinstance(one, Stream)
    assert math.isclose(one.read / one.write, 4 / 3)
