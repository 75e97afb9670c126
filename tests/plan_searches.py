"""Results of searches for plans, written by hand."""

from __future__ import annotations

from dataclasses import replace

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.model.options import plan_options
from foretrace.search.planner.request import PlanRequest
from foretrace.search.planner.result import NearMiss, PlanDifference, PlanSearch, RankedPlan, SearchProof
from foretrace.workload.plan import Plan

GIB = 1 << 30
CAPACITY = 79 * GIB
BASE = Plan(gpus=256, gbs=1024, seq_len=8192)
REQUEST = PlanRequest(BASE, {"tp": "4,8"})
SCRIPT = "#!/bin/bash\ntorchrun pretrain_gpt.py --tensor-model-parallel-size 4 " + "--a-long-option with-a-value " * 8


def ranked(step_s: float, gib: float, plan: Plan, **others: object) -> RankedPlan:
    """A plan of 256 GPUs with its step and the memory that it needs."""
    needed = int(gib * GIB)
    values: dict[str, object] = {
        "evidence": "simulated",
        "bound_s": 0.99 * step_s,
        "peak_memory_bytes": needed - 2 * GIB,
        "tokens_per_s_per_gpu": 1024 * 8192 / 256 / step_s,
        **others,
    }
    return RankedPlan(
        plan,
        plan_options(plan),
        step_s,
        needed_memory_bytes=needed,
        headroom_bytes=CAPACITY - needed,
        **values,  # type: ignore[arg-type]
    )


BEST = ranked(9.41, 71.2, replace(BASE, tp=4, pp=4, vpp=5, zero=1, recompute="selective"), wins=0.83)
SECOND = ranked(9.52, 64.0, replace(BASE, tp=8, pp=2, zero=1, recompute="selective"), wins=0.11, ties=0.4)
THIRD = ranked(9.9, 75.5, replace(BASE, tp=8, pp=4, mbs=2, zero=1, tp_overlap=True), evidence="estimated", wins=0.06)
SMALL = ranked(11.3, 41.0, replace(BASE, tp=8, pp=8, zero=1, recompute="full"), evidence="estimated")


def search(**changes: object) -> PlanSearch:
    """A complete search with four plans that are listed."""
    whole = PlanSearch(
        model="llama3-70b",
        cluster="h100-dgx",
        gpus=256,
        gbs=1024,
        seq_len=8192,
        objective="step",
        searched=238_568,
        distinct=18_603,
        feasible=5_432,
        best=BEST,
        plans=(BEST, SECOND, THIRD, SMALL),
        rejected={"out-of-memory": 13_171, "heads divided by tp": 12_439},
        search=SearchProof(True, 9.41, 0.0, 14, 212, "launchable"),
        indistinguishable=(BEST, SECOND, THIRD),
        measure_first=(BEST, SECOND),
        spread=0.08,
        front=(BEST, SECOND, SMALL),
        near_misses=(
            NearMiss("out-of-memory", replace(BASE, tp=2, pp=4), "--tp 2", 8.9, 5 * GIB, "--recompute full"),
            NearMiss("out-of-memory", replace(BASE, tp=4, pp=2), "--tp 4", 9.1, 2 * GIB, "--recompute selective"),
        ),
        why=PlanDifference(SECOND, {"compute": 0.02, "bubble": 0.21, "tp exposed": -0.34, "idle": 1e-9}),
        launch={"megatron-lm": SCRIPT},
        launch_options={
            "tensor-model-parallel-size": 4,
            "sequence-parallel": True,
            "recompute-modules": ("mlp", "moe"),
        },
        diagnostics=(Diagnostic("note", "assumed", "sequence parallelism wherever tp is above 1"),),
        seconds={"bounds": 0.1},
    )
    return replace(whole, **changes)  # type: ignore[arg-type]
