"""Laws of plans: one that is accepted satisfies every constraint, and one that is refused comes with one that runs."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.models.presets import model as preset
from foretrace.workload.constraints import CONSTRAINTS, PlanSizes, broken
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

laws = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))

sizes = st.sampled_from((1, 1, 1, 2, 3, 4, 6, 8, 16))
plans = st.builds(
    Plan,
    gpus=st.sampled_from((1, 8, 12, 24, 64, 96, 128, 512)),
    mbs=st.integers(1, 3),
    gbs=st.none() | st.integers(1, 600),
    seq_len=st.none() | st.sampled_from((2048, 4096, 4100, 5000, 8200)),
    tp=sizes,
    cp=sizes,
    cp_comm=st.sampled_from(("p2p", "all_gather", "a2a")),
    pp=sizes,
    vpp=st.sampled_from((1, 1, 2, 3)),
    schedule=st.sampled_from((None, None, None, "zb-v", "zb-h1", "dualpipe", "dualpipe-v", "interleaved-zb")),
    ep=sizes,
    etp=st.sampled_from((1, 1, 2, 3)),
    zero=st.sampled_from((None, 0, 1, 3)),
    stack=st.sampled_from((None, "megatron-core", "megatron-2021", "fsdp", "llm-foundry")),
)
models = st.sampled_from(("llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b"))


@laws
@given(models, plans)
def test_a_plan_runs_exactly_if_it_satisfies_all_constraints(name: str, plan: Plan) -> None:
    model = preset(name)
    first = broken(PlanSizes.of(model, plan))
    try:
        setting = settle(model, plan)
    except InputError as error:
        assert first is not None and error.code == first.code
    else:
        settled = PlanSizes.of(model, setting.plan, setting.stack)
        assert not [rule.name for rule in CONSTRAINTS if rule.problem(settled) is not None]


@laws
@given(models, plans)
def test_the_nearest_plan_of_one_that_is_refused_runs(name: str, plan: Plan) -> None:
    model = preset(name)
    first = broken(PlanSizes.of(model, plan))
    assume(first is not None)
    assert first is not None
    nearest = next(first.nearest(PlanSizes.of(model, plan)), None)
    assert nearest is not None
    settle(model, nearest)
