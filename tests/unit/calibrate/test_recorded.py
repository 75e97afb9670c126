"""Kernels of a trace: what each took, how often, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.calibrate.recorded import recorded_kernels
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.program.kernels import Gemm, Stream
from kineto_files import document, kernel, span, write
from recorded_steps import BF16, H200, product, steps, trace_file
from shared_files import shared

SMALL, LARGE = Gemm(4096, 4096, 1024), Gemm(8192, 4096, 1024)


class TestKernels:
    def test_times_are_of_the_device_and_the_pause_after(self, tmp_path: Path) -> None:
        found = recorded_kernels(read_trace(trace_file(tmp_path)))
        # Too few pairs of kernels follow each other for a pause of the trace's own: the usual one is taken.
        assert found.seconds == {SMALL: pytest.approx(101.2e-6), LARGE: pytest.approx(101.2e-6)}
        assert found.calls == {SMALL: 2.0, LARGE: 2.0}
        assert found.steps == 3
        assert found.products == 4
        assert found.flops == 2 * (SMALL.flops + LARGE.flops)
        assert found.step_s == pytest.approx(4 * (100 + 2) * 1e-6)
        assert found.busy == pytest.approx(1.0)

    def test_the_pause_is_the_trace_s_own_where_it_has_enough(self, tmp_path: Path) -> None:
        found = recorded_kernels(read_trace(trace_file(tmp_path, count=8)))
        assert found.seconds[SMALL] == pytest.approx(101.85e-6)

    def test_what_runs_beside_others_is_left_out(self, tmp_path: Path) -> None:
        events = [*product(1000, 100, 1, 4096), *product(1200, 100, 2, 8192), kernel("other", 1250, 20, 99, stream=9)]
        found = recorded_kernels(read_trace(write(tmp_path, document(events, deviceProperties=H200))))
        assert set(found.seconds) == {SMALL}

    def test_an_outlier_does_not_count(self, tmp_path: Path) -> None:
        events = [e for n in range(4) for e in product(1000 + 200 * n, 100, n + 1, 4096)]
        events += product(2000, 900, 9, 4096)
        found = recorded_kernels(read_trace(write(tmp_path, document(events, deviceProperties=H200))))
        assert found.seconds[SMALL] == pytest.approx(101.2e-6)

    def test_times_that_vary_add_up_to_the_step(self, tmp_path: Path) -> None:
        """The mean, not the median: kernels of 100, 100 and 130 us take 330 us of a step."""
        lasts = (100, 100, 130)
        events = [e for n, dur in enumerate(lasts) for e in product(1000 + 200 * n, dur, n + 1, 4096)]
        found = recorded_kernels(read_trace(write(tmp_path, document(events, deviceProperties=H200))))
        assert 3 * found.seconds[SMALL] == pytest.approx(330e-6 + 3 * 1.2e-6)

    def test_an_update_is_as_large_as_its_step_s_gradients(self, tmp_path: Path) -> None:
        lists = ["TensorList"] * 5
        events = [
            span("user_annotation", "ProfilerStep#0", 0, 500),
            span("cpu_op", "torch::autograd::AccumulateGrad", 5, 2, Input_Dims=[[1000, 10]], Input_type=[BF16]),
            span("cpu_op", "torch::autograd::AccumulateGrad", 8, 2, Input_Dims=[[500]], Input_type=[BF16]),
            span("cpu_op", "aten::_fused_adamw_", 20, 30, Input_Dims=[[]] * 5, Input_type=lists),
            span("cuda_runtime", "cudaLaunchKernel", 25, 4, correlation=5),
            kernel("multi_tensor_apply", 100, 40, 5),
        ]
        found = recorded_kernels(read_trace(write(tmp_path, document(events, deviceProperties=H200))))
        assert set(found.seconds) == {Stream("adam_bf16", 8 * 10_500, 6 * 10_500)}

    def test_updates_of_microbatches_and_parameter_groups(self, tmp_path: Path) -> None:
        """Gradients of two microbatches are of the same parameters; two groups of them are updated one by one."""
        lists = ["TensorList"] * 5
        events = [
            span("user_annotation", "ProfilerStep#0", 0, 500),
            span("user_annotation", "Optimizer.step#AdamW.step", 15, 100),
        ]
        for number in range(4):
            sizes = [[1000, 10]] if number % 2 else [[5000]]
            at = 5 + 2 * number
            events.append(span("cpu_op", "torch::autograd::AccumulateGrad", at, 1, Input_Dims=sizes, Input_type=[BF16]))
        for number, us in enumerate((30, 10)):
            at = 20 + 40 * number
            events += [
                span("cpu_op", "aten::_fused_adamw_", at, 30, Input_Dims=[[]] * 5, Input_type=lists),
                span("cuda_runtime", "cudaLaunchKernel", at + 5, 4, correlation=5 + number),
                kernel("multi_tensor_apply", 100 + 50 * number, us, 5 + number),
            ]
        found = recorded_kernels(read_trace(write(tmp_path, document(events, deviceProperties=H200))))
        parts = [15_000 * 3 // 4, 15_000 // 4]
        assert set(found.seconds) == {Stream("adam_bf16", 8 * one, 6 * one) for one in parts}


class TestErrors:
    def test_a_trace_without_a_device(self, tmp_path: Path) -> None:
        path = write(tmp_path, document([span("cpu_op", "aten::mm", 0, 5, Input_Dims=[[2, 2], [2, 2]])]))
        with pytest.raises(InputError) as caught:
            recorded_kernels(read_trace(path))
        assert caught.value.code == "not-recorded"

    def test_a_trace_without_shapes(self, tmp_path: Path) -> None:
        events = steps()
        for one in events:
            for name in ("Input Dims", "Input type", "Input Strides"):
                one["args"].pop(name, None)
        with pytest.raises(InputError) as raised:
            recorded_kernels(read_trace(write(tmp_path, document(events, deviceProperties=H200))))
        assert raised.value.code == "not-recorded"
        assert raised.value.hint is not None and "record_shapes=True" in raised.value.hint


def test_a_real_step_adds_up() -> None:
    """Two steps of TinyLlama on an H200: the kernels that are known make up 99.5 % of the step."""
    found = recorded_kernels(read_trace(shared("data", "h200", "tinyllama_mbs4.json.gz")))
    total = sum(found.seconds[one] * found.calls[one] for one in found.seconds)
    assert found.step_s == pytest.approx(0.13377, rel=1e-3)
    assert total == pytest.approx(found.step_s, rel=0.005)
    assert found.unknown < 1e-3 and found.busy > 0.99
    assert found.seconds[Gemm(8192, 11264, 2048)] == pytest.approx(506e-6, rel=0.01)
    # 1,100,048,384 parameters, by their gradients.
    assert Stream("adam_bf16", 8 * 1_100_048_384, 6 * 1_100_048_384) in found.seconds
