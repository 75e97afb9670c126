"""What a launch takes the host, from a trace."""

from __future__ import annotations

import pytest

from foretrace.calibrate.recorded import MAX_MEDIANS, MIN_KERNELS, host_fit
from foretrace.inputs.profiler_trace.host_modes import times
from foretrace.inputs.profiler_trace.profiling_cost import profiling_cost
from foretrace.inputs.profiler_trace.rank.rank_step import read_step
from small_machine import Do, Machine, recorded

_LAUNCHES = [Do(20e-6, 5e-6)] * (MIN_KERNELS + 20)


def test_a_launch_takes_the_step_s_host_time_by_kernels() -> None:
    trace = recorded(Machine(_LAUNCHES).run(4))
    fit = host_fit(trace)
    assert fit is not None
    assert fit.launches == len(_LAUNCHES)
    at_the_pace_recorded_s = times(read_step(trace), "unprofiled").work_s.sum() / profiling_cost(trace).pace
    assert fit.launch_s == pytest.approx(at_the_pace_recorded_s / len(_LAUNCHES))


def test_a_user_s_own_code_is_no_launch() -> None:
    """Ten milliseconds of loading data count as much as ten launches, no more."""
    usual = host_fit(recorded(Machine(_LAUNCHES).run(4)))
    loading = host_fit(recorded(Machine([*_LAUNCHES[1:], Do(10e-3, 5e-6)]).run(4)))
    assert usual is not None and loading is not None
    assert loading.launch_s == pytest.approx(usual.launch_s * (1 + (MAX_MEDIANS - 1) / len(_LAUNCHES)), rel=0.01)


def test_few_launches_say_nothing() -> None:
    assert host_fit(recorded(Machine(_LAUNCHES[: MIN_KERNELS - 1]).run(4))) is None
