"""Analyses of real runs' profiler traces: one method of `ProfilerTrace` for each question."""

from foretrace.readings.profiler_views.trace import ProfilerTrace

__all__ = ["ProfilerTrace"]
