"""Profiler tables understood, and made a job."""

from foretrace.lower.torch_table.lower import lower_tables
from foretrace.lower.torch_table.profile import Profile, choose_table, understand

__all__ = ["Profile", "choose_table", "lower_tables", "understand"]
