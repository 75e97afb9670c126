"""Whom ranks wait for, and what a step waited for: numbers by hand."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.records import CollectiveArguments, RankProfile
from foretrace.readings.profiler_views import ProfilerTrace
from small_traces import copy, kernel, launch, mark, small_trace

US = 1e-6
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rank(number: int, *durations_us: float, call: CollectiveArguments | None = None) -> RankProfile:
    rows = [mark("ProfilerStep#1", 0, 1000)]
    for place, duration in enumerate(durations_us):
        start = 100 * place + 50 - duration
        rows.append(launch(place, 100 * place, 100 * place + 1))
        index = 0 if call else -1
        rows.append(kernel(NCCL, start, start + duration, stream=20, correlation=place, call=index))
    return small_trace(*rows, rank=number, world=2, calls=[call] if call else [])


def test_the_shortest_kernel_of_a_collective_came_last() -> None:
    answer = ProfilerTrace([rank(0, 10, 4), rank(1, 3, 9)]).stragglers()
    first, second = answer.arrivals
    assert answer.calls == 2
    assert (first.rank, first.last, second.rank, second.last) == (1, 1, 0, 1)
    assert first.caused_s == pytest.approx(7 * US)  # rank 0 waited for it
    assert first.lost_s == pytest.approx(5 * US)
    assert second.caused_s == pytest.approx(5 * US)


def test_candidates_by_the_last_long_kernel() -> None:
    answer = ProfilerTrace([rank(0, 10, 40), rank(1, 30, 9)]).stragglers(candidates=1)
    assert answer.candidates == (1,)
    assert answer.kernel == NCCL


def test_collectives_of_different_groups_do_not_meet() -> None:
    first, second = (
        CollectiveArguments("allreduce", group="1", ranks=(0, 2)),
        CollectiveArguments("allreduce", group="1", ranks=(1, 3)),
    )
    assert ProfilerTrace([rank(0, 10, call=first), rank(1, 3, call=second)]).stragglers().calls == 0
    both = CollectiveArguments("allreduce", group="1", ranks=(0, 1))
    assert ProfilerTrace([rank(0, 10, call=both), rank(1, 3, call=both)]).stragglers().calls == 1


def test_transfers_of_pairs_are_no_collectives() -> None:
    send = CollectiveArguments("send", group="1", ranks=(0, 1), peer=1)
    assert ProfilerTrace([rank(0, 10, call=send), rank(1, 3, call=send)]).stragglers().calls == 0


def test_one_rank_waits_for_nobody() -> None:
    answer = ProfilerTrace([rank(0, 10, 40)]).stragglers()
    assert (answer.calls, answer.candidates) == (0, ())


def test_a_path_over_host_launch_and_kernels() -> None:
    rows = [
        mark("ProfilerStep#1", 0, 200),
        launch(1, 30, 32),
        launch(2, 33, 35),
        kernel("a", 40, 90, correlation=1),
        kernel("b", 92, 120, correlation=2),
    ]
    path = ProfilerTrace([small_trace(*rows)]).critical_path()
    assert path.step == "ProfilerStep#1"
    assert path.length_s == pytest.approx(120 * US)
    assert path.parts_s == {
        "compute": pytest.approx(78 * US),
        "host": pytest.approx(30 * US),
        "launch": pytest.approx(10 * US),
        "gap": pytest.approx(2 * US),
    }
    assert path.part == ("host", "launch", "compute", "gap", "compute")
    assert [(one.name, one.count) for one in path.kernels] == [("a", 1), ("b", 1)]


def test_a_path_through_a_wait_of_the_host() -> None:
    rows = [
        mark("ProfilerStep#1", 0, 300),
        launch(1, 10, 12),
        copy("Memcpy DtoH (Device -> Pinned)", 15, 100, correlation=1, bytes=8),
        launch(9, 20, 105, "cudaStreamSynchronize"),
        launch(2, 130, 131),
        kernel("b", 135, 145, correlation=2),
    ]
    path = ProfilerTrace([small_trace(*rows)]).critical_path()
    assert path.part == ("host", "launch", "memory", "host", "launch", "compute")
    assert path.parts_s["memory"] == pytest.approx(85 * US)
    assert path.parts_s["host"] == pytest.approx((10 + 30) * US)


def test_a_path_through_another_stream() -> None:
    rows = [
        mark("ProfilerStep#1", 0, 300),
        launch(1, 1, 2),
        launch(2, 3, 4),
        kernel(NCCL, 10, 200, stream=20, correlation=1),
        kernel("b", 205, 215, correlation=2),
    ]
    path = ProfilerTrace([small_trace(*rows)]).critical_path()
    assert path.part == ("host", "launch", "communication", "gap", "compute")
    assert path.parts_s["communication"] == pytest.approx(190 * US)


def test_a_path_without_recorded_launches() -> None:
    path = ProfilerTrace([small_trace(kernel("a", 10, 20), kernel("a", 25, 30))]).critical_path()
    assert sum(path.parts_s.values()) == pytest.approx(path.length_s)


def test_a_step_that_was_not_recorded_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        ProfilerTrace([small_trace(kernel("a", 10, 20))]).critical_path(step=7)
    assert caught.value.code == "no-such-rank"
