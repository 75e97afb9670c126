"""Jobs built otherwise than they were traced, and what must not be lost on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace import Machine, Mesh, Scenario, simulate
from foretrace.api import explain
from foretrace.basics.errors import InputError, UsageError
from foretrace.inputs.megatron_trace.format import Facts, parse_line, read_runs
from foretrace.inputs.megatron_trace.layout import find_job
from foretrace.inputs.megatron_trace.whole_job.resize import resized
from foretrace.inputs.megatron_trace.whole_job.work import read_stones
from foretrace.inputs.registry import open_input
from foretrace.program.expand import expand
from foretrace.program.program import Program
from opened import program_of
from unit.inputs.megatron_trace.rank_files import Rank, all_to_all, program, said, sub, write

EIGHT = Facts(world=4, tp=1, pp=2, dp=2, ep=2, experts=4, layers=4, hidden=1024, sequence=64, micro_batch=1)

BOUNDARY = 64 * 1024 * 2
"""What crosses a stage boundary, in bytes: names of files alone do not say it."""


def experts(rank: int, stage: int, rows: int, *, gradients: bool = True) -> Rank:
    """A rank of two layers, each of which sends 100 rows and receives `rows`."""
    pieces = [all_to_all(1, 100), all_to_all(3, rows), all_to_all(5, 100), all_to_all(7, rows)]
    one = Rank(rank, stage, ex_situ=True).op("forward_step", 9, subs=pieces)
    if stage:
        one.op("loss_func", 1)
    one.op("backward_step", 18, subs=pieces)
    if gradients:
        one.reduction("dp_allreduce").reduction("exp_dp_allreduce")
    return one.op("optimizer_step", 5)


def folder_of(tmp_path: Path, facts: Facts = EIGHT, *, gradients: bool = True) -> Path:
    ranks = [experts(rank, rank // 2, (150, 50)[rank % 2], gradients=gradients) for rank in range(4)]
    return write(tmp_path / "scaling", ranks, facts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("dp=8", Mesh(dp=8, pp=2, ep=2)), ("ep=1", Mesh(dp=2, pp=2)), ("pp=4", Mesh(dp=2, pp=4, ep=2))],
)
def test_axes_that_are_not_named_stay_as_traced(tmp_path: Path, text: str, expected: Mesh) -> None:
    assert program(folder_of(tmp_path), mesh=text, pp_comm_bytes=BOUNDARY).mesh == expected


def test_an_optimizer_without_reductions_keeps_its_time(tmp_path: Path) -> None:
    """Nothing says how many parameters there are: another ep leaves it, another pp shares it out by layers."""
    runs = read_runs([folder_of(tmp_path, gradients=False)])
    job = find_job(runs, None)
    stones = read_stones(job)
    assert resized(job, stones, Mesh(dp=2, pp=2), None).work[0, 0].optimizer_s == pytest.approx(0.005)
    assert resized(job, stones, Mesh(dp=2, pp=4, ep=2), None).work[1, 0].optimizer_s == pytest.approx(0.0025)


def test_another_pp_shares_out_gradient_buckets(tmp_path: Path) -> None:
    ranks = [experts(rank, rank // 2, 100, gradients=False) for rank in range(4)]
    for one in ranks:
        launched = one.ops[-2].timestamp_ms
        line = (
            f"rank:{one.rank}:ddp_grad_comm(stage_id={one.stage},mg_state=steady,group_kind=dp,comm_func=reducescatter,"
            f"bucket_id=0,bucket_numel=1000,launch_timestamp_ms={launched},grad_dtype=torch.float32,duration=0,"
            f"timestamp={launched},sub_operations=[])"
        )
        one.ops.insert(-2, parse_line(line))
    job = find_job(read_runs([write(tmp_path / "scaling", ranks, EIGHT)]), None)
    stones = read_stones(job)
    assert [one.call.bytes for one in stones.work[0, 0].buckets] == [4000]
    changed = resized(job, stones, Mesh(dp=2, pp=4, ep=2), None)
    assert [one.call.bytes for one in changed.work[3, 1].buckets] == [2000]


def test_real_traces_among_ex_situ_ones_are_refused_in_one_folder_too(tmp_path: Path) -> None:
    facts = Facts(world=2, tp=2, pp=1)
    ranks = [Rank(0, ex_situ=True).op("forward_step", 9).op("backward_step", 9)]
    ranks.append(Rank(1).op("forward_step", 9).op("backward_step", 9))
    with pytest.raises(InputError) as caught:
        program_of(write(tmp_path / "both", ranks, facts))
    assert caught.value.code == "several-inputs"
    assert "rank1" in str(caught.value.where)


def test_communication_over_an_axis_that_the_mesh_does_not_have_is_said(tmp_path: Path) -> None:
    rank = Rank(0, ex_situ=True).op("forward_step", 9, subs=[sub(3, 1, group="cp")]).op("backward_step", 9)
    other = Rank(1, ex_situ=True).op("forward_step", 9, subs=[sub(3, 1, group="cp")]).op("backward_step", 9)
    made = program(write(tmp_path, [rank, other], Facts(world=2, tp=1, pp=1)))
    assert "cp communicates in the traces, but the mesh has cp 1" in said(made)


def test_sub_operations_without_group_and_collective_are_read_by_their_source(tmp_path: Path) -> None:
    """Experts are recognised all the same."""
    facts = replace(EIGHT, world=2, pp=1, layers=2)
    named = [experts(rank, 0, (150, 50)[rank]) for rank in range(2)]
    step = read_stones(find_job(read_runs([write(tmp_path / "named", named, facts)]), None))
    for one in named:
        for number, op in enumerate(one.ops):
            text = [sub_op.text for sub_op in op.subs]
            if text:
                bare = ", ".join(
                    repr(
                        f"trace_src_func=_profiled_all_to_all_single,duration={item['duration']},"
                        f"timestamp={item['timestamp']},input__shape={item['input__shape']},"
                        f"input__dtype={item['input__dtype']}"
                    )
                    for item in text
                )
                fields = ",".join(f"{key}={value}" for key, value in op.text.items())
                line = f"rank:{one.rank}:{op.op}({fields},sub_operations=[{bare}])"
                one.ops[number] = parse_line(line, line=number + 1)
    bare_step = read_stones(find_job(read_runs([write(tmp_path / "bare", named, facts)]), None))
    rows = [[work.rows for work in stones.work[0, 0].forward] for stones in (step, bare_step)]
    assert rows[0] == rows[1] == [None, 150, None, 150, None]


def test_changes_are_said_with_what_they_amount_to(tmp_path: Path) -> None:
    job = open_input([folder_of(tmp_path)]).with_options(microbatches=4, pp_comm_bytes=BOUNDARY)
    as_traced = simulate(job, Machine("a100-dgx"))
    assert as_traced.unchanged_step_time_s is None and as_traced.changes == ()
    changed = simulate(job.with_options(routing=1.0, mesh="dp=8"), Machine("a100-dgx"))
    assert changed.unchanged_step_time_s == as_traced.step_time_s
    assert changed.changes == ("mesh dp=8,pp=2,ep=2", "routing 1×")
    same = simulate(job.with_options(mesh="pp=2"), Machine("a100-dgx"))
    assert same.unchanged_step_time_s is None and same.step_time_s == as_traced.step_time_s


def test_traces_without_names_are_swept_from_the_mesh_they_were_taken_on(tmp_path: Path) -> None:
    """The same traces with and without names: told their mesh, they are built for another alike."""
    folder = folder_of(tmp_path)
    named = program(folder, mesh="ep=1", microbatches=2, pp_comm_bytes=BOUNDARY)
    unnamed = tmp_path / "unnamed"
    unnamed.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        (unnamed / f"{number}.txt").write_bytes(file.read_bytes())
    made = program(unnamed, traced="pp=2,dp=2,ep=2", mesh="ep=1", microbatches=2, pp_comm_bytes=BOUNDARY)
    assert made.mesh == named.mesh == Mesh(dp=2, pp=2)
    assert made.op_count == named.op_count


@pytest.mark.parametrize("unevenness", [2.5, 100.0])
def test_no_rank_receives_more_than_there_is(tmp_path: Path, unevenness: float) -> None:
    with pytest.raises(InputError) as caught:
        program(folder_of(tmp_path), routing=unevenness)
    assert caught.value.code == "out-of-range"


def steps_of(folder: Path, **options: object) -> float:
    return simulate(
        program(folder, pp_comm_bytes=BOUNDARY, microbatches=4, **options), Machine("a100-dgx"), explain=False
    ).step_time_s


def test_overlapped_gradients_are_reduced_in_the_last_backward(tmp_path: Path) -> None:
    """The same bytes, in buckets that no longer stand at the end of the step; the optimizer waits for them."""
    folder = folder_of(tmp_path)
    plain = program(folder, pp_comm_bytes=BOUNDARY, microbatches=4)
    overlapped = program(folder, pp_comm_bytes=BOUNDARY, microbatches=4, overlap="grad")

    def reduced(made: Program) -> dict[tuple[int, str], int]:
        ops = expand(made)
        sizes: dict[tuple[int, str], int] = {}
        for role, name, size in zip(ops.role.tolist(), ops.names, ops.ints("bytes").tolist(), strict=True):
            if name.endswith("dp_allreduce") and not name.startswith("scale"):
                sizes[role, name] = sizes.get((role, name), 0) + size
        return sizes

    assert reduced(overlapped) == reduced(plain) != {}
    assert steps_of(folder, overlap="grad") < steps_of(folder)


def test_overlapped_transfers_hold_up_less(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert steps_of(folder, overlap="pp") < steps_of(folder)


def test_parameters_that_nobody_gathers_cannot_overlap(tmp_path: Path) -> None:
    made = program(folder_of(tmp_path), pp_comm_bytes=BOUNDARY, overlap="param")
    assert "not-recorded" in {one.code for one in made.diagnostics}


def test_layers_can_be_uneven(tmp_path: Path) -> None:
    """Four layers on two stages: as traced with 2,2; with 1,3 the longer stage sets the pace."""
    folder = folder_of(tmp_path)
    assert steps_of(folder, stage_layers=(2, 2)) == pytest.approx(steps_of(folder), rel=1e-9)
    assert steps_of(folder, stage_layers=(1, 3)) > 1.1 * steps_of(folder)
    chunks = {"schedule": "interleaved-1f1b", "vpp": 2}
    even = steps_of(folder, **chunks)
    assert steps_of(folder, **chunks, stage_layers=(1, 1, 1, 1)) == pytest.approx(even, rel=1e-9)


@pytest.mark.parametrize("layers", [(1, 2), (1, 1, 2), ()])
def test_layers_that_do_not_fit_are_refused(tmp_path: Path, layers: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        program(folder_of(tmp_path), pp_comm_bytes=BOUNDARY, stage_layers=layers)
    assert caught.value.code in ("bad-plan", "bad-value")


def test_a_baseline_of_chunks_has_none(tmp_path: Path) -> None:
    job = open_input([folder_of(tmp_path)]).with_options(
        schedule="interleaved-1f1b", vpp=2, microbatches=4, pp_comm_bytes=BOUNDARY
    )
    answer, as_traced = (simulate(one, Machine("a100-dgx")) for one in (job, job.with_options(schedule=None, vpp=None)))
    assert answer.unchanged_step_time_s == as_traced.step_time_s != answer.step_time_s


def test_the_embedding_waits_for_overlapped_gradients(tmp_path: Path) -> None:
    ranks = [experts(rank, rank // 2, 100).reduction("ep_allreduce") for rank in range(4)]
    folder = write(tmp_path / "scaling", ranks, EIGHT)
    made = program(folder, pp_comm_bytes=BOUNDARY, microbatches=2, overlap="grad")
    ops = simulate(made, Machine("a100-dgx"), explain=False).timeline.rank(0)
    times = list(zip(ops.name, ops.start_s.tolist(), ops.end_s.tolist(), strict=True))
    reduced = max(end for name, _, end in times if name == "dp_allreduce")
    assert all(start >= reduced for name, start, _ in times if name == "ep_allreduce")


def test_expert_ranks_that_reduce_differently_are_refused(tmp_path: Path) -> None:
    ranks = [experts(rank, rank // 2, 100) for rank in range(4)]
    ranks[1].reduction("dp_allreduce")
    with pytest.raises(InputError) as caught:
        program(write(tmp_path / "scaling", ranks, EIGHT), pp_comm_bytes=BOUNDARY)
    assert caught.value.code == "rendezvous-mismatch"


@pytest.mark.parametrize("steady", [True, False])
def test_a_recorded_run_is_explained_as_it_was(tmp_path: Path, steady: bool) -> None:
    ranks = [Rank(rank).op("forward_step", 3).op("backward_step", 6).op("optimizer_step", 1) for rank in range(2)]
    job = open_input([write(tmp_path / "real", ranks, Facts(world=2, tp=1, pp=1, layers=1))])
    with pytest.raises(UsageError) as caught:
        explain(job, Machine(), Scenario(steady=steady))
    assert caught.value.code == "option-not-for-command"
