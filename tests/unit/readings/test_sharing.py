"""Jobs that share resources, where a careless reading goes wrong."""

from __future__ import annotations

import pytest

from foretrace import Mesh, Program, ProgramBuilder, Scenario, simulate
from foretrace.basics.errors import InputError


def one_rank(*, repeats: bool = True) -> tuple[ProgramBuilder, object]:
    build = ProgramBuilder(Mesh(), repeats=repeats)
    return build, build.role("only", [0])


def copies(nic_bytes_per_s: float) -> Program:
    """Two senders behind one NIC, each with 10 GB for a receiver of its own that draws on nothing."""
    build = ProgramBuilder(Mesh(dp=4), repeats=False)
    build.resource("nic", nic_bytes_per_s, shared_by=[[0, 1], [2, 3]])
    pairs = build.groups("pairs", [[0, 2], [1, 3]], axis="dp")
    for rank in range(4):
        draws, to = ({"nic": 10e9}, 1) if rank < 2 else (None, None)
        role = build.role(f"rank {rank}", [rank])
        role.transfer("copy", pairs, 10e9 / nic_bytes_per_s, to=to, bytes=10**10, draws=draws)
    return build.program()


def test_more_of_a_resource_is_as_if_it_had_been_written() -> None:
    assert simulate(copies(50e9)).step_time_s == pytest.approx(0.4)
    wider = simulate(copies(50e9), None, Scenario(what_if={"nic": 2}))
    assert wider.step_time_s == pytest.approx(simulate(copies(100e9)).step_time_s) == pytest.approx(0.2)
    assert wider.unchanged_step_time_s == pytest.approx(0.4)


def test_more_of_a_resource_does_not_help_what_it_does_not_bound() -> None:
    """A GEMM of 10 ms that needs its memory for a microsecond of them."""
    build = ProgramBuilder(Mesh())
    build.resource("hbm", 1e12)
    build.role("only", [0]).compute("gemm", 10e-3, draws={"hbm": 1e6})
    program = build.program()
    assert simulate(program, None, Scenario(what_if={"hbm": 2})).step_time_s == pytest.approx(10e-3)
    assert simulate(program, None, Scenario(what_if={"hbm": 0.5})).step_time_s == pytest.approx(10e-3)


def test_a_job_that_never_settles_is_averaged_over_steps_with_company() -> None:
    """Two ranks at 2 and 2.9 s a step alone, both 1 s of it on one NIC: they hinder each other now and then. Were the
    quick rank to stop after so many steps, the slow one would seem to take its 2.9 s."""
    build = ProgramBuilder(Mesh(dp=2))
    build.resource("nic", 10.0, shared_by=[[0, 1]])
    for rank, seconds in ((0, 1.0), (1, 1.9)):
        role = build.role(f"rank {rank}", [rank])
        role.compute("copy", 1.0, draws={"nic": 10.0})
        role.compute("work", seconds)
    answer = simulate(build.program(), explain=False)
    assert answer.step_time_s == pytest.approx(3.4, rel=0.01)
    assert "not settled" in answer.diagnostics[0].message


def test_a_member_shorter_than_the_latency_of_another_ends_in_its_own_time() -> None:
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    build.resource("link", 1.0)
    dp = build.communicator("dp")
    build.role("long", [0]).collective("all_reduce", dp, 10.0, latency_s=5.0, draws={"link": 5.0})
    build.role("short", [1]).collective("all_reduce", dp, 1.0)
    program = build.program()
    for executor in ("fixed", "shared"):
        timeline = simulate(program, executor=executor).timeline  # type: ignore[arg-type]
        assert [timeline.rank(rank).end_s[0] for rank in (0, 1)] == [10.0, 1.0]


def test_a_rank_outside_the_sets_of_a_resource_cannot_draw_on_it() -> None:
    build = ProgramBuilder(Mesh(dp=2))
    build.resource("nic", 1.0, shared_by=[[0]])
    build.role("all", [0, 1]).compute("copy", 1.0, draws={"nic": 1.0})
    with pytest.raises(InputError, match="none of its sets"):
        simulate(build.program())


def test_the_fixed_executor_says_that_it_ignores_sharing() -> None:
    answer = simulate(copies(50e9), executor="fixed")
    assert answer.step_time_s == pytest.approx(0.2)
    assert "share" in answer.diagnostics[0].message


def test_a_resource_may_not_be_called_like_an_axis() -> None:
    build = ProgramBuilder(Mesh(dp=2))
    build.resource("dp", 1.0)
    build.role("all", [0, 1]).collective("all_reduce", build.communicator("dp"), 1.0)
    with pytest.raises(InputError, match='"dp"'):
        build.program()


def test_a_job_in_which_everything_is_switched_off_takes_no_time() -> None:
    build = ProgramBuilder(Mesh(dp=2))
    block = build.block("off")
    first = block.collective("all_reduce", build.communicator("dp"), 1.0)
    role = build.role("all", [0, 1])
    placed = role.place(block, override={first: {"enabled": 0}})
    role.link(placed[first], after=placed[first], steps=1)
    for executor in ("fixed", "shared"):
        assert simulate(build.program(), executor=executor).step_time_s == 0.0  # type: ignore[arg-type]
