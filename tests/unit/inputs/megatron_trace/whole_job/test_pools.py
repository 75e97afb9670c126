"""Timings of the same work are pooled: their median, how far they spread, and how many campaigns that asks for."""

from __future__ import annotations

from math import hypot, sqrt
from pathlib import Path

import pytest

from foretrace import simulate
from foretrace.inputs.megatron_trace.format import Facts
from foretrace.inputs.megatron_trace.whole_job.corrections import BURST_GAIN, CAMPAIGN_SPREAD, HOST_GAP_S
from foretrace.inputs.megatron_trace.whole_job.pools import UNKNOWN_SPREAD, Pools
from opened import program_of
from unit.inputs.megatron_trace.rank_files import Rank, all_to_all, answer, durations, program, said, sub, write

KEY = ("work",)


def pool(times: list[float], campaigns: float = 1) -> Pools:
    pools = Pools(campaigns)
    for seconds in times:
        pools.add(KEY, seconds)
    return pools


def everything(_key: object) -> bool:
    return True


def test_the_median_is_what_work_takes() -> None:
    assert pool([3.0, 1.0, 9.0]).typical(KEY) == 3.0
    assert pool([3.0, 1.0, 9.0, 5.0]).typical(KEY) == 4.0
    assert pool([3.0, 1.0, 9.0]).fastest(KEY) == 1.0


def test_spread_is_the_middle_nine_tenths_of_the_pool() -> None:
    """Of 0.90, 0.91, … 1.10 a twentieth lies below 0.91 and above 1.09."""
    times = [0.9 + 0.01 * number for number in range(21)]
    pools = pool(times)
    assert pools.spread(everything) == (1.0, 1.0)  # nothing rests on it yet
    pools.typical(KEY)
    assert pools.spread(everything) == (pytest.approx(0.91), pytest.approx(1.09))
    assert pools.spread(lambda key: key != KEY) == (1.0, 1.0)


def test_more_campaigns_narrow_it_as_a_mean_of_several_is() -> None:
    one, four = pool([0.9, 1.0, 1.2]), pool([0.9, 1.0, 1.2], campaigns=4)
    for pools in (one, four):
        pools.typical(KEY)
    (low, high), (lower, higher) = one.spread(everything), four.spread(everything)
    assert 1 - lower == pytest.approx((1 - low) / 2)
    assert higher - 1 == pytest.approx((high - 1) / 2)
    # ± 2 % of a spread of ± w takes (w / 2 %)² campaigns, whatever was there.
    assert one.campaigns_for() == four.campaigns_for() == 81  # (0.18 / 0.02)²


def test_what_rests_on_a_pool_is_what_it_weighs() -> None:
    """One pool of no spread, used three times for 1 s; one of ± 40 %, used once: ± 10 % of all."""
    pools = Pools(1)
    for seconds in (1.0, 1.0, 1.0):
        pools.add(("sure",), seconds)
    for seconds in [0.6] * 5 + [1.0] + [1.4] * 5:
        pools.add(("unsure",), seconds)
    for key in (("sure",), ("sure",), ("sure",), ("unsure",)):
        pools.typical(key)
    low, high = pools.spread(everything)
    assert (low, high) == (pytest.approx(0.9), pytest.approx(1.1))


def test_work_that_takes_no_time_has_no_spread() -> None:
    pools = pool([0.0, 0.0])
    pools.typical(KEY)
    assert pools.spread(everything) == (1.0, 1.0)
    assert pools.campaigns_for() == 1


def layers(rank: int, attention: list[float], mlp: list[float]) -> Rank:
    """A forward of layers whose attention and MLP each end with the same all-reduce."""
    subs, at = [], 0.0
    for one, two in zip(attention, mlp, strict=True):
        subs += [sub(at + one, 0, name="linear_fwd"), sub(at + one + two, 0, name="linear_fwd")]
        at += one + two
    return Rank(rank, ex_situ=True).op("forward_step", at + 1, subs=subs).op("backward_step", 20)


