"""The laws of programs run with fixed durations."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace.basics.errors import DeadlockError, InputError
from foretrace.basics.mesh import Mesh
from foretrace.engine import chains, jit, order, tape
from foretrace.engine.chains import ChainPlayer
from foretrace.engine.fixed_run import FixedRun
from foretrace.program.build import ProgramBuilder
from foretrace.program.graph import Graph
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline
from property import oracle
from property.programs import Job, folded, jobs, of_rank, settled, unfolded

laws = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
small_jobs = jobs(most_ranks=32 if os.environ.get("FORETRACE_FUZZ") else 6)


@pytest.fixture(scope="module", autouse=True)
def _plain_loops_afterwards() -> Iterator[None]:
    yield
    jit.use(None)


def timeline_of(job: Job, *, fold: bool = True) -> Timeline:
    graph, prices = folded(job) if fold else unfolded(job)
    return FixedRun(graph).timeline(prices.durations(graph))


def assert_same_bits(one: Timeline, other: Timeline) -> None:
    assert one.step_time_s == other.step_time_s
    assert one.steps_run == other.steps_run
    for ours, theirs in ((one.ready_s, other.ready_s), (one.start_s, other.start_s), (one.end_s, other.end_s)):
        assert ours.tobytes() == theirs.tobytes()


@laws
@given(jobs())
def test_folded_equals_unfolded_to_the_bit(job: Job) -> None:
    small, whole = timeline_of(job), timeline_of(job, fold=False)
    assert small.step_time_s == whole.step_time_s
    assert small.steps_run == whole.steps_run
    assert small.diagnostics == whole.diagnostics
    for rank in range(job.program.world):
        for ours, theirs in zip(of_rank(small, rank), of_rank(whole, rank), strict=True):
            assert ours.tobytes() == theirs.tobytes(), f"rank {rank}"


def factors(job: Job) -> dict[oracle.Key, list[float]]:
    found: dict[oracle.Key, list[float]] = {}
    rows = sum(map(len, oracle.roles_of(job.program)))
    for slow in job.slow:
        for rank in slow.ranks:
            for row in range(0, rows, slow.every):
                found.setdefault((rank, row), []).append(slow.factor)
    return found


@laws
@given(small_jobs)
def test_the_settled_step_is_that_of_a_simulator_which_is_plainly_right(job: Job) -> None:
    timeline = timeline_of(job)
    assume(timeline.steps_run <= 20)
    step = timeline.steps_run - 1
    truth = oracle.run(job.program, step + 1, factors(job))
    origin = truth.origin(step)
    for rank in range(job.program.world):
        ready, start, end = of_rank(timeline, rank)
        for i in range(len(start)):
            assert start[i] == max(truth.start[step][rank, i] - origin, 0.0), f"start of op {i} on rank {rank}"
            assert end[i] == max(truth.end[step][rank, i] - origin, 0.0), f"end of op {i} on rank {rank}"
            if (rank, i) in truth.ready[step]:
                assert ready[i] == truth.ready[step][rank, i] - origin, f"ready of op {i} on rank {rank}"


@settings(laws, max_examples=30)
@given(jobs(most_ranks=4, repeats=True))
def test_the_step_time_is_what_every_further_step_adds(job: Job) -> None:
    timeline = timeline_of(job)
    assume(timeline.steps_run <= 20)
    first = timeline.steps_run - 1
    truth = oracle.run(job.program, first + 61, factors(job))  # 60 is a multiple of every cycle that is looked for
    grown = [truth.end[-1][key] - truth.end[first][key] for key in truth.takes_part]
    assert timeline.step_time_s == pytest.approx(max(grown, default=0.0) / 60, rel=1e-9, abs=1e-12)
    if settled(timeline) and grown:
        assert min(grown) == pytest.approx(max(grown), rel=1e-9, abs=1e-12)


@laws
@given(jobs(repeats=False, most_ranks=6))
def test_a_single_step_takes_its_makespan(job: Job) -> None:
    timeline = timeline_of(job)
    truth = oracle.run(job.program, 1, factors(job))
    assert timeline.step_time_s == max(truth.end[0].values(), default=0.0)
    assert timeline.makespan_s == timeline.step_time_s


@pytest.mark.parametrize("links", [1, 2])
def test_a_single_step_has_no_next_step_to_link_to(links: int) -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("all", [0])
    ops = [role.compute("work", 1.0), role.host("launch", 2.0)]
    for op in ops[:links]:
        role.link(ops[0], after=op, steps=1)
    timeline = timeline_of(Job(build.program()))
    assert timeline.step_time_s == 2.0
    assert timeline.start_s.tolist() == [0.0, 0.0]


@laws
@given(jobs(most_ranks=8), st.data())
def test_shorter_ops_never_lengthen_a_step(job: Job, data: st.DataObject) -> None:
    graph, prices = folded(job)
    run, durations = FixedRun(graph), prices.durations(graph)
    base = run.timeline(durations)
    scale = np.ones(len(graph))
    if len(graph):
        chosen = data.draw(st.lists(st.integers(0, len(graph) - 1), max_size=6))
        scale[chosen] = data.draw(st.sampled_from((0.0, 0.5, 0.9)))
    shorter = run.timeline(durations * scale)
    assert shorter.step_time_s <= base.step_time_s * (1 + 1e-12)


def scenarios(job: Job, data: st.DataObject) -> tuple[FixedRun, np.ndarray]:
    graph, prices = folded(job)
    seed = data.draw(st.integers(0, 2**16))
    count = data.draw(st.integers(1, 4))
    scale = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 1.0, 1.7, 3.0], size=(len(graph), count))
    return FixedRun(graph), prices.durations(graph)[:, None] * scale


@laws
@given(jobs(most_ranks=8), st.data())
def test_scenarios_in_one_run_are_runs_of_their_own(job: Job, data: st.DataObject) -> None:
    run, durations = scenarios(job, data)
    apart = [run.timeline(column).step_time_s for column in durations.T]
    assert run.step_times(durations) == pytest.approx(apart, rel=1e-9, abs=1e-12)


@laws
@given(jobs(most_ranks=8), st.data())
def test_scenarios_in_one_run_are_runs_of_their_own_to_the_bit(job: Job, data: st.DataObject) -> None:
    run, durations = scenarios(job, data)
    apart = [run.timeline(column).step_time_s for column in durations.T]
    assert run.step_times(durations).tolist() == apart


def test_a_scenario_that_settles_early_has_the_bits_of_its_own_run() -> None:
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    role.compute("work", 0.1)
    role.host("launch", 0.1)
    run = FixedRun(folded(Job(build.program()))[0])
    even, uneven = np.array([0.1, 0.1]), np.array([0.1, 0.3])
    apart = [run.timeline(durations).step_time_s for durations in (even, uneven)]
    assert run.step_times(np.stack([even, uneven], axis=1)).tolist() == apart


def test_a_scenario_that_settles_does_not_depend_on_one_that_does_not() -> None:
    """A ring of three chains settles to a cycle of three steps; with a slow follower of one of them nothing does."""
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    chains = []
    for number, half in enumerate((2.0, 1.0, 0.5)):
        first = role.compute("first", half, lane=f"first {number}")
        chains.append((first, role.host("second", half, lane=f"second {number}", after=first)))
    for number in range(3):
        role.link(chains[number][0], after=chains[number - 1][1], steps=1)
    role.compute("follower", 0.0, lane="follower", after=chains[0][1])
    graph, prices = folded(Job(build.program()))
    run, durations = FixedRun(graph), prices.durations(graph)
    slow = durations.copy()
    slow[-1] = 100.0
    assert run.timeline(durations).step_time_s == pytest.approx(7 / 3)
    assert run.step_times(np.stack([durations, slow], axis=1)) == pytest.approx([7 / 3, 100.0])


@laws
@given(jobs(most_ranks=8))
def test_whole_levels_at_once_give_the_bits_of_the_plain_loop(job: Job) -> None:
    jit.use(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape, "LEVEL_COST", 10**9)
        patch.setattr(order, "FRONTIER_COST", 10**9)
        plain = timeline_of(job, fold=False)
        patch.setattr(tape, "LEVEL_COST", 0)
        patch.setattr(order, "FRONTIER_COST", 0)
        assert_same_bits(timeline_of(job, fold=False), plain)


def chained_run(graph: Graph) -> FixedRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "MIN_MEAN", 0)
        patch.setattr(chains, "BLOCK_COST", 0)
        run = FixedRun(graph)
    assert isinstance(run.player, ChainPlayer) or not len(graph)
    return run


@laws
@given(jobs(), st.booleans(), st.data())
def test_chains_give_the_bits_of_the_plain_loop(job: Job, fold: bool, data: st.DataObject) -> None:
    jit.use(False)
    graph, prices = folded(job) if fold else unfolded(job)
    durations = prices.durations(graph)
    whole, plain = chained_run(graph), FixedRun(graph)
    assert not isinstance(plain.player, ChainPlayer)
    assert_same_bits(whole.timeline(durations), plain.timeline(durations))
    seed, count = data.draw(st.integers(0, 2**16)), data.draw(st.integers(1, 4))
    scale = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 1.7], size=(len(graph), count))
    many = durations[:, None] * scale
    assert whole.step_times(many).tobytes() == plain.step_times(many).tobytes()


def tangled(graph: Graph, data: st.DataObject) -> Graph:
    """The graph with further waits, some of which may close a circle."""
    nodes = st.integers(0, len(graph) - 1)
    waits = [graph.pred[low:high].tolist() for low, high in pairwise(graph.pred_start)]
    for waiter, waited in data.draw(st.lists(st.tuples(nodes, nodes), min_size=1, max_size=4)):
        if waited != waiter:
            waits[waiter].append(waited)
    pred = np.array([one for several in waits for one in several], dtype=np.int32)
    starts = np.cumsum([0, *map(len, waits)], dtype=np.int32)
    return replace(graph, pred=pred, pred_start=starts)


@pytest.fixture
def order_of_the_graph_itself() -> Iterator[None]:
    """Finds no order on the program folded by structure, which does not have the waits of a tangled graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "MIN_SHRINKAGE", 10**9)
        yield


