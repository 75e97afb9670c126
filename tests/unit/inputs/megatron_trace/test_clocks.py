"""Hosts count their own time: their clocks are set by what ranks end together."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import simulate
from foretrace.inputs.megatron_trace.format import Facts, read_runs
from foretrace.inputs.megatron_trace.options import MegatronTraceOptions
from foretrace.inputs.megatron_trace.program import recording_of
from foretrace.inputs.megatron_trace.recording import clock_offsets, hosts_of
from opened import program_of
from unit.inputs.megatron_trace.rank_files import ORIGIN_MS, Rank, write

DAYS_S = 86_400.0


def test_ranks_that_run_at_the_same_time_share_a_host() -> None:
    spans = {0: (10.0, 20.0), 1: (11.0, 19.0), 2: (5000.0, 5010.0), 3: (5009.0, 5020.0), 4: (19.5, 30.0)}
    assert hosts_of(spans) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1}
    assert hosts_of({}) == {}


def test_one_host_starts_at_its_first_op() -> None:
    offsets, notes = clock_offsets({0: (10.0, 20.0), 1: (11.0, 19.0)}, [{0: 15.0, 1: 15.0}])
    assert offsets == {0: 10.0, 1: 10.0}
    assert notes == []


def test_days_between_clocks_vanish() -> None:
    """Host 1's clock is three days ahead; its rank begins 2 s before rank 0 does. Of three meetings one is off by 0.4,
    which the median leaves out."""
    ahead = 3 * DAYS_S
    spans = {0: (100.0, 200.0), 1: (98.0 + ahead, 190.0 + ahead)}
    meetings = [{0: 120.0, 1: 120.0 + ahead}, {0: 150.0, 1: 150.4 + ahead}, {0: 180.0, 1: 180.0 + ahead}]
    offsets, notes = clock_offsets(spans, meetings)
    assert offsets[1] - offsets[0] == pytest.approx(ahead)
    assert spans[1][0] - offsets[1] == pytest.approx(0.0)
    assert spans[0][0] - offsets[0] == pytest.approx(2.0)
    assert [one.code for one in notes] == ["clocks-aligned"]


def test_hosts_are_set_through_others_that_they_meet() -> None:
    """Hosts 0 and 2 never meet, but both meet host 1."""
    spans = {0: (0.0, 10.0), 1: (1000.0, 1010.0), 2: (9000.0, 9010.0)}
    offsets, notes = clock_offsets(spans, [{0: 5.0, 1: 1004.0}, {1: 1008.0, 2: 9009.0}])
    assert offsets[1] - offsets[0] == pytest.approx(999.0)
    assert offsets[2] - offsets[1] == pytest.approx(8001.0)
    assert len(notes) == 1


def test_a_host_that_meets_no_other_is_set_by_its_first_op_and_said() -> None:
    spans = {0: (50.0, 60.0), 1: (7000.0, 7005.0)}
    offsets, notes = clock_offsets(spans, [])
    assert [spans[rank][0] - offsets[rank] for rank in spans] == [0.0, 0.0]
    assert notes[0].code == "clocks-apart"


def test_two_hosts_replay_as_one(tmp_path: Path) -> None:
    """Rank 1's host started 40 days later; the replay is the same to the nanosecond."""
    facts = Facts(world=2, tp=1, pp=2)
    steps = []
    for days in (0, 40):
        first = Rank(0, 0).op("forward_step", 10).transfer("send_forward", until_ms=12)
        first.transfer("recv_backward", until_ms=40).op("backward_step", 20)
        last = Rank(1, 1).gap(3).transfer("recv_forward", until_ms=12).op("forward_step", 6).op("backward_step", 20)
        last.transfer("send_backward", until_ms=40)
        moved = Rank(1, 1, now_ms=ORIGIN_MS + days * DAYS_S * 1e3 + 3)
        for op in last.ops:
            moved.op(op.op, op.duration_ms or 0.0, group=op.group, shape=op.shape, dtype=op.dtype)
        folder = write(tmp_path / f"{days}", [first, moved], facts)
        recording = recording_of(read_runs([folder]), MegatronTraceOptions())
        assert recording is not None
        begins = [items[0].start_s * 1e3 for items in recording.traced.values()]
        assert begins == [pytest.approx(0, abs=1e-3), pytest.approx(3, abs=1e-3)]
        assert bool(recording.notes) == (days > 0)
        steps.append(simulate(program_of(folder), explain=False).step_time_s)
    assert steps == [pytest.approx(0.06, abs=1e-6)] * 2
