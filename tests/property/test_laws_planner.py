"""Laws of a search: bounds hold, the winner is that of a full simulation of all plans, and no order or division of the
plans changes anything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from foretrace import Machine, Model, PlanRequest
from foretrace.basics.errors import InputError
from foretrace.cost.unit_costs import UnitTimes
from foretrace.search.planner.asked_axes import space_of
from foretrace.search.planner.closed_form import Bounds, ClosedForm
from foretrace.search.planner.memory.memory_table import MemoryTable
from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.proof import plan_key, rounded
from foretrace.search.planner.result import PlanSearch
from foretrace.search.planner.search import search_plans
from foretrace.search.planner.simulator import PlanSimulator
from foretrace.simulation.action_level import action_step_s
from foretrace.workload.constraints import broken
from foretrace.workload.plan import Plan
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.step_spec import step_spec
from property.plans import DENSE, MOE, last_layers

SCHEDULES: Final = ("1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-zb", "looped-bfs", "dualpipe", "dualpipe-v")
STACKS: Final = (
    "megatron-core",
    "megatron-core",
    "fsdp",
    "fsdp-compile",
    "megatron-2021",
    "torch-eager",
    "llm-foundry",
)
MAX_EXCESS: Final = 1e-8
"""The share by which rounding may lift a bound above a simulation."""

randoms = st.integers(0, 2**32 - 1).map(Random)

laws = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


@cache
def machine(cluster: str = "h100-dgx", *, overlap_cost: bool = True) -> Machine:
    return Machine(cluster, overlap_cost=overlap_cost)


class Silence:
    """Shows nothing of a search."""

    def begin(self, what: str, count: int) -> None: ...
    def reach(self, done: int, place: str = "", best: str = "") -> None: ...

    def show(self, plans: object) -> None: ...


def search(model: Model, on: Machine, request: PlanRequest) -> PlanSearch:
    return search_plans(model, on, request, progress=Silence())


def drawn_plan(random: Random) -> tuple[Model, Plan]:
    """Returns a small model and a plan of any kind that breaks no constraint."""
    while True:
        model, plan = any_plan(random)
        if next(broken(PlanSizes.of(model, plan)), None) is None:
            return model, plan


def any_plan(random: Random) -> tuple[Model, Plan]:
    """Returns a small model and a plan, most of which break no constraint."""

    def one_of(*values: Any) -> Any:
        return random.choice(values)

    name = one_of(*DENSE, *MOE)
    model, experts = last_layers(name, one_of(4, 6, 8)), name in MOE
    stack, zero = one_of(*STACKS, "megatron-core@0.14", "megatron-bridge@26.06"), one_of(0, 1, 2, 3, None)
    zero = 3 if stack.startswith("fsdp") else zero
    tp, cp, pp, dp = one_of(1, 1, 2, 4, 8), one_of(1, 1, 1, 2), one_of(1, 2, 4), one_of(1, 2, 4)
    schedule = one_of(None, None, None, *SCHEDULES) if pp > 1 else None
    vpp = 2 if schedule in ("zb-v", "dualpipe-v") else one_of(1, 1, 2) if pp > 1 else 1
    mbs, recompute = one_of(1, 1, 2), one_of("none", "none", "selective", "full")
    plan = Plan(
        gpus=tp * cp * pp * dp,
        mbs=mbs,
        gbs=mbs * dp * one_of(1, 2, 3, 8) * one_of(1, pp),
        seq_len=one_of(1024, 4096),
        tp=tp,
        sequence_parallel=one_of(None, True, False),
        cp=cp,
        cp_comm=one_of("p2p", "all_gather", "a2a"),
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        ep=one_of(1, 2, 4) if experts else 1,
        etp=one_of(1, tp) if experts else 1,
        zero=zero,
        shard=one_of(None, None, 2) if zero == 3 else None,
        reshard=one_of(True, True, False),
        prefetch=one_of(1, 1, 2),
        recompute=recompute,
        recompute_layers=one_of(None, 1) if recompute == "full" else None,
        grad_overlap=one_of(None, None, True, False),
        param_overlap=one_of(None, None, True, False),
        tp_overlap=one_of(False, True),
        moe_overlap=one_of(False, True) if experts else False,
        pp_overlap=one_of(False, False, True),
        cuda_graphs=one_of("none", "none", "router", "partial", "full"),
        offload_optimizer=one_of(False, False, True),
        dispatcher=one_of("alltoall", "deepep", "hybridep") if experts else "alltoall",
        rank_order=one_of("tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        stack=stack,
    )
    return model, plan


@laws
@given(randoms, st.booleans())
def test_a_bound_is_never_above_the_simulator(random: Random, overlap_cost: bool) -> None:
    model, plan = drawn_plan(random)
    note(f"{model.name}[-{len(model.layers)}:] {plan}")
    on = machine(overlap_cost=overlap_cost)
    bounds = ClosedForm(model, on).bounds(PlanTable.of([plan]))
    step_s = PlanSimulator(model, on).answer(plan).step_time_s
    assert 0 < bounds.bound_s[0] <= step_s * (1 + MAX_EXCESS)
    assert bounds.estimate_s[0] >= bounds.bound_s[0]


@laws
@given(randoms, st.booleans())
def test_a_step_at_the_level_of_actions_is_the_simulator_s_without_overlap_cost(
    random: Random, overlap_cost: bool
) -> None:
    model, plan = drawn_plan(random)
    note(f"{model.name}[-{len(model.layers)}:] {plan}")
    on = machine(overlap_cost=overlap_cost)
    closed_form = ClosedForm(model, on)
    setting = closed_form.setting(plan)
    action_s = action_step_s(step_spec(setting), on, UnitTimes(closed_form.prices(setting)))
    step_s = PlanSimulator(model, on).answer(plan).step_time_s
    assert action_s <= step_s * (1 + MAX_EXCESS)
    assert overlap_cost or action_s == pytest.approx(step_s, rel=1e-9)


@laws
@given(randoms)
def test_overlap_of_experts_makes_no_step_longer(random: Random) -> None:
    model, plan = drawn_plan(random)
    assume(plan.ep > 1)
    note(f"{model.name}[-{len(model.layers)}:] {plan}")
    simulator = PlanSimulator(model, machine(overlap_cost=False))
    with_overlap, without = (
        simulator.answer(replace(plan, moe_overlap=overlap)).step_time_s for overlap in (True, False)
    )
    assert with_overlap <= without * (1 + MAX_EXCESS)


@laws
@given(randoms)
def test_memory_is_that_of_the_simulator(random: Random) -> None:
    model, plan = drawn_plan(random)
    note(f"{model.name}[-{len(model.layers)}:] {plan}")
    columns = MemoryTable(model, machine()).needs(PlanTable.of([plan]))
    answer = PlanSimulator(model, machine()).answer(plan)
    assert answer.model is not None
    exact, peak, needed = bool(columns.exact[0]), int(columns.peak_bytes[0]), int(columns.needed_bytes[0])
    fit = answer.model.memory
    assert exact or plan.zero in (None, 2, 3)
    assert (peak, needed) == (fit.peak_bytes, fit.needed_bytes) or (
        not exact and peak >= fit.peak_bytes and needed >= fit.needed_bytes
    )


def test_memory_of_a_plan_does_not_depend_on_the_others_of_its_table() -> None:
    model = last_layers("llama3-8b", 8)
    plan = Plan(8, gbs=8, seq_len=2048, pp=4, vpp=2)
    # The same pieces on other stages, with as many microbatches.
    others = [replace(plan, pp=2, vpp=4, tp=2), replace(plan, pp=2, vpp=4), replace(plan, vpp=1, mbs=2)]
    tables = [PlanTable.of(plans) for plans in ([*others, plan], [plan, *others], [plan])]
    together, before, alone = (MemoryTable(model, machine()).needs(table).peak_bytes for table in tables)
    assert together[-1] == before[0] == alone[0]


Problem = tuple[str, int, Plan, dict[str, str]]

PROBLEMS: Final[dict[str, Problem]] = {
    "dense": (
        "llama3.2-1b",
        4,
        Plan(8, gbs=16, seq_len=4096),
        {
            "mbs": "1,2",
            "recompute": "none,full",
            "cp": "1",
            "zero": "0,1",
            "offload_optimizer": "off",
            "vpp": "1,2",
            "tp": "1,2",
        },
    ),
    "experts": (
        "mixtral-8x7b",
        2,
        Plan(8, gbs=16, seq_len=2048),
        {
            "mbs": "1",
            "recompute": "none",
            "cp": "1",
            "zero": "1",
            "offload_optimizer": "off",
            "tp": "1,2",
            "ep": "1,4,8",
        },
    ),
    "fsdp": (
        "llama3-8b",
        2,
        Plan(16, gbs=32, seq_len=2048, stack="fsdp"),
        {"mbs": "1,2", "recompute": "none,full", "cp": "1,2", "cp_comm": "p2p,all_gather", "tp": "1,2", "pp": "1"},
    ),
    "schedules": (
        "qwen2.5-1.5b",
        8,
        Plan(8, gbs=32, seq_len=2048),
        {
            "mbs": "1",
            "recompute": "none",
            "zero": "0",
            "offload_optimizer": "off",
            "tp": "1",
            "cp": "1",
            "pp": "2,4",
            "vpp": "1,2",
            "schedule": "1f1b,interleaved-1f1b,gpipe,zb-h1,zb-v,interleaved-zb,looped-bfs",
        },
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_winner_is_that_of_a_simulation_of_all_plans(name: str) -> None:
    preset, layers, plan, axes = PROBLEMS[name]
    model, on = last_layers(preset, layers), machine()
    result = search(model, on, PlanRequest(plan, axes))
    table = space_of(model, plan, on.needed_cluster(), axes).enumerate().table
    table = table.select(MemoryTable(model, on).needs(table).fits)
    results = PlanSimulator(model, on).run([table.plan(row) for row in range(len(table))])
    ranks = {
        (rounded(simulated.step_time_s), simulated.needed_memory_bytes, plan_key(table.plan(row))): row
        for row, simulated in enumerate(results)
        if simulated.fits
    }
    assert len(ranks) > 10
    winner = ranks[min(ranks)]
    assert result.best is not None and result.search.complete
    assert result.best.plan == table.plan(winner)
    assert result.best.step_time_s == results[winner].step_time_s
    assert result.search.simulations < len(ranks)
    assert result.feasible >= len(ranks)


@cache
def searched() -> tuple[Model, PlanTable, Bounds]:
    """A model with experts, plans of a search for it, and their bounds."""
    model, plan = last_layers("deepseek-v2-lite", 4), Plan(16, gbs=64, seq_len=2048)
    axes = {"mbs": "1,2", "cp": "1,2", "recompute": "none,full:1,full", "tp": "1,4", "offload_optimizer": "off"}
    table = space_of(model, plan, machine().needed_cluster(), axes).enumerate().table
    table = table.select(np.arange(0, len(table), 1 + len(table) // 60))
    return model, table, ClosedForm(model, machine()).bounds(table)


@settings(deadline=None, max_examples=2)
@given(randoms, st.integers(1, 5))
def test_bounds_have_the_same_bits_in_any_order_and_division(random: Random, parts: int) -> None:
    model, table, whole = searched()
    rows = list(range(len(table)))
    random.shuffle(rows)
    closed_form = ClosedForm(model, machine())
    for part in np.array_split(np.array(rows), parts):
        bounds = closed_form.bounds(table.select(part))
        assert np.array_equal(bounds.bound_s, whole.bound_s[part])
        assert np.array_equal(bounds.estimate_s, whole.estimate_s[part])


def test_a_search_of_plans_in_another_order_has_the_same_result() -> None:
    preset, layers, plan, axes = PROBLEMS["dense"]
    turned = {name: ",".join(reversed(text.split(","))) for name, text in axes.items()}
    request, other = PlanRequest(plan, axes), PlanRequest(plan, dict(reversed(turned.items())))
    first, second = (search(last_layers(preset, layers), machine(), each) for each in (request, other))
    assert first.best is not None and second.best is not None
    # Draws of price errors are numbered by rows.
    assert first.best == replace(second.best, wins=first.best.wins, ties=first.best.ties)
    assert first.search == replace(second.search, simulations=first.search.simulations)
    assert (first.searched, first.distinct, first.feasible) == (second.searched, second.distinct, second.feasible)
    assert dict(first.rejected) == dict(second.rejected)


@pytest.mark.parametrize(
    ("plan", "axes", "code"),
    [
        (Plan(7, gbs=7), {"tp": "2"}, "no-plans"),
        (Plan(8, gbs=8), {"tp": "8", "pp": "8"}, "no-plans"),
        (Plan(8, gbs=1), {"tp": "1", "pp": "1", "cp": "1"}, "no-plans"),
        (Plan(8, gbs=8, seq_len=10**12), {}, None),
        (Plan(8, gbs=8), {"mbs": "0"}, None),
        (Plan(8, gbs=8), {"mbs": "-1"}, None),
        (Plan(8, gbs=8), {"schedule": "nosuch"}, None),
        (Plan(8, gbs=8), {"tp": "1..0"}, None),
        (Plan(8, gbs=8), {"vpp": "100000000000"}, None),
        (Plan(8, gbs=8), {"ep": "4"}, None),
    ],
)
def test_absurd_requests_are_refused(plan: Plan, axes: dict[str, str], code: str | None) -> None:
    with pytest.raises(InputError) as refused:
        search(last_layers("llama3.2-1b", 2), machine(), PlanRequest(plan, axes))
    assert code in (None, refused.value.code)
