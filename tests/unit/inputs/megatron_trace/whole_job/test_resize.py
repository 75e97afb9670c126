"""The same job on another mesh, or with other routing: what its layers and experts take then."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Mesh
from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import Facts, read_runs
from foretrace.inputs.megatron_trace.layout import find_job
from foretrace.inputs.megatron_trace.whole_job.resize import Line, resized
from foretrace.inputs.megatron_trace.whole_job.work import Stones, Stretch, read_stones
from unit.inputs.megatron_trace.rank_files import Rank, Sub, all_to_all, answer, durations, program, said, sub, write

STAGED = Facts(world=4, tp=2, pp=2, layers=4, micro_batch=1)
EVEN_ROWS = 800
ROWS = (1600, 1200, 400, 400, 800, 800, 700, 500)
"""What each of eight ranks receives, 800 in the mean."""


def stage(rank: int, before: float, after: float) -> Rank:
    """Two layers of attention 4 and MLP 6 forward, MLP 12 and attention 8 backward; `before` is what the first forward
    stretch has more (the embedding), `after` what comes after the layers (head or nothing much)."""
    forward, backward, at, back = list[Sub](), list[Sub](), before, after
    for _ in range(2):
        forward += [sub(at + 4, 0, name="linear_fwd"), sub(at + 10, 0, name="linear_fwd")]
        backward += [sub(back + 12, 0, name="normlinear_bwd"), sub(back + 20, 0, name="normlinear_bwd")]
        at, back = at + 10, back + 20
    one = Rank(rank, rank // 2, ex_situ=True).op("forward_step", at + after, subs=forward)
    return one.op("backward_step", back + before, subs=backward).reduction(elements=1_000_000).op("optimizer_step", 6)


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """Two stages of two layers: 5 of embedding on the first, 3 of head on the last."""
    ranks = [stage(rank, *((5, 1) if rank < 2 else (0.5, 3))) for rank in range(4)]
    return write(tmp_path / "scaling", ranks, STAGED)


def ms(seconds: list[float]) -> list[float]:
    return [round(one * 1e3, 6) for one in seconds]


def test_as_traced(staged: Path) -> None:
    made = program(staged)
    assert ms(durations(made, "forward_step", 0)) == [9, 6, 4, 6, 1]
    assert ms(durations(made, "forward_step", 1)) == [4.5, 6, 4, 6, 3]
    assert ms(durations(made, "backward_step", 1)) == [15, 8, 12, 8, 0.5]


def test_two_stages_become_one(staged: Path) -> None:
    made = program(staged, mesh=Mesh(tp=2))
    assert made.world == 2
    assert ms(durations(made, "forward_step")) == [9, 6, 4, 6, 4, 6, 4, 6, 3]
    assert ms(durations(made, "backward_step")) == [15, 8, 12, 8, 12, 8, 12, 8, 5]
    # Twice the layers have twice the parameters.
    assert ms(durations(made, "optimizer_step")) == [12]
    assert "traced on tp=2,pp=2, built for tp=2" in said(made)


def test_two_stages_become_four(staged: Path) -> None:
    made = program(staged, mesh=Mesh(tp=2, pp=4))
    assert [ms(durations(made, "forward_step", role)) for role in range(4)] == [
        [9, 6, 1],
        [4.5, 6, 1],
        [4.5, 6, 1],
        [4.5, 6, 3],
    ]
    assert [ms(durations(made, "backward_step", role)) for role in range(4)] == [
        [13, 8, 5],
        [13, 8, 0.5],
        [13, 8, 0.5],
        [15, 8, 0.5],
    ]
    assert ms(durations(made, "optimizer_step", 1)) == [3]


def test_another_dp_changes_no_computation(staged: Path) -> None:
    as_is, wider = program(staged), program(staged, mesh=Mesh(tp=2, pp=2, dp=4))
    assert (as_is.world, wider.world) == (4, 16)
    for name in ("forward_step", "backward_step", "optimizer_step"):
        assert durations(as_is, name) == durations(wider, name)
    assert program(staged, gpus=16).mesh == Mesh(tp=2, pp=2, dp=4)
    # Gradients are reduced now.
    assert answer(staged, mesh=Mesh(tp=2, pp=2, dp=4)).step_time_s > answer(staged).step_time_s


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (Mesh(tp=4, pp=1), "tp=4,cp=1 asked, traced with tp=2,cp=1"),
        (Mesh(tp=2, cp=2), "tp=2,cp=2 asked"),
        (Mesh(tp=2, pp=3), "4 layers do not divide into 3 stages"),
        (Mesh(tp=2, pp=2, dp=2, ep=2), "no expert parallelism in these traces"),
    ],
)
def test_what_traces_cannot_tell(staged: Path, mesh: Mesh, message: str) -> None:
    with pytest.raises(InputError, match=message):
        program(staged, mesh=mesh)


def test_gpus_that_do_not_divide(staged: Path) -> None:
    with pytest.raises(InputError, match="6 GPUs do not divide into tp=2,pp=2") as caught:
        program(staged, gpus=6)
    assert caught.value.hint == "ask for a multiple of 4"


def test_other_stages_need_the_number_of_layers(tmp_path: Path) -> None:
    rank = Rank(0, ex_situ=True).op("forward_step", 10).op("backward_step", 20)
    folder = write(tmp_path, [rank], Facts(world=1, tp=1, pp=1))
    with pytest.raises(InputError) as caught:
        program(folder, mesh=Mesh(pp=2))
    assert caught.value.code == "not-recorded"


def experts_ms(rows: int) -> float:
    """What experts take for so many rows: 1 ms and 2.5 µs a row."""
    return 1 + rows / 400


def moe(rank: int, by_layer: tuple[tuple[int, ...], ...]) -> Rank:
    """A forward of as many layers as there are rows of routing; backward is one stretch."""
    subs, at = list[Sub](), 0.0
    for layer in by_layer:
        counts = sub(at + 3, 0, comm="allgather", group="exp", shape=[8], dtype="torch.int64")
        subs += [counts, all_to_all(at + 4, EVEN_ROWS), all_to_all(at + 4 + experts_ms(layer[rank]), layer[rank])]
        at += 4 + experts_ms(layer[rank])
    one = Rank(rank, ex_situ=True).op("forward_step", at + 1, subs=subs).op("backward_step", 20)
    return one.reduction(elements=1000).reduction("exp_dp_allreduce", elements=3000).op("optimizer_step", 8)


def moe_stones(folder: Path, target: Mesh, routing: float | None = None, *by_layer: tuple[int, ...]) -> Stones:
    layers = by_layer or (ROWS,)
    facts = Facts(world=8, tp=1, pp=1, ep=8, experts=8, layers=len(layers), micro_batch=1)
    job = find_job(read_runs([write(folder, [moe(rank, layers) for rank in range(8)], facts)]), None)
    return resized(job, read_stones(job), target, routing)


def combines(stones: Stones) -> list[list[Stretch]]:
    """The experts' stretch of every layer, by expert coordinate."""
    return [
        [work for work in stones.work[0, expert].forward if work.rows is not None] for expert in range(len(stones.work))
    ]


