"""Laws of memory: the peak that the schedule gives is the simulated one, and nothing that saves memory needs more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace import ForetraceError, simulate
from foretrace.program.columns import Phase
from foretrace.program.program import Program
from foretrace.step import build_step
from foretrace.step.memory import StagePeak, stage_peaks
from foretrace.step.spec import ChunkSpec, Compute, EndItem, Item, StepSpec, Unit, Work
from foretrace.workload.plan import WORD_LISTS
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec
from property.plans import PlannedModel, planned_models
from property.test_laws_step import steps

FUZZ = bool(os.environ.get("FORETRACE_FUZZ"))
runs = settings(deadline=None, max_examples=300 if FUZZ else 40, suppress_health_check=list(HealthCheck))
walks = settings(runs, max_examples=1000 if FUZZ else 60)

STAGED = (None, None, "gpipe", "1f1b", "interleaved-1f1b", "interleaved-zb", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")
CHUNKS = {"interleaved-1f1b": 2, "interleaved-zb": 2, "zb-v": 2, "dualpipe-v": 2}


@st.composite
def jobs(draw: st.DrawFn, zeros: Sequence[int] = (0, 1, 2)) -> PlannedModel:
    """Draws a model and a plan with any schedule, uneven stages, recompute and offloading."""
    planned = draw(planned_models())
    plan, layers = planned.plan, planned.layers
    schedule, vpp = plan.schedule, plan.vpp
    if plan.pp > 1:
        schedule = draw(st.sampled_from(STAGED))
        vpp = CHUNKS.get(schedule or "", 1)
    parts, uneven = plan.pp * vpp, None
    if 1 < parts < layers and draw(st.booleans()):
        cuts = sorted(draw(st.sets(st.integers(1, layers - 1), min_size=parts - 1, max_size=parts - 1)))
        uneven = tuple(last - first for first, last in zip([0, *cuts], [*cuts, layers], strict=True))
    return replace(
        planned,
        plan=replace(
            plan,
            schedule=schedule,
            vpp=vpp,
            stage_layers=uneven,
            zero=draw(st.sampled_from(zeros)),
            recompute_layers=draw(st.sampled_from((None, 1, 2))) if plan.recompute == "full" else None,
            offload_layers=draw(st.sampled_from((0, 0, 1, 3, layers))),
            stack=plan.stack if 3 in zeros else draw(st.sampled_from(("megatron-core", "megatron-2021", "fsdp"))),
        ),
    )


ModuleSets = tuple[tuple[str, ...], tuple[str, ...]]


def module_sets(field: str) -> st.SearchStrategy[ModuleSets]:
    """Draws parts of a layer, and more of them."""
    names = st.lists(st.sampled_from(WORD_LISTS[field]), min_size=1, unique=True)
    return names.flatmap(lambda many: st.integers(1, len(many)).map(lambda count: (tuple(many[:count]), tuple(many))))


def spec_of(planned: PlannedModel, **changed: object) -> StepSpec:
    """The step of a plan with changes; rejects an example that is refused."""
    try:
        return step_spec(settle(planned.model, replace(planned.plan, **changed)))  # type: ignore[arg-type]
    except ForetraceError:
        assume(False)
        raise


def with_times(program: Program, seed: int) -> Program:
    """The program with random durations. Some communications and all optimizers of nothing take no time."""
    random = np.random.default_rng(seed)
    columns = program.templates.columns
    duration = columns["duration_s"].copy()
    missing = np.isnan(duration)
    drawn = random.lognormal(-7.0, 2.0, len(duration))
    drawn[(columns["communicator"] >= 0) & (random.random(len(duration)) < 0.3)] = 0.0
    duration[missing] = drawn[missing]
    return replace(program, templates=replace(program.templates, columns={**columns, "duration_s": duration}))


def simulated(spec: StepSpec, seed: int) -> dict[str, int]:
    """The peak of each role in a run: that of its worst class of ranks."""
    answer = simulate(with_times(build_step(spec), seed), explain=False)
    graph, peaks = answer.timeline.graph, dict[str, int]()
    for track in answer.memory_tracks:
        role = graph.program.roles[int(graph.program.role_of[graph.classes.representative[track.rank_class]])]
        peaks[role] = max(peaks.get(role, 0), track.peak_bytes)
    return peaks


def peaks_of(planned: PlannedModel, **changed: object) -> tuple[StagePeak, ...]:
    return stage_peaks(spec_of(planned, **changed))


@given(jobs(), st.integers(0, 2**32 - 1))
@runs
def test_the_schedule_gives_the_simulated_peak(planned: PlannedModel, seed: int) -> None:
    spec = spec_of(planned)
    assume(spec.sharding is None or not spec.sharding.gathers)  # FSDP's ZeRO-2 has a law of its own
    peaks = stage_peaks(spec)
    assert {peak.role: peak.peak_bytes for peak in peaks} == simulated(spec, seed)
    assert all(peak.exact and sum(peak.by_category.values()) == peak.peak_bytes for peak in peaks)


@given(steps(), st.randoms(use_true_random=False), st.booleans())
@walks
def test_the_schedule_gives_the_peak_of_any_step(spec: StepSpec, random: Random, repeats: bool) -> None:
    """Also with cuts, variants of microbatches, ops of no time and frees of what was never taken."""
    spec = replace(with_memory(spec, random), repeats=repeats)
    assert {peak.role: peak.peak_bytes for peak in stage_peaks(spec)} == simulated(spec, random.randint(0, 99))


def with_memory(spec: StepSpec, random: Random) -> StepSpec:
    """The step with random memory."""

    def items(listed: tuple[Item, ...]) -> tuple[Item, ...]:
        sizes = [random.choice((0, 0, 7, 500)) for _ in listed]
        pairs = zip(listed, sizes, strict=True)
        return tuple(replace(item, temporary_bytes=size) if isinstance(item, Compute) else item for item, size in pairs)

    @cache
    def work(work: Work) -> Work:
        saved = random.choice((0, 10, 100, 1000))
        return replace(
            work,
            forward=items(work.forward),
            recompute=items(work.recompute),
            backward=items(work.backward),
            saved_bytes=saved,
            recomputed_bytes=random.choice((0, 30, 300)),
            parameters=random.choice((0, 5, 50)),
            offloaded_bytes=random.randint(0, saved),
        )

    def unit(each: Unit) -> Unit:
        return Unit(work(each.work), each.layer, offloaded=random.random() < 0.3)

    gradient_bytes = random.choice((0, 0, 3)) if len(spec.variants) == 1 else 0
    roles = []
    for role in spec.roles:
        chunks = tuple(
            tuple(ChunkSpec(tuple(map(unit, chunk.units))) for chunk in variants) for variants in role.chunks
        )
        end = role.end
        if gradient_bytes:
            frees = {"gradients": gradient_bytes * sum(chunk.parameters for (chunk,) in chunks)}
            end = (*end, EndItem(Compute("update", Phase.OPTIMIZER, seconds=1e-3), frees=frees))
        cuts = tuple(replace(cut, items=items(cut.items)) for cut in role.cuts)
        resident = {"weights": random.randint(0, 99), "activations": random.randint(0, 9)}
        roles.append(replace(role, chunks=chunks, end=end, cuts=cuts, resident=resident))
    prefetch = (1, random.randint(0, 2))
    return replace(spec, roles=tuple(roles), gradient_bytes=gradient_bytes, prefetch=prefetch)


@given(jobs(zeros=(3,)), st.integers(0, 2**32 - 1))
@settings(runs, max_examples=100 if FUZZ else 15)
def test_no_run_with_split_parameters_needs_more_than_the_bound(planned: PlannedModel, seed: int) -> None:
    spec = spec_of(planned)
    peaks, run = stage_peaks(spec), simulated(spec, seed)
    assert all(not peak.exact and run[peak.role] <= peak.peak_bytes for peak in peaks)


@given(jobs(zeros=(0, 1, 2, 3)))
@walks
def test_a_peak_is_at_least_each_of_its_parts(planned: PlannedModel) -> None:
    spec = spec_of(planned)
    for role, peak in zip(spec.roles, stage_peaks(spec), strict=True):
        resident = sum(role.resident.values())
        works = [unit.work for variants in role.chunks for unit in variants[0].units]
        assert peak.peak_bytes >= resident + max(work.saved_bytes for work in works)
        items = [item for work in works for item in (*work.forward, *work.backward)]
        assert peak.peak_bytes >= resident + max(getattr(item, "temporary_bytes", 0) for item in items)
        at_end = "activations" not in peak.by_category  # where gradients of 16 bits are copied for the optimizer
        assert peak.place is not None or at_end
        assert all(peak.by_category.get(category, 0) >= size for category, size in role.resident.items())


def never_more(less: Sequence[StagePeak], more: Sequence[StagePeak]) -> bool:
    return all(one.peak_bytes <= other.peak_bytes for one, other in zip(less, more, strict=True))


@given(jobs(zeros=(0, 1, 2, 3)), st.integers(0, 8), st.integers(0, 8))
@walks
def test_offloading_more_layers_never_needs_more_memory(planned: PlannedModel, some: int, others: int) -> None:
    few, many = sorted(min(count, planned.layers) for count in (some, others))
    assert never_more(peaks_of(planned, offload_layers=many), peaks_of(planned, offload_layers=few))


@given(jobs(), st.floats(0, 1), st.floats(0, 1))
@walks
def test_offloading_more_bytes_never_needs_more_memory(planned: PlannedModel, some: float, others: float) -> None:
    spec = spec_of(planned, offload_layers=0)
    few, many = (stage_peaks(with_offloaded(spec, share)) for share in sorted((some, others)))
    assert never_more(many, few)


@given(jobs(), module_sets("offload_modules"))
@walks
def test_offloading_more_modules_never_needs_more_memory(planned: PlannedModel, modules: ModuleSets) -> None:
    few, many = modules
    how = {"offload_layers": 0, "stack": "megatron-core"}
    more = peaks_of(planned, **how, offload_modules=few)
    assert never_more(peaks_of(planned, **how, offload_modules=many), more)


@given(jobs(), module_sets("offload_modules"), st.integers(0, 2**32 - 1))
@settings(runs, max_examples=100 if FUZZ else 15)
def test_the_schedule_gives_the_peak_of_offloaded_modules(
    planned: PlannedModel, modules: ModuleSets, seed: int
) -> None:
    spec = spec_of(planned, offload_layers=0, offload_modules=modules[1], stack="megatron-core")
    assert {peak.role: peak.peak_bytes for peak in stage_peaks(spec)} == simulated(spec, seed)


@given(jobs(), module_sets("recompute_modules"))
@walks
def test_recomputing_more_modules_never_needs_more_memory(planned: PlannedModel, modules: ModuleSets) -> None:
    few, many = modules
    how = {"recompute": "selective", "recompute_layers": None, "stack": "megatron-core"}
    more = peaks_of(planned, **how, recompute_modules=few)
    assert never_more(peaks_of(planned, **how, recompute_modules=many), more)


def with_offloaded(spec: StepSpec, share: float) -> StepSpec:
    """The step in which each work sends a share of what it saves to the host."""
    roles = []
    for role in spec.roles:
        chunks = []
        for (chunk,) in role.chunks:
            units = [
                replace(unit, work=replace(unit.work, offloaded_bytes=int(share * unit.work.saved_bytes)))
                for unit in chunk.units
            ]
            chunks.append((replace(chunk, units=tuple(units)),))
        roles.append(replace(role, chunks=tuple(chunks)))
    return replace(spec, roles=tuple(roles))


@given(jobs())
@walks
def test_splitting_more_never_needs_more_memory(planned: PlannedModel) -> None:
    """ZeRO-2 of FSDP splits parameters too, and holds gathered ones next to a rank's part: it is apart."""
    assume(planned.plan.stack != "fsdp")
    none, states, gradients = (peaks_of(planned, zero=zero) for zero in (0, 1, 2))
    assert never_more(gradients, states)
    assert never_more(states, none)


@given(jobs(zeros=(0, 1, 2, 3)))
@walks
def test_recomputing_more_never_needs_more_memory(planned: PlannedModel) -> None:
    none, some, all_ = (
        peaks_of(planned, recompute=how, recompute_layers=None) for how in ("none", "selective", "full")
    )
    assert never_more(some, none)
    assert never_more(all_, some)
