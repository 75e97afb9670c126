"""Laws of plans: one that is accepted satisfies every constraint, and one that is refused comes with one that runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.models.presets import model as preset
from foretrace.workload.constraints import broken
from foretrace.workload.layout import LETTERS, Layout, layout_text, parse_layout
from foretrace.workload.nearest_plans import nearest_plans
from foretrace.workload.plan import Plan
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.settle import settle

laws = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))

sizes = st.sampled_from((1, 1, 1, 2, 3, 4, 6, 8, 16))
models = st.sampled_from(("llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b"))
orders = ("tp-cp-ep-dp-pp",) * 4 + ("tp-cp-ep-pp-dp", "tp-pp-cp-ep-dp", "cp-tp-ep-dp-pp", "tp-dp-pp", "dp")


@st.composite
def stage_layers(draw: st.DrawFn, layers: int) -> tuple[int, ...]:
    """Layers of parts: of the model's, mostly, and mostly as many parts as a pipeline has."""
    parts = draw(st.sampled_from((1, 2, 4, 4, 8, 12)))
    even = [layers // parts + (part < layers % parts) for part in range(parts)]
    even[-1] += draw(st.sampled_from((0, 0, 0, 1)))
    return tuple(even)


@st.composite
def layouts(draw: st.DrawFn, layers: int) -> str:
    """Layouts: mostly of so many layers and of as many parts as a pipeline has."""
    counts = draw(stage_layers(layers))
    mtp_part = draw(st.sampled_from((-1, -1, len(counts) // 2)))
    return str(Layout.of(counts, draw(st.sampled_from((0, 0, 1))), mtp_part))


@st.composite
def plans(draw: st.DrawFn, layers: int) -> Plan:
    """Plans of a model of so many layers, of which some run and others break a rule or several."""
    seq_len = draw(st.none() | st.sampled_from((2048, 4096, 4100, 5000, 8190, 8200)))
    whole = (seq_len or 8192) + draw(st.sampled_from((0, 0, 0, 2)))
    documents = st.none() | st.integers(1, whole - 1).map(lambda first: (first, whole - first))
    return draw(
        st.builds(
            Plan,
            gpus=st.sampled_from((1, 8, 12, 24, 60, 64, 96, 128, 512)),
            mbs=st.integers(1, 3),
            gbs=st.none() | st.integers(1, 600),
            seq_len=st.just(seq_len),
            documents=documents,
            tp=sizes,
            cp=sizes,
            cp_comm=st.sampled_from(("p2p", "all_gather", "a2a")),
            pp=sizes,
            vpp=st.sampled_from((1, 1, 2, 3)),
            stage_layers=st.none() | st.none() | stage_layers(layers),
            layout=st.none() | st.none() | layouts(layers),
            account_for=st.sampled_from((None, None, None, (), ("loss",), ("embedding", "loss"))),
            first_stage_layers=st.none() | st.none() | st.integers(0, 20),
            last_stage_layers=st.none() | st.none() | st.integers(0, 20),
            schedule=st.sampled_from((None, None, None, "1f1b", "zb-v", "dualpipe", "dualpipe-v", "interleaved-zb")),
            ep=sizes,
            etp=st.sampled_from((1, 1, 2, 3)),
            rank_order=st.sampled_from(orders),
            zero=st.sampled_from((None, 0, 1, 3, 3)),
            shard=st.none() | st.sampled_from((1, 2, 3, 8)),
            recompute=st.sampled_from(("none", "full")),
            recompute_layers=st.sampled_from((None, None, 1, 200)),
            routing=st.sampled_from((None, 1.0, 1.5, 99.0, (1.0, 1.5), (1.25,) * layers)),
            stack=st.sampled_from((None, "megatron-core", "megatron-2021", "fsdp", "llm-foundry")),
        )
    )


@st.composite
def jobs(draw: st.DrawFn) -> PlanSizes:
    """A model and a plan. One field of a plan that runs is drawn again, so that also rules checked last are broken."""
    model = preset(draw(models))
    layers = len(model.layers)
    job = PlanSizes.of(model, draw(plans(layers)))
    nearest = next(nearest_plans(job), None)
    if nearest is None or draw(st.booleans()):
        return job
    field = draw(st.sampled_from(nearest.__slots__))
    return job.with_plan(replace(nearest, **{field: getattr(draw(plans(layers)), field)}))


NO_SPLIT = dict.fromkeys(("stage_layers", "account_for", "first_stage_layers", "last_stage_layers"))


def fields_of(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__ if name != "layout"}


@laws
@given(st.lists(st.text(LETTERS, max_size=12), min_size=1, max_size=30))
def test_a_layout_is_read_back_as_it_was(parts: list[str]) -> None:
    text = layout_text(parts)
    assert parse_layout(text).parts == tuple(parts)
    assert layout_text(parse_layout(text).parts) == text


@laws
@given(st.text("Etm|L()*,0123456789 x", max_size=40))
def test_any_text_is_a_layout_or_an_error_with_a_hint(text: str) -> None:
    try:
        layout = parse_layout(text)
    except InputError as error:
        assert error.code in ("bad-value", "out-of-range") and error.hint
    else:
        assert parse_layout(layout_text(layout.parts)) == layout


@laws
@given(jobs())
def test_a_plan_runs_exactly_if_it_satisfies_all_constraints(job: PlanSizes) -> None:
    first = next(broken(job), None)
    try:
        setting = settle(job.model, job.plan)
    except InputError as error:
        assert first is not None and error.code == first.code
    else:
        settled = PlanSizes.of(job.model, setting.plan, setting.stack)
        assert not any(broken(settled))
        assert sum(setting.chunks, ()) == tuple(range(len(job.model.layers)))
        assert len(setting.chunks) == settled.pieces
        again = settle(job.model, Plan(**(fields_of(setting.plan) | NO_SPLIT), layout=setting.layout))
        assert (again.chunks, again.mtp_chunk) == (setting.chunks, setting.mtp_chunk)


@laws
@given(jobs())
def test_the_plans_in_the_hint_of_one_that_is_refused_run(job: PlanSizes) -> None:
    assume(any(broken(job)))
    nearest = list(islice(nearest_plans(job), 2))
    assert nearest
    for plan in nearest:
        settle(job.model, plan)
