"""Kernels of several streams that share a GPU."""

from __future__ import annotations

import pytest

from foretrace.formats.profiler_trace.records import Category
from foretrace.lower.profiler_trace.concurrency import alone_s, fills_gpu
from foretrace.lower.profiler_trace.modes import times
from foretrace.lower.profiler_trace.rank_step import RankStep, read_step
from small_machine import Do, Machine, Row, recorded, trace_of


def _apart() -> RankStep:
    """Kernels of two streams that the host launches so slowly that they never meet."""
    return read_step(recorded(Machine([Do(90e-6, 30e-6), Do(90e-6, 30e-6, stream=20)]).run(4)))


def test_of_the_time_two_kernels_run_at_once_each_has_half() -> None:
    rows = [
        Row(Category.RUNTIME, "cudaLaunchKernel", 0.0, 1e-6, 0, -1, 1),
        Row(Category.RUNTIME, "cudaLaunchKernel", 2e-6, 1e-6, 0, -1, 2),
        Row(Category.KERNEL, "gemm", 10e-6, 30e-6, -1, 7, 1),
        Row(Category.KERNEL, "gemm", 20e-6, 40e-6, -1, 20, 2),
    ]
    rank = read_step(trace_of(rows))
    assert alone_s(rank.streams, rank.alike.device) == pytest.approx([20e-6, 30e-6])
    assert not fills_gpu(rank.streams, rank.alike.device).any()  # recorded, they hold what overlapping costs


def test_kernels_that_never_met_share_the_gpu_once_they_do() -> None:
    rank = _apart()
    assert fills_gpu(rank.streams, rank.alike.device).all()
    assert times(rank, "profiled").shares is None
    shares = times(rank, "graphs").shares
    assert shares is not None
    assert shares.all()


def test_one_stream_shares_with_none_and_communication_with_no_kernel() -> None:
    one = read_step(recorded(Machine([Do(90e-6, 30e-6)] * 2).run(4)))
    assert not fills_gpu(one.streams, one.alike.device).any()
    step = [Do(90e-6, 30e-6), Do(90e-6, 30e-6, stream=20, name="ncclDevKernel_AllReduce")]
    two = read_step(recorded(Machine(step).run(4)))
    assert not fills_gpu(two.streams, two.alike.device).any()
