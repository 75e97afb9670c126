"""Whatever ranks compute and however clocks differ: a matched transfer is the true one, and the replay the step."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.api import simulate
from foretrace.inputs.profiler_trace.format import read_traces
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE
from foretrace.inputs.profiler_trace.job.ranks import meet
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.registry import open_input
from rank_traces import Work, all_reduce, write_ranks

_US = st.integers(min_value=300, max_value=5000).map(float)


@given(
    before=st.lists(_US, min_size=2, max_size=4),
    beside=_US,
    transfers=st.tuples(_US, _US),
    clocks=st.lists(st.integers(min_value=-(10**9), max_value=10**9), min_size=4, max_size=4),
)
@settings(max_examples=25)
def test_what_meets_takes_what_it_took(
    before: list[float], beside: float, transfers: tuple[float, float], clocks: list[int]
) -> None:
    ranks = range(len(before))
    work = [
        Work("gemm_a", before),
        all_reduce("first", transfers[0], ranks, after=("gemm_a",)),
        Work("gemm_b", [beside]),
        all_reduce("second", transfers[1], ranks, after=("gemm_b",)),
        Work("adam", [800.0], after=("ncclDevKernel_AllReduce second",)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        skew = {rank: float(clocks[rank]) for rank in ranks}
        paths, truth_s = write_ranks(Path(folder), work, ranks, clocks_us=skew)
        traces = read_traces(paths)
        met = meet(traces, [EventLinks(one) for one in traces], [one.events.of(*ON_DEVICE) for one in traces])
        step_s = simulate(open_input(paths)).step_time_s
    for calls in met.calls:
        took = sorted(call.duration_s for call in calls.values())
        assert took == pytest.approx(sorted([one * 1e-6 for one in transfers for _ in range(3)]), rel=1e-6, abs=3e-9)
    assert step_s == pytest.approx(truth_s, rel=0.01)
