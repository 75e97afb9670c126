"""Changes that make a job fit, each tried on the real models of memory and time."""

from __future__ import annotations

from dataclasses import fields

import pytest

from foretrace import Machine, Scenario, simulate
from foretrace import model as model_input
from foretrace.models.presets import model
from foretrace.simulation.job_memory import static_memory
from foretrace.simulation.relief import MAX_SIMULATED, Relief, find_relief
from foretrace.simulation.simulate_input import on_host
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

DGX = Machine("h100-dgx")
TOO_LARGE = Plan(gpus=16, tp=2, mbs=4, gbs=64, seq_len=8192)


@pytest.fixture(scope="module")
def relief() -> tuple[Relief, ...]:
    setting = settle(model("llama3-8b"), TOO_LARGE)
    assert not static_memory(setting, DGX).fits
    return find_relief(setting, DGX)


def test_every_change_fits_and_takes_the_time_that_is_named(relief: tuple[Relief, ...]) -> None:
    for change in (relief[0], relief[-1]):
        answer = simulate(model_input("llama3-8b", change.plan), DGX, explain=False)
        assert answer.memory is not None
        assert answer.memory.fits
        assert answer.memory.needed_bytes == change.memory.needed_bytes
        assert answer.step_time_s == pytest.approx(change.step_time_s, rel=1e-12)


def test_the_machine_and_the_scenario_count() -> None:
    slow = Scenario(what_if={"attention": 0.5}, stragglers={0: 1.5})
    machine = DGX.with_(overlap_cost=False)
    change = find_relief(settle(model("llama3-8b"), TOO_LARGE), machine, slow)[0]
    answer = simulate(model_input("llama3-8b", change.plan), machine, slow, explain=False)
    assert answer.step_time_s == pytest.approx(change.step_time_s, rel=1e-12)


@pytest.mark.parametrize("stack", [None, "megatron-core"])
def test_a_slow_host_counts_once(stack: str | None) -> None:
    """The setting of an answer has the host of its machine already; that of a question has not."""
    racks = Machine("gb200-nvl72", prices="model")
    plan = Plan(gpus=8, gbs=64, mbs=8, seq_len=8192, stack=stack)
    plain = settle(model("llama3-8b"), plan)
    assert not static_memory(plain, racks).fits
    for setting in (plain, on_host(plain, racks)):
        change = find_relief(setting, racks)[0]
        answer = simulate(model_input("llama3-8b", change.plan), racks, explain=False)
        assert answer.step_time_s == pytest.approx(change.step_time_s, rel=1e-9)


def test_changes_come_with_the_fewest_gpus_and_the_shortest_step_first(relief: tuple[Relief, ...]) -> None:
    order = [(change.plan.gpus, change.step_time_s) for change in relief]
    assert order == sorted(order)
    assert 1 < len(relief) <= MAX_SIMULATED


def test_each_family_is_tried(relief: tuple[Relief, ...]) -> None:
    changed = {
        field.name
        for change in relief
        for field in fields(Plan)
        if getattr(change.plan, field.name) != getattr(TOO_LARGE, field.name)
    }
    assert {"recompute_modules", "recompute_layers", "mbs", "tp", "cp", "pp", "offload_layers", "gpus"} <= changed


def test_no_fewer_offloaded_layers_would_do(relief: tuple[Relief, ...]) -> None:
    (offload,) = [change.plan for change in relief if change.plan.offload_layers]
    fewer = settle(model("llama3-8b"), Plan(**{**_values(offload), "offload_layers": offload.offload_layers - 1}))
    assert static_memory(fewer, DGX).verdict != "fits"


def test_changes_leave_room_for_fragmentation(relief: tuple[Relief, ...]) -> None:
    assert all(change.memory.verdict == "fits" for change in relief)


def test_several_changes_are_tried_before_more_gpus() -> None:
    """One GPU cannot hold the states of 8 billion parameters, unless the host does, nor all activations then."""
    plans = [change.plan for change in find_relief(settle(model("llama3-8b"), Plan(gpus=1, gbs=1)), DGX)]
    assert [(plan.recompute, plan.offload_optimizer) for plan in plans if plan.gpus == 1] == [("full", True)]
    assert any(plan.gpus > 1 for plan in plans)


def test_a_large_model_without_axes_gets_both_that_it_needs() -> None:
    plan = Plan(gpus=2048, gbs=2048, zero=1)
    plans = [change.plan for change in find_relief(settle(model("llama3.1-405b"), plan), DGX)]
    assert any(plan.tp > 1 and plan.pp > 1 for plan in plans)


def test_large_jobs_are_tried_with_fewer_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.simulation.relief.MAX_NODES", 0)
    assert len(find_relief(settle(model("llama3-8b"), TOO_LARGE), DGX)) == 1


def test_nothing_is_named_where_nothing_helps() -> None:
    """One GPU cannot hold a model of 405 billion parameters, however it is run."""
    assert find_relief(settle(model("llama3.1-405b"), Plan(gpus=1, gbs=1)), DGX) == ()


def _values(plan: Plan) -> dict[str, object]:
    return {field.name: getattr(plan, field.name) for field in fields(Plan)}


def test_experts_are_spread_over_more_ranks() -> None:
    found = find_relief(settle(model("gpt-oss-120b"), Plan(gpus=64, gbs=1280)), DGX)
    assert any("--ep " in each.options for each in found)
