"""Predictions as a screen and as JSON: those of a simulation, with what only a model's step has."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from foretrace.analysis.predict import Prediction
from foretrace.report.json import simulation_json
from foretrace.report.terminal import ModelFacts, print_simulation

if TYPE_CHECKING:
    from foretrace.analysis.memory_fit import MemoryFit
    from foretrace.workload.setting import Setting

PREDICTION_SCHEMA = "foretrace.prediction/1"
_SEE = "--json · --perfetto out.pftrace · --what-if compute=1.1x · foretrace memory, with the same options"


def print_prediction(prediction: Prediction, stream: TextIO | None = None) -> None:
    """The screen of a prediction."""
    facts = ModelFacts(
        prediction.model_flops_per_s_per_gpu,
        prediction.mfu,
        prediction.hfu,
        prediction.peak_flops,
        prediction.peak_dtype,
        prediction.memory.capacity_bytes,
    )
    print_simulation(prediction.simulation, stream, facts, _SEE)


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The whole answer: a simulation's keys, and the model's."""
    setting = prediction.setting
    return {
        **simulation_json(prediction.simulation),
        "schema": PREDICTION_SCHEMA,
        "model": setting.model.name,
        "plan": plan_json(setting),
        "tokens_per_s_per_gpu": prediction.tokens_per_s_per_gpu,
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "model_flops": prediction.model_flops,
        "hardware_flops": prediction.hardware_flops,
        "peak_flops_per_s": prediction.peak_flops,
        "peak_dtype": prediction.peak_dtype,
        "model_flops_per_s_per_gpu": prediction.model_flops_per_s_per_gpu,
        "memory": memory_fit_json(prediction.memory),
    }


def plan_json(setting: Setting) -> dict[str, Any]:
    """A plan with every choice made."""
    return {
        **asdict(setting.plan),
        "dp": setting.dp,
        "gbs": setting.gbs,
        "seq_len": setting.seq_len,
        "microbatches": setting.microbatches,
        "sequence_parallel": setting.sequence_parallel,
        "zero": setting.zero,
        "shard": setting.shard,
        "grad_overlap": setting.grad_overlap,
        "param_overlap": setting.param_overlap,
        "schedule": setting.schedule,
        "stack": setting.stack.name,
        "padded_vocab": setting.vocab,
    }


def memory_fit_json(memory: MemoryFit) -> dict[str, Any]:
    """What each stage holds beside what a GPU has, in bytes."""
    return {
        "peak_bytes": memory.peak_bytes,
        "overhead_bytes": memory.overhead_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "fits": memory.fits,
        "stages": [
            {
                "role": stage.role,
                "ranks": stage.ranks,
                "peak_bytes": stage.peak_bytes,
                "by_category_bytes": stage.by_category,
            }
            for stage in memory.stages
        ],
    }
