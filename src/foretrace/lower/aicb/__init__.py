"""What a SimAI/AICB workload means: from its rows to the program of every rank."""

from foretrace.lower.aicb.lower import lower_workload

__all__ = ["lower_workload"]
