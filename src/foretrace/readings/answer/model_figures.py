"""Figures of a model's step beyond its timeline: FLOPs, utilisation, plan and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretrace.basics.errors import InputError
from foretrace.hardware.cluster import Cluster, Gpu
from foretrace.models.flops import model_flops
from foretrace.program.columns import Kind, Phase
from foretrace.program.kernels import PEAK_OF
from foretrace.program.timeline import Timeline
from foretrace.workload.setting import Setting, settled_plan

if TYPE_CHECKING:
    from foretrace.readings.answer.memory_fit import MemoryFit

BLOCK_SCALED: Final = {"mxfp8": "fp4"}
"""The dtype whose units show that a GPU multiplies with scales of blocks: such units came with those for 4 bits
(Blackwell, CDNA 4). Transformer Engine refuses the recipe elsewhere."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """When the parts of a step end that are timed apart, as durations in seconds; 0 where a part has no ops."""

    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Figures of a model's step. `plan` is the plan with every choice made, as plain values."""

    name: str
    plan: Mapping[str, Any]
    gpus: int
    tokens_per_step: int
    model_flops: float
    """FLOPs of a step of the whole job by the formula; causal attention counts half, recomputation does not count."""
    hardware_flops: float
    """FLOPs that the kernels of a step do in the whole job, recomputation included."""
    peak_flops: float
    """Dense peak of one GPU in the dtype of linear layers, per second."""
    peak_dtype: str
    """The dtype of linear layers, which `peak_flops` is for."""
    memory: MemoryFit
    """The memory of every stage, next to that of a GPU."""
    bf16_peak_flops: float | None = None
    """Dense peak of one GPU in bf16, which utilisations of different precisions compare by; None where linear layers
    run in a dtype that is not faster."""

    def flops_per_s_per_gpu(self, step_time_s: float) -> float:
        """Returns the model's FLOPs by second and GPU."""
        return self.model_flops / step_time_s / self.gpus

    def mfu(self, step_time_s: float) -> float:
        """Returns the model FLOPs utilisation, as a share of the dense peak."""
        return self.flops_per_s_per_gpu(step_time_s) / self.peak_flops

    def mfu_bf16(self, step_time_s: float) -> float | None:
        """Returns the model FLOPs utilisation as a share of bf16's peak; None where the dtype is not faster."""
        return None if self.bf16_peak_flops is None else self.flops_per_s_per_gpu(step_time_s) / self.bf16_peak_flops

    def hfu(self, step_time_s: float) -> float:
        """Returns the hardware FLOPs utilisation, as a share of the dense peak."""
        return self.hardware_flops / (step_time_s * self.gpus * self.peak_flops)


def model_figures(setting: Setting, cluster: Cluster, timeline: Timeline, memory: MemoryFit) -> ModelFigures:
    """Reads off the figures of a model's step that was run."""
    precision = setting.plan.precision
    peak, bf16_peak = peak_flops(cluster.gpu, precision), cluster.gpu.peak_flops.get("bf16")
    return ModelFigures(
        name=setting.model.name,
        plan=settled_plan(setting),
        gpus=setting.plan.gpus,
        tokens_per_step=setting.gbs * setting.seq_len,
        model_flops=setting.gbs * model_flops(setting.model, setting.seq_len, documents=setting.plan.documents),
        hardware_flops=_hardware_flops(timeline),
        peak_flops=peak,
        peak_dtype=PEAK_OF.get(precision, precision),
        memory=memory,
        bf16_peak_flops=bf16_peak if bf16_peak is not None and bf16_peak < peak else None,
    )


def peak_flops(gpu: Gpu, precision: str) -> float:
    """Returns the dense peak of a GPU for linear layers of a precision; an error where it has no such units."""
    dtype = PEAK_OF.get(precision, precision)
    if dtype not in gpu.peak_flops or BLOCK_SCALED.get(precision, dtype) not in gpu.peak_flops:
        raise InputError(
            "unsupported-precision",
            f"{gpu.title} has no {precision if dtype in gpu.peak_flops else dtype} units",
            where=f"precision {precision}",
            hint=f"it has {', '.join(gpu.peak_flops)}",
        )
    return gpu.peak_flops[dtype]


def step_parts(timeline: Timeline) -> StepParts:
    """Returns the parts of a step by when the last compute op of each ends, one after the other."""
    graph = timeline.graph
    computes = graph.ops.ints("kind")[graph.op] == Kind.COMPUTE
    phase = graph.ops.ints("phase")[graph.op]
    if not computes.any():
        return StepParts(0.0, 0.0, 0.0)
    start = float(timeline.start_s[computes].min())

    def end(*phases: Phase) -> float:
        chosen = computes & np.isin(phase, phases)
        return float(timeline.end_s[chosen].max()) if chosen.any() else start

    forward = end(Phase.FORWARD)
    backward = max(end(Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE), forward)
    return StepParts(forward - start, backward - forward, max(end(Phase.OPTIMIZER) - backward, 0.0))


def _hardware_flops(timeline: Timeline) -> float:
    ops, program = timeline.graph.ops, timeline.graph.program
    flops = ops.floats("flops")
    done = flops if ops.all_enabled else np.where(ops.column("enabled") != 0, flops, 0.0)
    ends, ranks = ops.start.tolist(), np.bincount(program.role_of, minlength=len(program.roles)).tolist()
    return float(sum(count * float(done[ends[role] : ends[role + 1]].sum()) for role, count in enumerate(ranks)))
