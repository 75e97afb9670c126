"""What job traces are of: the mesh by their names, what contradicts it, and who stands in for ranks without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Mesh, simulate
from foretrace.basics.errors import InputError, UsageError
from foretrace.inputs.megatron_trace.format import Facts, read_runs
from foretrace.inputs.megatron_trace.layout import TraceJob, find_job
from opened import program_of
from unit.inputs.megatron_trace.rank_files import Rank, all_to_all, answer, durations, program, said, sub, write


def ex_situ(rank: int, stage: int = 0, forward: float = 10, backward: float = 20) -> Rank:
    one = Rank(rank, stage, ex_situ=True).op("forward_step", forward).op("backward_step", backward)
    return one.op("optimizer_step", 5)


def job(folder: Path, mesh: Mesh | None = None) -> TraceJob:
    return find_job(read_runs([folder]), mesh)


def test_the_mesh_is_in_the_names(tmp_path: Path) -> None:
    files = write(tmp_path / "a", [ex_situ(0)], Facts(world=16, tp=2, pp=4, layers=8))
    assert job(files).mesh == Mesh(tp=2, pp=4, dp=2)
    assert job(files).layers_per_stage == 2
    folder = write(tmp_path / "pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024" / "scaling", [ex_situ(0)])
    assert job(folder).mesh == Mesh(pp=2, dp=8, ep=8)
    assert job(folder).facts.sequence == 1024


def test_layers_that_do_not_divide_are_not_counted(tmp_path: Path) -> None:
    assert job(write(tmp_path, [ex_situ(0)], Facts(world=4, tp=1, pp=4, layers=6))).layers_per_stage is None


def test_names_that_contradict_each_other(tmp_path: Path) -> None:
    one = write(tmp_path / "a", [ex_situ(0)], Facts(world=4, tp=2, pp=2))
    two = write(tmp_path / "b", [ex_situ(0)], Facts(world=4, tp=1, pp=2))
    with pytest.raises(InputError) as caught:
        program_of([one, two])
    assert caught.value.code == "several-inputs"


def test_ranks_must_be_on_the_mesh_and_on_their_stage(tmp_path: Path) -> None:
    outside = write(tmp_path / "a", [ex_situ(9)], Facts(world=4, tp=2, pp=2))
    with pytest.raises(InputError) as caught:
        job(outside)
    assert caught.value.code == "bad-mesh"
    elsewhere = write(tmp_path / "b", [ex_situ(2, 0)], Facts(world=4, tp=2, pp=2))
    with pytest.raises(InputError) as caught:
        job(elsewhere)
    assert caught.value.code == "bad-mesh"
    assert str(caught.value.where).endswith(".txt:1")


def test_experts_must_be_those_of_the_names(tmp_path: Path) -> None:
    def counting(experts: int) -> Rank:
        gather = sub(3, 0, comm="allgather", group="exp", shape=[experts], dtype="torch.int64")
        subs = [gather, all_to_all(4, 8), all_to_all(5, 8)]
        return Rank(0, ex_situ=True).op("forward_step", 10, subs=subs).op("backward_step", 20)

    facts = Facts(world=4, tp=1, pp=1, ep=4, experts=8)
    assert job(write(tmp_path / "a", [counting(8)], facts)).mesh.ep == 4
    with pytest.raises(InputError) as caught:
        job(write(tmp_path / "b", [counting(6)], facts))
    assert caught.value.code == "not-divisible"
    with pytest.raises(InputError) as caught:
        job(write(tmp_path / "c", [counting(16)], facts))
    assert caught.value.code == "conflicting-values"


def test_a_mesh_is_asked_for_where_no_name_says_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", [ex_situ(0), ex_situ(1, 1, 12, 24)])
    with pytest.raises(InputError) as caught:
        job(folder)
    assert caught.value.code == "bad-mesh"
    assert caught.value.hint == "give the mesh with --mesh"
    found = job(folder, Mesh(pp=2))
    assert (found.mesh, found.alone, found.present) == (Mesh(pp=2), False, [0, 1])
    assert found.notes[0].code == "unknown-mesh"


def test_a_mesh_that_contradicts_part_of_the_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "pp2_nl8", [ex_situ(0)])
    with pytest.raises(InputError) as caught:
        job(folder, Mesh(pp=4))
    assert caught.value.code == "conflicting-values"


def test_a_missing_rank_is_filled_and_said(tmp_path: Path) -> None:
    """Rank 1 is as rank 0, of the same stage; rank 3 as rank 2."""
    facts = Facts(world=4, tp=2, pp=2)
    some = [ex_situ(0), ex_situ(2, 1, 12, 24)]
    rest = [ex_situ(1), ex_situ(3, 1, 12, 24)]
    part = answer(write(tmp_path / "part", some, facts), pp_comm_bytes=1000)
    whole = answer(write(tmp_path / "whole", [*some, *rest], facts), pp_comm_bytes=1000)
    assert part.step_time_s == whole.step_time_s
    assert "2 of 4 ranks have no trace: each is taken to be as another of its stage" in said(part)
    assert "no trace" not in said(whole)


def test_a_stage_that_was_not_traced_is_as_the_nearest_alike(tmp_path: Path) -> None:
    """Of stages 0 to 3 only 1 is missing: 2, in the middle as well, stands in."""
    ranks = [ex_situ(0, 0), ex_situ(2, 2, forward=30), ex_situ(3, 3)]
    made = program(write(tmp_path, ranks, Facts(world=4, tp=1, pp=4)), pp_comm_bytes=1000)
    assert durations(made, "forward_step", role=1) == [0.03]
    assert "warning: no rank of stage 1 was traced: rank 2 stands in, of stage 2" in said(made)


def test_a_rank_of_a_real_run_is_filled_and_said(tmp_path: Path) -> None:
    ranks = [Rank(rank).op("forward_step", 10, subs=[sub(4, 1)]).op("backward_step", 20) for rank in range(2)]
    folder = write(tmp_path, ranks[:1], Facts(world=2, tp=2, pp=1))
    found = simulate(program_of(folder), explain=False)
    assert found.step_time_s == pytest.approx(0.03, abs=1e-9)
    assert "1 of 2 ranks have no trace: taken to be as others of their stage (1 as 0)" in said(found)


def test_real_runs_are_replayed_one_at_a_time(tmp_path: Path) -> None:
    facts = Facts(world=2, tp=1, pp=1)
    one = [Rank(rank).op("forward_step", 10).op("backward_step", 20) for rank in range(2)]
    two = [Rank(0).op("forward_step", 50).op("backward_step", 50)]
    folders = [write(tmp_path / "one", one, facts), write(tmp_path / "two", two, facts, stamp="20250102000000")]
    found = simulate(program_of(folders), explain=False)
    assert found.step_time_s == pytest.approx(0.03, abs=1e-9)
    assert "2 real runs; one is taken" in said(found)


def test_a_real_run_is_no_campaign(tmp_path: Path) -> None:
    facts = Facts(world=1, tp=1, pp=1)
    real = write(tmp_path / "real", [Rank(0).op("forward_step", 99).op("backward_step", 99)], facts)
    scaling = write(tmp_path / "scaling", [ex_situ(0)], facts, stamp="20250102000000")
    with pytest.raises(InputError, match="real"):
        program_of([scaling, real])


def test_options_that_traces_do_not_leave_open(tmp_path: Path) -> None:
    folder = write(tmp_path, [ex_situ(0)], Facts(world=1, tp=1, pp=1))
    with pytest.raises(UsageError) as caught:
        program_of(folder, ends="every-stage")
    assert caught.value.code == "option-not-for-input"
    with pytest.raises(InputError) as refused:
        program_of(folder, vpp="layers")
    assert refused.value.code == "bad-value"
