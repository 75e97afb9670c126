"""Laws of assembled programs, whatever the plan: over hand-written layers, so that only the assembly is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrace.api import simulate
from foretrace.program.check import check
from foretrace.program.program import Program
from foretrace.readings.answer.answer import Answer
from foretrace.workload.plan import Plan
from hand_written_work import FORWARD, INPUT, WEIGHT, assembled, timed

laws = settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
NS = 1e-9
LAYER_S = (FORWARD + INPUT + WEIGHT) * NS


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, Plan, dict[str, Any]]:
    """Layers, a plan that fits them, and what else `assembled` takes."""
    tp, cp, pp, dp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2), (1, 2), (1, 2, 4), (1, 2, 4)))
    vpp = draw(st.sampled_from((1, 2))) if pp > 1 else 1
    schedule = draw(st.sampled_from((None, "zb-h1", "gpipe"))) if pp > 1 and vpp == 1 else None
    experts = draw(st.sampled_from((0, 4)))
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if tp * cp * dp % n == 0])) if experts else 1
    layers = pp * vpp * draw(st.integers(1, 2))
    plan = Plan(
        gpus=tp * cp * pp * dp,
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        gbs=dp * pp * draw(st.integers(1, 3)),
        schedule=schedule,
        zero=draw(st.sampled_from((0, 1, 2, 3))),
        reshard=draw(st.booleans()),
        prefetch=draw(st.integers(0, 2)),
        grad_overlap=draw(st.booleans()),
        param_overlap=draw(st.booleans()),
        tp_overlap=draw(st.booleans()),
        moe_overlap=draw(st.booleans()),
        offload_layers=draw(st.sampled_from((0, 0, 1))),
    )
    facts = {
        "experts": experts,
        "ends": draw(st.booleans()),
        "recompute": draw(st.booleans()),
        "launch_s": draw(st.sampled_from((0.0, 20e-9, 3e-6))),
        "fused_gradient_accumulation": draw(st.booleans()),
        "clips_gradients": draw(st.booleans()),
    }
    return layers, plan, facts


def run(program: Program, **how: Any) -> Answer:
    return simulate(timed(program, call_s=40 * NS), explain=False, **how)


@laws
@given(plans())
def test_folded_and_unfolded_agree_and_memory_comes_back(job: tuple[int, Plan, dict[str, Any]]) -> None:
    layers, plan, facts = job
    program = assembled(layers, plan, **facts)
    check(program)
    folded, unfolded = run(program), run(program, folded=False)
    assert folded.step_time_s == unfolded.step_time_s
    assert not [note for note in folded.diagnostics if "bytes" in note.message]


@laws
@given(plans())
def test_memory_is_at_least_what_is_held(job: tuple[int, Plan, dict[str, Any]]) -> None:
    layers, plan, facts = job
    program = assembled(layers, plan, **facts)
    held = np.bincount(program.resident.role, weights=program.resident.bytes, minlength=len(program.roles))
    answer = run(program)
    for track in answer.memory_tracks:
        role = program.role_of[answer.timeline.graph.classes.representative[track.rank_class]]
        assert track.held_bytes.sum(axis=1).min() >= held[role] > 0


@laws
@given(plans())
def test_axes_of_one_leave_no_trace(job: tuple[int, Plan, dict[str, Any]]) -> None:
    layers, plan, facts = job
    program = assembled(layers, plan, **facts)
    for one in program.communicators:
        assert min(rows.shape[1] for rows in one.members(program.mesh)) > 1, one.name


@laws
@given(plans())
def test_more_layers_never_take_less(job: tuple[int, Plan, dict[str, Any]]) -> None:
    layers, plan, facts = job
    more = layers + plan.pp * plan.vpp
    assert run(assembled(more, plan, **facts)).step_time_s > run(assembled(layers, plan, **facts)).step_time_s


@laws
@given(plans())
def test_kernels_and_segments_take_as_long(job: tuple[int, Plan, dict[str, Any]]) -> None:
    layers, plan, facts = job
    segments, kernels = (run(assembled(layers, plan, detail=detail, **facts)) for detail in ("segment", "kernel"))
    assert segments.step_time_s == pytest.approx(kernels.step_time_s, rel=1e-9)


@laws
@given(st.sampled_from((2, 4, 8)), st.integers(1, 3), st.sampled_from((1, 2)), st.integers(1, 2))
def test_the_bubble_law(stages: int, rounds: int, chunks: int, each: int) -> None:
    microbatches = stages * rounds
    plan = Plan(stages, pp=stages, vpp=chunks, gbs=microbatches)
    took = simulate(timed(assembled(stages * chunks * each, plan)), explain=False).step_time_s
    stage_s = chunks * each * LAYER_S
    assert took == pytest.approx(stage_s * (microbatches + (stages - 1) / chunks), rel=1e-9)


@laws
@given(plans())
def test_more_sharding_never_holds_more(job: tuple[int, Plan, dict[str, Any]]) -> None:
    layers, plan, facts = job

    def held(zero: Any) -> int:
        # Other software allocates gradients in the first backward, and so at no ZeRO stage between steps.
        resident = assembled(layers, replace(plan, zero=zero), **facts | {"fused_gradient_accumulation": True}).resident
        return int(resident.bytes.sum())

    sizes = [held(zero) for zero in (0, 1, 2)]
    assert sizes == sorted(sizes, reverse=True)