def check_experts(stones: Stones, rows: list[int]) -> None:
    (each,) = zip(*combines(stones), strict=True)
    assert [one.rows for one in each] == rows
    assert [one.call.bytes for one in each if one.call] == [2048 * many for many in rows]
    assert ms([one.compute_s for one in each]) == [experts_ms(many) for many in rows]


def test_experts_of_eight_ranks_on_four(tmp_path: Path) -> None:
    """Two ranks' experts on one: what both received, of half as many senders."""
    stones = moe_stones(tmp_path, Mesh(dp=8, ep=4))
    check_experts(stones, [1400, 400, 800, 600])
    work = stones.work[0, 0]
    assert [(call.axis, call.bytes) for call in work.gradients] == [("dp", 4000), ("edp", 24_000)]
    # 16,000 bytes of parameters' gradients have become 28,000.
    assert work.optimizer_s == pytest.approx(0.008 * 28 / 16)
    gather = work.forward[0].call
    assert gather is not None
    assert gather.bytes == 4 * 8 * 8
    # What a rank sends out stays the same.
    assert [one.call.bytes for one in stones.work[0, 3].forward if one.call][1] == 2048 * EVEN_ROWS


def test_experts_of_eight_ranks_on_two(tmp_path: Path) -> None:
    check_experts(moe_stones(tmp_path, Mesh(dp=8, ep=2)), [900, 700])


