"""The laws of pipelines, through programs made from schedules and run by the engine.

F, I and W are what a whole stage's forward, input gradient and weight gradient of one microbatch take, cut evenly among
its chunks; p is the stages, m the microbatches, v the chunks. Idle is the step time less what a stage computes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.engine.fixed_run import FixedRun
from foretrace.program.block import BlockBuilder
from foretrace.program.build import ProgramBuilder
from foretrace.program.timeline import Timeline
from foretrace.schedules import make, names
from foretrace.schedules.pipeline import Transfer, pipeline
from foretrace.schedules.schedule import Action, ActionKind, Schedule
from property import oracle
from property.programs import Job, folded, of_rank

laws = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
Style = Literal["async", "batched"]


class Parts(NamedTuple):
    """What the parts of a microbatch take on a stage."""

    F: float
    I: float  # noqa: E741
    W: float

    @property
    def total(self) -> float:
        return sum(self)

    def of(self, action: Action, chunks: int) -> float:
        whole = {
            ActionKind.FORWARD: self.F,
            ActionKind.BACKWARD: self.I + self.W,
            ActionKind.BACKWARD_INPUT: self.I,
            ActionKind.BACKWARD_WEIGHT: self.W,
        }
        return whole[action.kind] / chunks


times = st.integers(1, 48).map(lambda sixteenths: sixteenths / 16)
more = st.integers(0, 48).map(lambda sixteenths: sixteenths / 16)
parts = st.builds(Parts, times, times, times)
short_weight_gradients = st.builds(lambda w, f, i: Parts(w + f, w + i, w), times, more, more)
rising = st.builds(lambda w, f, i: Parts(w + f, w + f + i, w), times, more, more)
styles = st.sampled_from(("async", "batched"))
stages = st.integers(1, 6)
groups = st.integers(1, 3)


def build_pipeline(schedule: Schedule, parts: Parts, transfer_s: float = 0.0, style: Style = "async") -> Job:
    build = ProgramBuilder(Mesh(pp=schedule.stages, dp=2))
    made: dict[tuple[int, ActionKind, int], BlockBuilder] = {}

    def block(stage: int, action: Action) -> BlockBuilder:
        key = stage, action.kind, action.chunk
        if key not in made:
            made[key] = build.block(f"{action.kind.letter} {stage}.{action.chunk}")
            made[key].compute(action.kind.letter, parts.of(action, schedule.chunks))
        return made[key]

    pipeline(build, schedule, block, Transfer(1 << 20, transfer_s), transfers=style)
    return Job(build.program())


def run(job: Job) -> Timeline:
    graph, prices = folded(job)
    return FixedRun(graph).timeline(prices.durations(graph))


def idle(schedule: Schedule, parts: Parts, style: Style = "async") -> float:
    """What every stage spends idle in a step; all compute equally long."""
    timeline = run(build_pipeline(schedule, parts, style=style))
    work = schedule.microbatches * parts.total * (1 if schedule.directions == 1 else 1 / schedule.directions)
    return timeline.step_time_s - work


@laws
@given(stages, groups, parts, styles)
def test_1f1b_idles_for_one_microbatch_per_stage_but_one(p: int, group: int, parts: Parts, style: Style) -> None:
    schedule = make("1f1b", p, group * p)
    assert idle(schedule, parts, style) == pytest.approx((p - 1) * parts.total, rel=1e-9, abs=1e-9)


@laws
@given(stages, groups, parts, styles)
def test_gpipe_idles_as_long_as_1f1b(p: int, group: int, parts: Parts, style: Style) -> None:
    assert idle(make("gpipe", p, group * p), parts, style) == pytest.approx((p - 1) * parts.total, rel=1e-9, abs=1e-9)


@laws
@given(stages, groups, st.integers(2, 4), parts)
def test_interleaving_divides_the_idle_time_by_the_chunks(p: int, group: int, v: int, parts: Parts) -> None:
    schedule = make("interleaved-1f1b", p, group * p, v)
    assert idle(schedule, parts) == pytest.approx((p - 1) * parts.total / v, rel=1e-9, abs=1e-9)


@laws
@given(stages, groups, short_weight_gradients)
def test_weight_gradients_fill_part_of_the_idle_time(p: int, group: int, parts: Parts) -> None:
    schedule = make("zb-h1", p, group * p)
    assert idle(schedule, parts) == pytest.approx((p - 1) * (parts.F + parts.I - parts.W), rel=1e-9, abs=1e-9)


@laws
@given(stages, groups, rising)
def test_the_v_of_zero_bubble_idles_no_longer_than_h1(p: int, group: int, parts: Parts) -> None:
    folded_idle = idle(make("zb-v", p, 2 * group * p), parts)
    assert folded_idle <= idle(make("zb-h1", p, 2 * group * p), parts) + 1e-9
    assert folded_idle == pytest.approx((p - 1) * (parts.I - parts.W), rel=1e-9, abs=1e-9)


@st.composite
def admitted(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(names()))
    try:
        return make(name, draw(stages), draw(st.integers(1, 12)), draw(st.one_of(st.none(), st.integers(1, 3))))
    except InputError:
        assume(False)
        raise


@settings(laws, max_examples=60)
@given(admitted(), parts, st.one_of(st.just(0.0), times, st.floats(1e-3, 5.0)))
def test_every_schedule_runs_with_transfers_that_run_beside(
    schedule: Schedule, parts: Parts, transfer_s: float
) -> None:
    timeline = run(build_pipeline(schedule, parts, transfer_s))
    work = schedule.microbatches * parts.total / schedule.directions
    assert timeline.step_time_s >= work * (1 - 1e-12)
    free = run(build_pipeline(schedule, parts))
    assert timeline.step_time_s >= free.step_time_s * (1 - 1e-12)


@laws
@given(st.sampled_from(("1f1b", "gpipe")), stages, st.integers(1, 12), parts, st.one_of(st.just(0.0), times))
def test_plain_schedules_run_with_transfers_that_hold_up(
    name: str, p: int, m: int, parts: Parts, transfer_s: float
) -> None:
    schedule = make(name, p, m)
    held_up = run(build_pipeline(schedule, parts, transfer_s, "batched"))
    beside = run(build_pipeline(schedule, parts, transfer_s, "async"))
    assert held_up.step_time_s >= beside.step_time_s * (1 - 1e-12)


@laws
@given(admitted(), parts, st.one_of(st.just(0.0), times))
def test_pipelines_run_as_a_simulator_says_which_is_plainly_right(
    schedule: Schedule, parts: Parts, transfer_s: float
) -> None:
    assume(schedule.stages * schedule.microbatches * schedule.chunks <= 48)
    job = build_pipeline(schedule, parts, transfer_s)
    timeline = run(job)
    step = timeline.steps_run - 1
    truth = oracle.run(job.program, step + 1)
    for rank in range(job.program.world):
        _, start, end = of_rank(timeline, rank)
        for i in range(len(start)):
            assert start[i] == truth.start[step][rank, i] - truth.origin(step)
            assert end[i] == truth.end[step][rank, i] - truth.origin(step)
