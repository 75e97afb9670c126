"""Waits of the script around steps are no part of them, and a device that ends its steps late does not bound them."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.inputs.profiler_trace.rank.rank_step import RankStep, read_step
from small_traces import Row, kernel, launch, mark, op, small_trace

US = 1e-6
_DEVICE_WAIT, _STREAM_WAIT = "cudaDeviceSynchronize", "cudaStreamSynchronize"


def _step(at_us: float, number: int, *, tail_us: float = 10) -> list[Row]:
    """Three launches 30 apart, 100 on the host; the last kernel takes `tail_us`."""
    rows = [mark(f"ProfilerStep#{number}", at_us, at_us + 100)]
    for i in range(3):
        begin, took = at_us + 10 + 30 * i, tail_us if i == 2 else 10
        correlation = 10 * number + i
        rows += [
            launch(correlation, begin, begin + 5),
            kernel("a", begin + 8, begin + 8 + took, correlation=correlation),
        ]
    return rows


def _waits(begin_us: float, end_us: float, name: str = _DEVICE_WAIT) -> Row:
    return launch(-1, begin_us, end_us, name)


def _read(*rows: Row) -> RankStep:
    return read_step(small_trace(*rows))


def test_a_single_step_is_trimmed_of_the_script_waits_around_it() -> None:
    rank = _read(_waits(1, 8), *_step(0, 1), _waits(92, 99))
    np.testing.assert_allclose(rank.recorded.host_s, 84 * US)
    assert rank.steady.calls.shape == (1, 3)


def test_a_single_step_keeps_a_wait_that_an_op_makes() -> None:
    rank = _read(*_step(0, 1), op("aten::item", 91, 99), _waits(92, 98, _STREAM_WAIT))
    np.testing.assert_allclose(rank.recorded.host_s, 100 * US)
    assert rank.steady.calls.shape == (1, 4)


def test_a_single_step_that_goes_on_after_its_wait_is_left_as_it_is() -> None:
    rank = _read(*_step(0, 1)[1:], mark("ProfilerStep#1", 0, 1000), _waits(92, 99))
    np.testing.assert_allclose(rank.recorded.host_s, 1000 * US)


def test_of_waits_that_all_steps_end_with_only_one_too_many_is_left_out() -> None:
    rows = [row for n in range(3) for row in (*_step(100 * n, n), _waits(100 * n + 90, 100 * n + 94, _STREAM_WAIT))]
    rank = _read(*rows, _waits(295, 299))
    assert rank.steady.calls.shape == (3, 4)
    assert rank.recorded_s == pytest.approx((100 + 100 + 95) / 3 * US)


def test_a_device_that_catches_up_in_each_step_does_not_bound_it() -> None:
    """The last kernel of each step runs into the next, whose others wait for their launches."""
    first, second = _step(0, 1, tail_us=36), _step(100, 2, tail_us=36)
    late = [
        kernel("a", 115, 125, correlation=20) if row.correlation == 20 and row.stream >= 0 else row for row in second
    ]
    rank = _read(*first, *late)
    assert rank.recorded.bound == "host"
    assert rank.recorded_s == pytest.approx(100 * US)


def test_of_two_steps_a_shorter_first_is_no_warm_up() -> None:
    short = [row for row in _step(25, 1) if row.name != "ProfilerStep#1"]
    rank = _read(mark("ProfilerStep#1", 25, 100), *short, *_step(100, 2))
    assert len(rank.steady.steps) == 2