def test_experts_are_not_shared_out_in_parts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="experts shared out among 8 ranks cannot be so among 3 of 8 experts"):
        moe_stones(tmp_path / "a", Mesh(dp=9, ep=3))
    with pytest.raises(InputError, match="cannot be so among 16 of 8 experts"):
        moe_stones(tmp_path / "b", Mesh(dp=16, ep=16))


def test_balanced_routing(tmp_path: Path) -> None:
    check_experts(moe_stones(tmp_path, Mesh(dp=8, ep=8), 1.0), [EVEN_ROWS] * 8)


def test_routing_as_uneven_as_asked(tmp_path: Path) -> None:
    (each,) = zip(*combines(moe_stones(tmp_path, Mesh(dp=8, ep=8), 1.5)), strict=True)
    rows = [one.rows or 0 for one in each]
    assert (max(rows), sum(rows)) == (1200, 8 * EVEN_ROWS)
    assert rows.index(1200) == 0


def test_every_layer_has_routing_of_its_own(tmp_path: Path) -> None:
    """The second layer's experts receive the other way round. Balanced, both layers take the same."""
    stones = moe_stones(tmp_path / "a", Mesh(dp=8, ep=8), 1.0, ROWS, ROWS[::-1])
    for expert in combines(stones):
        assert [(one.rows, one.call.bytes) for one in expert if one.call] == [(EVEN_ROWS, 2048 * EVEN_ROWS)] * 2
    halved = combines(moe_stones(tmp_path / "b", Mesh(dp=8, ep=4), None, ROWS, ROWS[::-1]))
    assert [[one.rows for one in expert] for expert in halved] == [[1400, 600], [400, 800], [800, 400], [600, 1400]]


def test_routing_as_uneven_as_it_was_changes_nothing(tmp_path: Path) -> None:
    """The busiest received twice the mean. Backward has two layers, with 2 ms of attention before each dispatch."""
    ranks = []
    for rank, rows in enumerate(ROWS):
        subs, at = list[Sub](), 0.0
        for _ in range(2):
            subs += [all_to_all(at + 2, EVEN_ROWS), all_to_all(at + 2 + experts_ms(rows), rows)]
            at += 2 + experts_ms(rows)
        one = Rank(rank, ex_situ=True).op("forward_step", 10).op("backward_step", at + 1, subs=subs)
        ranks.append(one.reduction(elements=1000).reduction("exp_dp_allreduce", elements=3000))
    facts = Facts(world=8, tp=1, pp=1, ep=8, experts=8, layers=2, micro_batch=1)
    folder = write(tmp_path, ranks, facts)
    assert answer(folder, routing=2.0).step_time_s == pytest.approx(answer(folder).step_time_s, rel=1e-3)


def test_lines_through_timings() -> None:
    assert Line.through([(100, 2.0), (300, 4.0)]).at(200) == pytest.approx(3.0)
    assert Line.through([(100, 2.0), (100, 4.0)]).at(200) == pytest.approx(6.0)  # in proportion
    assert Line.through([(0, 2.0), (0, 4.0)]).at(200) == pytest.approx(3.0)
    # More tokens never take less, and none never take less than nothing.
    assert Line.through([(100, 4.0), (300, 2.0)]).at(1000) == pytest.approx(3.0)
    assert Line.through([(100, 1.0), (200, 3.0)]).at(0) >= 0
