"""Laws of uneven routing: neither the step nor the peak of memory falls, and what is assumed is bounded."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

import foretrace
from foretrace import Answer, Machine, Plan, load_model, simulate
from foretrace.models.model import Experts, Mlp
from foretrace.workload.routing import assumed_routing, max_routing
from foretrace.workload.settle import settle

MODELS = ("mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b")
CLOSE = 1 + 1e-9


@st.composite
def jobs(draw: st.DrawFn) -> tuple[foretrace.Model, Plan]:
    """A short mixture of experts on a few GPUs with several expert ranks."""
    whole = load_model(draw(st.sampled_from(MODELS)))
    dp, pp = draw(st.sampled_from((2, 4, 8))), draw(st.sampled_from((1, 2)))
    plan = Plan(
        gpus=dp * pp,
        pp=pp,
        ep=draw(st.sampled_from([size for size in (2, 4, 8) if size <= dp])),
        gbs=4 * dp,
        seq_len=1024,
        zero=draw(st.sampled_from((0, 1, 3))),
        dispatcher=draw(st.sampled_from(("alltoall", "deepep", "hybridep"))),
        moe_overlap=draw(st.booleans()),
        recompute=draw(st.sampled_from(("none", "full"))),
    )
    return replace(whole, layers=whole.layers[-4:]), plan


def answer(model: foretrace.Model, plan: Plan) -> Answer:
    return simulate(foretrace.model(model, plan), Machine("h100-dgx"), even_if_oom=True, explain=False)


@settings(deadline=None, max_examples=20)
@given(jobs(), st.floats(1, 2), st.floats(1, 2))
def test_less_even_routing_takes_no_less_time_or_memory(
    job: tuple[foretrace.Model, Plan], first: float, second: float
) -> None:
    model, plan = job
    low, high = (answer(model, replace(plan, routing=factor)) for factor in sorted((first, second)))
    assert low.step_time_s <= high.step_time_s * CLOSE
    assert low.peak_memory is not None
    assert high.peak_memory is not None
    assert low.peak_memory.bytes <= high.peak_memory.bytes


@settings(deadline=None, max_examples=10)
@given(jobs())
def test_what_is_assumed_is_what_stating_it_gives(job: tuple[foretrace.Model, Plan]) -> None:
    model, plan = job
    stated = replace(plan, routing=settle(model, plan).routing)
    assert answer(model, plan).step_time_s == answer(model, stated).step_time_s


@given(st.integers(0, 9), st.integers(0, 10), st.integers(1, 16))
def test_an_assumed_routing_is_possible_and_rises_with_ranks(few: int, more: int, topk: int) -> None:
    moe = Experts(1 << max(few + more, 4), topk, Mlp(512, True, "silu"))
    ranks = 1 << min(few, max(few + more, 4))
    factor = assumed_routing([moe], ranks)
    assert 1.0 <= factor <= max_routing(moe, ranks)
    assert assumed_routing([moe], max(ranks // 2, 1)) <= factor or factor == max_routing(moe, ranks)
