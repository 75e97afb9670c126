"""The kernels of a trace: each op's launches told apart, and lists of parameters found by their gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, RankProfile
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.torch_ops.launched import device_kernels, parts
from foretrace.inputs.torch_ops.parameters import parameters
from foretrace.program.kernels import Attention, Copy, Gemm, Kernel, Stream
from kineto_files import document, kernel, span, write
from shared_files import shared

BF16 = "c10::BFloat16"
ACCUMULATE = "torch::autograd::AccumulateGrad"


class Recorder:
    """Ops one after the other, each with the kernels it launches."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._at = 100.0
        self._launches = 0

    def op(self, name: str, dims: list[Any], *launched: tuple[str, float], around: str = "", **more: Any) -> None:
        start = self._at
        self._at += 10.0 + 10.0 * len(launched)
        types = ["Scalar" if not one else BF16 for one in dims]
        if around:
            self.events.append(
                span("cpu_op", around, start - 1, self._at - start - 2, Input_Dims=dims[:1], Input_type=[BF16])
            )
        self.events.append(
            span("cpu_op", name, start, self._at - start - 5, **({"Input_Dims": dims, "Input_type": types} | more))
        )
        for i, (its, taken) in enumerate(launched):
            self._launches += 1
            self.events.append(
                span("cuda_runtime", "cudaLaunchKernel", start + 1 + 10 * i, 2, correlation=self._launches)
            )
            self.events.append(kernel(its, start + 5 + 10 * i, taken, self._launches))

    def trace(self, folder: Path) -> RankProfile:
        return read_trace(write(folder, document(self.events)))


def kernels(trace: RankProfile) -> dict[str, Kernel]:
    """By the name of what ran."""
    found = device_kernels(trace, EventLinks(trace))
    return {trace.strings[trace.events.name[event]]: one for event, one in found.items()}


def test_the_longest_launch_is_the_product(tmp_path: Path) -> None:
    record = Recorder()
    record.op("aten::mm", [[64, 32], [32, 16]], ("nvjet_splitK_TNT", 6.0), ("cublasLt::splitKreduce_kernel", 1.0))
    found = kernels(record.trace(tmp_path))
    assert found["nvjet_splitK_TNT"] == Gemm(64, 16, 32)
    assert found["cublasLt::splitKreduce_kernel"] == Stream("gemm_split_k", 2 * 4 * 64 * 16, 2 * 64 * 16)


def test_a_streams_bytes_are_shared_out_by_time(tmp_path: Path) -> None:
    record = Recorder()
    dims = [[64, 32], [64, 32], [], [64, 1], [32]]
    record.op("aten::_fused_rms_norm_backward", dims, ("layer_norm_grad_input", 3.0), ("GammaBetaBackward", 1.0))
    found = kernels(record.trace(tmp_path))
    assert found["layer_norm_grad_input"] == Stream("rmsnorm_backward", 6144, 3072, rows=32)
    assert found["GammaBetaBackward"] == Stream("rmsnorm_backward", 2048, 1024, rows=32)


def test_gradients_and_casts_of_weights_have_no_samples(tmp_path: Path) -> None:
    record = Recorder()
    record.op("aten::add_", [[64, 32], [64, 32], []], ("accumulate", 1.0), around=ACCUMULATE)
    record.op("aten::copy_", [[32, 64], [32, 64], []], ("cast_of_weights", 1.0))
    record.op("aten::add", [[8, 64, 32], [8, 64, 32], []], ("residual", 1.0))
    found = kernels(record.trace(tmp_path))
    fixed = {name: one.fixed / one.moved_bytes for name, one in found.items() if isinstance(one, Stream)}
    assert fixed == {"accumulate": 1.0, "cast_of_weights": 1.0, "residual": 0.0}


def test_an_optimizers_lists_are_the_parameters(tmp_path: Path) -> None:
    record = Recorder()
    for _ in range(2):  # microbatches
        record.op("aten::add_", [[64, 32], [64, 32], []], ("add", 1.0), around=ACCUMULATE)
        record.op("aten::add_", [[32], [32], []], ("add", 1.0), around=ACCUMULATE)
        record.op("aten::add_", [[32], [32], []], ("add", 1.0), around=ACCUMULATE)
    record.op("aten::_fused_adamw_", [[], []], ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 9.0))
    trace = record.trace(tmp_path)
    assert parameters(trace).elements == 64 * 32 + 2 * 32
    moved = 2 * (64 * 32 + 2 * 32)
    adam = kernels(trace)["multi_tensor_apply_kernel<FusedAdamMathFunctor>"]
    assert adam == Stream("adam_bf16", 4 * moved, 3 * moved, fixed=7 * moved)


def test_a_list_that_no_memory_could_move_so_fast_is_not_the_parameters(tmp_path: Path) -> None:
    record = Recorder()
    record.op("aten::add_", [[8192, 8192], [8192, 8192], []], ("add", 1.0), around=ACCUMULATE)
    record.op("aten::_foreach_add_", [[], []], ("step_counters", 2.0))
    assert "step_counters" not in kernels(record.trace(tmp_path))


def test_copies_and_memsets_by_their_bytes(tmp_path: Path) -> None:
    record = Recorder()
    device = {"pid": 0, "tid": 7, "device": 0, "stream": 7}
    record.events += [
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1, 1, bytes=64, correlation=901, **device),
        span("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 3, 1, bytes=32, correlation=902, **device),
        span("gpu_memset", "Memset (Device)", 5, 1, bytes=16, correlation=903, **device),
    ]
    assert kernels(record.trace(tmp_path)) == {
        "Memcpy HtoD (Pinned -> Device)": Copy(64, "gpu"),
        "Memcpy DtoD (Device -> Device)": Stream("copy", 32, 32),
        "Memset (Device)": Stream("zero", 0, 16),
    }


def test_what_runs_beside_attentions_backward() -> None:
    attention = Attention(2, 8, 2, 64, 64, 32, 32, 2048, backward=True)
    names = ["flash_bprop", "compute_dot_do_o", "convert_dq_to_16bits", "fmha_reduce_head", "unheard_of"]
    found = parts(attention, names, [9.0, 1.0, 1.0, 1.0, 1.0])
    rows = 2 * 8 * 64
    assert found == [
        attention,
        Stream("attention_dot", 2 * 2 * rows * 32, 4 * rows),
        Stream("attention_convert", 4 * rows * 32, 2 * rows * 32),
        Stream("attention_reduce", 2 * 2 * 64 * 32 * 8, 2 * 2 * 64 * 32 * 2),
        None,
    ]


def test_a_trace_of_tinyllama_holds_the_models_work() -> None:
    trace = read_trace(shared("data", "h200", "tinyllama_mbs4.json.gz"))
    found = device_kernels(trace, EventLinks(trace))
    tokens, steps = 4 * 2048, 2
    table, norms = 32000 * 2048, 45 * 2048
    assert parameters(trace).elements == 1_100_048_384
    products = sum(one.flops for one in found.values() if isinstance(one, Gemm))
    assert products == pytest.approx(steps * 6 * (1_100_048_384 - table - norms) * tokens, rel=1e-12)
    attention = sum(one.flops for one in found.values() if isinstance(one, Attention))
    # Two products forward and five backward over half of the square, in 22 layers.
    assert attention == pytest.approx(steps * 22 * 7 * 2 * 4 * 32 * (2048 * 2048 / 2) * 64, rel=1e-12)
    device = trace.events.of(*ON_DEVICE)
    known = sum(trace.events.duration_s[event] for event in found)
    assert known > 0.999 * trace.events.duration_s[device].sum()
