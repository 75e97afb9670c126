"""Where the time of a device goes: numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.rank.rank_step import read_step
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.intervals import length_s, occupancy_s, united
from shared_files import ROOT
from small_traces import Row, copy, kernel, launch, mark, op, small_trace

US = 1e-6
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def three_streams() -> ProfilerTrace:
    """compute 0-10, communication 5-20 beside it, nothing 20-25, a copy 25-30."""
    return ProfilerTrace(
        [
            small_trace(
                kernel("gemm", 0, 10),
                kernel(NCCL, 5, 20, stream=20),
                copy("Memcpy HtoD (Pinned -> Device)", 25, 30, stream=21, bytes=1000),
            )
        ]
    )


def test_unions_join_what_touches() -> None:
    starts, ends = united(np.array([5.0, 0.0, 2.0, 10.0]), np.array([6.0, 2.0, 3.0, 11.0]))
    assert starts.tolist() == [0.0, 5.0, 10.0]
    assert ends.tolist() == [3.0, 6.0, 11.0]
    assert length_s(np.array([0.0, 0.0]), np.array([4.0, 1.0])) == 4.0
    assert length_s(np.zeros(0), np.zeros(0)) == 0.0


def test_occupancy_of_two_sets() -> None:
    one = (np.array([0.0, 8.0]), np.array([4.0, 9.0]))
    two = (np.array([2.0]), np.array([6.0]))
    assert occupancy_s([one, two], 0.0, 10.0).tolist() == [3.0, 3.0, 2.0, 2.0]


def test_temporal_breakdown() -> None:
    (rank,) = three_streams().temporal_breakdown().ranks
    assert rank.span_s == pytest.approx(30 * US)
    assert rank.idle_s == pytest.approx(5 * US)
    assert rank.compute_s == pytest.approx(10 * US)
    assert rank.non_compute_s == pytest.approx(15 * US)


def test_overlap_and_exposed_communication() -> None:
    answer = three_streams().overlap()
    (rank,) = answer.ranks
    assert rank.communication_s == pytest.approx(15 * US)
    assert rank.overlap == pytest.approx(5 / 15)
    assert rank.exposed_s == pytest.approx(10 * US)
    assert answer.mean_exposed_s == pytest.approx(10 * US)


def test_without_communication_there_is_no_overlap() -> None:
    (rank,) = ProfilerTrace([small_trace(kernel("gemm", 0, 10))]).overlap().ranks
    assert rank.overlap is None
    assert rank.exposed_s == 0.0


def test_mean_and_worst_of_ranks() -> None:
    busy = small_trace(kernel("gemm", 0, 10), rank=0)
    idle = small_trace(kernel("gemm", 0, 1), kernel("gemm", 9, 10), rank=1)
    answer = ProfilerTrace([busy, idle]).temporal_breakdown()
    assert answer.worst.rank == 1
    assert answer.mean.idle_s == pytest.approx(4 * US)


def test_idle_by_cause() -> None:
    rows = [
        launch(1, 0, 1),
        launch(2, 1, 2),
        launch(3, 70, 72),
        launch(4, 73, 74),
        kernel("a", 5, 20, correlation=1),
        kernel("a", 22, 30, correlation=2),  # launched in time: 2 between kernels
        kernel("a", 80, 90, correlation=3),  # launched at 70, when nothing ran: 50 for the host
        kernel("a", 130, 140, correlation=4),  # launched in time, 40 late: other
    ]
    (rank,) = ProfilerTrace([small_trace(*rows)], hta_steps=True).idle().ranks
    for times in (rank.device, rank.streams[0].times):
        assert times.host_wait_s == pytest.approx(50 * US)
        assert times.kernel_wait_s == pytest.approx(2 * US)
        assert times.other_s == pytest.approx(40 * US)
        assert times.idle_s == pytest.approx(92 * US)
    (longer,) = ProfilerTrace([small_trace(*rows)], hta_steps=True).idle(consecutive_delay_s=50 * US).ranks
    assert longer.device.kernel_wait_s == pytest.approx(42 * US)
    (step,) = ProfilerTrace([small_trace(*rows)]).idle().ranks
    assert step.device.kernel_wait_s == pytest.approx(7 * US)  # and 5 before the first kernel, launched at once


def test_idle_of_a_stream_is_not_idle_of_the_device() -> None:
    rows = [kernel("a", 0, 10), kernel("a", 20, 30), kernel("b", 8, 22, stream=20)]
    (rank,) = ProfilerTrace([small_trace(*rows)]).idle().ranks
    assert rank.device.idle_s == 0.0
    assert {one.stream: one.times.idle_s for one in rank.streams} == {7: pytest.approx(10 * US), 20: 0.0}


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        three_streams().idle(consecutive_delay_s=-1.0)
    assert caught.value.code == "out-of-range"


def late_steps() -> list[Row]:
    """Two steps of 100, launched early in each; the device works 30 of each."""
    return [
        mark("ProfilerStep#1", 0, 100),
        mark("ProfilerStep#2", 100, 200),
        launch(1, 10, 11),
        launch(2, 110, 111),
        kernel("a", 120, 150, correlation=1),
        kernel("a", 160, 190, correlation=2),
    ]


def test_the_steps_that_count_are_those_of_a_replay() -> None:
    trace = ProfilerTrace([small_trace(*late_steps())])
    (rank,) = trace.temporal_breakdown().ranks
    assert rank.span_s == pytest.approx(200 * US)
    assert (rank.compute_s, rank.idle_s) == (pytest.approx(60 * US), pytest.approx(140 * US))
    assert trace.steps().step_s == pytest.approx(100 * US)
    assert not trace.diagnostics


def test_hta_leaves_out_the_last_of_several_profiler_steps() -> None:
    trace = ProfilerTrace([small_trace(*late_steps())], hta_steps=True)
    assert trace.temporal_breakdown().ranks[0].span_s == pytest.approx(30 * US)
    assert any("last of several ProfilerSteps" in one.message for one in trace.diagnostics)
    assert [one.counted for one in trace.steps().steps] == [True, False]


def test_a_step_that_the_device_bounds_lasts_from_work_to_work() -> None:
    rows: list[Row] = []
    for step in range(3):  # launched in 10 each, 50 of work each
        rows += [mark(f"ProfilerStep#{step}", 10 * step, 10 * step + 10), launch(step, 10 * step + 1, 10 * step + 2)]
        rows.append(kernel("gemm", 5 + 50 * step, 53 + 50 * step, correlation=step))
    trace = ProfilerTrace([small_trace(*rows)])
    (rank,) = trace.temporal_breakdown().ranks
    assert rank.span_s == pytest.approx(150 * US)
    assert rank.compute_s == pytest.approx(144 * US)
    (idle,) = trace.idle().ranks
    assert idle.device.kernel_wait_s == pytest.approx(6 * US)


def test_whole_microseconds_are_those_within_an_event() -> None:
    trace = ProfilerTrace([small_trace(kernel("a", 0.4, 3.7), kernel("b", 5.2, 5.9))], whole_us=True)
    (rank,) = trace.temporal_breakdown().ranks
    assert rank.compute_s == pytest.approx(2 * US)  # 1 to 3, and nothing of the second
    assert rank.span_s == pytest.approx(5 * US)  # the second begins, and ends, at 6


def test_a_trace_without_device_work_is_an_error() -> None:
    with pytest.raises(InputError) as error:
        ProfilerTrace([small_trace(op("aten::mm", 0, 10))])
    assert error.value.code == "nothing-to-do"
    assert error.value.where == "small.json"
    with pytest.raises(InputError) as caught:
        ProfilerTrace([])
    assert caught.value.code == "missing-argument"


def test_a_rank_that_was_not_traced_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        three_streams().rank(5)
    assert caught.value.code == "no-such-rank"


@pytest.mark.parametrize("name", ["streams.sync", "gpt_4x4096_mbs4_s1024.shapes"])
def test_the_step_is_that_of_a_replay_and_its_parts_sum_to_it(name: str) -> None:
    path = ROOT / f"benchmarks/truth/profiles/{name}.json.gz"
    summary = ProfilerTrace.load(path).summary()
    assert summary.step_s == pytest.approx(read_step(read_trace(path)).recorded_s)
    assert sum(summary.states_s.values()) == pytest.approx(summary.step_s)
    busy_s = summary.step_s - summary.states_s["idle"]
    assert busy_s == pytest.approx(sum(one.total_s for one in summary.kinds), rel=0.01)
