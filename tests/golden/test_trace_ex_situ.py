"""Whole jobs foretold from traces that one GPU made as each rank, worked out by hand.

Prices of communication are asked of the network; everything else is arithmetic. g is the host gap between two ops.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.cost.network import network_of
from foretrace.cost.network.silicon_collectives import slowdown_in_training
from foretrace.cost.pricing import STREAM_SHARE
from foretrace.inputs.megatron_trace.format import Facts
from foretrace.inputs.megatron_trace.whole_job.corrections import EXPERT_SLOWDOWN, HOST_GAP_S
from foretrace.program.columns import Collective
from foretrace.program.expand import expand
from unit.inputs.aicb.workloads import CLUSTER
from unit.inputs.megatron_trace.rank_files import Rank, all_to_all, answer, durations, program, said, sub, write

MS = 1e-3
G = HOST_GAP_S
MIB_2 = 1024 * 1024 * 2
HBM = 1e12 * STREAM_SHARE
FOUR_RANKS = Facts(world=4, tp=2, pp=2, layers=2, micro_batch=1)
EXPERTS = Facts(world=4, tp=1, pp=1, dp=4, ep=4, experts=4, layers=1, micro_batch=1)


def price_s(what: Collective, ranks: list[int], size: int, world: int) -> float:
    """What the network of the round cluster takes for one call."""
    network = network_of(CLUSTER, world, slowdown=slowdown_in_training(CLUSTER.gpu))
    (layout,), _ = network.layouts(np.array([ranks]))
    return float(network.price(what, layout, np.array([float(size)])).duration_s[0])


def stage(rank: int, place: int) -> Rank:
    """Forward 6 | 4 and backward 20 on stage 0, 7 | 5, loss 2 and 24 on stage 1; the tracer's 0.1 in a call is none."""
    one = Rank(rank, place, ex_situ=True)
    one.op("get_batch", 1).gap(3)
    before, after, back = ((6, 4, 20), (7, 5, 24))[place]
    one.op("forward_step", before + 0.1 + after, subs=[sub(before, 0.1, name="linear_fwd")]).gap(7)
    if place == 1:
        one.op("loss_func", 2).gap(1)
    return one.op("backward_step", back).reduction().op("optimizer_step", 5)


