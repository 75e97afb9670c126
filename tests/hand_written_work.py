"""Models of hand-written work, so that what is assembled can be told apart from what layers do.

Every kernel is a stream of so many bytes, and takes as many nanoseconds; communication takes what a test says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from foretrace.models.model import Experts, Layer, Mlp, Model, SelfAttention
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Stream
from foretrace.program.program import Program
from foretrace.step import build_step
from foretrace.step.spec import Call, Compute, Item, Work
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from foretrace.workload.stack import Stack
from foretrace.workload.step_spec import WORKSPACE_BYTES, ModelWorks, step_spec

STACK = Stack(
    name="by hand",
    title="by hand",
    attention="cudnn",
    norm="fused",
    pointwise="fused",
    rope="fused",
    loss="fused",
    master_weights=True,
    parameter_dtype="bf16",
    gradient_dtype="fp32",
    optimizer_state_dtype="fp32",
    fused_gradient_accumulation=True,
    sequence_parallel=True,
    zero=1,
    grad_overlap=True,
    param_overlap=True,
    hides_tp_backward=True,
    launch_s=0.0,
    padded_vocab=1,
)
PARAMETERS, EXPERT_PARAMETERS = 50_000_000, 80_000_000
SAVED, RECOMPUTED, SENT = 1000, 300, 64
WORKSPACES = 3 * WORKSPACE_BYTES
"""Two of cuBLAS, one of Transformer Engine."""
FORWARD, INPUT, WEIGHT = 1000, 700, 400
"""Nanoseconds of a layer's computation by phase, where no experts are."""


def model(layers: int, *, experts: int = 0, **facts: Any) -> Model:
    """So many equal layers."""
    mlp = Mlp(64, True, "silu")
    layer = Layer(SelfAttention(8, 8, 8), Experts(experts, 2, mlp) if experts else mlp)
    return Model("by hand", 64, (layer,) * layers, 640, "rmsnorm", facts.pop("tied", False), seq_len=128, **facts)


def compute(name: str, phase: Phase, ns: int, **facts: Any) -> Compute:
    """A kernel that takes so many nanoseconds."""
    return Compute(name, phase, ((1, Stream(name, ns, 0)),), **facts)


def call(name: str, phase: Phase, what: Collective, axis: Any = "tp", **facts: Any) -> Call:
    """A collective of a kilobyte."""
    return Call(name, phase, what, axis, facts.pop("bytes", 1024), **facts)


def layer_work(*, experts: bool = False, recompute: bool = False, syncs: bool = False) -> Work:
    """A layer under tensor and sequence parallelism, with experts or not."""
    forward: list[Item] = [
        compute("norm", Phase.FORWARD, 100),
        call("gather", Phase.FORWARD, Collective.ALL_GATHER),
        compute("up", Phase.FORWARD, 500, syncs_host=syncs),
        compute("down", Phase.FORWARD, 400, temporary_bytes=77),
        call("scatter", Phase.FORWARD, Collective.REDUCE_SCATTER),
    ]
    backward: list[Item] = [
        compute("down input", Phase.BACKWARD_INPUT, 300),
        compute("down weight", Phase.BACKWARD_WEIGHT, 200),
        compute("up input", Phase.BACKWARD_INPUT, 400),
        call("scatter gradient", Phase.BACKWARD_INPUT, Collective.REDUCE_SCATTER, concurrent="next"),
        compute("up weight", Phase.BACKWARD_WEIGHT, 200),
    ]
    if experts:
        forward += [
            call("dispatch", Phase.FORWARD, Collective.ALL_TO_ALL, "ep"),
            compute("experts", Phase.FORWARD, 600),
            call("combine", Phase.FORWARD, Collective.ALL_TO_ALL, "ep", returns=True),
        ]
        backward = [
            call("combine gradient", Phase.BACKWARD_INPUT, Collective.ALL_TO_ALL, "ep"),
            compute("experts gradient", Phase.BACKWARD_INPUT, 900),
            call("dispatch gradient", Phase.BACKWARD_INPUT, Collective.ALL_TO_ALL, "ep", returns=True),
            *backward,
        ]
    return Work(
        "layer",
        tuple(forward),
        tuple(replace(item, phase=Phase.RECOMPUTE) for item in forward) if recompute else (),
        tuple(backward),
        saved_bytes=SAVED,
        recomputed_bytes=RECOMPUTED if recompute else 0,
        parameters=PARAMETERS,
        expert_parameters=EXPERT_PARAMETERS if experts else 0,
        output_bytes=SENT,
    )


def works(layers: int, *, ends: bool = False, **facts: Any) -> ModelWorks:
    """Layers that are one object, with embedding and head or without."""
    body = (layer_work(**facts),) * layers
    if not ends:
        return ModelWorks(body)
    embedding = Work(
        "embedding",
        (compute("look up", Phase.FORWARD, 50),),
        (),
        (compute("table", Phase.BACKWARD_WEIGHT, 60),),
        saved_bytes=10,
        parameters=7_000_000,
        output_bytes=SENT,
    )
    head = Work(
        "head",
        (compute("logits", Phase.FORWARD, 800),),
        (),
        (compute("logits input", Phase.BACKWARD_INPUT, 800), compute("logits weight", Phase.BACKWARD_WEIGHT, 800)),
        saved_bytes=5000,
        parameters=9_000_000,
    )
    return ModelWorks(body, embedding, head)


def setting_of(layers: int, plan: Plan, *, experts: int = 0, tied: bool = False, **stack: Any) -> Setting:
    """A plan over so many layers, with fields of the stack as given."""
    return settle(model(layers, experts=experts, tied=tied), plan, replace(STACK, **stack))


def assembled(layers: int, plan: Plan, *, detail: Any = "segment", ends: bool = False, **facts: Any) -> Program:
    """The program of such a plan, not priced; `experts` of layers, what `layer_work` takes, and fields of the stack."""
    how = {name: facts.pop(name) for name in ("recompute", "syncs") if name in facts}
    experts = facts.get("experts", 0)
    setting = setting_of(layers, plan, **facts)
    return build_step(step_spec(setting, works(layers, ends=ends, experts=bool(experts), **how)), detail=detail)


def timed(program: Program, *, call_s: float = 0.0, optimizer: bool = False) -> Program:
    """The program with durations: kernels by their bytes, every communication `call_s`, the optimizer none unless
    wanted (its bytes are those of real parameters)."""
    columns = program.templates.columns
    duration = columns["duration_s"].copy()
    communicates, missing = columns["communicator"] >= 0, np.isnan(duration)
    duration[missing & communicates] = call_s
    of_optimizer = columns["phase"] == Phase.OPTIMIZER
    computes = missing & ~communicates
    duration[computes] = columns["moved_bytes"][computes] * (1e-9 * (optimizer | ~of_optimizer[computes]))
    return replace(program, templates=replace(program.templates, columns={**columns, "duration_s": duration}))
