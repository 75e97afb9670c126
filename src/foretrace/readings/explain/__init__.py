"""What happened in a run and why it took so long: one module for each question a person asks."""

from foretrace.readings.explain.explain import Explanation, explain
from foretrace.readings.explain.remedy import Remedy

__all__ = ["Explanation", "Remedy", "explain"]
