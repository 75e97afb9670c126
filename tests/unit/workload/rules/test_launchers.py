"""What launchers can express is declared for every stack, and what they refuse is refused with words."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from foretrace.models.presets import model as preset
from foretrace.workload.check_plan import check_plan
from foretrace.workload.constraints import broken
from foretrace.workload.plan import Plan
from foretrace.workload.rules.launchers import LAUNCH_CONSTRAINTS, LAUNCHERS, launcher_of, runs_megatron
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.stacks import STACKS


def test_every_stack_has_a_launcher_with_sources() -> None:
    assert set(LAUNCHERS) == set(STACKS)
    assert all(launcher.sources for launcher in LAUNCHERS.values())


@pytest.mark.parametrize("name", LAUNCHERS)
def test_values_of_launchers_are_those_of_plans(name: str) -> None:
    known = {field.name for field in fields(Plan)}
    for field, values in LAUNCHERS[name].values.items():
        assert field in known and values
        for value in values:
            check_plan(replace(Plan(8), **{field: value}))


def test_megatron_has_the_schedules_of_its_source_and_torchtitan_those_of_pytorch() -> None:
    megatron, titan = LAUNCHERS["megatron-core"], LAUNCHERS["fsdp"]
    assert megatron.offers("schedule", "interleaved-1f1b") and not megatron.offers("schedule", "zb-h1")
    assert titan.offers("schedule", "dualpipe-v") and not titan.offers("schedule", "dualpipe")
    assert megatron.offers("schedule", None) and megatron.offers("tp", 3)


def test_megatron_core_of_today_is_told_from_its_forerunner() -> None:
    assert {name for name, known in STACKS.items() if runs_megatron(known)} == {"megatron-core", "megatron-bridge"}
    assert not runs_megatron(replace(STACKS["megatron-core"], name="own"))


def test_software_that_is_not_listed_may_run_anything() -> None:
    assert launcher_of(replace(STACKS["fsdp"], name="own")).offers("schedule", "dualpipe")


@pytest.mark.parametrize(
    ("model", "plan", "refused"),
    [
        ("llama3-8b", Plan(8, pp=4, schedule="interleaved-1f1b", gbs=16), "vpp of an interleaved schedule"),
        ("llama3-8b", Plan(6, pp=6, stack="megatron-2021", gbs=6), "even stages of the launcher"),
        ("mixtral-8x7b", Plan(8, tp=2, sequence_parallel=False), "tp needs sequence parallelism"),
        ("llama3-8b", Plan(8, tp=2, stack="fsdp"), "tp needs sequence parallelism"),
        ("llama3-8b", Plan(8, tp=2, sequence_parallel=False, tp_overlap=True), "tp overlap needs sequence parallelism"),
        ("mixtral-8x7b", Plan(8, moe_overlap=True), "moe overlap needs ep and chunks"),
        ("mixtral-8x7b", Plan(8, ep=2, pp=2, moe_overlap=True), "moe overlap needs ep and chunks"),
        ("mixtral-8x7b", Plan(8, ep=2, recompute="full", moe_overlap=True), "moe overlap needs ep and chunks"),
        ("llama3-8b", Plan(8, param_overlap=True, zero=0), "param overlap needs zero and grad overlap"),
        ("llama3-8b", Plan(8, param_overlap=True, grad_overlap=False), "param overlap needs zero and grad overlap"),
        ("llama3-8b", Plan(8, pp=2, offload_layers=2), "offloaded layers without pp or recompute"),
        ("llama3-8b", Plan(8, recompute="full", offload_layers=2), "offloaded layers without pp or recompute"),
        (
            "llama3-8b",
            Plan(8, zero=2, rank_order="tp-cp-ep-pp-dp", stack="megatron-core"),
            "rank order of FSDP",
        ),
    ],
)
def test_what_only_a_launcher_refuses(model: str, plan: Plan, refused: str) -> None:
    sizes = PlanSizes.of(preset(model), plan)
    assert not any(broken(sizes)), "it can be simulated"
    problems = {rule.name: rule.problem(sizes) for rule in LAUNCH_CONSTRAINTS if not rule.holds(sizes)}
    assert set(problems) == {refused}
    assert all(problems.values())


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("llama3-8b", Plan(8, pp=4, vpp=2, gbs=16)),
        ("llama3-8b", Plan(6, pp=6, gbs=6)),
        ("mixtral-8x7b", Plan(8, tp=2, ep=2, pp=2, vpp=2, moe_overlap=True, tp_overlap=True)),
        ("llama3-8b", Plan(8, param_overlap=True, zero=1, grad_overlap=True)),
        ("llama3-8b", Plan(8, offload_layers=2)),
        ("llama3-8b", Plan(8, pp=2, rank_order="tp-cp-ep-pp-dp")),
    ],
)
def test_what_launchers_take(model: str, plan: Plan) -> None:
    sizes = PlanSizes.of(preset(model), plan)
    assert not any(broken(sizes))
    assert all(rule.holds(sizes) for rule in LAUNCH_CONSTRAINTS)
