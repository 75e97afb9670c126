"""Analyses of real runs' profiler traces: one method of `Trace` for each question."""

from foretrace.analysis.trace.trace import Trace

__all__ = ["Trace"]
