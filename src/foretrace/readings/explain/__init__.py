"""Explains what happened in a run and why it took so long, with one module for each question.

Read `explain.py` first: it collects all answers. `rows.py` has the run as columns, on which the others depend.
`path.py`, `communication.py`, `pipeline.py`, `stragglers.py`, `experts.py` and `variation.py` each answer one question.
`advice.py` puts the most expensive findings into sentences.
"""

from foretrace.readings.explain.explain import Explanation, explain

__all__ = ["Explanation", "Remedy", "explain"]
