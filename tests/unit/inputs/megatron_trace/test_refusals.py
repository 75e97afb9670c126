"""What cannot be the traces of a job is refused with a sentence, never with a traceback or a senseless number."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from foretrace import Machine, Mesh, simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import Facts
from foretrace.inputs.megatron_trace.format.records import RankTrace
from foretrace.inputs.megatron_trace.format.write import trace_text
from foretrace.inputs.megatron_trace.options import MegatronTraceOptions
from opened import program_of
from unit.inputs.aicb.workloads import CLUSTER
from unit.inputs.megatron_trace.rank_files import Rank, Sub, all_to_all, answer, durations, program, said, sub, write

ONE, TWO = Facts(world=1, tp=1, pp=1), Facts(world=2, tp=2, pp=1)
EXPERTS = Facts(world=2, tp=1, pp=1, ep=2, experts=2, layers=1)


def ex_situ(rank: int = 0, subs: list[Sub] | None = None, elements: int = 1000) -> Rank:
    one = Rank(rank, ex_situ=True).op("forward_step", 10, subs=subs or []).op("backward_step", 20)
    return one.reduction(elements=elements).op("optimizer_step", 5)


def test_folders_without_traces(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "a.txt").write_text("hello")
    (tmp_path / "junk" / "b.bin").write_bytes(bytes(10))
    for folder in ("empty", "junk"):
        with pytest.raises(InputError, match=folder):
            program_of(tmp_path / folder)


def test_a_folder_of_campaigns_is_said_to_be_one(tmp_path: Path) -> None:
    write(tmp_path / "job" / "scaling_a", [ex_situ()], ONE)
    with pytest.raises(InputError, match="holds no rank traces") as caught:
        program_of(tmp_path / "job")
    assert "scaling_a" in str(caught.value.hint)


def test_patterns_name_traces(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", [ex_situ()], ONE)
    assert program_of(f"{folder}/*.txt").world == 1


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda text: text[:-30], "cut short"),
        (lambda text: text.splitlines()[0] + "\n", "rank 0 has no backward_step"),
        (lambda text: "\n".join(text.splitlines()[1:]), "rank 0 has no forward_step"),
        (lambda text: text.splitlines()[-1], "rank 0 has no forward_step"),
        (lambda text: text.replace("duration=10.0", "duration=-10.0"), "is negative"),
        (lambda text: text.replace("duration=10.0", "duration=nan"), "not a finite number"),
        (lambda text: text.replace("duration=10.0", "duration=1e300"), "is too large"),
        (lambda text: text.replace("[1000]", "[9999999999999999999]"), "is too large"),
        (lambda text: text.replace("[1000]", "[-1]"), "is not a shape"),
        (lambda text: text.replace("torch.float32", "torch.float99"), "is not a known type"),
    ],
)
def test_broken_files(tmp_path: Path, cut: Callable[[str], str], message: str) -> None:
    one = ex_situ()
    text = trace_text(RankTrace("", 0, tuple(one.ops)))
    (tmp_path / "wd1_tp1_pp1_rank0.txt").write_text(cut(text))
    with pytest.raises(InputError, match=message) as caught:
        program_of(tmp_path)
    assert "rank0.txt" in str(caught.value.where)


def test_ranks_twice_and_jobs_mixed(tmp_path: Path) -> None:
    folder = write(tmp_path / "twice", [ex_situ()], ONE)
    (folder / "wd1_tp1_pp1_rank0.txt").write_bytes(next(folder.iterdir()).read_bytes())
    with pytest.raises(InputError, match="rank 0 is also in"):
        program_of(folder)
    mixed = write(tmp_path / "mixed", [ex_situ()], TWO)
    write(mixed, [ex_situ(1)], Facts(world=2, tp=1, pp=1))
    with pytest.raises(InputError) as caught:
        program_of(mixed)
    assert caught.value.code == "several-inputs"


@pytest.mark.parametrize("real", [False, True])
def test_work_that_takes_no_time(tmp_path: Path, real: bool) -> None:
    rank = Rank(0, ex_situ=not real).op("forward_step", 0).op("backward_step", 0).op("optimizer_step", 0)
    folder = write(tmp_path, [rank], ONE)
    if real:
        with pytest.raises(InputError) as caught:
            answer(folder)
        assert caught.value.code == "implausible-time" and str(caught.value.where).endswith(":1")
    else:
        simulated = answer(folder)
        assert isfinite(simulated.step_time_s)
        assert "implausible-time" in {note.code for note in simulated.diagnostics}


def test_ranks_without_times(tmp_path: Path) -> None:
    line = "rank:0:forward_step(stage_id=0,batch_id=0,mg_state=warmup,duration=None,description=None,group_kind=None)\n"
    (tmp_path / "wd1_tp1_pp1_rank0.txt").write_text(line)
    with pytest.raises(InputError):
        program_of(tmp_path)


def test_sub_operations_out_of_order_or_on_top_of_each_other(tmp_path: Path) -> None:
    subs = [sub(6, 2), sub(1, 1), sub(0, 10), sub(9.5, 5)]
    found = answer(write(tmp_path / "a", [ex_situ(0, subs), ex_situ(1, subs)], TWO))
    assert 0.025 <= found.step_time_s < 0.05
    ranks = [Rank(rank).op("forward_step", 10, subs=subs).op("backward_step", 20) for rank in range(2)]
    replayed = simulate(program_of(write(tmp_path / "b", ranks, TWO)), explain=False)
    assert 0.03 <= replayed.step_time_s < 0.05


@pytest.mark.parametrize("shape", [[], [0], [10**6, 10**6]])
def test_absurd_shapes(tmp_path: Path, shape: list[int]) -> None:
    found = answer(write(tmp_path, [ex_situ(0, [sub(1, 0, shape=shape)])], TWO))
    assert isfinite(found.step_time_s)
    assert found.step_time_s > 0.035


def test_a_tensor_that_no_job_has(tmp_path: Path) -> None:
    folder = write(tmp_path, [ex_situ(0, [sub(1, 0, shape=[10**9, 4 * 10**9])])], TWO)
    with pytest.raises(InputError) as caught:
        answer(folder)
    assert caught.value.code == "out-of-range" and str(caught.value.where).endswith(":1")


def test_no_gradients(tmp_path: Path) -> None:
    assert answer(write(tmp_path, [ex_situ(elements=0)], ONE)).step_time_s == pytest.approx(0.035, abs=0.001)


def test_no_gradients_with_experts(tmp_path: Path) -> None:
    subs = [all_to_all(1, 8), all_to_all(2, 8)]
    found = answer(write(tmp_path, [ex_situ(rank, subs, elements=0) for rank in range(2)], EXPERTS))
    assert isfinite(found.step_time_s)


def test_a_small_model_with_experts(tmp_path: Path) -> None:
    subs = [all_to_all(1, 8), all_to_all(2, 8)]
    found = answer(write(tmp_path, [ex_situ(rank, subs) for rank in range(2)], EXPERTS))
    assert isfinite(found.step_time_s)


def test_ranks_that_communicate_differently(tmp_path: Path) -> None:
    pair = [all_to_all(1, 8), all_to_all(2, 8)]
    fewer = write(tmp_path / "a", [ex_situ(0, pair), ex_situ(1, pair[:1])], EXPERTS)
    with pytest.raises(InputError) as caught:
        program(fewer)
    assert caught.value.code == "rendezvous-mismatch"


def test_ranks_that_make_other_calls(tmp_path: Path) -> None:
    pair = [all_to_all(1, 8), all_to_all(2, 8)]
    other = write(tmp_path / "b", [ex_situ(0, pair), ex_situ(1, [sub(1, 0, group="dp"), pair[1]])], EXPERTS)
    with pytest.raises(InputError):
        simulate(program(other), Machine(CLUSTER), explain=False)


def test_a_microbatch_that_one_rank_lacks(tmp_path: Path) -> None:
    """Rank 1 goes forward once, rank 0 twice; both all-reduce in it."""
    one = Rank(0).op("forward_step", 10, subs=[sub(5, 1)]).op("forward_step", 10, subs=[sub(5, 1)])
    two = Rank(1).op("forward_step", 10, subs=[sub(5, 1)])
    folder = write(tmp_path, [one.op("backward_step", 20), two.op("backward_step", 20)], TWO)
    with pytest.raises(InputError) as caught:
        program_of(folder)
    assert caught.value.code == "truncated-file"


def test_a_call_too_short_to_see_is_still_a_call(tmp_path: Path) -> None:
    ranks = [
        Rank(rank).op("forward_step", 10).op("backward_step", 20).reduction(ms=ms).op("optimizer_step", 5)
        for rank, ms in enumerate((0.0, 0.02))
    ]
    found = simulate(program_of(write(tmp_path, ranks, Facts(world=2, tp=1, pp=1))), explain=False)
    assert found.step_time_s == pytest.approx(0.035, abs=1e-4)


def test_transfers_that_lead_nowhere(tmp_path: Path) -> None:
    ranks = [
        Rank(rank, rank).op("forward_step", 10).transfer("send_backward", until_ms=12).op("backward_step", 20)
        for rank in range(2)
    ]
    with pytest.raises(InputError) as caught:
        program_of(write(tmp_path, ranks, Facts(world=2, tp=1, pp=2)))
    assert caught.value.code == "no-such-rank"


def test_a_stage_that_was_not_traced(tmp_path: Path) -> None:
    rank = Rank(0).op("forward_step", 10).transfer("send_forward", until_ms=12).op("backward_step", 20)
    with pytest.raises(InputError) as caught:
        program_of(write(tmp_path, [rank], Facts(world=2, tp=1, pp=2)))
    assert caught.value.code == "missing-ranks"


@pytest.mark.parametrize(
    "options",
    [
        {"microbatches": 0},
        {"microbatches": -1},
        {"microbatches": 10**13},
        {"routing": 0.5},
        {"routing": float("nan")},
        {"routing": "2"},
        {"gpus": 0},
        {"mesh": 2},
        {"pp_comm_bytes": -1},
    ],
)
def test_options_that_mean_nothing(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        MegatronTraceOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": 2.0}, "no expert parallelism"),
        ({"mesh": Mesh(tp=2)}, "tp=2,cp=1 asked"),
        ({"mesh": Mesh(pp=2)}, "how many layers"),
        ({"schedule": "interleaved-1f1b"}, "layers a stage do not divide"),
    ],
)
def test_options_that_these_traces_cannot_heed(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        program_of(write(tmp_path, [ex_situ()], ONE), **options)


def test_several_iterations_are_said(tmp_path: Path) -> None:
    rank = Rank(0)
    for _ in range(2):
        rank.op("forward_step", 10, batch=0).op("backward_step", 20, batch=0)
    assert "2 iterations" in said(program_of(write(tmp_path, [rank], ONE)))


def test_ops_that_are_not_known_are_said_to_be_left_out(tmp_path: Path) -> None:
    rank = Rank(0, ex_situ=True).op("forward_step", 10).op("checkpoint_save", 7).op("backward_step", 20)
    folder = write(tmp_path, [rank.op("optimizer_step", 5)], Facts(world=1, tp=1, pp=1))
    assert "checkpoint_save is no op that is known: left out, up to 7 ms at a time" in said(program(folder))


def test_an_optimizer_traced_in_phases_only_is_their_sum(tmp_path: Path) -> None:
    rank = Rank(0, ex_situ=True).op("forward_step", 10).op("backward_step", 20)
    for name, ms in (("optimizer_main_update", 3), ("optimizer_state_update", 2), ("optimizer_post_update", 1)):
        rank.op(name, ms)
    folder = write(tmp_path, [rank], Facts(world=1, tp=1, pp=1))
    assert durations(program(folder), "optimizer_step") == [pytest.approx(0.006)]


@pytest.mark.parametrize("name", ["wd1_tp0_pp1_numl1_bs1", "wd1_tp1_pp0_numl1_bs1", "wd0_tp1_pp1_numl1_bs1"])
def test_names_that_state_zero_of_something(tmp_path: Path, name: str) -> None:
    write(tmp_path, [ex_situ()], ONE)
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / f"{name}_rank0_20240101000000.txt")
    with pytest.raises(InputError) as caught:
        program_of(tmp_path)
    assert caught.value.code == "bad-mesh" and name in str(caught.value.where)
