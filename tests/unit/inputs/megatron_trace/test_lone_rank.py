"""One rank's trace and nothing else, as the examples are: what can be said of it, and what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace import Machine, Mesh, simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import Facts
from opened import program_of
from unit.inputs.megatron_trace.rank_files import EXAMPLES, Rank, said, write

REAL, EX_SITU = EXAMPLES / "traces" / "gpt13b_real_rank0.txt", EXAMPLES / "traces" / "moe_ex_situ_rank2.txt"
WHOLE = Mesh(pp=2, dp=8, ep=8)


def test_a_real_rank_takes_what_it_took() -> None:
    """907 ms from its first op to the end of its last; what it waited is not told from what communication took."""
    found = simulate(program_of(REAL), explain=False)
    assert found.world_size == 1
    assert found.step_time_s == pytest.approx(0.9075, abs=0.001)
    assert "the names of these files do not say the mesh" in said(found)
    assert "(tp, pp, dp, ep) are unknown" in said(found)
    assert "what it waited for others cannot be told from what communication took" in said(found)


def test_an_ex_situ_rank_takes_what_it_computes() -> None:
    """1.32 + 28.93 + 36.53 + 18.41 ms of traced ops, corrected and with gaps between: about 89 ms."""
    found = simulate(program_of(EX_SITU), explain=False)
    assert 0.084 < found.step_time_s < 0.095
    assert "communication takes no time here" in said(found)
    assert "1 microbatch a step taken" in said(found)
    assert "as in --mesh tp=1,pp=2,ep=8,dp=8" in said(found)


def test_more_microbatches_of_an_ex_situ_rank() -> None:
    one = simulate(program_of(EX_SITU), explain=False).step_time_s
    eight = simulate(program_of(EX_SITU, microbatches=8), explain=False).step_time_s
    assert 6 * one < eight < 8 * one


def test_with_a_mesh_it_is_a_whole_job() -> None:
    """Sixteen ranks, for all of which rank 2 stands in."""
    whole = program_of(EX_SITU, mesh=WHOLE, microbatches=8, pp_comm_bytes=8 << 20)
    found = simulate(whole, Machine(EXAMPLES / "clusters" / "a100_2x8.yaml"), explain=False)
    assert found.world_size == 16
    assert 0.5 < found.step_time_s < 1.0
    assert "the names do not say the mesh: dp=8,pp=2,ep=8 as asked" in said(found)
    assert "15 of 16 ranks have no trace" in said(found)
    assert "rank 2 stands in, of stage 0" in said(found)


def test_what_crosses_a_boundary_is_guessed_where_nothing_tells() -> None:
    """2,048 rows of 4,096 in bf16 go to experts, two for each token: 1,024 of them cross."""
    made = program_of(EX_SITU, mesh=WHOLE)
    assert "8 MiB cross a stage boundary for a microbatch, if tokens go to 2 experts each" in said(made)


def test_what_crosses_a_boundary_is_not_made_up(tmp_path: Path) -> None:
    ranks = [Rank(rank, rank, ex_situ=True).op("forward_step", 9).op("backward_step", 9) for rank in range(2)]
    made = program_of(write(tmp_path, ranks, Facts(world=2, tp=1, pp=2)))
    assert "transfers take their latency only (say it with --pp-comm, as in --pp-comm 8MiB)" in said(made)


def test_it_must_be_on_the_mesh_it_is_given() -> None:
    with pytest.raises(InputError) as caught:
        program_of(EX_SITU, mesh=Mesh(dp=2))
    assert caught.value.code == "bad-mesh"
    with pytest.raises(InputError) as caught:
        program_of(EX_SITU, mesh=Mesh(dp=3, ep=3))
    assert caught.value.code == "not-divisible"


@pytest.mark.parametrize("options", [{"microbatches": 2}, {"routing": 2.0}, {"gpus": 4}])
def test_options_for_a_lone_real_rank_are_heeded_or_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    rank = Rank(0).op("forward_step", 10).op("backward_step", 20).op("optimizer_step", 5)
    folder = write(tmp_path, [rank])
    assert simulate(program_of(folder), explain=False).step_time_s == pytest.approx(0.035, abs=1e-9)
    try:
        found = simulate(program_of(folder, **options), explain=False).step_time_s
    except InputError:
        return
    assert options == {"microbatches": 2}
    assert found == pytest.approx(0.065, abs=1e-3)


def test_a_lone_rank_is_not_many() -> None:
    with pytest.raises(InputError):
        simulate(program_of(EX_SITU, gpus=4), Machine("a100-dgx"), explain=False)


def test_a_lone_real_rank_with_a_mesh_says_what_is_missing() -> None:
    with pytest.raises(InputError, match="stage 1"):
        program_of(REAL, mesh=Mesh(tp=2, pp=2))
