"""The laws of what is read off a timeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from foretrace.basics.mesh import Mesh
from foretrace.engine.fixed_run import FixedRun
from foretrace.engine.shared_run import SharedRun
from foretrace.program.build import ProgramBuilder
from foretrace.program.timeline import Timeline
from foretrace.readings.breakdown import breakdown
from foretrace.readings.chain import Chain
from foretrace.readings.critical_path import critical_path
from foretrace.readings.lanes import lane_use
from foretrace.readings.memory import MemoryTrack, memory_tracks
from property.programs import Job, folded, jobs, settled, unfolded

laws = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def run(job: Job, *, shared: bool = False) -> Timeline:
    graph, prices = folded(job, sharing=shared)
    durations = prices.durations(graph)
    if shared:
        return SharedRun(graph, prices.latencies(graph), prices.draws).timeline(durations)
    return FixedRun(graph).timeline(durations)


def assert_sums(timeline: Timeline) -> None:
    parts = breakdown(timeline)
    step = timeline.step_time_s
    assert (parts.per_class_s >= 0).all()
    np.testing.assert_allclose(parts.per_class_s.sum(axis=1), step, rtol=1e-9, atol=1e-15)
    assert sum(parts.mean_s.values()) == pytest.approx(step, rel=1e-9, abs=1e-15)


@laws
@given(jobs())
def test_the_breakdown_of_every_class_sums_to_the_step(job: Job) -> None:
    assert_sums(run(job))


@laws
@given(jobs(sharing="contended", most_ranks=8))
def test_the_breakdown_sums_to_the_step_where_resources_are_shared(job: Job) -> None:
    assert_sums(run(job, shared=True))


@pytest.mark.parametrize("repeats", [True, False])
def test_a_rank_that_does_nothing_is_idle_all_step(repeats: bool) -> None:
    build = ProgramBuilder(Mesh(dp=2), repeats=repeats)
    build.role("works", [0]).compute("work", 1.0)
    build.role("rests", [1])
    timeline = run(Job(build.program()))
    assert_sums(timeline)
    assert breakdown(timeline).mean_s == pytest.approx({"compute": 0.5, "idle": 0.5})


@laws
@given(jobs())
def test_the_breakdown_of_folded_ranks_is_that_of_each(job: Job) -> None:
    graph, prices = unfolded(job)
    whole = breakdown(FixedRun(graph).timeline(prices.durations(graph)))
    small_graph, _ = folded(job)
    small = breakdown(run(job))
    assert small.parts == whole.parts
    scale = max(float(whole.per_class_s.sum(axis=1).max(initial=0.0)), 1e-15)
    compute = [i for i, part in enumerate(small.parts) if part in ("compute", "recompute", "optimizer")]
    ours = small.per_class_s[small_graph.classes.of_rank][:, compute]
    np.testing.assert_allclose(ours, whole.per_class_s[:, compute], rtol=0, atol=1e-9 * scale)


@settings(laws, max_examples=100)
@given(jobs(repeats=True, most_ranks=8))
def test_the_critical_path_of_steps_that_repeat_is_as_long_as_a_step(job: Job) -> None:
    timeline = run(job)
    path = critical_path(Chain(timeline))
    if settled(timeline):
        assert path.length_s == pytest.approx(timeline.step_time_s, rel=1e-9, abs=1e-12)
        assert sum(path.parts_s.values()) == pytest.approx(path.length_s, rel=1e-9, abs=1e-12)


def test_a_cycle_over_two_steps_is_as_long_as_a_step_on_average() -> None:
    """Two chains, each of which goes on from the other's of the step before: 4 s and 2 s make 3 s a step."""
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    long = role.compute("a", 2.0), role.host("b", 2.0)
    short = role.compute("c", 1.0, lane="beside"), role.host("d", 1.0, lane="host beside")
    for first, second in (long, short):
        role.link(second, after=first)
    role.link(short[0], after=long[1], steps=1)
    role.link(long[0], after=short[1], steps=1)
    timeline = run(Job(build.program()))
    assert timeline.step_time_s == 3.0
    assert_sums(timeline)
    path = critical_path(Chain(timeline))
    assert path.length_s == pytest.approx(3.0)
    assert sum(path.parts_s.values()) == pytest.approx(3.0)


@settings(laws, max_examples=100)
@given(jobs(repeats=False, most_ranks=8))
def test_the_critical_path_of_a_single_step_is_its_makespan(job: Job) -> None:
    timeline = run(job)
    path = critical_path(Chain(timeline))
    assert path.length_s == pytest.approx(timeline.step_time_s, rel=1e-9, abs=1e-12)
    if len(path.node):
        assert path.start_s[0] == 0.0
        np.testing.assert_allclose(path.start_s[1:], path.end_s[:-1], rtol=0, atol=1e-12)


@laws
@given(jobs(most_ranks=8))
def test_no_lane_is_busy_for_longer_than_a_step(job: Job) -> None:
    for use in lane_use(run(job)):
        assert 0 <= use.busy <= 1 + 1e-9
        assert 0 <= use.waiting <= 1


