"""Turns answers into views: the sections of a page, without any HTML.

Each module makes the view of one kind of answer from the blocks of `report/page/blocks.py`. `view_of` finds the module;
a new kind of answer is a module and a line in `VIEWS`. `answer` is the one to read first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretrace.report.page.blocks import View

VIEWS: Final = {
    "Answer": "answer:answer_view",
    "Comparison": "comparison:comparison_view",
    "PlanSearch": "plan_search:plan_search_view",
    "Explanation": "explanation:explanation_view",
    "ProfilerTrace": "profiler_trace:profiler_trace_view",
    "TraceDiff": "profiler_trace:trace_diff_view",
    "NetworkAnswer": "network_answer:network_view",
    "NetworkTable": "network_answer:network_table_view",
    "Sweep": "sweep_curve:sweep_view",
    "Validation": "validation_errors:validation_view",
    "CalibratedValidation": "validation_errors:calibrated_view",
    "Inventory": "inventory:inventory_view",
    "Cluster": "inventory:hardware_view",
    "Node": "inventory:hardware_view",
    "Gpu": "inventory:hardware_view",
    "Nic": "inventory:hardware_view",
    "Calibration": "calibration:calibration_view",
    "SimaiComparison": "simai:simai_view",
}
"""The function that makes the view of a class of answers, as `module:function` of this folder."""


def view_of(answer: object) -> View:
    """Returns the view of an answer of any kind."""
    module, _, function = VIEWS[type(answer).__name__].partition(":")
    view: View = getattr(import_module(f"{__name__}.{module}"), function)(answer)
    return view