@pytest.mark.usefixtures("order_of_the_graph_itself")
@laws
@given(jobs(), st.data())
def test_chains_hide_no_circle_and_see_none_that_is_not_there(job: Job, data: st.DataObject) -> None:
    jit.use(False)
    graph, prices = folded(job)
    assume(len(graph))
    graph = tangled(graph, data)
    try:
        plain = FixedRun(graph).timeline(prices.durations(graph))
    except (InputError, DeadlockError) as error:
        with pytest.raises(type(error), match=re.escape(error.message)):
            chained_run(graph)
        return
    assert_same_bits(chained_run(graph).timeline(prices.durations(graph)), plain)


@laws
@given(jobs())
def test_a_chain_is_ops_that_wait_for_the_one_before_alone(job: Job) -> None:
    """Every op is in one chain; past its head, whatever an op waits for has ended when the one before it has."""
    graph, _ = folded(job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "MIN_MEAN", 0)
        found = chains.find_chains(graph)
    if found is None:
        assert not len(graph)
        return
    assert sorted(found.node.tolist()) == list(range(len(graph)))
    carries, members = set(graph.next_dst.tolist()), Counter(graph.unit.tolist())
    waits = [set(graph.pred[low:high].tolist()) for low, high in pairwise(graph.pred_start)]

    def ended(node: int) -> set[int]:
        """The node and all of its rank that has ended when it has."""
        return {node}.union(*map(ended, waits[node]))

    for low, high in pairwise(found.start.tolist()):
        for before, node in pairwise(found.node[low:high].tolist()):
            assert before in waits[node]
            assert waits[node] <= ended(before)
            assert node not in carries
            assert members[graph.unit[node]] == 1


