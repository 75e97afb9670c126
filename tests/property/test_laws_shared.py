"""The laws of programs whose ops share resources."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrace.basics.mesh import Mesh
from foretrace.engine import jit
from foretrace.engine import shared_loop as shared
from foretrace.engine.fixed_run import FixedRun
from foretrace.engine.maxmin import Filling, fill
from foretrace.engine.shared_flows import make_flows
from foretrace.engine.shared_run import SharedRun
from foretrace.program.build import ProgramBuilder
from foretrace.program.timeline import Timeline
from property.programs import CAPACITY, Job, Slow, folded, jobs, of_rank, settled, unfolded

laws = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
contended = jobs(sharing="contended", most_ranks=8)


@pytest.fixture(scope="module", autouse=True)
def _plain_loops_afterwards() -> Iterator[None]:
    yield
    jit.use(None)


def shared_timeline(job: Job, *, fold: bool = True) -> Timeline:
    graph, prices = folded(job, sharing=True) if fold else unfolded(job)
    return SharedRun(graph, prices.latencies(graph), prices.draws).timeline(prices.durations(graph))


def assert_close(one: Timeline, other: Timeline, world: int, within: float) -> None:
    """Every op of every rank at the same times, within a part of the longest time there is."""
    scale = max(one.makespan_s, one.step_time_s)
    assert one.step_time_s == pytest.approx(other.step_time_s, rel=within, abs=1e-15)
    for rank in range(world):
        for ours, theirs in zip(of_rank(one, rank)[1:], of_rank(other, rank)[1:], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=within * scale + 1e-15, err_msg=f"rank {rank}")


@laws
@given(contended)
def test_folded_equals_unfolded(job: Job) -> None:
    small, whole = shared_timeline(job), shared_timeline(job, fold=False)
    assert small.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    if settled(small) and settled(whole) and small.steps_run == whole.steps_run:
        assert_close(small, whole, job.program.world, 1e-9)


def test_which_rank_of_a_meeting_has_the_lowest_number_changes_nothing() -> None:
    """Two pairs of the same two roles, one the other way round, on one link: both pairs are alike."""
    build = ProgramBuilder(Mesh(dp=4), repeats=False)
    build.resource("link", CAPACITY, shared_by=[range(4)])
    pairs = build.groups("pairs", [(0, 1), (2, 3)])
    for ranks, amount in (((0, 3), CAPACITY / 8), ((1, 2), CAPACITY)):
        role = build.role(f"ranks {ranks}", ranks)
        role.collective("all_reduce", pairs, 1.0, draws={"link": amount})
    job = Job(build.program())
    whole = shared_timeline(job, fold=False)
    assert whole.end_s == pytest.approx(np.full(4, 2.25))
    assert_close(shared_timeline(job), whole, 4, 1e-9)


@pytest.mark.parametrize(("factor", "share"), [(1.5, 0.25), (1.5, 0.5), (3.0, 0.25)])
def test_a_member_of_a_meeting_ends_when_its_own_part_is_done(factor: float, share: float) -> None:
    """With room for both on the link, the quick rank takes its own second, whatever the latency of the slow one."""
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    build.resource("link", CAPACITY)
    build.role("all", range(2)).collective(
        "all_reduce", build.communicator("dp"), 1.0, latency_s=0.5, draws={"link": share * CAPACITY}
    )
    job = Job(build.program(), (Slow((0,), factor, 1),))
    graph, prices = unfolded(job)
    expected = FixedRun(graph).timeline(prices.durations(graph))
    assert expected.end_s.tolist() == [factor, 1.0]
    assert_close(shared_timeline(job), expected, 2, 1e-12)


def test_a_flow_goes_on_at_full_rate_when_the_member_that_was_held_back_has_ended() -> None:
    """Ranks 1 and 2 divide a link until rank 1 has its part, at 1.5 s; rank 0 has a link of its own and 1 s to go."""
    build = ProgramBuilder(Mesh(dp=3), repeats=False)
    build.resource("link", CAPACITY, shared_by=[[0], [1, 2]])
    pair = build.groups("pair", [(0, 1)])
    build.role("long", [0]).collective("all_gather", pair, 2.0, draws={"link": CAPACITY})
    build.role("short", [1]).collective("all_gather", pair, 1.0, draws={"link": CAPACITY})
    build.role("other", [2]).compute("read", 4.0, draws={"link": 4 * CAPACITY})
    timeline = shared_timeline(Job(build.program()), fold=False)
    assert timeline.end_s == pytest.approx([2.5, 1.5, 5.0])


def test_a_part_that_runs_far_ahead_is_given_up_early() -> None:
    """Nothing holds rank 1 to the pace of rank 0, so that no number of steps shows both at work."""
    build = ProgramBuilder(Mesh(dp=2))
    build.resource("link", CAPACITY, shared_by=[range(2)])
    build.role("slow", [0]).compute("read", 1.0, draws={"link": CAPACITY / 8})
    build.role("quick", [1]).compute("read", 1e-6, draws={"link": CAPACITY / 8e6})
    graph, prices = folded(Job(build.program()), sharing=True)
    run = SharedRun(graph, prices.latencies(graph), prices.draws)
    timeline = run.timeline(prices.durations(graph))
    assert not settled(timeline)
    assert timeline.step_time_s == pytest.approx(1.0, rel=1e-4)
    assert run.events < 100


@pytest.mark.parametrize("repeats", [True, False])
def test_a_job_without_ops_takes_no_time(repeats: bool) -> None:
    build = ProgramBuilder(Mesh(), repeats=repeats)
    build.role("all", [0])
    assert shared_timeline(Job(build.program())).step_time_s == 0.0


@laws
@given(jobs(sharing="none", most_ranks=8))
def test_without_draws_shared_equals_fixed(job: Job) -> None:
    graph, prices = folded(job)
    expected = FixedRun(graph).timeline(prices.durations(graph))
    found = SharedRun(graph, prices.latencies(graph), prices.draws).timeline(prices.durations(graph))
    if settled(expected):
        assert_close(found, expected, job.program.world, 1e-12)


@laws
@given(jobs(sharing="private", most_ranks=8))
def test_draws_that_never_contend_change_nothing(job: Job) -> None:
    graph, prices = unfolded(job)
    expected = FixedRun(graph).timeline(prices.durations(graph))
    found = SharedRun(graph, prices.latencies(graph), prices.draws).timeline(prices.durations(graph))
    if settled(expected):
        assert_close(found, expected, job.program.world, 1e-12)


@pytest.mark.skipif(not jit.installed(), reason="numba is not installed, so there are no compiled loops")
@settings(laws, max_examples=40)
@given(contended)
def test_compiled_loops_give_the_bits_of_plain_ones(job: Job) -> None:
    jit.use(False)
    plain = shared_timeline(job)
    jit.use(True)
    compiled = shared_timeline(job)
    jit.use(None)
    assert compiled.step_time_s == plain.step_time_s
    for ours, theirs in ((compiled.start_s, plain.start_s), (compiled.end_s, plain.end_s)):
        assert ours.tobytes() == theirs.tobytes()


class Network(NamedTuple):
    """What each flow could do alone, what it puts on which resources per unit of work, and what these can give."""

    full_rate: list[float]
    uses: list[dict[int, float]]
    capacity: list[float]

    def rates(self) -> list[float]:
        starts = np.concatenate([[0], np.cumsum([len(uses) for uses in self.uses])]).tolist()
        filling = Filling(
            full_rate=self.full_rate,
            use_first=starts[:-1],
            use_last=starts[1:],
            use_resource=[resource for uses in self.uses for resource in uses],
            use_load=[load for uses in self.uses for load in uses.values()],
            residual=list(self.capacity),
            growing=[0] * len(self.capacity),
            load=[0.0] * len(self.capacity),
            first=[-1] * len(self.capacity),
            next=[-1] * sum(len(uses) for uses in self.uses),
            use_flow=[0] * sum(len(uses) for uses in self.uses),
            rate=[0.0] * len(self.uses),
        )
        fill(filling, list(range(len(self.uses))), len(self.uses), list(range(len(self.capacity))), len(self.capacity))
        return list(filling.rate)

    def assert_max_min(self, rates: list[float]) -> None:
        """No resource is overdrawn, and what is not at its full rate crosses a used-up one on which none is faster."""
        used = [0.0] * len(self.capacity)
        fastest = [0.0] * len(self.capacity)
        for rate, uses in zip(rates, self.uses, strict=True):
            for resource, load in uses.items():
                used[resource] += rate * load
                if load > 0:
                    fastest[resource] = max(fastest[resource], rate)
        for resource, capacity in enumerate(self.capacity):
            assert used[resource] <= capacity * (1 + 1e-9), f"resource {resource} is overdrawn"
        for flow, (rate, full, uses) in enumerate(zip(rates, self.full_rate, self.uses, strict=True)):
            assert 0 <= rate <= full * (1 + 1e-12)
            held_back = [
                resource
                for resource, load in uses.items()
                if load > 0
                and used[resource] >= self.capacity[resource] * (1 - 1e-9)
                and rate >= fastest[resource] * (1 - 1e-9)
            ]
            assert rate >= full * (1 - 1e-9) or held_back, f"flow {flow} could be faster"


@st.composite
def networks(draw: st.DrawFn) -> Network:
    resources = draw(st.integers(1, 6))
    loads = st.one_of(st.sampled_from((0.0, 1.0, 0.5)), st.floats(1e-3, 1e3))
    uses = draw(st.lists(st.dictionaries(st.integers(0, resources - 1), loads, max_size=4), max_size=12))
    rates = st.one_of(st.sampled_from((1.0, 0.25)), st.floats(1e-6, 1e6))
    capacities = st.one_of(st.sampled_from((0.0, 1.0)), st.floats(1e-3, 1e6))
    return Network(
        draw(st.lists(rates, min_size=len(uses), max_size=len(uses))),
        uses,
        draw(st.lists(capacities, min_size=resources, max_size=resources)),
    )


@settings(laws, max_examples=300)
@given(networks())
def test_rates_are_max_min_fair(network: Network) -> None:
    network.assert_max_min(network.rates())


@settings(laws, max_examples=100)
@given(networks(), st.randoms(use_true_random=False))
def test_rates_do_not_depend_on_the_order_of_flows(network: Network, random: object) -> None:
    order = list(range(len(network.uses)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = Network([network.full_rate[i] for i in order], [network.uses[i] for i in order], network.capacity)
    expected = network.rates()
    assert shuffled.rates() == pytest.approx([expected[i] for i in order], rel=1e-9, abs=1e-12)


@settings(laws, max_examples=30)
@given(contended)
def test_every_moment_is_max_min_fair_and_every_flow_does_its_work(job: Job) -> None:
    """Looks at the rates after every change: until the next a flow does its rate times the time that passes, and puts
    that on what it uses. In the end every member of every flow has put there all it draws."""
    jit.use(False)
    graph, prices = unfolded(job)
    durations, latencies = prices.durations(graph), prices.latencies(graph)
    flows = make_flows(graph, durations, latencies, prices.draws)
    moments: list[tuple[float, dict[int, float]]] = []
    steps = 3 if job.program.repeats else 1
    refill = shared.refill

    def watch(w: shared.SharedState, heap: object, now: float) -> None:
        refill(w, heap, now)
        uses = [(resource, use) for resource in range(len(flows.capacity)) for use in uses_on(w, resource)]
        running = sorted({w.use_unit[use] for _, use in uses})
        loads: dict[int, dict[int, float]] = {unit: {} for unit in running}
        for resource, use in uses:
            mine = loads[w.use_unit[use]]
            mine[resource] = mine.get(resource, 0.0) + w.filling.use_load[use]
        network = Network(
            [w.filling.full_rate[unit] for unit in running], list(loads.values()), [max(free, 0.0) for free in w.free]
        )
        network.assert_max_min([w.speed[unit] for unit in running])
        moments.append((now, {use: w.speed[w.use_unit[use]] * w.filling.use_load[use] for _, use in uses}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "refill", watch)
        SharedRun(graph, latencies, prices.draws)._run(flows, durations, steps)
    jit.use(None)
    assert not moments or not moments[-1][1], "a flow never ends"
    drawn = np.zeros(len(flows.use_load))
    for (now, rates), (then, _) in pairwise(moments):
        for use, rate in rates.items():
            drawn[use] += rate * (then - now)
    assert drawn.sum() == pytest.approx(steps * amounts(job, durations).sum(), rel=1e-9)


def amounts(job: Job, durations: np.ndarray) -> np.ndarray:
    """What every op of every rank draws in all, from what the rank has a part in."""
    graph, prices = unfolded(job)
    drawn = np.zeros(len(graph))
    for op, number, amount in zip(prices.draws.op, prices.draws.resource, prices.draws.amount, strict=True):
        sharing = job.program.resources[number].instance_of(job.program.world) >= 0
        drawn[(graph.op == op) & sharing[graph.rank_class] & (durations > 0)] += amount
    return drawn


def uses_on(w: shared.SharedState, resource: int) -> Iterator[int]:
    use = w.running[resource]
    while use >= 0:
        yield use
        use = w.ahead[use]


@laws
@given(st.lists(st.integers(1, 64), min_size=1, max_size=12))
def test_a_link_divided_evenly_is_never_idle(amounts: list[int]) -> None:
    """All start at once, so each ends when it and its part of all that is smaller or larger have gone through."""
    build = ProgramBuilder(Mesh(dp=len(amounts)), repeats=False)
    build.resource("link", CAPACITY, shared_by=[range(len(amounts))])
    for rank, amount in enumerate(amounts):
        build.role(f"rank {rank}", [rank]).compute("read", amount / CAPACITY, draws={"link": float(amount)})
    timeline = shared_timeline(Job(build.program()))
    ends = [of_rank(timeline, rank)[2][0] for rank in range(len(amounts))]
    expected = [sum(min(mine, other) for other in amounts) / CAPACITY for mine in amounts]
    assert ends == pytest.approx(expected, rel=1e-9)
    assert timeline.step_time_s == pytest.approx(sum(amounts) / CAPACITY, rel=1e-9)
