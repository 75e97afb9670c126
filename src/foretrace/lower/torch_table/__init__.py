"""Profiler tables understood, and made a job."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.lower.torch_table.lower import lower_tables
    from foretrace.lower.torch_table.profile import Profile, choose_table, understand

_HOMES = {"Profile": "profile", "choose_table": "profile", "lower_tables": "lower", "understand": "profile"}

__all__ = ["Profile", "choose_table", "lower_tables", "understand"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the options of this input are read without the rest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