@pytest.mark.skipif(not jit.installed(), reason="numba is not installed, so there are no compiled loops")
@laws
@given(jobs(most_ranks=8), st.data())
def test_compiled_loops_give_the_bits_of_plain_ones(job: Job, data: st.DataObject) -> None:
    jit.use(False)
    plain = timeline_of(job, fold=False)
    run, durations = scenarios(job, data)
    times = run.step_times(durations)
    jit.use(True)
    assert_same_bits(timeline_of(job, fold=False), plain)
    assert jit.pays(1)
    assert FixedRun(run.graph).step_times(durations).tobytes() == times.tobytes()
    jit.use(None)


def groups_met(program: Program) -> list[list[list[int]]]:
    """The groups of every communicator that an op takes part in."""
    used = {op.communicator for ops in oracle.roles_of(program) for op in ops if op.enabled}
    return [
        [row for rows in communicator.members(program.mesh) for row in rows.tolist()]
        for number, communicator in enumerate(program.communicators)
        if number in used
    ]


def company(colour: dict[int, int], groups: list[list[list[int]]]) -> dict[int, tuple[object, ...]]:
    """What each rank sees: its colour, and per communicator how many of which colours its group holds."""
    seen: dict[int, list[object]] = {rank: [mine] for rank, mine in colour.items()}
    for number, rows in enumerate(groups):
        for row in rows:
            counts = frozenset(Counter(colour[rank] for rank in row).items())
            for rank in row:
                seen[rank].append((number, counts))
    return {rank: tuple(facts) for rank, facts in seen.items()}


def profiles(job: Job) -> dict[int, tuple[object, ...]]:
    """The role of each rank and the list of its slowdowns."""
    return {
        rank: (role, tuple(number for number, slow in enumerate(job.slow) if rank in slow.ranks))
        for rank, role in enumerate(job.program.role_of.tolist())
    }


@laws
@given(jobs())
def test_rank_classes_are_the_coarsest_in_which_ranks_keep_the_same_company(job: Job) -> None:
    graph, _ = folded(job)
    classes, groups = graph.classes, groups_met(job.program)
    seen: dict[int, tuple[object, ...]] = profiles(job)
    finest = 0
    while len(set(seen.values())) > finest:
        numbers = {facts: number for number, facts in enumerate(dict.fromkeys(seen.values()))}
        finest = len(numbers)
        colour = {rank: numbers[facts] for rank, facts in seen.items()}
        seen = company(colour, groups)
    assert len(classes) == finest
    ours = dict(enumerate(classes.of_rank.tolist()))
    assert len(set(company(ours, groups).values())) == len(classes)
    assert len({(ours[rank], facts) for rank, facts in profiles(job).items()}) == len(classes)
    assert classes.count.tolist() == [list(ours.values()).count(number) for number in range(len(classes))]
    assert all(ours[int(rank)] == number for number, rank in enumerate(classes.representative))
