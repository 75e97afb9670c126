"""Analyses the profiler traces of real runs: one method of `ProfilerTrace` for each question.

Read `trace.py` first, then `rank.py` and `counted_steps.py`: they choose the events and steps that count.
`summary.py` is the overview. Every other module answers one question, except `intervals.py` and `statistics.py`, which
compute for several. There are more than 15 modules because each question is a method that a user looks up by its name.
"""

from foretrace.readings.profiler_views.trace import ProfilerTrace

__all__ = ["ProfilerTrace"]
