"""Laws of lowered traces: all-to-alls keep their sums, written runs replay to their step, more never takes less."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace import Answer, Cluster, Machine, Mesh, ProgramBuilder, Scenario, Transfer, pipeline, schedule, simulate
from foretrace.cost.network import reaching
from foretrace.export.megatron_trace import timeline_facts, timeline_traces
from foretrace.inputs.megatron_trace.format import Facts, write_runs
from foretrace.inputs.megatron_trace.whole_job.exchanges import exchange, reshaped
from foretrace.inputs.registry import open_input
from foretrace.program.block import BlockBuilder, PlacedOp
from foretrace.readings.account import account
from foretrace.readings.answer.recorded import recorded_answer
from foretrace.schedules import Action, ActionKind
from unit.inputs.aicb.workloads import CLUSTER
from unit.inputs.megatron_trace.rank_files import Rank, Sub, all_to_all, sub, write

MS = 1e-3
ROUNDING_S = 2e-9
"""Traces are written to the nanosecond: each duration and each timestamp may be off by half of one, or so."""

sizes = st.integers(0, 10**12)
milliseconds = st.integers(1, 5000).map(lambda hundredths: hundredths / 100)


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=12))
def test_an_exchange_keeps_what_ranks_send(both: list[tuple[int, int]]) -> None:
    sent, received = [one for one, _ in both], [two for _, two in both]
    found = exchange(sent, received)
    n = len(both)
    assert (found >= 0).all()
    # Every entry is rounded by half a byte at most; doubles carry 53 bits.
    assert np.abs(found.sum(axis=1) - np.array(sent)).max() <= n / 2 + 1e-15 * max(sent) * n


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=12), st.floats(1, 20))
def test_reshaped_tokens_keep_their_sum_and_order(rows: list[int], unevenness: float) -> None:
    found = reshaped(rows, unevenness)
    assert sum(found) == sum(rows)
    assert min(found) >= 0
    mean = sum(rows) / len(rows)
    assert max(found) <= min(unevenness, len(rows)) * mean + 1 + 1e-6 * mean
    order = np.argsort(rows, kind="stable")
    kept = np.array(found)[order]
    if max(rows) > min(rows) and unevenness > 1:
        assert (np.diff(kept) >= -1).all()


@st.composite
def runs(draw: st.DrawFn, *, one_at_a_time: bool = True) -> Answer:
    """A small pipeline with tp and dp that was simulated; its ranks differ, so that they wait for each other. Unless
    they do one thing at a time, gradients are reduced beside the last transfer."""
    stages, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    tp, dp = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    name = draw(st.sampled_from(["1f1b", "gpipe"]))
    mesh = Mesh(tp=tp, pp=stages, dp=dp)
    build = ProgramBuilder(mesh, title="random", repeats=False)
    group, gradients = build.communicator("tp"), build.communicator("dp")
    durations = {
        (stage, kind): [draw(milliseconds) * MS for _ in range(3)]
        for stage in range(stages)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
    }
    blocks: dict[tuple[int, ActionKind], BlockBuilder] = {}

    def block(stage: int, action: Action) -> BlockBuilder:
        key = (stage, action.kind)
        if key not in blocks:
            made = blocks[key] = build.block(action.kind.name.lower())
            phase, (before, reduce, after) = action.kind.name.lower(), durations[key]
            made.compute("before", before, phase=phase)
            if tp > 1:
                made.collective("all_reduce", group, reduce, bytes=4096, lane="compute", phase=phase, dtype="bfloat16")
            made.compute("after", after, phase=phase)
        return blocks[key]

    plan = schedule(name, stages, microbatches)
    transfer = Transfer(bytes=512, duration_s=draw(milliseconds) * MS)
    placed = pipeline(build, plan, block, transfer, transfers="batched")
    for stage, role in enumerate(placed.stages):
        last = [action for slot in plan.actions(stage) for action in slot][-1]
        issued_last = PlacedOp(role.number, len(role.blocks) - 1, 0)
        end = issued_last if one_at_a_time else placed.placed[stage, last]["out"]
        if dp > 1:
            end = role.collective("all_reduce", gradients, draw(milliseconds) * MS, bytes=64, lane="compute", after=end)
        role.compute("adam", draw(milliseconds) * MS, phase="optimizer", after=end)
    slow = draw(st.dictionaries(st.integers(0, mesh.world - 1), st.sampled_from([1.1, 1.5, 3.0]), max_size=2))
    return simulate(build.program(), None, Scenario(stragglers=slow), explain=False)


@settings(max_examples=40)
@given(runs(one_at_a_time=False))
def test_a_run_that_is_written_down_replays_to_its_step(run: Answer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_runs(timeline_traces(run.timeline), folder, timeline_facts(run.timeline))
        again = simulate(folder, explain=False)
    assert again.step_time_s == pytest.approx(run.step_time_s, abs=ROUNDING_S * len(run.timeline.start_s))


@settings(max_examples=40)
@given(runs())
def test_a_run_survives_being_written_down(run: Answer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_runs(timeline_traces(run.timeline), folder, timeline_facts(run.timeline))
        again = simulate(folder, explain=False)
        recorded = recorded_answer(open_input([folder]))
    assert recorded is not None
    # Along the critical path every op is rounded once.
    bound = ROUNDING_S * len(run.timeline.start_s)
    before = account(run)
    for run_again in (again, recorded):
        assert run_again.step_time_s == pytest.approx(run.step_time_s, abs=bound)
        after = account(run_again)
        assert after.microbatches == before.microbatches
        assert after.stages.keys() == before.stages.keys()
        for key, one in before.stages.items():
            assert after.stages[key].mean_s == pytest.approx(one.mean_s, abs=bound)
        running, ran = ({kind: one.running_s for kind, one in of.kinds.items()} for of in (after, before))
        assert {kind: running.get(kind, 0.0) for kind in ran} == pytest.approx(ran, abs=bound)


@st.composite
def campaigns(draw: st.DrawFn) -> tuple[list[Rank], Facts]:
    """Ex-situ traces of a small job: tp and pp, or experts."""
    if draw(st.booleans()):
        mesh = Mesh(tp=draw(st.integers(1, 2)), pp=draw(st.integers(1, 3)), dp=draw(st.integers(1, 2)))
    else:
        ep = draw(st.sampled_from([2, 4]))
        mesh = Mesh(pp=draw(st.integers(1, 2)), dp=ep * draw(st.integers(1, 2)), ep=ep)
    layers = draw(st.integers(1, 2))
    ranks = []
    for rank in range(mesh.world):
        stage = int(mesh.coordinate("pp")[rank])
        one = Rank(rank, stage, ex_situ=True).op("get_batch", draw(milliseconds))
        for name in ("forward_step", "backward_step"):
            subs, at = _subs(draw, mesh, layers)
            one.op(name, at + draw(milliseconds), subs=subs)
        one.reduction(elements=draw(st.integers(1, 10**7)))
        if mesh.ep > 1:
            one.reduction("exp_dp_allreduce", elements=draw(st.integers(1, 10**7)))
        ranks.append(one.op("optimizer_step", draw(milliseconds)))
    experts = mesh.ep if mesh.ep > 1 else None
    facts = Facts(mesh.world, mesh.tp, mesh.pp, experts, mesh.dp, experts, layers * mesh.pp, micro_batch=1)
    return ranks, facts


def _subs(draw: st.DrawFn, mesh: Mesh, layers: int) -> tuple[Sequence[Sub], float]:
    subs, at = list[Sub](), 0.0
    for _ in range(layers):
        at += draw(milliseconds)
        if mesh.ep > 1:
            subs.append(all_to_all(at, 512))
            at += draw(milliseconds)
            subs.append(all_to_all(at, draw(st.integers(1, 2048))))
        elif mesh.tp > 1:
            subs.append(sub(at, 0, name="linear_fwd"))
    return subs, at


def steps(job: tuple[list[Rank], Facts], *variants: tuple[int, Cluster]) -> list[float]:
    """The step of the same job with so many microbatches on a cluster, one after the other."""
    ranks, facts = job
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), ranks, facts)
        traced = open_input([folder]).with_options(pp_comm_bytes=1 << 20)
        return [
            simulate(traced.with_options(microbatches=count), Machine(cluster), explain=False).step_time_s
            for count, cluster in variants
        ]


@settings(max_examples=25)
@given(campaigns(), st.integers(1, 4), st.integers(1, 4))
def test_more_microbatches_take_no_less(job: tuple[list[Rank], Facts], few: int, more: int) -> None:
    fewer, many = steps(job, (few, CLUSTER), (few + more, CLUSTER))
    assert fewer < many


@settings(max_examples=25)
@given(campaigns(), st.floats(1, 100), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(job: tuple[list[Rank], Facts], links: float, nics: float) -> None:
    node = replace(CLUSTER.node, gpus=2, domain_gpus=2, nics=2)
    narrow = replace(CLUSTER, node=node)
    wide = reaching(
        narrow, link_bytes_per_s=links * node.gpu.link_bytes_per_s, nic_bytes_per_s=nics * node.nic.bytes_per_s
    )
    slow, fast = steps(job, (3, narrow), (3, wide))
    assert fast <= slow * (1 + 1e-12)
