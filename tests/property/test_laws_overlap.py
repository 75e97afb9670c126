"""Laws of what overlap costs: every part of the cost only adds, and equal microbatches cost equally."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

import foretrace
from foretrace import ForetraceError
from foretrace.engine.fixed_run import FixedRun
from foretrace.program.fold import fold
from foretrace.simulation.overlap_cost import OverlapCost
from property.machines import Hardware
from property.plans import PlannedModel, planned_models

SLACK = 1e-12
"""The relative rounding error of a step."""

H100 = Hardware("h100-dgx")

laws = settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))


def priced_cost(job: PlannedModel) -> OverlapCost | None:
    """What overlap costs a job; None where it has no communication."""
    priced = H100.machine().price(foretrace.model(job.model, job.plan).program())
    if priced.prices.overlaps is None:
        return None
    graph = fold(priced.ops, priced.prices.kinds_of_ranks(False))
    return OverlapCost(graph, priced.prices.durations(graph), priced.prices.overlaps)


def cost_of(job: PlannedModel) -> OverlapCost:
    """The same; rejects an example that is refused, or that has no communication."""
    try:
        cost = priced_cost(job)
    except ForetraceError:
        assume(False)
        raise
    assume(cost is not None)
    assert cost is not None
    return cost


@laws
@given(planned_models())
def test_each_part_of_the_cost_only_adds(job: PlannedModel) -> None:
    cost = cost_of(job)
    run = FixedRun(cost.graph)
    whole_s = cost.cost_s(run.step(cost.alone_s + cost.fixed_s))
    parts_s = (np.zeros(len(cost.alone_s)), cost.local_s, cost.fixed_s, whole_s)
    for less_s, more_s in pairwise(parts_s):
        assert (less_s <= more_s).all()
    steps = [run.timeline(cost.alone_s + cost_s).step_time_s for cost_s in parts_s]
    for less, more in pairwise((*steps[:-1], job.answer(H100).step_time_s)):
        assert less <= more * (1 + SLACK)


@laws
@given(planned_models())
def test_equal_microbatches_cost_equally_within_their_blocks(job: PlannedModel) -> None:
    cost = cost_of(job)
    graph, ops = cost.graph, cost.graph.ops
    key = graph.rank_class.astype(np.int64) * (int(ops.template.max()) + 1) + ops.template[graph.op]
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    assert (cost.local_s == cost.local_s[first][row.ravel()]).all()


@pytest.mark.parametrize("tp_overlap", [False, True])
def test_equal_layers_of_a_block_cost_equally_where_calls_run_next_to_their_own_layer(tp_overlap: bool) -> None:
    plan = foretrace.Plan(gpus=32, tp=4, pp=2, gbs=32, tp_overlap=tp_overlap)
    cost = priced_cost(PlannedModel("llama3-8b", 8, plan))
    assert cost is not None
    layer = cost.graph.ops.ints("layer")[cost.graph.op]
    by_layer = [cost.local_s[layer == number].sum() for number in range(4)]
    assert min(by_layer) > 0
    assert by_layer == pytest.approx([by_layer[0]] * 4, rel=1e-9)


def test_transfers_next_to_computation_are_part_of_the_cost_that_needs_no_run() -> None:
    plan = foretrace.Plan(gpus=32, tp=4, pp=4, vpp=2, gbs=64)
    cost = priced_cost(PlannedModel("llama3-8b", 8, plan))
    assert cost is not None
    assert 0 < cost.local_s.sum() < cost.fixed_s.sum()