def test_layers_are_pooled_by_their_place(tmp_path: Path) -> None:
    """Attention takes 4, once 40; MLPs take 6: the outlier is gone, and MLPs are none of its business."""
    ranks = [layers(0, [4, 4, 40], [6, 6, 6]), layers(1, [4, 4, 4], [6, 6, 6])]
    made = program(write(tmp_path, ranks, Facts(world=2, tp=2, pp=1, layers=3)))
    assert durations(made, "forward_step") == [pytest.approx(ms / 1e3) for ms in (4, 6, 4, 6, 4, 6, 1)]


def test_without_layers_places_are_pooled_over_ranks_alone(tmp_path: Path) -> None:
    """The third attention is the median of 40 and 4."""
    ranks = [layers(0, [4, 4, 40], [6, 6, 6]), layers(1, [4, 4, 4], [6, 6, 6])]
    made = program(write(tmp_path, ranks, Facts(world=2, tp=2, pp=1)))
    assert durations(made, "forward_step") == [pytest.approx(ms / 1e3) for ms in (4, 6, 4, 6, 22, 6, 1)]


def test_campaigns_are_pooled_and_the_band_says_how_sure_that_is(tmp_path: Path) -> None:
    facts = Facts(world=1, tp=1, pp=1)
    folders = []
    for number, ms in enumerate((90.0, 100.0, 130.0)):
        rank = Rank(0, ex_situ=True).op("forward_step", ms).op("backward_step", 2 * ms)
        folders.append(write(tmp_path / f"scaling_{number}", [rank], facts, stamp=f"2025010{number + 1}000000"))
    found = simulate(program_of(folders))
    assert found.step_time_s == pytest.approx(0.300 + 2 * HOST_GAP_S, abs=1e-9)
    # 91 and 127 of 100 are the outer twentieths; three campaigns narrow that by √3, as they do what a campaign as a
    # whole is off. Upwards, an hour of training may be slower than a burst.
    whole = CAMPAIGN_SPREAD / sqrt(3)
    (source,) = [one for one in found.provenance if one.source == "ex-situ computation"]
    assert source.low == pytest.approx(1 - hypot(0.09 / sqrt(3), whole))
    assert source.high == pytest.approx(1 + hypot(0.27 / sqrt(3), whole, BURST_GAIN - 1))
    low, high = found.step_time_band_s
    assert low / found.step_time_s == pytest.approx(source.low, abs=0.001)
    assert high / found.step_time_s == pytest.approx(source.high, abs=0.001)
    assert (
        "3 campaigns: their timings alone leave −5.2 to +15.6 % of computation open; for ± 2 % take about 183 campaigns"
        in said(found)
    )


def test_pools_that_are_too_small_spread_as_the_others_do() -> None:
    """Two timings tell nothing of their spread: it is taken to be the usual, or that of pools that tell theirs."""
    pools = pool([1.0, 5.0])
    pools.typical(KEY)
    assert pools.spread(everything) == pytest.approx(UNKNOWN_SPREAD)
    for seconds in (0.8, 1.0, 1.0, 1.0, 1.2):
        pools.add(("known",), seconds)
    pools.typical(("known",))
    assert pools.spread(everything) == (pytest.approx(0.84), pytest.approx(1.16))


def test_in_a_real_run_the_mean_is_what_work_takes() -> None:
    pools = Pools(1, one_sided=False)
    for seconds in (1.0, 1.0, 4.0):
        pools.add(KEY, seconds)
    assert pools.typical(KEY) == 2.0


def test_no_band_reaches_below_nothing(tmp_path: Path) -> None:
    """Half of the timings of experts are 0, half 100 ms: anything from nothing on, but no less."""
    ranks = []
    for rank in range(4):
        ms = 100.0 * (rank // 2)
        subs = [all_to_all(1, 8), all_to_all(1 + ms, 8)]
        ranks.append(Rank(rank, ex_situ=True).op("forward_step", 2 + ms, subs=subs).op("backward_step", 20))
    folder = write(tmp_path, ranks, Facts(world=4, tp=1, pp=1, ep=2, experts=2, layers=1))
    assert min(source.low for source in program(folder).sources) >= 0
    assert answer(folder).step_time_s > 0
