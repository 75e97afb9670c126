"""The laws of jitter, over random programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrace.api import simulate
from foretrace.engine.fixed_run import FixedRun
from foretrace.readings.jitter import Waits, largest_of, later_of
from foretrace.readings.scenario import Scenario
from property.programs import Job, folded, jobs

laws = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
times = st.floats(0.0, 1e3)
variances = st.floats(0.0, 1e3)


@laws
@given(jobs(), st.floats(0.0, 1.0))
def test_waits_are_never_negative_and_never_endless(job: Job, jitter: float) -> None:
    graph, prices = folded(job)
    durations = prices.durations(graph)
    waits = Waits(graph, jitter).of(durations, durations)
    assert np.isfinite(waits).all() and (waits >= 0).all()
    plain, waiting = (FixedRun(graph).timeline(one).step_time_s for one in (durations, durations + waits))
    assert waiting >= plain * (1 - 1e-12)


@laws
@given(jobs())
def test_members_of_a_meeting_wait_alike(job: Job) -> None:
    graph, prices = folded(job)
    durations = prices.durations(graph)
    waits = Waits(graph, 0.1).of(durations, durations)
    first = np.zeros(graph.units)
    first[graph.unit] = waits
    meets = graph.unit < graph.rendezvous
    assert (waits[meets] == first[graph.unit[meets]]).all()


@laws
@given(jobs(most_ranks=8))
def test_no_jitter_changes_not_a_bit(job: Job) -> None:
    with_it = simulate(job.program, None, Scenario(jitter=0.0), explain=False)
    without = simulate(job.program, explain=False)
    assert with_it.step_time_s == without.step_time_s
    assert (with_it.timeline.end_s == without.timeline.end_s).all()


@laws
@given(jobs(most_ranks=8))
def test_folded_and_unfolded_agree_to_the_bit(job: Job) -> None:
    assert (
        simulate(job.program, None, Scenario(jitter=0.05), explain=False, executor="fixed").step_time_s
        == simulate(job.program, None, Scenario(jitter=0.05), explain=False, executor="fixed", folded=False).step_time_s
    )


@laws
@given(times, variances, times, variances)
def test_the_later_of_two_is_later_than_either_mean(a: float, va: float, b: float, vb: float) -> None:
    (mean, variance), first = later_of((a, va), (b, vb))
    assert mean >= max(a, b) and variance >= 0 and 0 <= first <= 1
    (mirrored, _), other = later_of((b, vb), (a, va))
    assert mirrored == pytest.approx(mean, rel=1e-9, abs=1e-9)
    if va + vb > 0:
        assert first + other == pytest.approx(1.0)


@laws
@given(st.integers(1, 1_000_000))
def test_the_largest_of_more_is_larger_and_surer(count: int) -> None:
    (few, loose), (many, tight) = largest_of(count), largest_of(2 * count)
    assert few < many and loose > tight > 0
