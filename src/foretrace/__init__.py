"""Foretrace tells how long a training step will take on a cluster you do not have yet, where the time goes, and what to
change.

    import foretrace

    program = foretrace.load("examples/llama405b_1024gpu.txt")
    answer = foretrace.simulate(program, cluster="h100-dgx", what_if={"compute": 1.1})
    print(answer.step_time_s, answer.breakdown.mean_s)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.analysis.answer import Simulation
    from foretrace.analysis.calibration.make import make_calibration
    from foretrace.analysis.network import NetworkAnswer, network
    from foretrace.analysis.predict import Prediction, predict
    from foretrace.analysis.simulate import simulate
    from foretrace.analysis.trace import Trace
    from foretrace.cost.network.nccl.settings import NcclSettings
    from foretrace.errors import ForetraceError
    from foretrace.hardware.cluster import Cluster
    from foretrace.hardware.presets import cluster as load_cluster
    from foretrace.lower.choices import Choices
    from foretrace.lower.load import load
    from foretrace.mesh import Mesh
    from foretrace.models.load import load_model
    from foretrace.models.model import Model
    from foretrace.program.build import ProgramBuilder
    from foretrace.program.file import save
    from foretrace.program.program import Program
    from foretrace.program.timeline import Timeline
    from foretrace.schedules.pipeline import Transfer, pipeline
    from foretrace.schedules.registry import make as schedule
    from foretrace.workload.plan import Plan

__version__ = "0.6.0"

_HOMES = {
    "Choices": ("foretrace.lower.choices", "Choices"),
    "Cluster": ("foretrace.hardware.cluster", "Cluster"),
    "ForetraceError": ("foretrace.errors", "ForetraceError"),
    "Mesh": ("foretrace.mesh", "Mesh"),
    "Model": ("foretrace.models.model", "Model"),
    "NcclSettings": ("foretrace.cost.network.nccl.settings", "NcclSettings"),
    "NetworkAnswer": ("foretrace.analysis.network", "NetworkAnswer"),
    "Plan": ("foretrace.workload.plan", "Plan"),
    "Prediction": ("foretrace.analysis.predict", "Prediction"),
    "Program": ("foretrace.program.program", "Program"),
    "ProgramBuilder": ("foretrace.program.build", "ProgramBuilder"),
    "Simulation": ("foretrace.analysis.answer", "Simulation"),
    "Timeline": ("foretrace.program.timeline", "Timeline"),
    "Trace": ("foretrace.analysis.trace", "Trace"),
    "Transfer": ("foretrace.schedules.pipeline", "Transfer"),
    "load": ("foretrace.lower.load", "load"),
    "load_cluster": ("foretrace.hardware.presets", "cluster"),
    "load_model": ("foretrace.models.load", "load_model"),
    "make_calibration": ("foretrace.analysis.calibration.make", "make_calibration"),
    "network": ("foretrace.analysis.network", "network"),
    "pipeline": ("foretrace.schedules.pipeline", "pipeline"),
    "predict": ("foretrace.analysis.predict", "predict"),
    "save": ("foretrace.program.file", "save"),
    "schedule": ("foretrace.schedules.registry", "make"),
    "simulate": ("foretrace.analysis.simulate", "simulate"),
}

__all__ = [
    "Choices",
    "Cluster",
    "ForetraceError",
    "Mesh",
    "Model",
    "NcclSettings",
    "NetworkAnswer",
    "Plan",
    "Prediction",
    "Program",
    "ProgramBuilder",
    "Simulation",
    "Timeline",
    "Trace",
    "Transfer",
    "__version__",
    "load",
    "load_cluster",
    "load_model",
    "make_calibration",
    "network",
    "pipeline",
    "predict",
    "save",
    "schedule",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that the command line starts fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
