"""Laws of the analyses of traces, over random traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, CollectiveArguments, RankProfile
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.readings.breakdown import breakdown
from foretrace.readings.chain import Chain
from foretrace.readings.critical_path import critical_path
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.intervals import length_s, united
from recorded_timelines import late_s
from small_traces import Row, copy, kernel, launch, mark, small_trace

NAMES = ("ampere_sgemm_128x64_nn", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "Memcpy DtoD (Device -> Device)")


@st.composite
def traces(draw: st.DrawFn) -> RankProfile:
    """Kernels on up to three streams, in order on each, most of them launched."""
    rows: list[Row] = [mark("ProfilerStep#0", 0, 5000)]
    called = 0.0
    free = {7: 5.0, 20: 5.0, 21: 5.0}
    for number in range(draw(st.integers(1, 20))):
        stream = draw(st.sampled_from(sorted(free)))
        name = draw(st.sampled_from(NAMES))
        called += draw(st.integers(1, 50))
        start = max(free[stream], called - draw(st.integers(0, 3))) + draw(st.integers(0, 60))
        end = start + draw(st.integers(0, 80))
        free[stream] = end
        known = draw(st.booleans())
        if known:
            rows.append(launch(number, called, called + 1))
        correlation = number if known else -1
        if name.startswith("Memcpy"):
            rows.append(copy(name, start, end, stream=stream, correlation=correlation, bytes=100))
        else:
            rows.append(kernel(name, start, end, stream=stream, correlation=correlation))
    return small_trace(*rows)


@given(traces())
def test_parts_sum_to_the_span(recorded: RankProfile) -> None:
    trace = ProfilerTrace([recorded])
    (one,) = trace.occupancies
    assert sum(one.states_s.values()) == pytest.approx(one.span_s)
    (rank,) = trace.temporal_breakdown().ranks
    assert rank.idle_s + rank.compute_s + rank.non_compute_s == pytest.approx(rank.span_s)
    assert min(rank.idle_s, rank.compute_s, rank.non_compute_s) >= -1e-15


@given(traces())
def test_overlap_is_no_longer_than_either(recorded: RankProfile) -> None:
    (one,) = ProfilerTrace([recorded]).occupancies
    assert 0 <= one.overlapped_s <= min(one.compute_s, one.communication_s) + 1e-15
    assert one.overlapped_s + one.exposed_communication_s == pytest.approx(one.communication_s)


@given(traces())
def test_causes_sum_to_idle_time(recorded: RankProfile) -> None:
    trace = ProfilerTrace([recorded])
    (rank,) = trace.idle().ranks
    assert rank.device.idle_s == pytest.approx(trace.occupancies[0].idle_s, abs=1e-12)
    for times in (rank.device, *(one.times for one in rank.streams)):
        assert times.host_wait_s + times.kernel_wait_s + times.other_s == pytest.approx(times.idle_s, abs=1e-15)


@given(traces())
def test_queues_are_never_shorter_than_nothing_and_end_empty(recorded: RankProfile) -> None:
    for queue in ProfilerTrace([recorded]).queues().queues:
        assert queue.length.min() >= 0
        assert queue.length[-1] == 0


@given(traces())
def test_the_recorded_timeline_is_consistent_and_its_readings_sum_to_the_step(recorded: RankProfile) -> None:
    assume(len(recorded.events.of(*ON_DEVICE)) and len(recorded.events) > 1)
    timeline = ProfilerTraceInput([recorded]).recorded()
    assert late_s(timeline) <= 1e-12
    chain = Chain(timeline)
    path = critical_path(chain)
    assert sum(path.parts_s.values()) == pytest.approx(path.length_s)
    assert path.length_s <= timeline.step_time_s * (1 + 1e-9)
    assert (path.start_s[1:] >= path.end_s[:-1] - 1e-12).all()
    assert sum(breakdown(timeline, chain).mean_s.values()) == pytest.approx(timeline.step_time_s)


@st.composite
def jobs(draw: st.DrawFn) -> list[RankProfile]:
    """Steps of two or three ranks that compute and reduce in turn, on clocks of their own."""
    world, calls = draw(st.integers(2, 3)), draw(st.integers(1, 3))
    group = CollectiveArguments("allreduce", group="1", ranks=tuple(range(world)))
    traces = []
    for rank in range(world):
        rows: list[Row] = []
        clock = float(draw(st.integers(0, 5000)))
        for step in range(3):
            begin = clock + 1000.0 * step
            rows.append(mark(f"ProfilerStep#{step}", begin, begin + 1000))
            for number in range(calls):
                correlation = 100 * step + 2 * number
                called = begin + 10 + 300 * number
                computed = called + 10 + draw(st.integers(0, 90))
                came, ended = called + draw(st.integers(12, 150)), called + 200 + draw(st.integers(0, 60))
                rows += [launch(correlation, called, called + 2), launch(correlation + 1, called + 5, called + 7)]
                rows.append(kernel("gemm", called + 8, computed, correlation=correlation))
                rows.append(kernel(NAMES[1], came, ended, stream=20, correlation=correlation + 1, call=0))
        traces.append(small_trace(*rows, rank=rank, world=world, calls=[group]))
    return traces


@given(jobs())
def test_readings_of_several_ranks_sum_to_the_step(traces: list[RankProfile]) -> None:
    timeline = ProfilerTraceInput(traces).recorded()
    chain = Chain(timeline)
    path = critical_path(chain)
    assert path.length_s <= timeline.step_time_s * (1 + 1e-9)
    assert (path.end_s >= path.start_s).all() and (path.start_s[1:] >= path.end_s[:-1] - 1e-12).all()
    assert sum(breakdown(timeline, chain).mean_s.values()) == pytest.approx(timeline.step_time_s)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=20), st.data())
def test_unions_do_not_care_how_intervals_are_cut(intervals: list[tuple[int, int]], data: st.DataObject) -> None:
    start = np.array([float(a) for a, _ in intervals])
    end = start + np.array([float(length) for _, length in intervals])
    cut = np.array([data.draw(st.floats(0, 1)) for _ in intervals]) * (end - start) + start
    whole = united(start, end)
    parts = united(np.concatenate([start, cut]), np.concatenate([cut, end]))
    assert whole[0].tolist() == parts[0].tolist()
    assert whole[1].tolist() == parts[1].tolist()
    assert length_s(start, end) <= (end - start).sum() + 1e-12
