"""Traces of several ranks meet: transfers without waiting, clocks set, ranks without a trace said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.api import simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format import read_traces
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE
from foretrace.inputs.profiler_trace.job.ranks import Meetings, clock_offsets, meet
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.program.columns import Collective
from opened import program_of
from rank_traces import COMM, Work, all_reduce, step, write_ranks

RANKS = range(4)
CLOCKS_US = {1: 5e6, 2: -300.0, 3: 123_456.0}


def _met(paths: list[Path], *, priced: bool = False) -> Meetings:
    traces = read_traces(paths)
    links = [EventLinks(trace) for trace in traces]
    return meet(traces, links, [trace.events.of(*ON_DEVICE) for trace in traces], priced=priced)


def test_a_transfer_takes_what_the_last_to_come_took(tmp_path: Path) -> None:
    paths, _ = write_ranks(tmp_path, step(RANKS, slow=2, transfer_us=3000), RANKS, clocks_us=CLOCKS_US)
    met = _met(paths)
    assert [len(calls) for calls in met.calls] == [3, 3, 3, 3]  # one a step
    for calls in met.calls:
        assert [call.duration_s for call in calls.values()] == pytest.approx([3e-3] * 3, rel=1e-6)
        assert {call.communicator.groups for call in calls.values()} == {((0, 1, 2, 3),)}
    trace = read_traces(paths)[0]
    recorded = trace.events.duration_s[list(met.calls[0])]
    assert recorded == pytest.approx([5e-3] * 3, rel=1e-3)  # ranks that came early were recorded waiting 2 ms


def test_clocks_are_set_by_the_ends_of_communications(tmp_path: Path) -> None:
    paths, _ = write_ranks(tmp_path, step(RANKS, slow=2), RANKS, clocks_us=CLOCKS_US)
    traces, met = read_traces(paths), _met(paths)
    for rank, trace in enumerate(traces):
        clock_s = met.offsets_s[rank] + (trace.origin_ns - traces[0].origin_ns) * 1e-9
        assert clock_s == pytest.approx(CLOCKS_US.get(rank, 0.0) * 1e-6, abs=2e-9)
    assert any(note.code == "clocks-aligned" for note in met.notes)


def test_clocks_pass_from_trace_to_trace() -> None:
    offsets, notes = clock_offsets([0, 0, 0, 0], [{0: 1.0, 1: 1.5}, {1: 2.5, 2: 7.0}, {1: 3.5, 2: 8.0}])
    assert offsets == pytest.approx([0.0, 0.5, 5.0, 0.0])
    assert any(note.code == "clocks-apart" for note in notes)


def test_the_replay_takes_the_recorded_step(tmp_path: Path) -> None:
    paths, truth_s = write_ranks(tmp_path, step(RANKS, slow=2), RANKS, clocks_us=CLOCKS_US)
    program = program_of(paths)
    assert program.world == 4
    assert simulate(program).step_time_s == pytest.approx(truth_s, rel=1e-3)


def test_ranks_without_a_trace_leave_the_recorded_time(tmp_path: Path) -> None:
    paths, truth_s = write_ranks(tmp_path, step(RANKS, slow=2), RANKS, only=[0, 2])
    met = _met(paths)
    waiting, last = ([call.duration_s for call in calls.values()] for calls in met.calls)
    assert waiting == pytest.approx([5e-3] * 3, rel=1e-3) and last == pytest.approx([3e-3] * 3, rel=1e-3)
    assert any(note.code == "missing-ranks" for note in met.notes)
    assert simulate(program_of(paths)).step_time_s == pytest.approx(truth_s, rel=1e-3)


def test_a_cluster_prices_what_all_members_recorded(tmp_path: Path) -> None:
    paths, _ = write_ranks(tmp_path, step(RANKS), RANKS)
    met = _met(paths, priced=True)
    assert all(np.isnan(call.duration_s) for calls in met.calls for call in calls.values())
    assert {call.bytes for calls in met.calls for call in calls.values()} == {2 << 20}


def test_groups_of_their_own_do_not_wait_for_each_other(tmp_path: Path) -> None:
    pairs = [
        Work("gemm_a", [1000.0, 1000.0, 5000.0, 5000.0]),
        all_reduce("low", 500.0, (0, 1), group="1", after=("gemm_a",)),
    ]
    paths, _ = write_ranks(tmp_path, pairs, (0, 1), world=4)
    more, _ = write_ranks(tmp_path, [pairs[0], all_reduce("high", 500.0, (2, 3), group="2")], (2, 3), world=4)
    met = _met([*paths, *more])
    assert {call.communicator.groups for call in met.calls[0].values()} == {((0, 1),)}
    assert {call.communicator.groups for call in met.calls[3].values()} == {((2, 3),)}
    assert any(note.code == "clocks-apart" for note in met.notes)


def test_transfers_meet_by_sender_and_receiver(tmp_path: Path) -> None:
    def way(name: str, peer: int) -> dict[str, object]:
        key = "Dst Rank" if name == "send" else "Src Rank"
        return {"Collective name": name, key: peer}

    said = {
        "In msg nelems": 512,
        "Out msg nelems": 512,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "5",
    }
    activation = Work(
        "ncclDevKernel_SendRecv", [200.0], COMM, ("gemm",), "5", (0, 1),
        {**said, "0": way("send", 1), "1": way("recv", 0)},
    )  # fmt: skip
    paths, truth_s = write_ranks(tmp_path, [Work("gemm", [900.0, 100.0]), activation], (0, 1))
    met = _met(paths)
    sent, received = (next(iter(calls.values())) for calls in met.calls)
    assert sent.collective == received.collective == Collective.TRANSFER
    assert (sent.to, received.to) == (1, None) and sent.bytes == 1024
    assert sent.duration_s == received.duration_s == pytest.approx(200e-6, rel=1e-3)
    assert simulate(program_of(paths)).step_time_s == pytest.approx(truth_s, rel=0.01)


def test_traces_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    paths, _ = write_ranks(tmp_path, step(RANKS), RANKS, only=[0, 1, 2])
    more = [*step(RANKS), all_reduce("loss", 10.0, RANKS)]
    other, _ = write_ranks(tmp_path, more, RANKS, only=[3])
    with pytest.raises(InputError) as caught:
        _met([*paths, *other])
    assert caught.value.code == "rendezvous-mismatch"


def test_ranks_that_call_something_else_are_refused(tmp_path: Path) -> None:
    paths, _ = write_ranks(tmp_path, step(RANKS), RANKS, only=[0, 1, 2])
    other = step(RANKS)
    other[1] = replace(other[1], arguments={**other[1].arguments, "Collective name": "_allgather_base"})
    last, _ = write_ranks(tmp_path, other, RANKS, only=[3])
    with pytest.raises(InputError) as caught:
        _met([*paths, *last])
    assert caught.value.code == "rendezvous-mismatch"
