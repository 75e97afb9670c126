"""The recorded step as a timeline: times by hand, and laws over real traces."""

from __future__ import annotations

import numpy as np
import pytest

import foretrace
from foretrace.inputs.profiler_trace.format.records import CollectiveArguments, RankProfile
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.inputs.profiler_trace.recorded import median_step
from foretrace.inputs.registry import open_input
from foretrace.program.timeline import Timeline
from foretrace.readings.answer.recorded import recorded_answer
from foretrace.readings.breakdown import breakdown
from foretrace.readings.chain import Chain
from foretrace.readings.critical_path import critical_path
from recorded_timelines import late_s
from shared_files import ROOT
from small_traces import Row, kernel, launch, mark, small_trace

PROFILES = sorted((ROOT / "benchmarks" / "truth" / "profiles").glob("*.json.gz"))
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
US = 1e-6


def steps(*kernels: tuple[str, float, float], period_us: float = 1000, count: int = 3) -> RankProfile:
    """So many steps with these kernels on one stream, each launched 10 us before it starts at the latest."""
    rows: list[Row] = []
    for step in range(count):
        begin = step * period_us
        rows.append(mark(f"ProfilerStep#{step}", begin, begin + period_us))
        for number, (name, start, end) in enumerate(kernels):
            call = begin + 2 + 5 * number
            correlation = 100 * step + number
            rows += [
                launch(correlation, call, call + 3),
                kernel(name, begin + start, begin + end, correlation=correlation),
            ]
    return small_trace(*rows)


def times_us(timeline: Timeline) -> dict[str, list[tuple[float, float]]]:
    """Starts and ends by name, in microseconds from the start of the step on the host."""
    rank = timeline.rank(0)
    ops: dict[str, list[tuple[float, float]]] = {}
    for name, start, end in zip(rank.name, rank.start_s.tolist(), rank.end_s.tolist(), strict=True):
        ops.setdefault(name, []).append((round(start / US, 3), round(end / US, 3)))
    return ops


@pytest.fixture(scope="module", params=PROFILES, ids=lambda path: path.name)
def profile(request: pytest.FixtureRequest) -> ProfilerTraceInput:
    job = open_input([request.param])
    assert isinstance(job, ProfilerTraceInput)
    return job


class TestRealTraces:
    def test_nothing_starts_before_what_it_waits_for_ends(self, profile: ProfilerTraceInput) -> None:
        assert late_s(profile.recorded()) <= 1e-12

    def test_the_path_and_the_breakdown_sum_to_the_step(self, profile: ProfilerTraceInput) -> None:
        timeline = profile.recorded()
        chain = Chain(timeline)
        assert critical_path(chain).length_s == pytest.approx(timeline.step_time_s, rel=1e-9)
        assert sum(breakdown(timeline, chain).mean_s.values()) == pytest.approx(timeline.step_time_s, rel=1e-9)

    def test_kernels_run_when_they_were_recorded(self, profile: ProfilerTraceInput) -> None:
        timeline = profile.recorded()
        (rank,) = profile._profile().ranks
        row = [rank.steps.names[at] for at in rank.steady.steps].index(median_step([rank]))
        work = rank.steady.device[row]
        events = rank.trace.events
        streams = np.array([lane.startswith("stream") for lane in timeline.rank(0).lane])
        gaps = np.isin(timeline.rank(0).name, ["gap between kernels", "launch latency", "idle, cause not recorded"])
        starts = np.sort(timeline.rank(0).ready_s[streams & ~gaps])
        assert starts - starts[0] == pytest.approx(np.sort(events.start_s[work]) - events.start_s[work].min(), abs=1e-9)
        ran = np.sort((timeline.rank(0).end_s - timeline.rank(0).ready_s)[streams & ~gaps]).sum()
        # Kernels that overlap their successor lose the overlap, and no other does.
        overlap = np.maximum(-rank.streams.gap_before_s[np.isfinite(rank.streams.gap_before_s)], 0.0).sum()
        assert events.duration_s[work].sum() - overlap - 2e-6 <= ran <= events.duration_s[work].sum() + 1e-9

    def test_every_command_names_the_same_bound(self, profile: ProfilerTraceInput) -> None:
        answer = recorded_answer(profile)
        assert answer is not None
        replay = foretrace.simulate(profile, explain=False)
        trace = foretrace.ProfilerTrace(profile.traces)
        bounds = {answer.critical_path.bound, replay.critical_path.bound, trace.summary().bound}
        assert bounds == {trace.critical_path().bound}


def test_gaps_are_ops_with_a_name() -> None:
    trace = steps(("a", 20, 100), ("b", 102, 200), ("c", 400, 500))
    ops = times_us(ProfilerTraceInput([trace]).recorded())
    start = ops["a"][0][0]
    moved = {name: [(begin - start, end - start) for begin, end in spans] for name, spans in ops.items()}
    assert moved["a"] == [(0, 80)] and moved["b"] == [(82, 180)] and moved["c"] == [(380, 480)]
    assert moved["gap between kernels"] == [(80, 82)]
    assert (180, 380) in moved["idle, cause not recorded"]


