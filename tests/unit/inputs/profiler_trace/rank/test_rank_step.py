"""What is read off one trace: steps that are alike, waits, gaps, idle time, and what the host does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.device import Wait
from foretrace.inputs.profiler_trace.rank.host import Target
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep, read_step, step_notes
from small_machine import CALL_S, GAP_S, LAUNCH_S, SYNC_S, Do, Machine, Row, recorded, trace_of

_HOST_BOUND = [Do(30e-6, 5e-6), Do(50e-6, 6e-6), Do(40e-6, 7e-6)]
_DEVICE_BOUND = [Do(3e-6, 100e-6), Do(4e-6, 80e-6), Do(5e-6, 60e-6)]


def _read(step: Sequence[Do], steps: int = 6, from_step: int = 2, **machine: bool) -> RankStep:
    return read_step(recorded(Machine(step, **machine).run(steps), from_step))


def test_a_host_that_runs_ahead_tells_nothing_of_the_step() -> None:
    rank = _read(_DEVICE_BOUND)
    assert rank.recorded.bound == "device"
    assert rank.recorded_s == pytest.approx(sum(do.busy_s for do in _DEVICE_BOUND) + 3 * GAP_S, rel=0.01)
    assert rank.recorded.host_s.max() < 0.2 * rank.recorded_s


def test_a_host_bound_step_is_measured_on_the_host() -> None:
    rank = _read(_HOST_BOUND)
    assert rank.recorded.bound == "host"
    assert rank.recorded_s == pytest.approx(sum(do.host_s for do in _HOST_BOUND) + 3 * (CALL_S + 1e-7))


def test_host_work_of_a_step_sums_to_its_time() -> None:
    rank = _read(_HOST_BOUND)
    np.testing.assert_allclose(rank.host.work_s.sum(axis=1), rank.recorded.host_s[rank.steady.steps])


def test_launch_and_gap_are_found() -> None:
    assert _read(_HOST_BOUND * 4).streams.launch_s == pytest.approx(LAUNCH_S)
    rank = _read(_DEVICE_BOUND)
    assert rank.streams.gap_s == pytest.approx(GAP_S)
    np.testing.assert_allclose(rank.device.gap_s, GAP_S, rtol=1e-6)
    np.testing.assert_allclose(rank.device.busy_s, [do.busy_s for do in _DEVICE_BOUND], rtol=1e-6)
    assert rank.device.idle_s.sum() < 1e-6


@pytest.mark.parametrize("cuda_sync", [True, False])
def test_a_synchronisation_waits_for_its_stream_and_is_no_host_work(cuda_sync: bool) -> None:
    step = [Do(5e-6, 300e-6), Do(5e-6, 200e-6), Do(5e-6, sync=True)]
    rank = _read(step, cuda_sync=cuda_sync)
    assert rank.host.targets == ((), (), (Target(1),))
    assert rank.host.own_s[2] == pytest.approx(SYNC_S - GAP_S, abs=1e-9)
    assert rank.host.work_s[:, 2].max() < 6e-6
    assert not rank.host.unexplained_s


def test_a_wait_for_the_device_waits_for_every_stream() -> None:
    machine = Machine([Do(5e-6, 300e-6), Do(5e-6, 200e-6, stream=20)], annotate=False)
    for number in range(3):
        begin = machine.now_s
        machine.run(1)
        done = max(machine.free_s.values())
        call = Row(EventCategory.RUNTIME, "hipDeviceSynchronize", machine.now_s, done + 4e-6 - machine.now_s, 0)
        machine.rows += [call, Row(EventCategory.ANNOTATION, f"ProfilerStep#{number}", begin, done + 5e-6 - begin, 0)]
        machine.now_s = done + 5e-6
    rank = read_step(trace_of(machine.rows))
    assert set(rank.host.targets[2]) == {Target(0), Target(1)}


@pytest.mark.parametrize(("cuda_sync", "exact"), [(True, 1), (False, 0)])
def test_a_wait_between_streams_is_recorded_or_inferred(cuda_sync: bool, exact: int) -> None:
    step = [Do(5e-6, 200e-6), Do(5e-6, 50e-6, stream=20, after=(0,)), Do(5e-6, 100e-6)]
    rank = _read(step, cuda_sync=cuda_sync)
    assert Wait(0, 1) in rank.device.waits
    assert rank.device.exact_waits >= exact
    assert rank.device.idle_s.sum() < 5e-6


def test_of_a_wait_that_names_the_stream_that_waits_the_other_is_inferred() -> None:
    # A stream's next work is launched by another thread, after one on another stream.
    step = [
        Do(5e-6, 200e-6),
        Do(5e-6, 20e-6, stream=21),
        Do(5e-6, 50e-6, stream=20, after=(0,), thread=1),
        Do(5e-6, 100e-6),
    ]
    machine = Machine(step).run(4)
    for row in machine.rows:
        row.waits_stream = row.waits_correlation = -1
        if row.name == "cudaStreamWaitEvent":
            row.thread = 0
    rank = read_step(recorded(machine, 1))
    assert Wait(0, 2) in rank.device.waits
    assert rank.device.exact_waits == 0


def test_a_late_start_just_after_another_streams_work_is_a_wait_even_without_a_call() -> None:
    step = [Do(5e-6, 200e-6), Do(5e-6, 50e-6, stream=20, after=(0,)), Do(5e-6, 100e-6)]
    machine = Machine(step, cuda_sync=False).run(4)
    machine.rows = [row for row in machine.rows if "WaitEvent" not in row.name]
    assert Wait(0, 1) in read_step(recorded(machine, 1)).device.waits


def test_a_start_that_nothing_explains_is_idle_time() -> None:
    machine = Machine(_DEVICE_BOUND)
    for _ in range(4):
        machine.run(1)
        machine.free_s[7] += 500e-6  # something unrecorded runs
    rank = read_step(recorded(machine, 1))
    assert rank.device.idle_s[0] == pytest.approx(500e-6, rel=0.01)
    assert rank.device.idle_early[0]
    assert "reasons not recorded" in " ".join(note.message for note in step_notes(rank))


def test_a_copy_that_blocks_holds_the_host_until_it_is_done() -> None:
    rows: list[Row] = []
    for number in range(3):
        at = number * 1e-3
        rows += [
            Row(EventCategory.ANNOTATION, f"ProfilerStep#{number}", at, 1e-3, 0),
            Row(EventCategory.RUNTIME, "cudaLaunchKernel", at + 10e-6, 4e-6, 0, -1, 10 * number + 1),
            Row(EventCategory.KERNEL, "gemm", at + 20e-6, 800e-6, -1, 7, 10 * number + 1),
            Row(EventCategory.RUNTIME, "cudaMemcpyAsync", at + 30e-6, 805e-6, 0, -1, 10 * number + 2),
            Row(EventCategory.MEMCPY, "Memcpy DtoH (Device -> Pageable)", at + 822e-6, 5e-6, -1, 7, 10 * number + 2),
        ]
    rank = read_step(trace_of(rows))
    assert rank.host.targets == ((), (Target(1),))
    assert rank.host.work_s.sum(axis=1).max() < 250e-6


def test_a_launch_that_waits_for_room_waits_for_the_device() -> None:
    rows: list[Row] = []
    kernels = 1100
    for number in range(2):
        at, device = number * 30e-3, 40e-6 + number * 30e-3
        rows.append(Row(EventCategory.ANNOTATION, f"ProfilerStep#{number}", at, 29e-3, 0))
        for one in range(kernels):
            blocked = one == kernels - 1
            call = at + one * 5e-6
            took = 10e-3 if blocked else 4e-6
            correlation = 2000 * number + one
            rows.append(Row(EventCategory.RUNTIME, "cudaLaunchKernel", call, took, 0, -1, correlation))
            rows.append(Row(EventCategory.KERNEL, "gemm", device + one * 25e-6, 24e-6, -1, 7, correlation))
    rank = read_step(trace_of(rows))
    assert rank.host.queue.tolist() == [False] * (kernels - 1) + [True]
    assert rank.host.targets[-1]
    assert rank.host.work_s[:, -1].max() < 10e-6


def test_threads_that_take_turns_are_one_sequence_and_others_are_not() -> None:
    turns = [Do(20e-6, 5e-6), Do(20e-6, 5e-6, thread=1), Do(20e-6, 5e-6, thread=1), Do(20e-6, 5e-6)]
    assert _read(turns).host.sequence.tolist() == [0, 0, 0, 0]
    machine = Machine(_HOST_BOUND * 10).run(4)
    beside = [
        (Row(EventCategory.CPU_OP, "load", start + 5e-6, 60e-6, 9),
         Row(EventCategory.RUNTIME, "cudaLaunchKernel", start + 60e-6, 4e-6, 9, -1, 90000 + at),
         Row(EventCategory.KERNEL, "copy", start + 70e-6, 2e-6, -1, 30, 90000 + at))
        for at, start in enumerate(machine.starts_s)
    ]  # fmt: skip
    machine.rows += [row for rows in beside for row in rows]
    rank = read_step(recorded(machine))
    (other,) = np.flatnonzero(rank.host.sequence)
    assert rank.host.work_s[1:, other].max() < 200e-6  # of a step of over 1 ms
    assert rank.host.resumes[other] >= 0


def test_a_step_that_differs_is_left_out_and_said() -> None:
    machine = Machine(_HOST_BOUND).run(2)
    machine.step = [*_HOST_BOUND, Do(10e-6, 5e-6, name="log")]
    machine.run(1)
    machine.step = _HOST_BOUND
    rank = read_step(recorded(machine.run(2)))
    assert rank.steady.steps.tolist() == [0, 1, 3, 4]
    assert "do not all do the same" in rank.steady.notes[0].message


def test_of_steps_that_all_differ_the_one_nearest_to_the_mean_is_taken() -> None:
    machine = Machine(_HOST_BOUND)
    for extra in range(3):
        machine.step = [*_HOST_BOUND, *[Do(5e-6, 2e-6)] * extra]
        machine.run(1)
    rank = read_step(recorded(machine))
    assert rank.steady.steps.tolist() == [1]
    assert "nearest to the mean" in rank.steady.notes[0].message


def test_a_warm_up_is_left_out_and_said() -> None:
    machine = Machine([Do(3 * do.host_s, do.busy_s) for do in _HOST_BOUND]).run(1)
    machine.step = _HOST_BOUND
    rank = read_step(recorded(machine.run(3)))
    assert rank.steady.steps.tolist() == [1, 2, 3]
    assert rank.steady.notes[0].code == "steps-left-out"


def test_steps_can_be_chosen() -> None:
    trace = recorded(Machine(_HOST_BOUND).run(4))
    assert read_step(trace, (1, 3)).steady.steps.tolist() == [1, 3]
    with pytest.raises(InputError) as caught:
        read_step(trace, (4,))
    assert caught.value.code == "no-such-rank"


def test_waits_that_only_the_first_and_last_step_have_are_no_part_of_them() -> None:
    machine = Machine(_HOST_BOUND).run(4)
    first, last = machine.starts_s[0], machine.now_s
    machine.rows += [
        Row(EventCategory.RUNTIME, "cudaDeviceSynchronize", first + 1e-6, 2e-6, 0),
        Row(EventCategory.RUNTIME, "cudaDeviceSynchronize", last - 4e-6, 3e-6, 0),
    ]
    rank = read_step(recorded(machine, sync_at_end=False))
    assert rank.steady.steps.tolist() == [0, 1, 2, 3]
    assert not any(rank.host.targets)


def test_a_trace_without_a_device_says_what_to_record() -> None:
    rows = [Row(EventCategory.CPU_OP, "aten::mm", 0.0, 1e-6, 0), Row(EventCategory.CPU_OP, "aten::mm", 2e-6, 1e-6, 0)]
    with pytest.raises(InputError) as error:
        read_step(trace_of(rows))
    assert error.value.code == "nothing-to-do"
    assert "ProfilerActivity" in str(error.value)
    with pytest.raises(InputError) as caught:
        read_step(trace_of([Row(EventCategory.KERNEL, "gemm", 0.0, 1e-6, -1, 7)]))
    assert caught.value.code == "nothing-to-do"
