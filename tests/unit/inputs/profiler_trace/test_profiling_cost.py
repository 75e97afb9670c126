"""What profiling costs, by what a trace recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.inputs.profiler_trace import profiling_cost as overhead
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile, TracedDevice
from foretrace.inputs.profiler_trace.profiling_cost import ProfilingCost, profiling_cost
from small_machine import Row, trace_of


def _trace(launch_s: float = 5.9e-6, gpu: str = "NVIDIA H200", *more: Row) -> RankProfile:
    rows = [
        Row(EventCategory.CPU_OP, "aten::mm", 0.0, 30e-6, 0),
        Row(EventCategory.RUNTIME, "cudaLaunchKernel", 10e-6, launch_s, 0, -1, 1),
        Row(EventCategory.RUNTIME, "cudaDeviceSynchronize", 40e-6, 5e-3, 0, -1, 2),
        Row(EventCategory.KERNEL, "gemm", 20e-6, 30e-6, -1, 7, 1),
        *more,
    ]
    return replace(trace_of(rows), devices=(TracedDevice(0, gpu),), facts={})


def test_more_is_taken_off_the_more_was_recorded() -> None:
    plain = _trace()
    shapes = replace(plain, facts={"record_shapes": "1"})
    stack = replace(plain, facts={"record_shapes": "1", "with_stack": "1"})
    calls = trace_of([Row(EventCategory.RUNTIME, "cudaLaunchKernel", 0.0, 5e-6, 0, -1, 1)])
    shares = [profiling_cost(one).share for one in (calls, replace(plain, producer="nsys"), plain, shapes, stack)]
    assert shares == sorted(shares)
    assert shares[0] == shares[1] < shares[2] < shares[3] < shares[4]


def test_python_functions_in_a_trace_are_stacks_whatever_its_header_says() -> None:
    traced = _trace(5.9e-6, "NVIDIA H200", Row(EventCategory.PYTHON, "train.py(3): step", 0.0, 50e-6, 0))
    assert profiling_cost(traced).share == overhead.STACK_SHARE


def test_a_host_at_its_usual_pace_is_taken_as_it_was() -> None:
    assert profiling_cost(_trace(5.9e-6)).pace == pytest.approx(1.0)


def test_of_a_host_that_was_fast_while_recorded_a_part_is_undone_and_of_a_slow_one_too() -> None:
    fast, slow = profiling_cost(_trace(5.3e-6)).pace, profiling_cost(_trace(6.6e-6)).pace
    assert 1.03 < fast < (5.9 / 5.3) ** 0.5
    assert (5.9 / 6.6) ** 0.5 < slow < 0.97


@pytest.mark.parametrize("launch_s", [1.4e-6, 2.8e-6, 14e-6, 500e-6])
def test_a_host_far_from_the_usual_is_another_kind_of_host(launch_s: float) -> None:
    assert profiling_cost(_trace(launch_s)).pace == pytest.approx(1.0, abs=0.01)


def test_the_usual_pace_is_known_for_some_gpus_and_one_profiler_only() -> None:
    assert profiling_cost(_trace(5.3e-6, "NVIDIA A100-SXM4-80GB")).pace == 1.0
    assert profiling_cost(replace(_trace(5.3e-6), producer="nsys")).pace == 1.0
    kernels = replace(
        trace_of([Row(EventCategory.KERNEL, "gemm", 0.0, 1e-5, -1, 7, 1)]), devices=(TracedDevice(0, "NVIDIA H200"),)
    )
    assert profiling_cost(kernels).pace == 1.0


def test_waits_do_not_count_as_launches() -> None:
    assert profiling_cost(_trace(5.3e-6)).launch_s == pytest.approx(5.3e-6)


def test_short_launches_tell_the_pace_since_long_ones_may_have_waited() -> None:
    waited = [Row(EventCategory.RUNTIME, "cudaLaunchKernel", at * 1e-3, at * 1e-5, 0, -1, at) for at in range(3, 12)]
    quick = Row(EventCategory.RUNTIME, "cudaLaunchKernelExC", 20e-3, 5.9e-6, 0, -1, 12)
    trace = _trace(5.9e-6, "NVIDIA H200", *waited, quick)
    assert len(overhead.launches_s(trace)) == 11
    assert profiling_cost(trace).launch_s == pytest.approx(5.9e-6)
    assert profiling_cost(trace).pace == pytest.approx(1.0)


def test_a_long_stretch_with_few_records_keeps_its_time() -> None:
    cost = ProfilingCost(share=0.5, most_s=15e-6, pace=1.0, launch_s=8e-6)
    work = np.array([[20e-6, 10e-3, 5e-6]])
    records = np.array([[4.0, 2.0, 0.0]])
    assert cost.unprofiled_s(work, records) == pytest.approx(np.array([[10e-6, 10e-3 - 30e-6, 5e-6]]))


def test_gaps_shrink_and_never_turn_negative() -> None:
    assert overhead.unprofiled_gap_s(np.array([1.2e-6, 0.1e-6])) == pytest.approx(np.array([1.05e-6, 0.0]))


def test_a_graph_takes_longer_to_launch_the_more_it_holds() -> None:
    assert overhead.graph_launch_s(1) == pytest.approx(6e-6, rel=0.1)
    assert overhead.graph_launch_s(300) == pytest.approx(90e-6, rel=0.1)