def test_two_stages_two_microbatches(tmp_path: Path) -> None:
    """
        F  = 1 + g + 6 + ar + 4 + g                    stage 0's forward: no gap before a first op
        F' = g + 1 + g + 7 + ar + 5 + g + 2 + g        stage 1's, with get_batch and loss
        B  = g + 20 + g,   B' = 24 + g                 the last stage goes backward at once

    0   | F |t| F |........|x| B |..................|t| B | scale | g | optimizer 5 |
    1   |.....| F'  |  B' |x|  F'  |  B'  |t|

    Gradients of 4 MB are scaled though dp is 1: read and written once. 2 MiB cross the boundary, as a layer's
    all-reduce has.
    """
    folder = write(tmp_path / "scaling", [stage(rank, rank // 2) for rank in range(4)], FOUR_RANKS)
    ar = price_s(Collective.ALL_REDUCE, [0, 1], MIB_2, 4)
    t = price_s(Collective.TRANSFER, [0, 2], MIB_2, 4)
    x = price_s(Collective.EXCHANGE, [0, 2], MIB_2, 4)
    f0, f1 = 11 * MS + ar + 2 * G, 15 * MS + ar + 4 * G
    b0, b1 = 20 * MS + 2 * G, 24 * MS + G
    scale = 2 * 4e6 / HBM
    expected = f0 + t + (f1 + b1) + x + (f1 + b1) + t + b0 + scale + G + 5 * MS
    found = answer(folder, microbatches=2)
    assert found.step_time_s == pytest.approx(expected, abs=1e-9)
    assert "2 MiB cross a stage boundary" in said(found)


def test_one_microbatch_is_said_and_taken(tmp_path: Path) -> None:
    folder = write(tmp_path / "scaling", [stage(rank, rank // 2) for rank in range(4)], FOUR_RANKS)
    ar, t = price_s(Collective.ALL_REDUCE, [0, 1], MIB_2, 4), price_s(Collective.TRANSFER, [0, 2], MIB_2, 4)
    expected = (11 + 15 + 24 + 20 + 5) * MS + 2 * ar + 2 * t + (2 + 4 + 1 + 2 + 1) * G + 2 * 4e6 / HBM
    found = answer(folder)
    assert found.step_time_s == pytest.approx(expected, abs=1e-9)
    assert "1 microbatch a step taken" in said(found)


@pytest.mark.parametrize("dp", [1, 2])
def test_gradients_are_scaled_even_where_nothing_is_reduced(tmp_path: Path, dp: int) -> None:
    """One rank: forward 10, backward 20, optimizer 5, gaps after forward, backward and the reduction. Gradients of 400
    MB are read and written: 800 MB at the memory's rate; with dp 2 they are reduced as well."""
    ranks = [
        Rank(rank, ex_situ=True)
        .op("forward_step", 10)
        .op("backward_step", 20)
        .reduction(elements=100_000_000)
        .op("optimizer_step", 5)
        for rank in range(dp)
    ]
    folder = write(tmp_path / "scaling", ranks, Facts(world=dp, tp=1, pp=1))
    reduced = price_s(Collective.ALL_REDUCE, [0, 1], 400_000_000, 2) if dp == 2 else 0.0
    expected = 35 * MS + 3 * G + 2 * 4e8 / HBM + reduced
    assert answer(folder).step_time_s == pytest.approx(expected, abs=1e-9)


def test_gradients_of_a_bf16_model_are_fp32_whatever_the_trace_says(tmp_path: Path) -> None:
    """The model communicates bf16, the trace writes float16 gradients: Megatron reduces them in fp32, 4 bytes each."""

    def rank(dtype: str, activations: str) -> Rank:
        one = Rank(0, ex_situ=True).op("forward_step", 10, subs=[sub(5, 0, dtype=activations, group="dp")])
        return one.op("backward_step", 20).reduction(elements=1_000_000, dtype=dtype).op("optimizer_step", 5)

    sizes, notes = {}, {}
    for dtype, activations in (("float16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16")):
        ranks = [rank(f"torch.{dtype}", f"torch.{activations}")]
        made = program(write(tmp_path / f"{dtype}_{activations}", ranks, Facts(world=2, tp=1, pp=1)))
        ops = expand(made)
        (reduction,) = [number for number, name in enumerate(ops.names) if name == "dp_allreduce"]
        sizes[dtype, activations], notes[dtype, activations] = int(ops.ints("bytes")[reduction]), said(made)
    assert sizes == {
        ("float16", "bfloat16"): 4_000_000,
        ("float16", "float16"): 2_000_000,
        ("float32", "bfloat16"): 4_000_000,
    }
    assert ["taken as fp32" in text for text in notes.values()] == [True, False, False]


def test_uneven_all_to_all_of_four_ranks(tmp_path: Path) -> None:
    """Each of four ranks sends 800 rows of 2 KiB; their experts receive 1600, 800, 400 and 400. A rank sends half of
    what it has to expert rank 0, a quarter to 1 and an eighth each to 2 and 3:

        400 200 100 100      sent to others      400  600  700  700
                             received from them 1200  600  300  300

    Rank 0's way in is the busiest, 1200 rows: as an even all-to-all of 1200 · 4/3 = 1600 rows would make it. Experts
    take 1 ms for 400 rows; ex situ they computed on memory that nobody wrote, which is too fast by a factor. Rank 0
    decides: the other three wait for it in the second all-to-all.
    """
    received = (1600, 800, 400, 400)
    ranks = []
    for rank, rows in enumerate(received):
        experts = rows / 400
        forward = [all_to_all(2, 800), all_to_all(2 + experts, rows)]
        one = Rank(rank, ex_situ=True).op("forward_step", 2 + experts + 1, subs=forward)
        ranks.append(one.op("backward_step", 20).op("optimizer_step", 5))
    folder = write(tmp_path / "scaling", ranks, EXPERTS)
    made = program(folder)
    row = 2048
    sent = [[400 * row, 200 * row, 100 * row, 100 * row]] * 4
    templates, ops = made.templates, expand(made)
    tables = []
    for role in range(4):
        first = next(
            number for number, name in enumerate(ops.names) if name == "ep all_to_all" and int(ops.role[number]) == role
        )
        mine = templates.send_op == ops.template[first]
        order = np.argsort(templates.send_to[mine])
        tables.append(templates.send_bytes[mine][order].tolist())
        assert int(ops.ints("bytes")[first]) == 800 * row
    assert tables == sent
    back = price_s(Collective.ALL_TO_ALL, [0, 1, 2, 3], 1600 * row, 4)
    expected = (2 + 4 * EXPERT_SLOWDOWN + 1 + 20 + 5) * MS + 2 * back + 2 * G
    assert answer(folder).step_time_s == pytest.approx(expected, abs=1e-9)


def test_reductions_in_backward_run_beside_the_weight_gradient(tmp_path: Path) -> None:
    """Ex situ a tp all-reduce in backward is written as if nothing ran beside it, but Megatron computes the weight
    gradient meanwhile: 8 before it, 12 beside and after it. Of 2 MiB it takes far less than 12, so nothing of it
    shows: 10 + 20 + 5. In forward it does."""
    ranks = [
        Rank(rank, ex_situ=True)
        .op("forward_step", 10, subs=[sub(5, 0, name="linear_fwd")])
        .op("backward_step", 20, subs=[sub(8, 0, name="normlinear_bwd")])
        .op("optimizer_step", 5)
        for rank in range(2)
    ]
    folder = write(tmp_path / "scaling", ranks, Facts(world=2, tp=2, pp=1, layers=1))
    ar = price_s(Collective.ALL_REDUCE, [0, 1], MIB_2, 2)
    assert answer(folder).step_time_s == pytest.approx(35 * MS + ar + 2 * G, abs=1e-9)
    # A thousand times as slow, it does not fit beside the 12 any more, and the optimizer waits for it.
    assert 1000 * ar > 12 * MS
    slow = answer(folder, {"tp": 0.001})
    assert slow.step_time_s == pytest.approx((10 + 8 + 5) * MS + 2000 * ar + 2 * G, abs=1e-9)
    assert durations(program(folder), "backward_step") == [pytest.approx(8 * MS), pytest.approx(12 * MS)]


def test_what_follows_waits_for_a_slow_reduction(tmp_path: Path) -> None:
    """Backward in three stretches: 8, then 2 beside a reduction of 200 MB, then 20 beside one of 4 bytes. The large one
    (over 1 ms, made ten times as slow, L) holds up the third stretch: 8 + L + 20, the small one being hidden."""
    ranks = [
        Rank(rank, ex_situ=True)
        .op("forward_step", 10)
        .op(
            "backward_step",
            30,
            subs=[sub(8, 0, shape=[100_000_000], name="large"), sub(10, 0, shape=[2], name="small")],
        )
        .op("optimizer_step", 5)
        for rank in range(2)
    ]
    folder = write(tmp_path / "scaling", ranks, Facts(world=2, tp=2, pp=1, layers=1))
    large = 10 * price_s(Collective.ALL_REDUCE, [0, 1], 200_000_000, 2)
    assert large > 2 * MS
    found = answer(folder, {"tp": 0.1})
    assert found.step_time_s == pytest.approx((10 + 8 + 20 + 5) * MS + large + 2 * G, abs=1e-9)
