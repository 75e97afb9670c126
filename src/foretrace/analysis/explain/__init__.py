"""What happened in a run and why it took so long: one module for each question a person asks."""

from foretrace.analysis.explain.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
