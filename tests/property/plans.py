"""Draws random models and the plans by which they are trained: plans that run, and plans of any kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from hypothesis import assume
from hypothesis import strategies as st

import foretrace
from foretrace import Answer, ForetraceError, Model, Plan, load_model, simulate
from foretrace.workload.plan import WORDS
from foretrace.workload.stacks import STACKS
from foretrace.workload.stacks import stack as named_stack
from property.machines import Hardware

DENSE: Final = ("gpt2", "llama3.2-1b", "llama3-8b", "qwen2.5-1.5b", "mpt-1b")
MOE: Final = ("mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b")
SCHEDULES: Final = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v")
PLANNED_STACKS: Final = (
    *("megatron-core", "megatron-core@0.14", "megatron-bridge@26.06"),
    *("fsdp", "fsdp-compile@2025-10", "megatron-2021"),
)
MAX_GPUS: Final = 64


@dataclass(frozen=True)
class PlannedModel:
    """The last `layers` layers of a model, and a plan for them."""

    name: str
    layers: int
    plan: Plan

    def __repr__(self) -> str:
        default = Plan(gpus=self.plan.gpus)
        fields = {name: getattr(self.plan, name) for name in Plan.__dataclass_fields__}
        changed = ", ".join(
            f"{name}={field!r}" for name, field in fields.items() if name == "gpus" or field != getattr(default, name)
        )
        return f"{self.name}[-{self.layers}:] Plan({changed})"

    @property
    def model(self) -> Model:
        """The model with the layers that are trained."""
        return last_layers(self.name, self.layers)

    def answer(self, hardware: Hardware, *, overlap_cost: bool = True, explain: bool = False) -> Answer:
        """Returns the prediction, whether or not it fits into memory; rejects an example that is refused."""
        try:
            job = foretrace.model(self.model, self.plan)
            return simulate(job, hardware.machine(overlap_cost=overlap_cost), explain=explain, even_if_oom=True)
        except ForetraceError:
            assume(False)
            raise

    def with_microbatches(self, count: int) -> PlannedModel:
        """Returns the same with `count` microbatches in a step."""
        plan = self.plan
        dp = plan.gpus // (plan.tp * plan.cp * plan.pp)
        return replace(self, plan=replace(plan, gbs=plan.mbs * dp * count))


@cache
def last_layers(name: str, count: int) -> Model:
    """Returns a model of the last layers of another: these hold its experts."""
    whole = load_model(name)
    return replace(whole, layers=whole.layers[-count:])


def _modules(recompute: str, stack: str) -> st.SearchStrategy[tuple[str, ...] | None]:
    """Draws the parts of a layer that are recomputed, as far as the stack has them."""
    known = named_stack(stack).recompute_modules if recompute == "selective" else ()
    return st.sets(st.sampled_from(known)).map(lambda names: tuple(sorted(names)) or None) if known else st.none()


@st.composite
def planned_models(draw: st.DrawFn) -> PlannedModel:
    """Draws a model and a plan for it, nearly all of which run."""
    name = draw(st.sampled_from((*DENSE, *MOE)))
    stack = draw(st.sampled_from(PLANNED_STACKS))
    tp, cp, pp, dp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 1, 2), (1, 1, 2, 4), (1, 2, 4, 8)))
    assume(tp * cp * pp * dp <= MAX_GPUS)
    schedule = draw(st.sampled_from((None, None, "zb-h1"))) if pp > 1 else None
    vpp = draw(st.sampled_from((1, 2))) if pp > 1 and schedule is None else 1
    mbs = draw(st.sampled_from((1, 2)))
    recompute = draw(st.sampled_from(("none", "none", "selective", "full")))
    plan = Plan(
        gpus=tp * cp * pp * dp,
        mbs=mbs,
        gbs=mbs * dp * pp * draw(st.sampled_from((2, 4))),
        seq_len=draw(st.sampled_from((1024, 4096))),
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        ep=draw(st.sampled_from((1, 2, 4))) if name in MOE else 1,
        zero=3 if stack.startswith("fsdp") else draw(st.sampled_from((0, 1, 2, 3))),
        reshard=draw(st.booleans()),
        prefetch=draw(st.sampled_from((1, 2))),
        recompute=recompute,
        recompute_modules=draw(_modules(recompute, stack)),
        precision=draw(st.sampled_from(("bf16", "bf16", "fp8"))),
        grad_overlap=draw(st.sampled_from((None, True, False))),
        param_overlap=draw(st.sampled_from((None, True, False))),
        tp_overlap=draw(st.sampled_from((False, False, True))),
        moe_overlap=draw(st.sampled_from((False, False, True))),
        pp_overlap=draw(st.booleans()),
        cuda_graphs=draw(st.sampled_from(("none", "none", "router", "partial", "full", "full"))),
        dispatcher=draw(st.sampled_from(("alltoall", "alltoall", "deepep", "hybridep"))) if name in MOE else "alltoall",
        stack=stack,
    )
    return PlannedModel(name, draw(st.sampled_from((4, 8))), plan)


@st.composite
def any_plans(draw: st.DrawFn) -> PlannedModel:
    """Draws a model and a plan of any kind, most of which no framework runs."""
    sizes = st.sampled_from((1, 1, 2, 3, 4, 5, 8, 16))
    plan = Plan(
        gpus=draw(st.sampled_from((1, 2, 6, 8, 12, 16, 24, 32, 64, 72))),
        mbs=draw(st.sampled_from((1, 2, 3))),
        gbs=draw(st.sampled_from((None, 1, 7, 8, 16, 48, 64))),
        seq_len=draw(st.sampled_from((None, 1, 7, 1000, 1024, 4096))),
        tp=draw(sizes),
        sequence_parallel=draw(st.sampled_from((None, True, False))),
        cp=draw(st.sampled_from((1, 1, 1, 2, 3, 4))),
        cp_comm=draw(st.sampled_from(WORDS["cp_comm"])),
        pp=draw(st.sampled_from((1, 1, 2, 3, 4, 9))),
        vpp=draw(st.sampled_from((1, 1, 2, 3))),
        stage_layers=draw(st.sampled_from((None, None, None, (2, 2), (0, 4), (1, 3, 2, 2)))),
        schedule=draw(st.sampled_from((None, None, *SCHEDULES))),
        ep=draw(st.sampled_from((1, 1, 2, 3, 8, 64))),
        etp=draw(st.sampled_from((1, 1, 1, 2, 3))),
        zero=draw(st.sampled_from((None, 0, 1, 2, 3))),
        shard=draw(st.sampled_from((None, None, None, 1, 2, 3, 8))),
        reshard=draw(st.booleans()),
        prefetch=draw(st.sampled_from((0, 1, 5))),
        recompute=draw(st.sampled_from(WORDS["recompute"])),
        recompute_layers=draw(st.sampled_from((None, None, 0, 1, 99))),
        recompute_modules=draw(st.sampled_from((None, None, ("core_attn",), ("moe_act", "layernorm"), ("moe", "mlp")))),
        offload_modules=draw(st.sampled_from(((), (), ("attn_proj",), ("core_attn", "moe_act"), ("expert_fc1",)))),
        fp8_activation_input=draw(st.sampled_from((False, False, True))),
        precision=draw(st.sampled_from(WORDS["precision"])),
        grad_overlap=draw(st.sampled_from((None, True, False))),
        param_overlap=draw(st.sampled_from((None, True, False))),
        tp_overlap=draw(st.booleans()),
        moe_overlap=draw(st.booleans()),
        pp_overlap=draw(st.booleans()),
        cuda_graphs=draw(st.sampled_from(WORDS["cuda_graphs"])),
        offload_optimizer=draw(st.booleans()),
        offload_layers=draw(st.sampled_from((0, 0, 1, 99))),
        documents=draw(st.sampled_from((None, None, None, (512, 512), (1000, 24)))),
        routing=draw(st.sampled_from((None, 1.0, 1.5, (1.0, 2.0, 1.0, 1.0)))),
        stack=draw(st.sampled_from((None, *STACKS))),
        dispatcher=draw(st.sampled_from(WORDS["dispatcher"])),
    )
    return PlannedModel(draw(st.sampled_from((*DENSE, *MOE))), draw(st.sampled_from((4, 8))), plan)
