"""Laws of predictions, from a model's name to the answer: what physics forbids, whatever the plan."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import foretrace
from foretrace import Answer, ForetraceError, Machine, Model, Plan, load_model, simulate
from foretrace.workload.plan import WORDS
from foretrace.workload.settle import settle
from foretrace.workload.stacks import STACKS, VERSIONS

laws = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
MODELS = ("llama3-8b", "gpt3-1.3b", "mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b", "mpt-1b")
CLUSTERS = ("h100-dgx", "h200-dgx", "a100-dgx", "b200-dgx", "gb200-nvl72", "mi300x", "h100-pcie")
STACKS_WITH_VERSIONS = (
    *STACKS,
    *(version.label for versions in VERSIONS.values() for version in versions),
    "megatron-core@0.1",
    "fsdp@2030-01",
)
"""All stacks and their versions, and versions that are not known."""
CLOSE = 1 + 1e-9


def answer(model: Model, plan: Plan, cluster: str = "h100-dgx", *, explain: bool = False) -> Answer:
    """The prediction, whether or not it fits in memory; a plan that cannot be is no example."""
    try:
        return simulate(foretrace.model(model, plan), Machine(cluster), even_if_oom=True, explain=explain)
    except ForetraceError:
        assume(False)
        raise


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Model, Plan]:
    """The last few layers of a model, which hold its experts, and a plan of a few GPUs."""
    whole = load_model(draw(st.sampled_from(MODELS)))
    model = replace(whole, layers=whole.layers[-draw(st.sampled_from((4, 8))) :])
    tp, cp, pp, dp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 1, 2), (1, 1, 2, 4), (1, 2, 4)))
    mbs = draw(st.sampled_from((1, 2)))
    plan = Plan(
        gpus=tp * cp * pp * dp,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=draw(st.sampled_from((1, 2))) if whole.name in ("mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b") else 1,
        mbs=mbs,
        gbs=mbs * dp * 8,
        seq_len=draw(st.sampled_from((1024, 2048))),
        zero=draw(st.sampled_from((0, 1, 3))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        stack=draw(st.sampled_from(sorted(STACKS))),
    )
    return model, plan


@st.composite
def odd_jobs(draw: st.DrawFn) -> tuple[Model, Plan]:
    """Jobs with whatever else a plan can say; many cannot be."""
    model, plan = draw(jobs())
    names = ("gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-v", "interleaved-zb", "dualpipe-v")
    return model, replace(
        plan,
        vpp=draw(st.sampled_from((1, 1, 2))),
        schedule=draw(st.sampled_from((None, *names))),
        precision=draw(st.sampled_from(("bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4", "tf32", "fp32"))),
        cp_comm=draw(st.sampled_from(("p2p", "all_gather", "a2a"))),
        cuda_graphs=draw(st.sampled_from(WORDS["cuda_graphs"])),
        stack=draw(st.sampled_from(STACKS_WITH_VERSIONS)),
        sequence_parallel=draw(st.sampled_from((None, True, False))),
        grad_overlap=draw(st.booleans()),
        param_overlap=draw(st.booleans()),
        tp_overlap=draw(st.booleans()),
        moe_overlap=draw(st.booleans()),
        dispatcher=draw(st.sampled_from(WORDS["dispatcher"])),
        offload_optimizer=draw(st.booleans()),
        offload_layers=draw(st.sampled_from((0, 0, 1))),
        reshard=draw(st.booleans()),
        prefetch=draw(st.integers(0, 3)),
        routing=draw(st.sampled_from((None, 1.0, 1.5))),
    )


@settings(laws, max_examples=60)
@given(odd_jobs(), st.sampled_from(CLUSTERS))
def test_an_answer_is_finite_and_adds_up(job: tuple[Model, Plan], cluster: str) -> None:
    found = answer(*job, cluster, explain=True)
    plan = foretrace.model(*job).setting().plan
    for value in (found.step_time_s, found.mfu, found.memory.peak_bytes, found.tokens_per_s_per_gpu):
        assert math.isfinite(value)
        assert value > 0
    assert found.mfu <= found.hfu * CLOSE < 1
    assert found.step_time_band_s is not None
    low, high = found.step_time_band_s
    assert 0 < low < found.step_time_s < high < math.inf
    assert {"prices", "model of the step"} <= {part.name for part in found.band_parts}
    assert all(0 < part.low <= 1 <= part.high < math.inf for part in found.band_parts)
    parts = found.breakdown.mean_s
    assert math.isclose(sum(parts.values()), found.step_time_s, rel_tol=1e-6)
    assert plan.tp > 1 or plan.etp > 1 or not any(part.startswith(("tp", "etp")) for part in parts)
    for stage in found.memory.stages:
        assert min(stage.by_category.values()) >= 0
        assert sum(stage.by_category.values()) == stage.peak_bytes


@laws
@given(jobs())
def test_more_work_never_takes_less(job: tuple[Model, Plan]) -> None:
    model, plan = job
    found = answer(model, plan)
    more = [
        answer(model, replace(plan, seq_len=2 * (plan.seq_len or 0))),
        answer(model, replace(plan, gbs=2 * found.model.plan["gbs"])),
    ]
    if plan.pp == 1:
        more.append(answer(replace(model, layers=(*model.layers, model.layers[-1])), plan))
    for one in more:
        assert one.step_time_s >= found.step_time_s / CLOSE
        assert one.memory.peak_bytes >= found.memory.peak_bytes


@laws
@given(jobs())
def test_a_faster_gpu_is_never_slower(job: tuple[Model, Plan]) -> None:
    steps = [answer(*job, cluster).step_time_s for cluster in ("a100-dgx", "h100-dgx", "h200-dgx", "b200-dgx")]
    assert all(faster <= slower * CLOSE for slower, faster in pairwise(steps))


@laws
@given(jobs())
def test_recomputing_takes_time_and_saves_memory(job: tuple[Model, Plan]) -> None:
    model, plan = job
    none, some, full = (answer(model, replace(plan, recompute=kind)) for kind in ("none", "selective", "full"))
    assert none.step_time_s <= some.step_time_s * CLOSE
    assert none.step_time_s <= full.step_time_s * CLOSE
    assert none.memory.peak_bytes >= some.memory.peak_bytes
    assert none.memory.peak_bytes >= full.memory.peak_bytes
    assert none.model.model_flops == full.model.model_flops
    assert none.model.hardware_flops <= full.model.hardware_flops * CLOSE


@laws
@given(jobs())
def test_splitting_state_further_holds_less(job: tuple[Model, Plan]) -> None:
    model, plan = job
    # FSDP splits parameters at stage 2 too: whole ones come back, so that a stage of one layer holds more.
    stages = (0, 1) if settle(model, replace(plan, zero=2)).splits_parameters else (0, 1, 2)
    held = [answer(model, replace(plan, zero=stage)).memory.peak_bytes for stage in stages]
    assert held == sorted(held, reverse=True)


@laws
@given(jobs())
def test_the_datasheet_is_a_bound(job: tuple[Model, Plan]) -> None:
    model, plan = job
    found = answer(model, plan)
    datasheet = Machine("h100-dgx", prices="roofline")
    bound = simulate(foretrace.model(model, plan), datasheet, even_if_oom=True, explain=False)
    assert bound.step_time_s <= found.step_time_s * CLOSE
    assert bound.hfu < 1


@laws
@given(jobs())
def test_larger_microbatches_hold_more_and_waste_less(job: tuple[Model, Plan]) -> None:
    model, plan = job
    found, larger = answer(model, plan), answer(model, replace(plan, mbs=2 * plan.mbs))
    assert larger.memory.peak_bytes >= found.memory.peak_bytes
    # A pipeline has more bubble with fewer microbatches; without one, fewer and larger kernels are no slower.
    assert plan.pp > 1 or larger.step_time_s <= 1.02 * found.step_time_s


@laws
@given(jobs())
def test_replicas_within_a_node_share_the_work(job: tuple[Model, Plan]) -> None:
    model, plan = job
    assume(plan.gpus <= 4)  # beyond a node, sharing may cost more than it gains
    found, wider = answer(model, plan), answer(model, replace(plan, gpus=2 * plan.gpus))
    assert wider.step_time_s <= 1.02 * found.step_time_s
    assert wider.memory.peak_bytes <= found.memory.peak_bytes * CLOSE


@laws
@given(jobs())
def test_what_runs_beside_the_rest_is_no_slower(job: tuple[Model, Plan]) -> None:
    model, plan = job
    apart = answer(model, replace(plan, grad_overlap=False, param_overlap=False))
    beside = answer(model, replace(plan, grad_overlap=True, param_overlap=True))
    assert beside.step_time_s <= 1.01 * apart.step_time_s


@settings(laws, max_examples=15)
@given(jobs())
def test_ranks_that_behave_alike_may_be_folded(job: tuple[Model, Plan]) -> None:
    model, plan = job
    assume(plan.gpus <= 16)
    found = answer(model, plan)
    program = foretrace.model(model, plan).program()
    each = simulate(program, Machine("h100-dgx"), folded=False, explain=False)
    assert each.step_time_s == found.step_time_s


def test_8_bits_pay_where_products_are_large() -> None:
    whole = load_model("llama3-70b")
    plan = Plan(gpus=8, tp=8, gbs=8, seq_len=8192)
    model = replace(whole, layers=whole.layers[:4])
    wide, narrow = (answer(model, replace(plan, precision=kind)).step_time_s for kind in ("bf16", "fp8"))
    assert wide / 2 < narrow < wide
