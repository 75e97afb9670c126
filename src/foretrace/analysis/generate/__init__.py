"""Workload files of other simulators, made from a model and a plan."""

from foretrace.analysis.generate.aicb import Generated, aicb_workload

__all__ = ["Generated", "aicb_workload"]
