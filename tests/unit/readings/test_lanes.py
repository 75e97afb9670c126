"""Where the host holds a job up, that is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace import Machine, Mesh, Plan, ProgramBuilder, model, simulate
from foretrace.program.timeline import Timeline
from foretrace.readings.lanes import host_notes, launching_s


def timeline(launches_s: float) -> Timeline:
    """Rank 1 launches for so long in a step of 10 s, rank 0 for a second; the optimizer on the host is no launch."""
    build = ProgramBuilder(Mesh(dp=2))
    for rank, seconds in ((0, 1.0), (1, launches_s)):
        role = build.role(f"rank {rank}", [rank])
        role.compute("work", 10.0)
        role.host("launch", 0.5)
        role.host("launches", seconds - 0.5)
        role.host("optimizer", 1.0)
    return simulate(build.program()).timeline


def test_the_busiest_rank_counts() -> None:
    assert launching_s(timeline(8.0)) == pytest.approx(8.0)


def test_from_seven_tenths_on_it_is_said() -> None:
    assert host_notes(timeline(6.9)) == ()
    (note,) = host_notes(timeline(7.5))
    assert note.message.startswith("the host launches kernels for 7.50 s of the step's 10.00 s: CUDA graphs ")


def test_graphs_take_it_away() -> None:
    plan = Plan(gpus=1, mbs=1, seq_len=128, stack="torch-eager")
    eager = simulate(model("gpt2", plan), Machine("h200-dgx"), explain=False)
    graphs = simulate(model("gpt2", replace(plan, cuda_graphs="full")), Machine("h200-dgx"), explain=False)
    assert any(one.code == "host-busy" for one in eager.diagnostics)
    assert not any(one.code == "host-busy" for one in graphs.diagnostics)
    assert graphs.step_time_s < eager.step_time_s
