"""Small searches from request to result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.calibration import Calibration, MadeOf
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.kernel_profile import KernelProfile
from foretrace.cost.machine import Machine
from foretrace.hardware.presets import gpu
from foretrace.models.model import Model
from foretrace.models.presets import model as preset
from foretrace.program.kernels import Gemm
from foretrace.search.planner import search as planner
from foretrace.search.planner.closed_form import Bounds, ClosedForm
from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.request import PlanRequest
from foretrace.search.planner.result import OUT_OF_MEMORY, PlanSearch
from foretrace.search.planner.search import search_plans
from foretrace.search.planner.simulator import PlanSimulator, SimulatedPlan
from foretrace.search.progress import SearchedPlans
from foretrace.workload.plan import Plan

PLAN = Plan(8, gbs=16, seq_len=2048)
AXES = {"mbs": "1,2", "cp": "1", "vpp": "1", "zero": "0,1", "offload_optimizer": "off", "recompute": "none,full"}


class Silence:
    """Shows nothing of a search, and remembers its parts."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def begin(self, what: str, _count: int) -> None:
        self.parts.append(what)

    def reach(self, done: int, place: str = "", best: str = "") -> None: ...

    def show(self, plans: Callable[[], SearchedPlans]) -> None: ...


class Watching(Silence):
    """Remembers what a search has found."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[SearchedPlans] = []

    def show(self, plans: Callable[[], SearchedPlans]) -> None:
        self.found.append(plans())


@cache
def model(layers: int = 4, name: str = "llama3-8b") -> Model:
    whole = preset(name)
    return replace(whole, layers=whole.layers[:layers])


@cache
def machine() -> Machine:
    return Machine("h100-dgx")


def search(request: PlanRequest, of: Model | None = None) -> PlanSearch:
    return search_plans(of or model(), machine(), request, progress=Silence())


@cache
def plain() -> PlanSearch:
    return search(PlanRequest(PLAN, AXES))


def test_counts_add_up() -> None:
    result = plain()
    rejected = sum(count for reason, count in result.rejected.items() if reason != OUT_OF_MEMORY)
    assert result.distinct <= result.searched - rejected
    assert result.feasible == result.distinct - result.rejected.get(OUT_OF_MEMORY, 0) > 0
    assert (result.gpus, result.gbs, result.seq_len) == (8, 16, 2048)


def test_the_best_plan_is_simulated_and_listed_first() -> None:
    result = plain()
    best = result.best
    assert best is not None and best.evidence == "simulated"
    assert result.plans[0] == best and result.indistinguishable[0] == best and result.measure_first[0] == best
    assert len(result.plans) <= 10
    steps = [plan.step_time_s for plan in result.plans]
    assert steps == sorted(steps)
    answer = PlanSimulator(model(), machine()).answer(best.plan)
    assert answer.model is not None
    assert best.step_time_s == answer.step_time_s
    assert best.peak_memory_bytes == answer.model.memory.peak_bytes
    assert best.needed_memory_bytes == answer.model.memory.needed_bytes
    assert best.tokens_per_s_per_gpu == pytest.approx(16 * 2048 / 8 / best.step_time_s)


def test_a_running_search_shows_estimates_before_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "FIRST_ROWS", 4)
    monkeypatch.setattr(planner, "SLICE_S", 0.0)
    monkeypatch.setattr(planner, "MAX_SHOWN", 3)
    progress = Watching()
    result = search_plans(model(), machine(), PlanRequest(PLAN, AXES), progress=progress)
    assert result == replace(plain(), seconds=result.seconds)  # slices change nothing
    estimated = [found.estimated for found in progress.found]
    assert estimated[0] == 4 and estimated == sorted(estimated) and estimated[-1] == result.feasible
    assert progress.found[0].simulated == 0 and progress.found[-1].simulated == result.search.simulations
    for found in progress.found:
        assert 1 <= len(found.front) <= 3 and len(found.others) <= 3
        steps = [plan.step_time_s for plan in found.front]
        needs = [plan.needed_memory_bytes for plan in found.front]
        assert steps == sorted(steps) and needs == sorted(needs, reverse=True)
    best = progress.found[-1].front[0]
    assert result.best is not None and best.is_simulated and best.step_time_s == result.best.step_time_s


def test_an_interrupt_while_plans_are_bounded_keeps_the_best_of_the_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "FIRST_ROWS", 4)
    bounds, tables = ClosedForm.bounds, list[PlanTable]()

    def interrupted(form: ClosedForm, table: PlanTable) -> Bounds:
        tables.append(table)
        if len(tables) == 2:
            raise KeyboardInterrupt
        return bounds(form, table)

    monkeypatch.setattr(ClosedForm, "bounds", interrupted)
    result = search(PlanRequest(PLAN, AXES))
    assert result.search.stopped_by == "interrupt" and not result.search.complete
    assert result.best is not None and result.search.simulations == 1
    assert result.best.plan in [tables[0].plan(row) for row in range(4)]
    assert result.feasible == plain().feasible
    assert result.search.undecided >= result.feasible - 4 and result.search.lower_bound_s == 0


def test_a_complete_search_has_no_gap() -> None:
    proof, best = plain().search, plain().best
    assert best is not None
    assert proof.complete and proof.gap == 0 and proof.undecided == 0 and proof.stopped_by is None
    assert proof.lower_bound_s == pytest.approx(best.step_time_s, rel=1e-8)
    assert 1 <= proof.simulations < plain().feasible


def test_the_difference_of_two_plans_adds_up_to_that_of_their_steps() -> None:
    why, best = plain().why, plain().best
    assert why is not None and best is not None
    assert sum(why.parts_s.values()) == pytest.approx(best.step_time_s - why.runner_up.step_time_s, abs=1e-9)


def test_a_gap_leaves_plans_undecided_and_says_so() -> None:
    result = search(PlanRequest(PLAN, AXES, gap=0.5))
    assert result.search.simulations == 1
    assert result.search.complete and result.search.stopped_by == "gap"
    assert result.search.undecided > 0 and 0 < result.search.gap <= 0.5


def test_a_time_limit_still_gives_a_plan() -> None:
    result = search(PlanRequest(PLAN, AXES, time_s=1e-9))
    assert result.best is not None and result.search.simulations == 1
    assert result.search.stopped_by == "time" and not result.search.complete
    assert result.search.lower_bound_s is not None and result.search.lower_bound_s < result.best.step_time_s


def test_where_nothing_fits_there_is_no_best_and_a_near_miss() -> None:
    request = PlanRequest(replace(PLAN, gpus=1, gbs=1), {**AXES, "mbs": "1"})
    result = search(request, preset("llama3-70b"))
    assert result.best is None and not result.plans and result.feasible == 0
    assert result.rejected[OUT_OF_MEMORY] == result.distinct
    assert result.near_misses
    for miss in result.near_misses:
        answer = PlanSimulator(preset("llama3-70b"), machine()).answer(miss.plan)
        assert answer.model is not None
        assert miss.short_bytes == answer.model.memory.needed_bytes - answer.model.memory.capacity_bytes > 0


def test_an_interrupt_before_the_first_result_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PlanSimulator, "run", interrupted)
    result = search(PlanRequest(PLAN, AXES))
    assert result.best is None
    assert result.search.stopped_by == "interrupt" and not result.search.complete
    assert result.search.undecided == result.feasible


class Interrupt:
    """Calls a function, but for one call that is interrupted."""

    def __init__(self, function: Callable[..., Any], number: int = 1) -> None:
        self.function, self.number = function, number

    def __call__(self, *arguments: Any) -> Any:
        self.number -= 1
        if self.number == 0:
            raise KeyboardInterrupt
        return self.function(*arguments)


def test_an_interrupt_after_the_last_simulation_keeps_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plain()
    monkeypatch.setattr(planner, "rivals_of", Interrupt(planner.rivals_of))
    result = search(PlanRequest(PLAN, AXES))
    assert result.search == replace(whole.search, stopped_by="interrupt")
    assert result.plans == whole.plans


def test_an_interrupt_before_the_front_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "front_of", Interrupt(planner.front_of))
    result = search(PlanRequest(PLAN, AXES, objective="pareto"))
    assert result.search.stopped_by == "interrupt" and result.best is not None


def test_an_interrupt_keeps_the_numbers_of_gpus_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "space_of", Interrupt(planner.space_of, 2))
    result = search(PlanRequest(PLAN, AXES, gpu_counts=(8, 16)))
    assert result.search.stopped_by == "interrupt"
    assert result.best is not None and result.gpus == 8


def test_the_smallest_cluster_that_meets_a_deadline() -> None:
    assert plain().best is not None
    tokens = 10**9
    step_s = plain().best.step_time_s  # type: ignore[union-attr]
    long_s = tokens / (16 * 2048) * step_s
    request = PlanRequest(PLAN, AXES, gpu_counts=(4, 8, 16), tokens=tokens, deadline_s=1.01 * long_s)
    met = search(request)
    assert met.best is not None and met.gpus == 8
    missed = search(replace(request, deadline_s=long_s / 100))
    assert missed.best is None
    assert [note.code for note in missed.diagnostics] == ["assumed", "deadline-missed"]


def test_sizes_of_a_cluster_that_no_plan_has_are_left_out() -> None:
    request = PlanRequest(PLAN, {**AXES, "tp": "2", "mbs": "1"}, gpu_counts=(7, 8))
    result = search(request)
    assert result.best is not None and result.gpus == 8
    assert [note.code for note in result.diagnostics] == ["assumed", "no-plans"]
    with pytest.raises(InputError):
        search(replace(request, gpu_counts=(5, 7)))


def test_the_largest_batch_that_fits() -> None:
    axes = {**AXES, "tp": "1", "pp": "1", "mbs": "all", "zero": "1", "recompute": "none", "gbs": "8,16,64"}
    result = search(PlanRequest(replace(PLAN, gbs=None), axes, largest="gbs"))
    assert result.best is not None and result.gbs == 64


def test_the_largest_sequence_that_fits() -> None:
    axes = {**AXES, "tp": "8", "pp": "1", "mbs": "1", "zero": "1", "recompute": "none"}
    result = search(PlanRequest(replace(PLAN, gbs=8, seq_len=None), axes, largest="seq"), model(1))
    assert result.best is not None
    with pytest.raises(InputError):
        search(PlanRequest(replace(PLAN, gbs=7, seq_len=None), {**axes, "tp": "1"}, largest="seq"), model(1))


def test_less_memory_is_an_objective() -> None:
    result = search(PlanRequest(PLAN, AXES, objective="memory"))
    assert result.best is not None and plain().best is not None
    assert result.best.needed_memory_bytes <= min(plan.needed_memory_bytes for plan in plain().plans)
    assert result.best.step_time_s >= plain().best.step_time_s  # type: ignore[union-attr]


def test_a_front_is_simulated_where_it_is_asked_for() -> None:
    result = search(PlanRequest(PLAN, AXES, objective="pareto"))
    assert result.best is not None and plain().best is not None
    assert result.best.plan == plain().best.plan
    memory = [plan.needed_memory_bytes for plan in result.front]
    steps = [plan.step_time_s for plan in result.front]
    assert memory == sorted(memory, reverse=True) and steps == sorted(steps)


def test_a_cluster_that_is_too_small_is_refused() -> None:
    small = Machine(replace(machine().needed_cluster(), nodes=1))
    with pytest.raises(InputError, match="cluster-too-small"):
        search_plans(model(), small, PlanRequest(replace(PLAN, gpus=16), AXES), progress=Silence())


def test_parts_of_the_work_are_announced() -> None:
    silence = Silence()
    search_plans(model(), machine(), PlanRequest(PLAN, {**AXES, "tp": "1"}), progress=silence)
    assert len(silence.parts) >= 4 and len(set(silence.parts)) == len(silence.parts)


def test_plans_of_different_batches_are_compared_by_their_tokens() -> None:
    axes = {**AXES, "gbs": "16,64", "recompute": "none"}
    result = search(PlanRequest(replace(PLAN, gbs=None), axes, objective="tokens"))
    rates = [plan.tokens_per_s_per_gpu for plan in result.plans]
    assert result.best is not None and result.best.plan.gbs == 64
    assert rates == sorted(rates, reverse=True)
    assert {plan.plan.gbs for plan in result.plans} == {16, 64}
    assert all(plan.bound_s is not None and plan.bound_s <= plan.step_time_s * (1 + 1e-8) for plan in result.plans)
    assert result.search.lower_bound_s == pytest.approx(result.best.step_time_s, rel=1e-8)
    assert result.best.wins == max(plan.wins for plan in result.plans)


def test_the_smallest_of_plans_of_which_only_limits_are_known_is_not_called_complete() -> None:
    plan, axes = replace(PLAN, stack="fsdp"), {"mbs": "1", "tp": "1", "cp": "1", "pp": "1", "recompute": "none,full"}
    known = search(PlanRequest(plan, {**axes, "recompute": "none"}, objective="memory"))
    assert known.search.complete
    limits = search(PlanRequest(plan, axes, objective="memory"))
    assert limits.best is not None and not limits.search.complete and limits.search.undecided > 0


def test_faster_plans_are_not_rivals_where_memory_decides() -> None:
    result = search(PlanRequest(PLAN, AXES, objective="memory"))
    assert result.best is not None
    assert {plan.needed_memory_bytes for plan in result.indistinguishable} == {result.best.needed_memory_bytes}


def test_the_largest_batch_is_smaller_where_simulations_refute_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PlanSimulator.run

    def refuting(simulator: PlanSimulator, plans: Sequence[Plan]) -> list[SimulatedPlan]:
        results = zip(plans, run(simulator, plans), strict=True)
        return [replace(result, capacity_bytes=0) if plan.gbs == 64 else result for plan, result in results]

    monkeypatch.setattr(PlanSimulator, "run", refuting)
    axes = {**AXES, "tp": "1", "pp": "1", "mbs": "1", "zero": "1", "recompute": "none", "gbs": "8,16,64"}
    result = search(PlanRequest(replace(PLAN, gbs=None), axes, largest="gbs"))
    assert result.best is not None and result.gbs == 16


def test_bounds_hold_where_prices_follow_from_the_clocks_of_a_step() -> None:
    products = tuple(Gemm(m, n, 4096) for m in (2048, 8192) for n in (2048, 8192))
    seconds, unknown = kernel_pricer(gpu("h200-sxm"), prices="model").price(products).duration_s, np.zeros(4)
    profile = KernelProfile({}, products, seconds, seconds, unknown, unknown)
    recorded = MadeOf("step.json.gz", "trace", kernels=4, step_s=0.5, busy=0.95, slower=1.2, products=3, flops=1e14)
    on = Machine("h200-dgx", calibration=Calibration("my.yaml", "h200-sxm", made_of=(recorded,), kernels=profile))
    plan = Plan(1, gbs=2, seq_len=4096)
    bounds = ClosedForm(model(), on).bounds(PlanTable.of([plan]))
    assert 0 < bounds.bound_s[0] <= PlanSimulator(model(), on).answer(plan).step_time_s
    result = search_plans(model(), on, PlanRequest(plan, AXES), progress=Silence())
    assert "loose-bound" in {note.code for note in result.diagnostics}


@pytest.mark.parametrize(("plan", "axes"), [(Plan(8, gbs=10**23), {}), (PLAN, {"mbs": str(10**23)})])
def test_batches_beyond_any_training_are_refused(plan: Plan, axes: dict[str, str]) -> None:
    with pytest.raises(InputError) as refused:
        search(PlanRequest(plan, axes))
    assert refused.value.code == "out-of-range"


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe-v", "zb-v", "gpipe"])
def test_schedules_that_need_many_microbatches_are_searched(schedule: str) -> None:
    axes = {**AXES, "schedule": schedule, "pp": "4", "vpp": "1,2", "tp": "1", "recompute": "none", "mbs": "1"}
    result = search(PlanRequest(replace(PLAN, gbs=32), axes), model(8))
    assert result.best is not None and result.best.plan.schedule == schedule


def test_plans_are_simulated_here_where_processes_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(38, "no shared memory")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refused)
    plans = [PLAN, replace(PLAN, tp=2)]
    with PlanSimulator(model(), machine(), workers=2) as simulator:
        assert simulator.run(plans) == PlanSimulator(model(), machine()).run(plans)
