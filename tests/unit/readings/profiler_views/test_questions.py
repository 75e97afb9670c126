"""Kernels, launches, queues, copies, ranges, sequences, steps and differences: numbers by hand."""

from __future__ import annotations

import pytest

from foretrace.readings.profiler_views import ProfilerTrace
from small_traces import Row, copy, kernel, launch, mark, op, small_trace

US = 1e-6


def test_kernels_by_name_and_kind() -> None:
    rows = [
        kernel("ampere_sgemm_128x64_nn", 0, 10),
        kernel("ampere_sgemm_128x64_nn", 10, 30),
        copy("Memset (Device)", 30, 31, bytes=4),
        kernel("ampere_sgemm_128x64_nn", 25, 40, stream=8),
    ]
    answer = ProfilerTrace([small_trace(*rows)]).kernels()
    gemm = answer.kernels[0]
    assert (gemm.type, gemm.kind, gemm.count) == ("compute", "gemm", 3)
    assert gemm.total_s == pytest.approx(45 * US)
    assert gemm.deviation_s == pytest.approx(5 * US)  # of 10, 20 and 15
    assert (gemm.least_s, gemm.most_s) == (pytest.approx(10 * US), pytest.approx(20 * US))
    assert answer.kinds[0].busy_s == pytest.approx(40 * US)  # 5 ran side by side
    assert sum(one.share for one in answer.kinds) == pytest.approx(1.0)
    assert [one.name for one in answer.top(1, "memory")] == ["Memset (Device)"]


def launched() -> list[Row]:
    return [
        launch(1, 0, 4),
        launch(2, 5, 6),
        launch(3, 7, 9, "cuLaunchKernelEx"),
        kernel("a", 10, 11, correlation=1),
        kernel("a", 12, 20, correlation=2),
        kernel("a", 21, 22, correlation=3),
        kernel("a", 30, 31),
    ]


def test_launches() -> None:
    (rank,) = ProfilerTrace([small_trace(*launched())]).launches(long_call_s=3 * US, long_delay_s=10 * US).ranks
    assert rank.correlation.tolist() == [1, 2, 3]
    assert rank.delay_s == pytest.approx([6 * US, 6 * US, 12 * US])
    assert rank.call.median == pytest.approx(2 * US)
    assert (rank.short, rank.long_calls, rank.long_delays, rank.unlaunched) == (1, 1, 1, 1)
    (some,) = ProfilerTrace([small_trace(*launched())]).launches(calls=["cudaLaunchKernel"]).ranks
    assert some.correlation.tolist() == [1, 2]


def test_a_kernel_that_started_under_its_call_was_not_delayed() -> None:
    (rank,) = ProfilerTrace([small_trace(launch(1, 0, 10), kernel("a", 5, 6, correlation=1))]).launches().ranks
    assert rank.delay_s.tolist() == [0.0]


def test_queue_lengths() -> None:
    (queue,) = ProfilerTrace([small_trace(*launched())]).queues().queues
    assert queue.length.tolist() == [1, 2, 3, 2, 1, 0]
    assert queue.time_s == pytest.approx([0, 5 * US, 7 * US, 10 * US, 12 * US, 21 * US])
    assert queue.mean_over_time == pytest.approx((5 + 4 + 9 + 4 + 9) / 21)
    assert (queue.empty_share, queue.full_s, queue.early) == (0.0, 0.0, 0)


def test_a_queue_is_never_shorter_than_nothing() -> None:
    rows = [launch(1, 9, 10), kernel("a", 8, 12, correlation=1), launch(2, 20, 21), kernel("a", 20, 22, correlation=2)]
    (queue,) = ProfilerTrace([small_trace(*rows)]).queues().queues
    assert queue.length.tolist() == [1, 0, 1, 0]
    assert queue.early == 1


def test_a_full_queue() -> None:
    rows: list[Row] = [launch(one, one, one + 0.5) for one in range(1100)]
    rows += [kernel("a", 2000 + 2 * one, 2001 + 2 * one, correlation=one) for one in range(1100)]
    (queue,) = ProfilerTrace([small_trace(*rows)]).queues().queues
    assert queue.spread.most == 1100
    # Full from the 1,024th launch, at 1,023, until the 77th of the kernels starts.
    assert queue.full_s == pytest.approx((2000 + 2 * 76 - 1023) * US)


def test_bandwidth_of_copies() -> None:
    rows = [
        copy("Memcpy HtoD (Pageable -> Device)", 0, 2, bytes=2000, stream=1),
        copy("Memcpy HtoD (Pinned -> Device)", 1, 3, bytes=4000, stream=2),
        copy("Memcpy DtoH (Device -> Pinned)", 5, 6),
        kernel("a", 6, 7),
    ]
    read, written = ProfilerTrace([small_trace(*rows)]).memory_bandwidth().copies
    assert (read.kind, read.count, read.unknown) == ("Memcpy DtoH", 0, 1)
    assert written.bytes == 6000
    assert written.bytes_per_s == pytest.approx([1e9, 3e9, 2e9, 0.0])
    assert written.spread.count == 3


