"""What streams wait for of each other where only the calls were recorded, and where a step is bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.host_modes import times
from foretrace.inputs.profiler_trace.profiling_cost import profiling_cost
from foretrace.inputs.profiler_trace.rank.concurrency import gpu_share
from foretrace.inputs.profiler_trace.rank.device import Wait
from foretrace.inputs.profiler_trace.rank.rank_step import read_step
from small_machine import Do, Machine, Row, recorded

_DEVICE_BOUND = [Do(3e-6, 100e-6), Do(4e-6, 80e-6), Do(5e-6, 60e-6)]


def test_a_wait_that_cost_nothing_when_recorded_is_kept_by_its_call() -> None:
    """The first kernel had ended long before the host launched the second: times show no wait, the call does."""
    step = [Do(5e-6, 20e-6), Do(200e-6, 50e-6, stream=20, after=(0,))]
    machine = Machine(step, cuda_sync=False).run(5)
    assert read_step(recorded(machine, 1)).device.waits == (Wait(0, 1),)
    machine.rows = [row for row in machine.rows if "WaitEvent" not in row.name]
    assert read_step(recorded(machine, 1)).device.waits == ()


def test_of_two_streams_a_call_waits_for_the_one_that_ended_last() -> None:
    step = [Do(5e-6, 60e-6), Do(5e-6, 150e-6, stream=20), Do(5e-6, 40e-6, stream=30, after=(1,)), Do(400e-6, 5e-6)]
    waits = read_step(recorded(Machine(step, cuda_sync=False).run(5), 1)).device.waits
    assert Wait(1, 2) in waits
    assert Wait(0, 2) not in waits


def test_what_the_profiler_notes_as_its_own_is_no_work_of_the_host() -> None:
    machine = Machine([Do(30e-6, 5e-6), Do(500e-6, 6e-6), Do(40e-6, 7e-6)]).run(5)
    plain = read_step(recorded(machine))
    own = [Row(EventCategory.OVERHEAD, "Activity Buffer Request", at + 100e-6, 300e-6, 0) for at in machine.starts_s]
    machine.rows += own
    rank = read_step(recorded(machine))
    np.testing.assert_allclose(rank.host.work_s, plain.host.work_s)
    taken_off = times(plain, "unprofiled").work_s - times(rank, "unprofiled").work_s
    assert taken_off.argmax() == 1
    assert taken_off[1] == pytest.approx(300e-6 * profiling_cost(rank.trace).pace, rel=0.02)
    assert taken_off[[0, 2]] == pytest.approx([0.0, 0.0], abs=1e-9)


def test_kernels_that_a_busy_device_kept_apart_do_not_share_it() -> None:
    """Two streams that take turns by waits, the host far ahead: nothing but their waits keeps the kernels apart."""
    turns = [Do(3e-6, 100e-6), Do(3e-6, 100e-6, stream=20, after=(0,)), Do(3e-6, 100e-6, after=(1,))]
    rank = read_step(recorded(Machine(turns).run(6), 2))
    assert rank.recorded.bound == "device"
    assert gpu_share(rank.streams, rank.steady.device).any()
    for mode in ("unprofiled", "none", "graphs"):
        shares = times(rank, mode).shares
        assert shares is None or not shares.any()


def test_the_first_step_of_a_busy_device_that_began_idle_is_left_out() -> None:
    machine = Machine(_DEVICE_BOUND).run(7)
    began_idle = read_step(recorded(machine))
    assert began_idle.steady.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert "began on an idle device" in " ".join(note.message for note in began_idle.steady.notes)
    assert read_step(recorded(machine, 2)).steady.steps.tolist() == [0, 1, 2, 3, 4]


def test_a_device_that_is_busy_all_the_time_bounds_the_step_though_its_host_waits_for_it() -> None:
    """The host waits amid the step, so the device has caught up there; the first step's host did not wait as long."""
    step = [Do(5e-6, 100e-6), Do(5e-6, sync=True), Do(5e-6, 300e-6)]
    rank = read_step(recorded(Machine(step).run(2)))
    assert rank.recorded.bound == "device"
    assert rank.recorded_s == pytest.approx(Machine(step).period_s(), rel=0.05)


def test_a_device_nearly_as_busy_as_its_host_is_slow_does_not_bound_the_step() -> None:
    step = [Do(100e-6, 97e-6)]
    rank = read_step(recorded(Machine(step).run(2)))
    assert rank.recorded.bound == "host"
    assert rank.recorded_s == pytest.approx(Machine(step).period_s(), rel=0.01)


def test_a_wait_is_the_same_whatever_the_profiler_was_called() -> None:
    """Nsight's traces go the same way as Kineto's."""
    step = [Do(5e-6, 200e-6), Do(5e-6, 50e-6, stream=20, after=(0,)), Do(5e-6, 100e-6)]
    trace = recorded(Machine(step, cuda_sync=False).run(5), 1)
    assert read_step(replace(trace, producer="nsys")).device.waits == read_step(trace).device.waits