def resident(timeline: Timeline, track: MemoryTrack) -> int:
    program = timeline.graph.program
    role = program.role_of[timeline.graph.classes.representative[track.rank_class]]
    return int(program.resident.bytes[program.resident.role == role].sum())


@settings(laws, max_examples=100)
@given(jobs(memory=True, most_ranks=8))
def test_memory_comes_back_to_where_it_was(job: Job) -> None:
    timeline = run(job)
    for track in memory_tracks(timeline):
        held = resident(timeline, track)
        assert track.grows_bytes == 0
        assert (track.held_bytes[-1] == track.held_bytes[0]).all()
        assert (track.held_bytes >= 0).all()
        assert track.total_bytes.min() >= held
        assert track.peak_bytes >= held + largest(timeline, track)
        assert (np.diff(track.time_s) >= 0).all()


def test_an_op_of_no_duration_holds_what_it_takes() -> None:
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    role.compute("instant", 0.0, alloc={"temporaries": 8}, free={"temporaries": 8})
    role.compute("work", 1.0)
    (track,) = memory_tracks(run(Job(build.program())))
    assert track.total_bytes.min() == 0
    assert track.peak_bytes == 8


@pytest.mark.parametrize("seconds", [1.0, 1e-3, 1e-6, 0.1, 0.7])
def test_memory_given_back_and_taken_at_one_moment_is_held_once(seconds: float) -> None:
    """A buffer in use all the time, by the op of one step after that of the step before."""
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    launched = role.host("launch", seconds)
    role.compute("work", seconds, after=launched, alloc={"buffers": 1}, free={"buffers": 1})
    (track,) = memory_tracks(run(Job(build.program())))
    assert track.peak_bytes == 1


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 6])
def test_memory_kept_for_several_steps_is_held_once_per_step(lanes: int) -> None:
    """A microbatch of data passes through lanes that each work on another step: all of them hold theirs."""
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    passed = [role.compute("0", 1.0, lane="0", alloc={"activations": 1})]
    for number in range(1, lanes):
        passed.append(role.compute(str(number), 1.0, lane=str(number), after=passed[-1]))
    role.compute("last", 0.5, lane="last", after=passed[-1], free={"activations": 1})
    timeline = run(Job(build.program()))
    (track,) = memory_tracks(timeline)
    assert timeline.step_time_s == 1.0
    assert track.peak_bytes == lanes + 1


def largest(timeline: Timeline, track: MemoryTrack) -> int:
    """The most that one op of the class allocates."""
    return max((size for _, size in events(timeline, track) if size > 0), default=0)


def events(timeline: Timeline, track: MemoryTrack) -> list[tuple[float, int]]:
    """When an op of the class takes memory (its start) or gives it back (its end), and how much."""
    graph, templates = timeline.graph, timeline.graph.program.templates
    enabled = graph.ops.column("enabled")
    found = []
    for node in range(int(graph.start[track.rank_class]), int(graph.start[track.rank_class + 1])):
        op = int(graph.op[node])
        for row in np.flatnonzero(templates.memory_op == graph.ops.template[op]) if enabled[op] else ():
            found.append((float(timeline.start_s[node]), int(templates.memory_alloc_bytes[row])))
            found.append((float(timeline.end_s[node]), -int(templates.memory_free_bytes[row])))
    return [event for event in found if event[1]]


def lifetimes(timeline: Timeline, track: MemoryTrack) -> list[float]:
    """How long each op of the class that takes or gives back memory runs."""
    graph = timeline.graph
    mine = slice(int(graph.start[track.rank_class]), int(graph.start[track.rank_class + 1]))
    rows = np.isin(graph.ops.template[graph.op[mine]], graph.program.templates.memory_op)
    on = graph.ops.column("enabled")[graph.op[mine]].astype(bool)
    return (timeline.end_s[mine] - timeline.start_s[mine])[rows & on].tolist()


@settings(laws, max_examples=40)
@given(jobs(memory=True, most_ranks=6))
def test_the_peak_is_that_of_many_steps_laid_over_each_other(job: Job) -> None:
    """Steps follow each other at the step time; all that has begun and not ended by a moment is held then."""
    timeline = run(job)
    step = timeline.step_time_s
    repeats = job.program.repeats and step > 0
    # Parts that run ahead of the others pile up memory without end.
    assume(settled(timeline) and timeline.makespan_s <= 10 * step)
    for track in memory_tracks(timeline):
        once = events(timeline, track)
        assume(all(lasts > 0 for lasts in lifetimes(timeline, track)))
        laid = [(time + number * step, size) for number in range(24 if repeats else 1) for time, size in once]
        # To the nanosecond, so that an end and the start it gives room to are one moment; ends come first.
        laid = sorted((round(time, 9), size) for time, size in laid)
        total = np.cumsum([0, *(size for _, size in laid)])
        assert track.peak_bytes == resident(timeline, track) + int(total.max())
