"""The laws of pipeline schedules.

Idle time is `idle_per_step`: the steady-state period of steps that follow each other, less what a stage works
in a step. F, I and W are what a whole stage's forward, input gradient and weight gradient of one microbatch
take, cut evenly among its chunks; p is the stages, m the microbatches, v the chunks. Transfers are free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.schedules import Schedule, StageActions, check, make, names
from schedule_times import UnitTimes, peak_in_flight, unit_times

laws = settings(max_examples=40, deadline=None)


class Parts(NamedTuple):
    """What the parts of a microbatch take."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def total(self) -> float:
        return sum(self)

    def of_schedule(self, schedule: Schedule) -> UnitTimes:
        """Times where these are a stage's, cut evenly among its chunks."""
        return unit_times(schedule, *(part / schedule.chunks for part in self))


# Multiples of 1/16, so that sums are exact and only the division by chunks rounds.
more = st.integers(0, 48).map(lambda sixteenths: sixteenths / 16)
durations = st.integers(1, 48).map(lambda sixteenths: sixteenths / 16)
parts = st.builds(Parts, durations, durations, durations)
short_weight_gradient = st.builds(lambda w, f, i: Parts(w + f, w + i, w), durations, more, more)
rising = st.builds(lambda w, f, i: Parts(w + f, w + f + i, w), durations, more, more)

stage_counts = st.integers(1, 8)
chunk_counts = st.integers(2, 4)
groups = st.integers(1, 4)
surplus = st.integers(0, 16)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule that its rules admit."""
    name = draw(st.sampled_from(names()))
    chunks = draw(st.one_of(st.none(), st.integers(1, 4)))
    try:
        return make(name, draw(stage_counts), draw(st.integers(1, 24)), chunks)
    except InputError:
        assume(False)
        raise


@laws
@given(schedules())
def test_every_schedule_passes_its_check(schedule: Schedule) -> None:
    check(schedule)


@laws
@given(schedules())
def test_every_piece_of_every_microbatch_has_one_place(schedule: Schedule) -> None:
    for microbatch in {0, schedule.microbatches - 1}:
        places = [schedule.where(microbatch, piece) for piece in range(schedule.pieces)]
        assert [int(schedule.piece[place]) for place in places] == list(range(schedule.pieces))


@laws
@given(schedules(), parts)
def test_work_fits_in_the_period_and_the_period_in_the_makespan(schedule: Schedule, parts: Parts) -> None:
    times = unit_times(schedule, *parts)
    per_direction = schedule.microbatches * schedule.chunks / schedule.directions
    assert times.busy == pytest.approx(per_direction * parts.total)
    assert times.busy.max() <= times.period * (1 + 1e-12)
    assert times.period <= times.makespan * (1 + 1e-12)


@laws
@given(schedules(), st.data())
def test_a_stage_with_two_rows_swapped_fails_or_still_runs(schedule: Schedule, data: st.DataObject) -> None:
    """What `check` lets pass runs to its end; what it refuses, it refuses with the stage's name."""
    stage = data.draw(st.integers(0, schedule.stages - 1))
    rows = schedule.stage_actions[stage]
    first, second = (data.draw(st.integers(0, len(rows) - 1)) for _ in range(2))
    order = np.arange(len(rows))
    order[[first, second]] = second, first
    swapped = replace_stage(
        schedule, stage, StageActions(rows.slot, rows.kind[order], rows.microbatch[order], rows.chunk[order])
    )
    try:
        check(swapped)
    except ForetraceError as error:
        assert "stage " in error.message
    else:
        assert np.isfinite(unit_times(swapped).makespan)


@laws
@given(schedules(), st.data())
def test_a_stage_without_one_of_its_rows_fails(schedule: Schedule, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, schedule.stages - 1))
    rows = schedule.stage_actions[stage]
    lost = data.draw(st.integers(0, len(rows) - 1))
    kept = np.arange(len(rows)) != lost
    columns = (rows.kind[kept], rows.microbatch[kept], rows.chunk[kept])
    shorter = StageActions(np.arange(len(rows) - 1), *columns)
    with pytest.raises(InputError, match=f"stage {stage} "):
        check(replace_stage(schedule, stage, shorter))


def replace_stage(schedule: Schedule, stage: int, rows: StageActions) -> Schedule:
    before, after = schedule.stage_actions[:stage], schedule.stage_actions[stage + 1 :]
    return replace(schedule, stage_actions=(*before, rows, *after))


@laws
@given(stage_counts, surplus, parts)
def test_1f1b_and_gpipe_idle_for_a_round_trip(p: int, surplus: int, parts: Parts) -> None:
    """(p − 1)(F + I + W), exact for m ≥ p and any F, I, W."""
    for name in ("1f1b", "gpipe"):
        times = parts.of_schedule(make(name, p, p + surplus))
        assert times.idle_per_step == pytest.approx((p - 1) * parts.total)


