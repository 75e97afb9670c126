"""Foretrace predicts how long a training step takes on a cluster you do not have yet, shows where the time goes, and
what to change.

    import foretrace

    job = foretrace.open("examples/llama405b_1024gpu.txt")
    answer = foretrace.simulate(job, foretrace.Machine("h100-dgx"), foretrace.Scenario(what_if={"compute": 1.1}))
    print(answer.step_time_s, answer.breakdown.mean_s)
"""

from __future__ import annotations

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from foretrace.basics.package import VERSION, register_renderer

if TYPE_CHECKING:
    from foretrace.api import model as model
    from foretrace.api import open as open
    from foretrace.api import plan as plan
    from foretrace.api import simulate as simulate
    from foretrace.basics.errors import Diagnostic as Diagnostic
    from foretrace.basics.errors import ForetraceError as ForetraceError
    from foretrace.basics.mesh import Mesh as Mesh
    from foretrace.basics.placement import Placement as Placement
    from foretrace.calibrate.calibrate import make_calibration as make_calibration
    from foretrace.cost.kernels.interface import PriceSources as PriceSources
    from foretrace.cost.machine import Machine as Machine
    from foretrace.cost.network.nccl.settings import NcclSettings as NcclSettings
    from foretrace.hardware.cluster import Cluster as Cluster
    from foretrace.hardware.presets import cluster as load_cluster  # noqa: F401
    from foretrace.inputs.base import Input as Input
    from foretrace.inputs.script.in_process import ScriptTrace as ScriptTrace
    from foretrace.inputs.script.in_process import trace as trace
    from foretrace.inputs.script.in_process import trace_step as trace_step
    from foretrace.models.load import load_model as load_model
    from foretrace.models.model import Model as Model
    from foretrace.program.build import ProgramBuilder as ProgramBuilder
    from foretrace.program.file import save as save
    from foretrace.program.program import Program as Program
    from foretrace.program.timeline import Timeline as Timeline
    from foretrace.readings.answer.answer import Answer as Answer
    from foretrace.readings.profiler_views import ProfilerTrace as ProfilerTrace
    from foretrace.readings.scenario import Scenario as Scenario
    from foretrace.schedules.pipeline import Transfer as Transfer
    from foretrace.schedules.pipeline import pipeline as pipeline
    from foretrace.schedules.registry import make as schedule  # noqa: F401
    from foretrace.search.planner.request import PlanRequest as PlanRequest
    from foretrace.search.planner.result import PlanSearch as PlanSearch
    from foretrace.simulation.network.network import NetworkAnswer as NetworkAnswer
    from foretrace.simulation.network.network import network as network
    from foretrace.workload.plan import Plan as Plan

__version__ = VERSION

_HOMES = {
    "Answer": "readings.answer.answer",
    "Cluster": "hardware.cluster",
    "Diagnostic": "basics.errors",
    "ForetraceError": "basics.errors",
    "Input": "inputs.base",
    "Machine": "cost.machine",
    "Mesh": "basics.mesh",
    "Model": "models.model",
    "NcclSettings": "cost.network.nccl.settings",
    "NetworkAnswer": "simulation.network.network",
    "Placement": "basics.placement",
    "Plan": "workload.plan",
    "PlanRequest": "search.planner.request",
    "PlanSearch": "search.planner.result",
    "PriceSources": "cost.kernels.interface",
    "ProfilerTrace": "readings.profiler_views",
    "Program": "program.program",
    "ProgramBuilder": "program.build",
    "Scenario": "readings.scenario",
    "ScriptTrace": "inputs.script.in_process",
    "Timeline": "program.timeline",
    "Transfer": "schedules.pipeline",
    "load_cluster": "hardware.presets:cluster",
    "load_model": "models.load",
    "make_calibration": "calibrate.calibrate",
    "model": "api",
    "network": "simulation.network.network",
    "open": "api",
    "pipeline": "schedules.pipeline",
    "plan": "api",
    "save": "program.file",
    "schedule": "schedules.registry:make",
    "simulate": "api",
    "trace": "inputs.script.in_process",
    "trace_step": "inputs.script.in_process",
}
"""The public names and the modules they are in; `module:name` where a name is another one there."""

__all__ = ["__version__", *_HOMES]


register_renderer(lambda: import_module("foretrace.report.notebook"))


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that the command line starts fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(f"foretrace.{module}"), attribute or name)
    if isinstance(value, FunctionType):
        from foretrace.basics.arguments import checked

        value = checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