def test_a_kernel_that_overlaps_its_successor_ends_where_that_begins() -> None:
    ops = times_us(ProfilerTraceInput([steps(("a", 20, 110), ("b", 100, 200))]).recorded())
    ((a_start, a_end),), ((b_start, b_end),) = ops["a"], ops["b"]
    assert (a_end - a_start, b_start - a_start, b_end - a_start) == (80, 80, 180)


def test_the_median_step_counts_and_its_time_is_the_period() -> None:
    rows: list[Row] = []
    begin = 0.0
    for number, period in enumerate((1000, 1300, 1100, 1200, 1100)):
        rows += [mark(f"ProfilerStep#{number}", begin, begin + period), launch(number, begin + 2, begin + 4)]
        rows.append(kernel("a", begin + 20, begin + 20 + period / 2, correlation=number))
        begin += period
    timeline = ProfilerTraceInput([small_trace(*rows)]).recorded()
    assert timeline.step_time_s == pytest.approx(1100 * US)
    assert timeline.recorded and timeline.graph.program.repeats


def test_a_collective_begins_when_its_last_member_has_come() -> None:
    call = CollectiveArguments("allreduce", group="1", ranks=(0, 1))

    def rank(number: int, start_us: float) -> RankProfile:
        rows: list[Row] = []
        for step in range(3):
            begin = 1000.0 * step
            rows += [mark(f"ProfilerStep#{step}", begin, begin + 1000), launch(step, begin + 2, begin + 4)]
            rows.append(kernel(NCCL, begin + start_us, begin + 500, stream=20, correlation=step, call=0))
        return small_trace(*rows, rank=number, world=2, calls=[call])

    timeline = ProfilerTraceInput([rank(0, 100), rank(1, 300)]).recorded()
    early, late = (timeline.rank(number) for number in (0, 1))
    at = [ops.name.index("allreduce") for ops in (early, late)]
    assert early.start_s[at[0]] - early.ready_s[at[0]] == pytest.approx(200 * US)
    assert late.start_s[at[1]] - late.ready_s[at[1]] == pytest.approx(0.0, abs=1e-12)
    first, second = foretrace.ProfilerTrace([rank(0, 100), rank(1, 300)]).stragglers()
    assert (first.rank, first.times_last) == (1, 1)
    assert first.held_others_s == pytest.approx(200 * US) and second.held_others_s == 0


def test_options_that_change_the_job_do_not_change_what_was_recorded() -> None:
    job = ProfilerTraceInput([steps(("a", 20, 100), ("b", 102, 200))])
    plain, changed = job.recorded(), job.with_options(host="graphs", batch=2.0).recorded()
    assert changed.step_time_s == plain.step_time_s and (changed.end_s == plain.end_s).all()


def test_ranks_keep_their_numbers() -> None:
    call = CollectiveArguments("allreduce", group="1", ranks=(4, 6))

    def rank(number: int, start_us: float) -> RankProfile:
        rows: list[Row] = []
        for step in range(3):
            begin = 1000.0 * step
            rows += [mark(f"ProfilerStep#{step}", begin, begin + 1000), launch(step, begin + 2, begin + 4)]
            rows.append(kernel(NCCL, begin + start_us, begin + 500, stream=20, correlation=step, call=0))
        return small_trace(*rows, rank=number, world=8, calls=[call])

    trace = foretrace.ProfilerTrace([rank(6, 300), rank(4, 100)])
    assert [lateness.rank for lateness in trace.stragglers()] == [6, 4]
    assert set(trace.critical_path().by_rank_s) <= {4, 6}


def test_steps_of_one_name_are_told_apart() -> None:
    rows: list[Row] = []
    begin = 0.0
    for number, period in enumerate((1000, 1300, 1150, 1200, 1100)):
        rows += [mark("train_step", begin, begin + period), launch(number, begin + 2, begin + 4)]
        rows.append(kernel("a", begin + 20, begin + 20 + period / 2, correlation=number))
        begin += period
    assert ProfilerTraceInput([small_trace(*rows)]).recorded().step_time_s == pytest.approx(1150 * US)


def test_traces_that_do_not_belong_together_have_a_summary_that_says_why() -> None:
    call = CollectiveArguments("allreduce", group="1", ranks=(0, 1))

    def rank(number: int, count: int) -> RankProfile:
        rows: list[Row] = []
        for step in range(3):
            begin = 1000.0 * step
            rows.append(mark(f"ProfilerStep#{step}", begin, begin + 1000))
            for place in range(count):
                start, correlation = begin + 100 * place, 10 * step + place
                rows += [launch(correlation, start + 2, start + 4)]
                rows.append(kernel(NCCL, start + 20, start + 60, stream=20, correlation=correlation, call=0))
        return small_trace(*rows, rank=number, world=2, calls=[call])

    trace = foretrace.ProfilerTrace([rank(0, 2), rank(1, 3)])
    assert trace.summary().bound is None
    assert [note.code for note in trace.timeline_diagnostics] == ["rendezvous-mismatch"]
