"""Kernels of several streams that share a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.host_modes import times
from foretrace.inputs.profiler_trace.rank.concurrency import alone_s, gpu_share
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep, read_step
from small_machine import Do, Machine, Row, recorded, trace_of


def _apart() -> RankStep:
    """Kernels of two streams that the host launches so slowly that they never meet."""
    return read_step(recorded(Machine([Do(90e-6, 30e-6), Do(90e-6, 30e-6, stream=20)]).run(4)))


def test_of_the_time_two_kernels_run_at_once_each_has_half() -> None:
    rows = [
        Row(EventCategory.RUNTIME, "cudaLaunchKernel", 0.0, 1e-6, 0, -1, 1),
        Row(EventCategory.RUNTIME, "cudaLaunchKernel", 2e-6, 1e-6, 0, -1, 2),
        Row(EventCategory.KERNEL, "gemm", 10e-6, 30e-6, -1, 7, 1),
        Row(EventCategory.KERNEL, "gemm", 20e-6, 40e-6, -1, 20, 2),
    ]
    rank = read_step(trace_of(rows))
    assert alone_s(rank.streams, rank.steady.device) == pytest.approx([20e-6, 30e-6])
    assert not gpu_share(rank.streams, rank.steady.device).any()  # recorded, they hold what overlapping costs


def test_kernels_that_never_met_share_the_gpu_once_they_do() -> None:
    rank = _apart()
    assert gpu_share(rank.streams, rank.steady.device).all()
    assert times(rank, "profiled").shares is None
    shares = times(rank, "graphs").shares
    assert shares is not None
    assert shares.all()


def test_a_kernel_with_few_blocks_draws_their_part_of_the_sms() -> None:
    rank = _apart()
    trace = rank.trace
    few = np.where(trace.events.category == EventCategory.KERNEL, 0.25, -1.0)
    rank = read_step(replace(trace, events=replace(trace.events, blocks_per_sm=few)))
    assert gpu_share(rank.streams, rank.steady.device) == pytest.approx([0.25, 0.25])


def test_streams_of_two_gpus_share_neither() -> None:
    trace = _apart().trace
    device = np.where(trace.events.stream == 20, 1, trace.events.device)
    rank = read_step(replace(trace, events=replace(trace.events, device=device)))
    assert not gpu_share(rank.streams, rank.steady.device).any()


def test_one_stream_shares_with_none_and_communication_with_no_kernel() -> None:
    one = read_step(recorded(Machine([Do(90e-6, 30e-6)] * 2).run(4)))
    assert not gpu_share(one.streams, one.steady.device).any()
    step = [Do(90e-6, 30e-6), Do(90e-6, 30e-6, stream=20, name="ncclDevKernel_AllReduce")]
    two = read_step(recorded(Machine(step).run(4)))
    assert not gpu_share(two.streams, two.steady.device).any()
