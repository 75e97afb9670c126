"""The end of a step lies between the last backward and the meeting of all ranks, and between that and the next step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from foretrace.cost.machine import Machine
from foretrace.models.model import Model
from foretrace.models.presets import model as preset
from foretrace.search.planner.closed_form import ClosedForm
from foretrace.search.planner.ends import EndCosts, end_costs
from foretrace.workload.plan import Plan
from foretrace.workload.step_spec import step_spec

PLAN = Plan(32, tp=2, pp=2, gbs=32, stack="megatron-core", zero=1)


@cache
def model() -> Model:
    whole = preset("llama3-8b")
    return replace(whole, layers=whole.layers[:4])


def costs(plan: Plan) -> EndCosts:
    closed_form = ClosedForm(model(), Machine("h100-dgx"))
    setting = closed_form.setting(plan)
    return end_costs(step_spec(setting), closed_form.prices(setting), range(plan.pp))


def test_ranks_that_clip_gradients_meet() -> None:
    assert costs(PLAN).meets and costs(PLAN).meeting_s > 0
    assert not costs(replace(PLAN, stack="torch-eager", zero=0)).meets
    assert not costs(Plan(1, gbs=1)).meets


def test_without_a_meeting_the_tail_has_the_whole_end() -> None:
    alone = costs(Plan(1, gbs=1))
    assert alone.meeting_s == 0.0 and not alone.head_s.any()
    assert alone.tail_s[0] > 0
    eager = costs(replace(PLAN, stack="torch-eager", zero=0))
    assert not eager.head_s.any() and (eager.tail_s > 0).all()


def test_reductions_that_overlap_leave_the_last_bucket_to_the_tail() -> None:
    apart, overlapped = (costs(replace(PLAN, grad_overlap=overlap)) for overlap in (False, True))
    assert overlapped.tail_s[0] < apart.tail_s[0]
    assert overlapped.tail_s[1] <= apart.tail_s[1], "the last stage has one bucket"
    assert not apart.reduced_s.any()
    assert (overlapped.reduced_s > 0).all()
    # From the begin of the last backward on, all reductions of its chunk are to be done.
    assert (overlapped.reduce_s[:, 1] >= overlapped.tail_s).all()


def test_gathers_that_overlap_let_the_first_forward_begin_earlier() -> None:
    apart, overlapped = (costs(replace(PLAN, param_overlap=overlap)) for overlap in (False, True))
    assert (overlapped.head_s[:, 0] < apart.head_s[:, 0]).all()
    assert (overlapped.head_s[:, 2] >= overlapped.head_s[:, 0]).all()
    assert (overlapped.gathered_s > 0).all() and not apart.gathered_s.any()


def test_an_optimizer_on_the_host_takes_the_host_longer() -> None:
    plain, offloaded = (costs(replace(PLAN, offload_optimizer=offload)) for offload in (False, True))
    assert (offloaded.host_s > plain.host_s).all()
    assert (offloaded.head_s[:, 0] > plain.head_s[:, 0]).all()


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_costs_of_a_stage_do_not_depend_on_the_other_stages_that_are_asked_for(zero: int) -> None:
    plan = replace(PLAN, zero=zero)
    closed_form = ClosedForm(model(), Machine("h100-dgx"))
    setting = closed_form.setting(plan)
    spec, prices = step_spec(setting), closed_form.prices(setting)
    both, last = end_costs(spec, prices, (0, 1)), end_costs(spec, prices, (1,))
    assert both.head_s[1].tolist() == last.head_s[0].tolist()
    assert both.tail_s[1] == last.tail_s[0]
    assert both.reduce_s[1].tolist() == last.reduce_s[0].tolist()
