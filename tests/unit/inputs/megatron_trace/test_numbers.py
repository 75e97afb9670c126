"""Numbers that decide a prediction, each checked by itself: what is guessed, scaled, averaged or left alone."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, sqrt
from pathlib import Path

import pytest

from foretrace.inputs.megatron_trace.format import Facts, read_runs
from foretrace.inputs.megatron_trace.gradients import gradient_calls
from foretrace.inputs.megatron_trace.layout import find_job
from foretrace.inputs.megatron_trace.recording import clock_offsets
from foretrace.inputs.megatron_trace.whole_job.corrections import compute_sources
from foretrace.inputs.megatron_trace.whole_job.work import read_stones
from foretrace.program.expand import expand
from unit.inputs.megatron_trace.rank_files import Rank, all_to_all, durations, program, said, sub, write

TWO_STAGES = Facts(world=2, tp=1, pp=2, layers=2)


def stage(rank: int, **more: float) -> Rank:
    one = Rank(rank, rank, ex_situ=True).op("get_batch", more.get("get_batch", 1))
    one.op("forward_step", 10).op("backward_step", more.get("backward", 20))
    return one.reduction("dp_allreduce").reduction("ep_allreduce").op("optimizer_step", 5)


def test_gradients_of_the_embedding_are_not_scaled(tmp_path: Path) -> None:
    """Megatron scales by 1/dp what it reduces over dp; first and last stage add up, and do not scale."""
    names = expand(program(write(tmp_path, [stage(0), stage(1)], TWO_STAGES), pp_comm_bytes=8)).names
    assert names.count("scale dp_allreduce") == 2 and names.count("ep_allreduce") == 2
    assert "scale ep_allreduce" not in names


def test_reading_a_batch_takes_the_least_that_was_seen(tmp_path: Path) -> None:
    folders = [
        write(tmp_path / name, [stage(0, get_batch=ms), stage(1, get_batch=ms)], TWO_STAGES, stamp=f"2025010{ms}000000")
        for name, ms in (("a", 3), ("b", 2), ("c", 7))
    ]
    assert set(durations(program(folders, pp_comm_bytes=8), "get_batch")) == {0.002}


def test_a_zero_bubble_schedule_halves_the_backward(tmp_path: Path) -> None:
    made = program(write(tmp_path, [stage(0), stage(1)], TWO_STAGES), pp_comm_bytes=8, schedule="zb-h1", microbatches=4)
    # Input and weight gradients of four microbatches.
    assert durations(made, "backward_step") == [pytest.approx(0.010)] * 8


def test_the_band_of_a_lone_timing(tmp_path: Path) -> None:
    """−8 to +16 % of a single timing, 2.5 % of a whole campaign either way, 8 % upwards for a burst; experts also by
    half of what placeholder data may gain."""
    stones = read_stones(find_job(read_runs([write(tmp_path, [stage(0), stage(1)], TWO_STAGES)]), None))
    plain, experts = compute_sources(stones, ex_situ=True)
    assert (plain.low, plain.high) == (
        pytest.approx(1 - hypot(0.08, 0.025)),
        pytest.approx(1 + hypot(0.16, 0.025, 0.08)),
    )
    gain = sqrt(295 / 257)
    assert experts.high == pytest.approx(1 + hypot(0.0, 0.025, gain - 1, 0.08))


def test_dense_parameters_are_guessed_where_one_reduction_holds_all(tmp_path: Path) -> None:
    """Two layers of 4·64² and a vocabulary of 50,304 × 64 are dense; experts have the rest of 10 M."""
    facts = Facts(world=2, tp=1, pp=1, dp=2, ep=2, experts=2, layers=2)
    pieces = [all_to_all(1, 8, hidden=64), all_to_all(3, 8, hidden=64)]
    ranks = [
        Rank(rank, ex_situ=True)
        .op("forward_step", 9, subs=pieces)
        .op("backward_step", 9, subs=pieces)
        .reduction(elements=10_000_000, dtype="torch.float16")
        for rank in range(2)
    ]
    job = find_job(read_runs([write(tmp_path, ranks, facts)]), None)
    calls, notes = gradient_calls(job, list(job.traces(0)), 0)
    dense = 2 * 4 * 64**2 + 50_304 * 64
    assert [(call.axis, call.bytes) for call in calls] == [("dp", 4 * dense), ("edp", 4 * (10_000_000 - dense))]
    assert any("taken to be dense" in note.message for note in notes)


def test_a_boundary_is_shared_out_where_the_sequence_is(tmp_path: Path) -> None:
    """64 tokens of 32 in bf16 are 4,096 bytes; with sequence parallelism each of two tp ranks sends half."""
    named = tmp_path / "pp2_tp2_ep2_expn2_dp2_nl2_hs32_sl64" / "scaling"
    facts = Facts(world=8, tp=2, pp=2, dp=2, ep=2, experts=2, layers=2, micro_batch=1)
    scatter = sub(0.5, 0, comm="reduce_scatter", shape=(64, 32), dtype="torch.bfloat16")
    pieces = [scatter, all_to_all(1, 64, hidden=32), all_to_all(3, 64, hidden=32)]
    ranks = [
        Rank(rank, rank // 4, ex_situ=True).op("forward_step", 9, subs=pieces).op("backward_step", 9, subs=pieces)
        for rank in range(8)
    ]
    made = program(write(named, ranks, facts))
    assert "0.00195312 MiB cross a stage boundary" in said(made)


def test_clocks_are_set_by_the_median_of_what_ends_together() -> None:
    """Host 1 is 1,000 ahead; one meeting of five was noted 50 late."""
    spans = {0: (0.0, 100.0), 1: (1000.0, 1100.0)}
    ends = [(10, 1010), (20, 1020), (30, 1080), (40, 1040), (50, 1050)]
    offsets, _ = clock_offsets(spans, [{0: float(a), 1: float(b)} for a, b in ends])
    assert offsets[1] - offsets[0] == 1000.0


def real(rank: int, waits: tuple[float, float, float]) -> Rank:
    """Three microbatches forward 10 with a call in the middle, gaps of 0.5 between ops; the calls take 1, 1 and 4."""
    one = Rank(rank)
    for number, wait in enumerate(waits):
        one.op("forward_step", 10 + wait, subs=[sub(5, wait)]).gap(0.5)
        one.op("backward_step", 20, batch=number).gap(0.5)
    return one.op("optimizer_step", 5)


def test_a_real_run_built_anew_has_its_own_calls_and_gaps(tmp_path: Path) -> None:
    """Of three equal calls the middle one, of its gaps the mean."""
    folder = write(tmp_path, [real(rank, (1, 1, 4)) for rank in range(2)], Facts(world=2, tp=2, pp=1, layers=1))
    made = program(folder, microbatches=2)
    assert durations(made, "tp allreduce") == [pytest.approx(0.001)] * 2
    gaps = durations(made, "gap")
    assert gaps and gaps == [pytest.approx(0.0005)] * len(gaps)


def test_names_without_a_micro_batch_are_said(tmp_path: Path) -> None:
    named = tmp_path / "pp1_tp1_ep1_dp1_nl1_hs32_sl64"
    rank = Rank(0, ex_situ=True).op("forward_step", 9).op("backward_step", 9)
    facts = replace(Facts(world=1, tp=1, pp=1), layers=1)
    assert "the names do not say the micro batch: 1 taken" in said(program(write(named, [rank], facts)))
