"""Whom ranks wait for, and what a step waited for: numbers by hand."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.records import CollectiveArguments, RankProfile
from foretrace.readings.profiler_views import ProfilerTrace
from small_traces import Row, copy, kernel, launch, mark, small_trace

US = 1e-6
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BOTH = CollectiveArguments("allreduce", group="1", ranks=(0, 1))


def rank(number: int, *durations_us: float, call: CollectiveArguments = BOTH) -> RankProfile:
    """A step of 1 ms with collectives that end 1 ms / 10 after each other, each of so many microseconds."""
    rows = [mark("ProfilerStep#1", 0, 1000)]
    for place, duration in enumerate(durations_us):
        start = 100 * place + 95 - duration
        rows.append(launch(place, 100 * place, 100 * place + 1))
        rows.append(kernel(NCCL, start, start + duration, stream=20, correlation=place, call=0))
    return small_trace(*rows, rank=number, world=2, calls=[call])


def test_the_shortest_kernel_of_a_collective_came_last() -> None:
    first, second = ProfilerTrace([rank(0, 60, 30), rank(1, 20, 50)]).stragglers()
    assert (first.rank, first.times_last, second.rank, second.times_last) == (1, 1, 0, 1)
    assert first.held_others_s == pytest.approx(40 * US)  # rank 0 waited for it
    assert first.held_up_s == pytest.approx(20 * US)
    assert second.held_others_s == pytest.approx(20 * US)


def test_collectives_of_different_groups_do_not_meet() -> None:
    first, second = (CollectiveArguments("allreduce", group="1", ranks=ranks) for ranks in ((0, 2), (1, 3)))
    apart = ProfilerTrace([rank(0, 60, call=first), rank(1, 20, call=second)]).stragglers()
    together = ProfilerTrace([rank(0, 60), rank(1, 20)]).stragglers()
    assert [lateness.held_others_s for lateness in apart] == [0.0, 0.0]
    assert together[0].held_others_s > 0


def test_one_rank_waits_for_nobody() -> None:
    (lateness,) = ProfilerTrace([rank(0, 10, 40)]).stragglers()
    assert (lateness.times_last, lateness.held_others_s, lateness.held_up_s) == (0, 0.0, 0.0)


def parts_us(*rows: Row) -> dict[str, float]:
    """The critical path of a trace by its parts, in microseconds."""
    path = ProfilerTrace([small_trace(*rows)]).critical_path()
    return {part: round(seconds / US, 3) for part, seconds in path.by_part_s.items()}


def repeated(*rows: Row, period_us: float, count: int = 4) -> list[Row]:
    """Steps that follow each other, with these events."""
    events: list[Row] = []
    for step in range(count):
        events.append(mark(f"ProfilerStep#{step}", step * period_us, (step + 1) * period_us))
        for row in rows:
            correlation = row.correlation + 100 * step if row.correlation >= 0 else -1
            start = row.start_us + step * period_us
            events.append(
                Row(row.category, row.name, start, row.duration_us, row.thread, row.stream, correlation, row.bytes)
            )
    return events


def test_a_step_that_waits_for_launches_is_bound_by_its_host() -> None:
    rows = repeated(
        launch(1, 30, 32),
        launch(2, 133, 135),
        kernel("a", 40, 90, correlation=1),
        kernel("b", 143, 170, correlation=2),
        period_us=200,
    )
    assert parts_us(*rows) == {"host": 200.0}
    assert ProfilerTrace([small_trace(*rows)]).critical_path().bound == "host"


def test_a_step_whose_kernels_follow_each_other_is_bound_by_them() -> None:
    # Kernels of a step run while the host launches those of the next.
    rows = repeated(
        launch(1, 1, 3),
        launch(2, 4, 6),
        kernel("a", 130, 228, correlation=1),
        kernel("b", 230, 328, correlation=2),
        period_us=200,
    )
    trace = ProfilerTrace([small_trace(*rows)])
    path = trace.critical_path()
    assert path.bound == "compute"
    assert parts_us(*rows) == {"compute": 200.0}  # the gaps of 2 us between kernels included
    assert {entry.name: entry.count for entry in path.by_name} == {"a": 1, "b": 1, "gap between kernels": 2}


def test_a_path_through_a_wait_of_the_host() -> None:
    rows = repeated(
        launch(1, 10, 12),
        copy("Memcpy DtoH (Device -> Pinned)", 18, 200, correlation=1, bytes=8),
        launch(9, 20, 205, "cudaStreamSynchronize"),
        launch(2, 230, 231),
        kernel("b", 238, 245, correlation=2),
        period_us=300,
    )
    parts = parts_us(*rows)
    assert parts["compute"] == pytest.approx(182, abs=2)  # the copy, for which the host waits
    assert parts["compute"] + parts["host"] == pytest.approx(300)


def test_a_path_through_another_stream() -> None:
    rows = repeated(
        launch(1, 1, 2),
        launch(2, 3, 4),
        kernel(NCCL, 10, 200, stream=20, correlation=1),
        kernel("b", 205, 215, correlation=2),
        launch(9, 5, 216, "cudaDeviceSynchronize"),
        period_us=220,
    )
    path = ProfilerTrace([small_trace(*rows)]).critical_path()
    assert path.bound == "communication"
    assert sum(path.by_part_s.values()) == pytest.approx(220 * US)


def test_a_trace_without_a_step_has_no_path() -> None:
    with pytest.raises(InputError) as caught:
        ProfilerTrace([small_trace(kernel("a", 10, 20))]).critical_path()
    assert caught.value.code == "nothing-to-do"
    assert ProfilerTrace([small_trace(kernel("a", 10, 20))]).summary().bound is None