@laws
@given(stage_counts, groups, chunk_counts, parts)
def test_interleaving_divides_the_idle_time_of_1f1b(p: int, groups: int, v: int, parts: Parts) -> None:
    """(p − 1)(F + I + W) / v, exact for m a multiple of p and any F, I, W."""
    for name in ("interleaved-1f1b", "looped-bfs"):
        times = parts.of_schedule(make(name, p, groups * p, v))
        assert times.idle_per_step == pytest.approx((p - 1) * parts.total / v)


@laws
@given(stage_counts, surplus, short_weight_gradient)
def test_zb_h1_fills_idle_time_with_weight_gradients(p: int, surplus: int, parts: Parts) -> None:
    """(p − 1)(F + I − W), exact where W ≤ F, W ≤ I and m ≥ p."""
    forward, input_gradient, weight_gradient = parts
    times = parts.of_schedule(make("zb-h1", p, p + surplus))
    assert times.idle_per_step == pytest.approx((p - 1) * (forward + input_gradient - weight_gradient))


@laws
@given(stage_counts, groups, chunk_counts, short_weight_gradient)
def test_interleaving_divides_the_idle_time_of_zb_h1(p: int, groups: int, v: int, parts: Parts) -> None:
    """(p − 1)(F + I − W) / v, exact where W ≤ F, W ≤ I and m is a multiple of p."""
    forward, input_gradient, weight_gradient = parts
    times = parts.of_schedule(make("interleaved-zb", p, groups * p, v))
    assert times.idle_per_step == pytest.approx((p - 1) * (forward + input_gradient - weight_gradient) / v)


@laws
@given(stage_counts, surplus, rising)
def test_zb_v_idles_by_the_difference_of_the_gradients(p: int, surplus: int, parts: Parts) -> None:
    """(p − 1)(I − W), exact where W ≤ F ≤ I and m ≥ 2p: nothing where all take the same."""
    times = parts.of_schedule(make("zb-v", p, 2 * p + surplus))
    expected = (p - 1) * (parts.input_gradient - parts.weight_gradient)
    assert times.idle_per_step == pytest.approx(expected, abs=1e-9)


@laws
@given(stage_counts, surplus, durations)
def test_zb_v_is_never_idle_when_all_parts_take_the_same(p: int, surplus: int, duration: float) -> None:
    times = Parts(duration, duration, duration).of_schedule(make("zb-v", p, 2 * p + surplus))
    assert times.idle_per_step == pytest.approx(0, abs=1e-9)


@laws
@given(stage_counts, surplus, short_weight_gradient)
def test_zb_v_idles_no_more_than_zb_h1(p: int, surplus: int, parts: Parts) -> None:
    """Where W ≤ F, W ≤ I and m ≥ p."""
    vee, h1 = (parts.of_schedule(make(name, p, p + surplus)) for name in ("zb-v", "zb-h1"))
    assert vee.idle_per_step.max() <= h1.idle_per_step.max() + 1e-9


@laws
@given(st.sampled_from(["dualpipe", "dualpipe-v"]), st.integers(1, 4), surplus, durations, more, st.floats(0, 1))
def test_dualpipe_idles_as_published(
    name: str, half: int, surplus: int, weight_gradient: float, more: float, hidden: float
) -> None:
    """(PP/2 − 1)(F&B + B − 3W), exact where F = I ≥ W and B ≤ F&B ≤ F + B.

    PP is the number of pieces, all times are a chunk's, and B is I + W. The stages at the tip of the V, which
    leave one pair apart, work longer and idle less; the law is about the others.
    """
    forward = weight_gradient + more
    backward = forward + weight_gradient
    pair = backward + (1 - hidden) * forward
    schedule = make(name, 2 * half if name == "dualpipe" else half, 4 * half + 2 * surplus)
    idle = unit_times(schedule, forward, forward, weight_gradient, overlapped=pair).idle_per_step
    expected = (half - 1) * (pair + backward - 3 * weight_gradient)
    assert idle.max() == pytest.approx(expected, abs=1e-9)


@laws
@given(stage_counts, st.integers(1, 24))
def test_activations_in_flight(p: int, m: int) -> None:
    """1F1B's stage s holds min(m, p − s) microbatches; no zero-bubble stage more than 1F1B's first, p."""
    assert peak_in_flight(make("1f1b", p, m)).tolist() == [min(m, p - stage) for stage in range(p)]
    for name in ("zb-h1", "zb-v"):
        schedule = make(name, p, m)
        assert peak_in_flight(schedule).max() <= schedule.chunks * min(m, p)


@laws
@given(st.integers(1, 4), surplus)
def test_dualpipe_holds_one_activation_more_than_pieces(half: int, surplus: int) -> None:
    microbatches = 4 * half + 2 * surplus
    assert (peak_in_flight(make("dualpipe", 2 * half, microbatches)) == 2 * half + 1).all()
    assert (peak_in_flight(make("dualpipe-v", half, microbatches)) == 2 * half + 1).all()