def test_ranges_and_what_was_launched_within() -> None:
    rows = [
        mark("step", 0, 100),
        mark("forward", 10, 40),
        mark("forward", 20, 30),
        launch(1, 25, 26),
        launch(2, 35, 36),
        launch(3, 50, 51),
        kernel("a", 60, 70, correlation=1),
        kernel("a", 70, 90, correlation=2),
        kernel("a", 90, 95, correlation=3),
    ]
    trace = ProfilerTrace([small_trace(*rows)])
    times = {one.name: one for one in trace.annotations().of("host")}
    assert times["forward"].count == 2
    assert times["forward"].total_s == pytest.approx(40 * US)
    within = {one.name: one for one in trace.launched()}
    assert within["forward"].total_s == pytest.approx(30 * US)  # work in both ranges counts once
    assert within["step"].total_s == pytest.approx(35 * US)
    assert within["step"].innermost_s == pytest.approx(5 * US)


def test_sequences_of_kernels() -> None:
    rows: list[Row] = []
    for number, kernels in enumerate((("x", "y", "z"), ("x", "y", "z"), ("x", "z", "y"), ("x",))):
        base = 100 * number
        rows += [op("aten::layer", base, base + 50), op("aten::inner", base + 1, base + 40)]
        for place, name in enumerate(kernels):
            correlation = 10 * number + place
            rows.append(launch(correlation, base + 2 + 2 * place, base + 3 + 2 * place))
            rows.append(kernel(name, base + 10 + 5 * place, base + 12 + 5 * place, correlation=correlation))
    answer = ProfilerTrace([small_trace(*rows)]).sequences()
    first, second = answer.sequences
    assert (first.op, first.kernels, first.count) == ("aten::layer", ("x", "y", "z"), 2)
    assert first.device_s == pytest.approx(12 * US)
    assert first.host_s == pytest.approx(100 * US)
    assert (second.kernels, second.count) == (("x", "z", "y"), 1)
    assert ProfilerTrace([small_trace(*rows)]).sequences("inner").sequences[0].op == "aten::inner"
    assert ProfilerTrace([small_trace(*rows)]).sequences("nothing").sequences == ()


def two_steps(gemm_us: float = 10.0, extra: bool = False) -> ProfilerTrace:
    rows: list[Row] = []
    for step in range(3):
        base = 100.0 * step
        rows += [mark(f"ProfilerStep#{step}", base, base + 100), launch(step, base + 5, base + 6)]
        rows.append(kernel("gemm", base + 20, base + 20 + gemm_us, correlation=step))
        if extra:
            rows += [launch(10 + step, base + 7, base + 8)]
            rows.append(kernel("extra", base + 60, base + 65, correlation=10 + step))
    return ProfilerTrace([small_trace(*rows)])


def test_steps() -> None:
    answer = two_steps().steps()
    assert answer.how == "ProfilerStep"
    assert [one.name for one in answer.steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert [one.counted for one in answer.steps] == [True, True, True]
    assert answer.steps[1].host_s == pytest.approx(100 * US)
    assert answer.steps[1].step_s == pytest.approx(100 * US)
    assert answer.steps[0].compute_s == pytest.approx(10 * US)
    assert answer.step_s == pytest.approx(100 * US)


def test_a_step_takes_as_long_as_its_device() -> None:
    rows: list[Row] = []
    for step in range(3):  # launched in 10 each, 50 of work each
        rows += [mark(f"ProfilerStep#{step}", 10 * step, 10 * step + 10), launch(step, 10 * step + 1, 10 * step + 2)]
        rows.append(kernel("gemm", 5 + 50 * step, 55 + 50 * step, correlation=step))
    assert ProfilerTrace([small_trace(*rows)]).steps().step_s == pytest.approx(50 * US)


def test_what_changed() -> None:
    difference = two_steps().diff(two_steps(gemm_us=30.0, extra=True))
    changes = {one.name: one for one in difference.of("device")}
    assert changes["gemm"].change_s == pytest.approx(20 * US)
    assert changes["gemm"].what == "same"
    assert (changes["extra"].what, changes["extra"].after_count) == ("added", 1.0)
    launches = next(one for one in difference.of("host") if one.name == "cudaLaunchKernel")
    assert (launches.before_count, launches.after_count, launches.what) == (1.0, 2.0, "more")
    back = two_steps(extra=True).diff(two_steps(), step="ProfilerStep#1")
    assert next(one for one in back.of("device") if one.name == "extra").what == "removed"


def test_the_summary_says_what_the_step_depends_on() -> None:
    summary = two_steps().summary()
    assert summary.bound == "host"
    assert sum(summary.states_s.values()) == pytest.approx(summary.step_s)
    assert summary.states_s["idle"] == pytest.approx(90 * US)  # of 100
    assert summary.idle.host_wait_s == pytest.approx(90 * US)
    assert summary.advice[0].at_most_s == pytest.approx(90 * US)
    hta = ProfilerTrace([one.trace for one in two_steps().ranks], hta_steps=True).summary()
    assert hta.states_s["idle"] == pytest.approx(45 * US)  # 90 between two pieces of work, of two steps
    busy = ProfilerTrace([small_trace(launch(1, 0, 1), kernel("gemm", 1, 100, correlation=1))]).summary()
    assert (busy.bound, busy.advice) == ("compute", ())


def test_a_trace_of_kernels_alone_or_of_no_time_is_summed_up() -> None:
    alone = ProfilerTrace([small_trace(kernel("gemm", 0, 10), kernel("gemm", 12, 20))])
    assert alone.summary().median_delay_s is None
    assert alone.summary().idle.kernel_wait_s == pytest.approx(2 * US)
    nothing = ProfilerTrace([small_trace(kernel("gemm", 5, 5))])
    assert (nothing.summary().states_s, nothing.summary().advice) == ({"idle": 0.0}, ())
    assert nothing.summary().bound is None
    assert nothing.temporal_breakdown().worst.idle_s == 0.0
