"""Analyses of real runs' profiler traces: one method of `ProfilerTrace` for each question."""

from foretrace.analysis.trace.trace import ProfilerTrace

__all__ = ["ProfilerTrace"]
