"""Resources whose instances differ: a slow NIC, a leaf that lost an uplink."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Mesh, Program, ProgramBuilder, Scenario, simulate
from foretrace.basics.errors import InputError
from foretrace.program.expand import expand
from foretrace.program.file import load, save
from foretrace.program.fold import fold


def copies(*, capacities: list[float] | None, draws: float = 100.0) -> Program:
    """Four ranks with two copies each of 1 s alone, two ranks to a NIC."""
    build = ProgramBuilder(Mesh(dp=4), repeats=False)
    build.resource("nic", 200.0, shared_by=[[0, 1], [2, 3]], capacities=capacities)
    role = build.role("all", range(4))
    for number in range(2):
        role.compute("copy", 1.0, lane=f"lane {number}", draws={"nic": draws})
    return build.program()


def test_a_slower_instance_slows_its_ranks_alone() -> None:
    timeline = simulate(copies(capacities=[200.0, 100.0])).timeline
    assert [float(timeline.rank(rank).end_s.max()) for rank in range(4)] == pytest.approx([2.0, 2.0, 4.0, 4.0])


def test_ranks_on_instances_of_different_capacity_do_not_fold_together() -> None:
    for capacities, classes in (([200.0, 100.0], 2), ([200.0, 200.0], 1), (None, 1)):
        ops = expand(copies(capacities=capacities))
        assert len(fold(ops, resources=ops.program.resources).classes) == classes
        assert len(fold(ops).classes) == 1
    slow = copies(capacities=[200.0, 100.0])
    assert simulate(slow).step_time_s == pytest.approx(simulate(slow, folded=False).step_time_s, rel=1e-9)


def test_more_of_it_widens_every_instance() -> None:
    wider = simulate(copies(capacities=[200.0, 100.0]), None, Scenario(what_if={"nic": 2}))
    assert wider.step_time_s == pytest.approx(2.0)
    assert wider.unchanged_step_time_s == pytest.approx(4.0)


def test_an_op_may_not_draw_more_than_its_own_instance_has() -> None:
    with pytest.raises(InputError, match=r'rank 2.*draws 150 from "nic" in 1 s; at 100 per second'):
        simulate(copies(capacities=[200.0, 100.0], draws=150.0))


def test_every_rank_may_have_a_capacity_of_its_own() -> None:
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    build.resource("link", 10.0, capacities=[10.0, 5.0])
    role = build.role("all", range(2))
    for number in range(2):
        role.compute("copy", 1.0, lane=f"lane {number}", draws={"link": 5.0})
    timeline = simulate(build.program()).timeline
    assert [float(timeline.rank(rank).end_s.max()) for rank in range(2)] == pytest.approx([1.0, 2.0])


def test_a_file_keeps_them(tmp_path: Path) -> None:
    for capacities in (None, [200.0, 100.0]):
        program = copies(capacities=capacities)
        save(program, tmp_path / "job.foretrace")
        assert load(tmp_path / "job.foretrace").resources == program.resources


def test_capacities_are_checked() -> None:
    with pytest.raises(InputError, match="1 capacities for 2 instances"):
        copies(capacities=[1.0])
    with pytest.raises(InputError, match="capacity 0"):
        copies(capacities=[1.0, 0.0])
