"""Memory in columns is to the byte what the memory of each plan is by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Final

import numpy as np
import pytest

import foretrace
from foretrace import ForetraceError, Machine, Model, Plan, load_model, simulate
from foretrace.schedules.registry import names
from foretrace.search.planner.memory.memory_forms import STEADY_MICROBATCHES, steady_microbatches
from foretrace.search.planner.memory.memory_table import MemoryColumns, MemoryTable
from foretrace.search.planner.plan_table import PlanTable
from foretrace.simulation.job_memory import static_memory
from foretrace.step.memory import stage_peaks
from foretrace.workload.constraints import broken
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec

LAYERS: Final = {"gpt3-175b": 24, "llama3-70b": 16, "llama3.1-405b": 14, "mixtral-8x7b": 8, "deepseek-v3": 13}
"""How many layers of each model there are here: the first ones, for DeepSeek has dense layers only there."""

BASES: Final = (
    ("gpt3-175b", Plan(gpus=64, tp=2, pp=4, vpp=3, gbs=64, zero=1)),
    ("llama3-70b", Plan(gpus=32, tp=2, pp=4, gbs=96, zero=2, recompute="full", recompute_layers=2)),
    ("llama3-70b", Plan(gpus=16, tp=2, gbs=16, zero=3)),
    ("llama3.1-405b", Plan(gpus=32, tp=4, pp=4, gbs=12, schedule="zb-h1", zero=1, account_for=("embedding", "loss"))),
    ("mixtral-8x7b", Plan(gpus=32, tp=2, pp=2, ep=4, gbs=64, zero=1, stack="fsdp", offload_layers=1)),
    ("mixtral-8x7b", Plan(gpus=32, tp=2, cp=2, ep=4, gbs=64, dispatcher="hybridep", tp_overlap=True, precision="fp8")),
    ("deepseek-v3", Plan(gpus=64, tp=2, pp=2, ep=8, gbs=64, zero=2, recompute="selective")),
)
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "gpus": (128,),
    "mbs": (2, 4),
    "gbs": (16, 128, 960),
    "seq_len": (2048,),
    "tp": (1, 4, 8),
    "sequence_parallel": (False,),
    "cp": (2,),
    "cp_comm": ("a2a", "all_gather"),
    "pp": (1, 2, 8),
    "vpp": (1, 2),
    "stage_layers": ((3, 5, 5, 3), (2, 14), (3, 10)),
    "layout": ("Ettt|t*5|t*5|tttL", "Et*4|t*4L"),
    "first_stage_layers": (3,),
    "last_stage_layers": (2,),
    "account_for": (None, ("loss",)),
    "schedule": names(),
    "ep": (1, 2, 32),
    "etp": (2,),
    "rank_order": ("tp-cp-ep-pp-dp",),
    "zero": (0, 1, 2, 3),
    "shard": (4,),
    "reshard": (False,),
    "prefetch": (0, 2),
    "recompute": ("none", "selective", "full"),
    "recompute_layers": (None, 1, 3),
    "recompute_modules": (("mlp",), ("mla_up_proj", "moe_act")),
    "precision": ("fp8", "mxfp8", "fp32"),
    "grad_dtype": ("bf16",),
    "master_dtype": ("fp16",),
    "moment_dtype": ("bf16",),
    "fp8_params": (True,),
    "fp8_activation_input": (True,),
    "grad_overlap": (False,),
    "tp_overlap": (True,),
    "moe_overlap": (True,),
    "pp_overlap": (True,),
    "cuda_graphs": ("full",),
    "offload_optimizer": (True,),
    "offload_layers": (0, 2, 40),
    "offload_modules": (("core_attn",), ("qkv_linear", "mlp_norm")),
    "documents": ((1024, 1024),),
    "routing": (1.5,),
    "stack": ("megatron-core", "megatron-2021", "fsdp", "torch-eager"),
    "dispatcher": ("alltoall", "deepep", "hybridep"),
}


@cache
def small(name: str) -> Model:
    """Returns the first layers of a model."""
    model = load_model(name)
    return replace(model, layers=model.layers[: LAYERS[name]])


@cache
def machine() -> Machine:
    return Machine("h100-dgx")


@cache
def setting_of(name: str, plan: Plan) -> Setting | None:
    """Returns the setting of a plan; None where it is not allowed."""
    if any(broken(PlanSizes.of(small(name), plan))):  # without the search for plans near it
        return None
    try:
        return settle(small(name), plan)
    except ForetraceError:
        return None


def assert_equal(name: str, plans: list[Plan], columns: MemoryColumns) -> None:
    for row, plan in enumerate(plans):
        setting = setting_of(name, plan)
        assert setting is not None
        fit = static_memory(setting, machine())
        expected = (fit.peak_bytes, fit.needed_bytes, fit.fits, not setting.splits_parameters)
        got = (columns.peak_bytes[row], columns.needed_bytes[row], columns.fits[row], columns.exact[row])
        assert got == expected, plan


@pytest.mark.parametrize(("name", "base"), BASES)
def test_plans_that_differ_in_one_field_keep_their_own_memory(name: str, base: Plan) -> None:
    fp8 = replace(base, precision="fp8")  # some fields mean something there only
    changed = [replace(base, **{field: value}) for field, values in VALUES.items() for value in values]
    changed += [replace(fp8, **{field: VALUES[field][0]}) for field in ("fp8_params", "fp8_activation_input")]
    plans = [plan for plan in dict.fromkeys((base, fp8, *changed)) if setting_of(name, plan)]
    assert len(plans) > 30
    assert_equal(name, plans, MemoryTable(small(name), machine()).needs(PlanTable.of(plans)))


@pytest.mark.parametrize(("name", "base"), BASES)
def test_a_table_keeps_what_it_has_found_for_other_plans(name: str, base: Plan) -> None:
    random = Random(name + str(base.zero))
    plans: list[Plan] = []
    while len(plans) < 12:
        fields = random.sample(list(VALUES), 4)
        plan = replace(base, **{field: random.choice(VALUES[field]) for field in fields})
        plans += [plan] if setting_of(name, plan) else []
    memory = MemoryTable(small(name), machine())
    memory.needs(PlanTable.of(plans[::-3]))
    rows = np.array([*range(len(plans)), 3, 3, 0])
    again = memory.needs(PlanTable.of(plans).select(rows))
    assert_equal(name, [plans[row] for row in rows], again)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(gpus=16, tp=2, pp=4, vpp=2, gbs=32, zero=1),
        Plan(gpus=8, pp=4, gbs=24, schedule="zb-v", zero=0, recompute="selective"),
        Plan(gpus=8, tp=2, pp=4, gbs=12, schedule="dualpipe", mbs=1),
        Plan(gpus=8, pp=2, gbs=16, offload_layers=2, zero=2),
    ],
)
def test_the_peak_is_that_of_a_simulated_step(plan: Plan) -> None:
    model = small("llama3-70b")
    answer = simulate(foretrace.model(model, plan), machine(), explain=False, even_if_oom=True)
    assert answer.model is not None
    columns = MemoryTable(model, machine()).needs(PlanTable.of([plan]))
    assert columns.peak_bytes.tolist() == [answer.model.memory.peak_bytes]
    assert columns.exact.all()


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("schedule", STEADY_MICROBATCHES)
def test_more_microbatches_than_a_schedule_repeats_need_no_more_memory(schedule: str, zero: int) -> None:
    for pp in (2, 4):
        vpp = 2 if schedule.startswith("interleaved") else 1
        steady = steady_microbatches(schedule, pp, 1000)
        peaks = []
        for count in (steady, steady + pp, steady + 2 * pp, 9 * pp):
            plan = Plan(gpus=2 * pp, pp=pp, vpp=vpp, schedule=schedule, gbs=2 * count, zero=zero, stack="fsdp")
            if setting := setting_of("gpt3-175b", plan):
                peaks.append([peak.peak_bytes for peak in stage_peaks(step_spec(setting))])
        assert len(peaks) > 1 and all(peak == peaks[0] for peak in peaks)


def test_schedules_that_do_not_repeat_keep_their_microbatches() -> None:
    assert steady_microbatches("gpipe", 4, 1000) == 1000
    assert steady_microbatches("1f1b", 4, 3) == 3


def test_no_plans_need_nothing() -> None:
    table = PlanTable.of([Plan(gpus=8)]).select(np.zeros(1, dtype=bool))
    columns = MemoryTable(small("gpt3-175b"), machine()).needs(table)
    assert not len(columns.peak_bytes) and not len(columns.fits)
