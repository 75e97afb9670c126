"""Real runs replayed: what waited then follows from what it waited for, and the step is the recorded one.

A 1F1B of two stages and two microbatches, in ms; half a millisecond lies between any two ops of a rank. Both ends of a
transfer end together; it takes 2, and the rest of its time is waiting.

    0   F0 0-10  send 10.5-12.5  F1 13-23  send+recv 23.5-48  B0 48.5-64.5  recv 65-83.5  B1 84-100  opt 100.5-110.5
    1   recv 0-12.5  F0 13-25  B0 25.5-45.5  send+recv 46-48  F1 48.5-60.5  B1 61-81  send 81.5-83.5  opt 84-90
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace import Scenario, simulate
from foretrace.inputs.megatron_trace.format import Facts, read_runs
from foretrace.inputs.megatron_trace.options import MegatronTraceOptions
from foretrace.inputs.megatron_trace.program import recording_of
from foretrace.inputs.megatron_trace.recording import Recording
from foretrace.inputs.registry import open_input
from foretrace.readings.answer.recorded import recorded_answer
from unit.inputs.megatron_trace.rank_files import Rank, program, sub, write

MS = 1e-3
PIPELINE = Facts(world=2, tp=1, pp=2, layers=2, micro_batch=1)


def pipeline_ranks() -> list[Rank]:
    """The two ranks above."""
    first = Rank(0, 0)
    first.op("forward_step", 10).gap(0.5).transfer("send_forward", until_ms=12.5).gap(0.5)
    first.op("forward_step", 10).gap(0.5).transfer("send_forward", "recv_backward", until_ms=48).gap(0.5)
    first.op("backward_step", 16).gap(0.5).transfer("recv_backward", until_ms=83.5).gap(0.5)
    first.op("backward_step", 16).gap(0.5).op("optimizer_step", 10)
    last = Rank(1, 1)
    last.transfer("recv_forward", until_ms=12.5).gap(0.5)
    last.op("forward_step", 12).gap(0.5).op("backward_step", 20).gap(0.5)
    last.transfer("send_backward", "recv_forward", until_ms=48).gap(0.5)
    last.op("forward_step", 12).gap(0.5).op("backward_step", 20).gap(0.5)
    last.transfer("send_backward", until_ms=83.5).gap(0.5).op("optimizer_step", 6)
    return [first, last]


def read_recording(folder: Path) -> Recording:
    """The run as its ranks recorded it."""
    recording = recording_of(read_runs([folder]), MegatronTraceOptions())
    assert recording is not None
    return recording


def test_two_stages_replay_to_the_step(tmp_path: Path) -> None:
    folder = write(tmp_path / "real", pipeline_ranks(), PIPELINE)
    found = simulate(folder, explain=False, folded=False)
    assert found.step_time_s == pytest.approx(110.5 * MS, abs=1e-9)
    assert read_recording(folder).step_s == pytest.approx(110.5 * MS, abs=1e-9)
    really = recorded_answer(open_input([folder]))
    assert really is not None
    assert really.step_time_s == pytest.approx(110.5 * MS, abs=1e-9)
    # Every single op begins and ends when it did.
    np.testing.assert_allclose(found.timeline.start_s, really.timeline.start_s, atol=1e-9)
    np.testing.assert_allclose(found.timeline.end_s, really.timeline.end_s, atol=1e-9)


def test_waits_are_waits_and_transfers_what_the_last_to_come_took(tmp_path: Path) -> None:
    """Rank 0 waits in two receives and an exchange for 0 + (46 − 23.5) + (81.5 − 65) ms, rank 1 in its first receive
    for 10.5."""
    recording = read_recording(write(tmp_path / "real", pipeline_ranks(), PIPELINE))
    calls = [[item for item in rank if item.call is not None] for rank in recording.traced.values()]
    assert [[round(item.net_s / MS, 6) for item in rank] for rank in calls] == [[2, 2, 2], [2, 2, 2]]
    waited = [sum(item.taken_s - item.net_s for item in rank) / MS for rank in calls]
    assert waited == [pytest.approx(22.5 + 16.5), pytest.approx(10.5)]


def test_lines_of_one_call_are_counted_once(tmp_path: Path) -> None:
    """Eight lines say send or receive on rank 0 and 1, but `send_forward` and `recv_backward` of microbatch 0 with one
    time are one call: three calls a rank. Counted twice, rank 0 would take 24.5 ms more."""
    made = program(write(tmp_path / "real", pipeline_ranks(), PIPELINE))
    lines = sum(op.group == "pp" for rank in pipeline_ranks() for op in rank.ops)
    found = simulate(made, explain=False, folded=False).timeline
    transfers = [name for name in found.graph.ops.names if "send" in name or "recv" in name]
    assert (lines, len(transfers)) == (8, 6)
    assert sorted(name for name in transfers if "," in name) == [
        "send_backward, recv_forward",
        "send_forward, recv_backward",
    ]


def test_free_transfers_take_their_time_off_the_step(tmp_path: Path) -> None:
    """The critical path has three transfers of 2 ms; without them nothing else comes into the way: 104.5 ms."""
    folder = write(tmp_path / "real", pipeline_ranks(), PIPELINE)
    found = simulate(folder, None, Scenario(what_if={"pp": 1e6}), explain=False)
    assert found.step_time_s == pytest.approx(104.5 * MS, abs=1e-8)


def tensor_parallel_ranks() -> list[Rank]:
    """Two tp ranks: forward 10 with an all-reduce of 1 at 5; backward 20, where the same all-reduce is launched at 8
    and waited for at 14; optimizer 5."""
    return [
        Rank(rank)
        .op("forward_step", 10, subs=[sub(5, 1, name="linear_fwd")])
        .op("backward_step", 20, subs=[sub(8, 6, source="normlinear_bwd_async", name="normlinear_bwd")])
        .op("optimizer_step", 5)
        for rank in range(2)
    ]


def test_asynchronous_calls_overlap(tmp_path: Path) -> None:
    """The span of 6 from launch to wait is computation, not communication: 4 + 1 + 5, then 20, then 5. Taken off
    backward, it would leave 14 of the 20."""
    folder = write(tmp_path / "real", tensor_parallel_ranks(), Facts(world=2, tp=2, pp=1, layers=1))
    found = simulate(folder, explain=False, folded=False)
    assert found.step_time_s == pytest.approx(35 * MS, abs=1e-9)
    ops = found.timeline.graph.ops
    computed = sum(
        seconds
        for name, seconds, role in zip(ops.names, ops.column("duration_s").tolist(), ops.role.tolist(), strict=True)
        if name == "backward_step" and role == 0
    )
    assert computed == pytest.approx(20 * MS, abs=1e-9)


def test_asynchronous_calls_take_what_the_same_took_alone(tmp_path: Path) -> None:
    """The all-reduce takes 1 where it does not overlap, so 1 beside backward as well: five times as slow it still hides
    under the 6 from its launch to where it is waited for, and only forward grows, by 4. Ten times as slow it sticks
    out by 4 there too."""
    folder = write(tmp_path / "real", tensor_parallel_ranks(), Facts(world=2, tp=2, pp=1, layers=1))
    found = simulate(folder, None, Scenario(what_if={"tp": 0.2}), explain=False)
    assert found.step_time_s == pytest.approx((35 + 4) * MS, abs=1e-9)
    found = simulate(folder, None, Scenario(what_if={"tp": 0.1}), explain=False)
    assert found.step_time_s == pytest.approx((35 + 9 + 4) * MS, abs=1e-9)


def test_asynchronous_calls_that_became_slow_are_waited_for(tmp_path: Path) -> None:
    """Twenty times as slow: 20, of which 6 are hidden; what comes after the wait comes 14 later, and backward takes 34.
    Forward is 29."""
    folder = write(tmp_path / "real", tensor_parallel_ranks(), Facts(world=2, tp=2, pp=1, layers=1))
    found = simulate(folder, None, Scenario(what_if={"tp": 0.05}), explain=False)
    assert found.step_time_s == pytest.approx((29 + 34 + 5) * MS, abs=1e-9)
