"""Computation beside communication takes longer, by as much as runs beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretrace.api import simulate
from foretrace.basics.mesh import Mesh
from foretrace.cost.local_overlap import MAX_COST
from foretrace.cost.machine import Machine
from foretrace.cost.overlap import Overlaps
from foretrace.engine.fixed_run import FixedRun
from foretrace.models.presets import model
from foretrace.program.build import ProgramBuilder
from foretrace.program.dispatch import COPIES
from foretrace.program.expand import expand
from foretrace.program.fold import unfold
from foretrace.program.graph import Graph
from foretrace.program.kernels import Gemm, kernels_text
from foretrace.program.program import Program
from foretrace.simulation.overlap_cost import OverlapCost
from foretrace.step import build_step
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec

PRODUCT = kernels_text([(1, Gemm(8192, 1024, 8192))])
"""One wave on a GPU of 132 SMs: under a collective it takes about twice as long."""


def beside(*computing: float, communicating: float) -> Graph:
    """A rank that computes these seconds one after the other, and communicates from the start."""
    build = ProgramBuilder(Mesh(tp=2), repeats=False)
    tp = build.communicator("tp")
    role = build.role("all", range(2))
    role.collective("all_reduce", tp, communicating, bytes=8, lane="tp")
    for seconds in computing:
        role.compute("op", seconds)
    return unfold(expand(build.program()))


def cost_of(graph: Graph, slowdown: float) -> OverlapCost:
    kernels = np.where(graph.ops.ints("communicator") < 0, 0, -1)
    overlaps = Overlaps(kernels, np.where(kernels < 0, 0, -1), np.array([[slowdown]]))
    return OverlapCost(graph, graph.ops.floats("duration_s")[graph.op], overlaps)


def whole_cost_s(cost: OverlapCost, rounds: int = 2) -> np.ndarray:
    """The cost that runs with the cost so far show."""
    run, cost_s = FixedRun(cost.graph), cost.fixed_s
    for _ in range(rounds):
        cost_s = cost.cost_s(run.step(cost.alone_s + cost_s))
    return cost_s


def test_what_is_wholly_covered_takes_the_whole_slowdown() -> None:
    graph = beside(1.0, communicating=10.0)
    extra = whole_cost_s(cost_of(graph, 1.5))
    assert extra.tolist() == pytest.approx([0.0, 0.5, 0.0, 0.5])


def test_what_is_partly_covered_takes_as_much_longer_as_ran_beside() -> None:
    # At two thirds of its pace for 0.3 s it does 0.2 s of its second; the rest alone: 1.1 s.
    graph = beside(1.0, 1.0, communicating=0.3)
    extra = whole_cost_s(cost_of(graph, 1.5))
    assert extra[1] == pytest.approx(0.1)
    assert extra[2] == 0.0


def test_what_a_slower_op_moves_out_of_the_overlap_costs_nothing() -> None:
    # Two seconds of work take the three of the call; the last op starts when the call ends.
    graph = beside(1.0, 1.0, 1.0, communicating=3.0)
    assert whole_cost_s(cost_of(graph, 1.5))[1:4].tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_calls_at_once_cost_what_both_take_of_the_pace() -> None:
    build = ProgramBuilder(Mesh(tp=2, dp=2), repeats=False)
    role = build.role("all", range(4))
    for axis in ("tp", "dp"):
        role.collective("all_reduce", build.communicator(axis), 4.0, bytes=8, lane=axis)
    role.compute("op", 1.0)
    graph = unfold(expand(build.program()))
    calls = np.cumsum(graph.ops.ints("communicator") >= 0) - 1
    computes = graph.ops.ints("communicator") < 0
    overlaps = Overlaps(np.where(computes, 0, -1), np.where(computes, -1, calls % 2), np.array([[1.5, 1.25]]))
    alone = graph.ops.floats("duration_s")[graph.op]
    cost = whole_cost_s(OverlapCost(graph, alone, overlaps))
    assert cost[graph.op == 2].tolist() == pytest.approx([0.75] * 4)


def test_nothing_has_to_be_run_where_nothing_costs() -> None:
    graph = beside(1.0, communicating=10.0)
    assert cost_of(graph, 1.5).needs_run
    free = cost_of(graph, 1.0)
    assert not free.needs_run
    assert not free.fixed_s.any()


def test_communications_together_leave_some_pace() -> None:
    cost = cost_of(beside(1.0, communicating=10.0), 1e6)
    assert whole_cost_s(cost, rounds=1).max() == pytest.approx(MAX_COST)


def microbatches(count: int, communicating: float, *, waits: bool) -> Graph:
    """A rank that computes 1 s for each microbatch, next to the second half of which it communicates."""
    build = ProgramBuilder(Mesh(tp=2), repeats=False)
    tp = build.communicator("tp")
    block = build.block("forward")
    first = block.compute("first", 0.5)
    call = block.collective("all_reduce", tp, communicating, bytes=8, lane="tp", after=first)
    block.compute("second", 0.5)
    if waits:
        block.compute("join", 0.0, after=call)
    role = build.role("all", range(2))
    for number in range(count):
        role.place(block, microbatch=number)
    return unfold(expand(build.program()))


def test_the_calls_of_microbatches_cost_without_a_run_and_the_same_in_each() -> None:
    graph = microbatches(3, 0.3, waits=True)
    cost = cost_of(graph, 1.5)
    assert not cost.needs_run
    # 0.3 s at two thirds of the pace do 0.2 s of the second half.
    expected = np.where(np.isin(graph.op % 4, [2]), 0.1, 0.0)
    assert cost.local_s.tolist() == pytest.approx(expected.tolist())
    assert cost.fixed_s.tolist() == cost.local_s.tolist()


def test_what_a_call_leaves_to_the_next_block_is_found_by_a_run() -> None:
    # Of 1.05 s, 0.75 s run next to the second half; 0.3 s are left to the first half of the next microbatch.
    graph = microbatches(2, 1.05, waits=False)
    cost = cost_of(graph, 1.5)
    assert cost.needs_run
    assert cost.fixed_s[:6].tolist() == pytest.approx([0.0, 0.0, 0.25, 0.0, 0.0, 0.25])
    assert whole_cost_s(cost)[:6].tolist() == pytest.approx([0.0, 0.0, 0.25, 0.1, 0.0, 0.25])


def test_calls_that_take_turns_with_computation_cost_nothing() -> None:
    build = ProgramBuilder(Mesh(tp=2), repeats=False)
    tp = build.communicator("tp")
    role = build.role("all", range(2))
    for _ in range(3):
        role.compute("op", 1.0)
        role.collective("all_reduce", tp, 0.5, bytes=8, lane="compute")
    assert not cost_of(unfold(expand(build.program())), 1.5).needs_run


def job(steps: int = 3) -> Program:
    """Products beside all-gathers that last longer than they do."""
    build = ProgramBuilder(Mesh(tp=8, dp=2), repeats=False)
    tp = build.communicator("tp")
    role = build.role("all", range(16))
    for _ in range(steps):
        role.collective("all_gather", tp, bytes=1 << 28, lane="tp")
        role.compute("product", math.nan, kernel=PRODUCT)
    return build.program()


def test_an_answer_says_what_overlap_costs_and_can_leave_it_out() -> None:
    on, off = (simulate(job(), Machine("h100-dgx", overlap_cost=one)) for one in (True, False))
    assert off.overlap_cost_s == 0.0
    assert on.breakdown.mean_s["compute"] == pytest.approx(off.breakdown.mean_s["compute"] + on.overlap_cost_s)
    assert on.overlap_cost_s == pytest.approx(off.breakdown.mean_s["compute"], rel=0.1)
    assert any("hold SMs" in note.message for note in on.diagnostics)
    assert not any("hold SMs" in note.message for note in off.diagnostics)


def test_executors_and_folding_agree() -> None:
    answers = [
        simulate(job(), Machine("h100-dgx"), executor=executor, folded=folded, explain=False)
        for executor in ("fixed", "shared")
        for folded in (True, False)
    ]
    assert len({answer.step_time_s for answer in answers[:2]}) == 1
    for answer in answers:
        assert answer.step_time_s == pytest.approx(answers[0].step_time_s, rel=1e-9)
        assert answer.overlap_cost_s == pytest.approx(answers[0].overlap_cost_s, rel=1e-9)


def test_what_ends_a_step_runs_beside_the_next() -> None:
    build = ProgramBuilder(Mesh(tp=2))
    tp = build.communicator("tp")
    role = build.role("all", range(2))
    done = role.compute("op", 1.0)
    role.collective("all_reduce", tp, 0.25, bytes=8, lane="tp", after=done)
    graph = unfold(expand(build.program()))
    cost = whole_cost_s(cost_of(graph, 2.0), rounds=1)
    # In a quarter of a second at half the pace, an eighth of the work is done.
    assert cost.tolist() == pytest.approx([0.125, 0.0, 0.125, 0.0])


def test_what_copy_engines_move_holds_no_sms() -> None:
    plan = Plan(gpus=4, tp=4, gbs=4)
    nccl, copied = (
        build_step(step_spec(settle(model("llama3-8b"), one)))
        for one in (plan, Plan(gpus=4, tp=4, gbs=4, tp_overlap=True))
    )
    assert COPIES in copied.strings and COPIES not in nccl.strings
    cost = [simulate(one, Machine("h100-dgx"), explain=False).overlap_cost_s for one in (nccl, copied)]
    # The gradients' own collectives, beside those of weights, stay NCCL's; what is gathered around rings costs nothing.
    assert 0 < cost[1] <= cost[0] * 1.05


def test_a_block_whose_ops_wait_for_later_ones_leaves_its_calls_to_a_run() -> None:
    build = ProgramBuilder(Mesh(tp=2), repeats=False)
    tp = build.communicator("tp")
    block = build.block("forward")
    call = block.collective("all_reduce", tp, 1.0, bytes=8, lane="tp")
    first, second = block.compute("first", 0.5), block.compute("second", 1.0)
    block.deps.append((first.op, call.op))
    role = build.role("all", range(2))
    role.place(block, microbatch=0)
    cost = cost_of(unfold(expand(build.program(checked=False))), 2.0)
    assert cost.needs_run
    assert not cost.local_s.any()
    assert whole_cost_s(cost)[[first.op, second.op]].tolist() == pytest.approx([0.0, 0.5])
