"""The step at the level of actions takes as long as the whole program without overlap cost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import foretrace
from foretrace import ForetraceError, Machine, Plan
from foretrace.basics.placement import Placement
from foretrace.readings.scenario import Scenario
from foretrace.schedules import ActionKind, names
from foretrace.simulation.action_level import MachineUnits, _run, action_step_s
from foretrace.simulation.simulate import simulate_program
from foretrace.step import build_step
from foretrace.step.spec import RoleSpec, StepSpec, Work
from foretrace.workload.step_spec import step_spec
from property.plans import PlannedModel, last_layers, planned_models

CLOSE = 1e-9


@cache
def machine(name: str) -> Machine:
    """A machine whose prices are kept over all examples."""
    return Machine(name, overlap_cost=False)


def spec_of(planned: PlannedModel) -> StepSpec:
    """The step of a plan; rejects an example that is refused."""
    try:
        return step_spec(foretrace.model(planned.model, planned.plan).setting())
    except ForetraceError:
        assume(False)
        raise


def whole_step_s(spec: StepSpec, on: Machine) -> float:
    """The step time of the whole program."""
    return simulate_program(build_step(spec), on, Scenario(), explain=False).step_time_s


class SomeUnits(MachineUnits):
    """The seconds of some works only, so that contracted units come next to whole ones."""

    def seconds(self, work: Work, kind: ActionKind) -> float | None:
        """Forgets every other (work, kind)."""
        return None if (len(work.name) + kind) % 2 else super().seconds(work, kind)


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    planned_models(),
    st.sampled_from(("h100-dgx", "a100-dgx", "gb200-nvl72")),
    st.sampled_from((None, None, "looped-bfs", "interleaved-zb", "zb-v", "dualpipe", "dualpipe-v", "gpipe")),
    st.booleans(),
    st.sampled_from((0, 0, 0, 1)),
)
def test_contracted_steps_take_as_long(
    planned: PlannedModel, cluster: str, schedule: str | None, some: bool, offload_layers: int
) -> None:
    plan = planned.plan
    if schedule is not None and plan.pp > 1:
        plan = replace(plan, schedule=schedule, vpp=1)
    spec = spec_of(replace(planned, plan=replace(plan, offload_layers=offload_layers)))
    on = machine(cluster)
    whole = whole_step_s(spec, on)
    units = SomeUnits(spec, on) if some else None
    assert action_step_s(spec, on, units) == pytest.approx(whole, rel=CLOSE)


@pytest.mark.parametrize("name", names())
def test_every_schedule_is_contracted(name: str) -> None:
    plan = Plan(gpus=16, tp=2, pp=4, gbs=64, schedule=name, zero=1)
    spec = step_spec(foretrace.model(last_layers("llama3-8b", 16), plan).setting())
    on = machine("h100-dgx")
    contracted, whole = build_step(spec, seconds=MachineUnits(spec, on)), build_step(spec)
    assert contracted.op_count < whole.op_count / 2
    assert action_step_s(spec, on) == pytest.approx(whole_step_s(spec, on), rel=CLOSE)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        # The first computation of a unit waits for gathered parameters, the call next to it does not.
        ("deepseek-v3", {"tp": 2, "ep": 4, "tp_overlap": True, "cuda_graphs": "partial"}),
        # A reduction on the compute lane comes between units.
        ("llama3-8b", {"tp": 8, "zero": 2, "tp_overlap": True, "grad_overlap": False}),
        ("llama3-8b", {"tp": 4, "zero": 2, "tp_overlap": True, "offload_layers": 2}),
        ("llama3-8b", {"tp": 2, "zero": 3, "shard": 2}),
        ("llama3-8b", {"tp": 2, "pp": 2, "zero": 3, "reshard": False}),
        ("mixtral-8x7b", {"pp": 2, "ep": 4, "moe_overlap": True, "schedule": "zb-h1"}),
    ],
)
def test_calls_next_to_units(model: str, options: dict[str, Any]) -> None:
    spec = step_spec(foretrace.model(last_layers(model, 4), Plan(gpus=16, gbs=32, **options)).setting())
    on = machine("h100-dgx")
    assert action_step_s(spec, on) == pytest.approx(whole_step_s(spec, on), rel=CLOSE)


SAME_SCHEDULE: list[dict[str, Any]] = [
    {},
    {"tp": 2, "gbs": 16},
    {"recompute": "full"},
    {"zero": 0},
    {"zero": 1, "param_overlap": False},
    {"zero": 1, "grad_overlap": False},
    {"cuda_graphs": "full"},
    {"pp_overlap": True},
    {"first_stage_layers": 2},
    {"stack": "megatron-2021"},
    {"sequence_parallel": False, "tp": 2, "gbs": 16},
    {"mbs": 2, "gbs": 64},
]


def test_steps_of_one_schedule_have_their_own_times() -> None:
    """Patterns are kept; a step takes that of another only if their programs differ in nothing but durations."""
    on = machine("h100-dgx")
    times = []
    for model, layers in (("llama3-8b", 8), ("llama3.2-1b", 8)):
        for options in SAME_SCHEDULE:
            plan = Plan(**{"gpus": 16, "pp": 4, "gbs": 32, **options})
            spec = step_spec(foretrace.model(last_layers(model, layers), plan).setting())
            times.append(action_step_s(spec, on))
            assert times[-1] == pytest.approx(_run(build_step(spec), on)[0], rel=CLOSE)
    assert len(set(times)) > len(times) / 2


@pytest.mark.parametrize("layers", [(1, 2, 3, 2, 3, 1), (1, 2, 3, 3, 2, 1)])
def test_stages_in_another_order_have_another_pattern(layers: tuple[int, ...]) -> None:
    plan = Plan(gpus=12, pp=6, gbs=32, stage_layers=layers)
    spec = step_spec(foretrace.model(last_layers("llama3-8b", 12), plan).setting())
    on = machine("h100-dgx")
    assert action_step_s(spec, on) == pytest.approx(whole_step_s(spec, on), rel=CLOSE)


@pytest.mark.parametrize("zero", [1, 3])
def test_ranks_that_pay_different_prices_are_run_in_full(zero: Literal[1, 3]) -> None:
    """Ranks of even and odd numbers, which exchange tokens, have their slow transfers between other stages."""
    host = np.array([0, 1] * 4 + [0, 2] * 4 + [3, 2] * 4)
    slot = np.array([int((host[:rank] == host[rank]).sum()) for rank in range(24)])
    on = Machine("h100-dgx", overlap_cost=False, placement=Placement(host, slot))
    plan = Plan(gpus=24, pp=3, ep=2, gbs=48, zero=zero)
    spec = step_spec(foretrace.model(last_layers("mixtral-8x7b", 6), plan).setting())
    contracted = on.price(build_step(spec, seconds=MachineUnits(spec, on)))
    assert len(contracted.prices.duration_s) > 1
    assert action_step_s(spec, on) == pytest.approx(whole_step_s(spec, on), rel=CLOSE)


class EagerUnits(MachineUnits):
    """Has seconds for every work, also for those whose calls outlast them."""

    def seconds(self, work: Work, kind: ActionKind) -> float | None:
        """Returns a long time where the time is not known."""
        known = super().seconds(work, kind)
        return 1e3 if known is None else known


def test_seconds_of_units_that_do_not_end_alone_are_not_used() -> None:
    plan = Plan(gpus=8, tp=2, pp=2, gbs=16, tp_overlap=True)
    spec = step_spec(foretrace.model(last_layers("llama3-8b", 4), plan).setting())
    on = machine("h100-dgx")
    units = EagerUnits(spec, on)
    assert any(units.seconds(unit.work, ActionKind.FORWARD) == 1e3 for unit in spec.roles[0].chunks[0][0].units)
    assert action_step_s(spec, on, units) == pytest.approx(whole_step_s(spec, on), rel=CLOSE)


def test_stages_with_several_roles_are_run_in_full() -> None:
    plan = Plan(gpus=8, ep=4, pp=2, gbs=16, routing=1.5)
    spec = step_spec(foretrace.model(last_layers("mixtral-8x7b", 4), plan).setting())
    several = replace(spec, roles=tuple(_halves(spec)))
    on = machine("h100-dgx")
    assert build_step(several, seconds=MachineUnits(several, on)).op_count == build_step(several).op_count
    assert action_step_s(several, on) == pytest.approx(whole_step_s(several, on), rel=CLOSE)


def _halves(spec: StepSpec) -> list[RoleSpec]:
    """The roles of a step with the ranks of each divided between two."""
    return [
        replace(role, name=f"{role.name}.{number}", ranks=list(role.ranks)[number::2])
        for role in spec.roles
        for number in range(2)
    ]
