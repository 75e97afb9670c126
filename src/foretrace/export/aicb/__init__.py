"""Workload files of other simulators, made from a model and a plan."""

from foretrace.export.aicb.workload import Generated, aicb_workload

__all__ = ["Generated", "aicb_workload"]
