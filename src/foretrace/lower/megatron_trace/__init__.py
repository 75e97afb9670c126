"""What Megatron's rank traces mean: a real run replayed, or a whole job predicted from one GPU's traces."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.lower.megatron_trace.lower import lower_runs, recording_of, run_notes
    from foretrace.lower.megatron_trace.recording import Recording

_HOMES = {
    "Recording": "recording",
    "lower_runs": "lower",
    "recording_of": "lower",
    "run_notes": "lower",
}

__all__ = ["Recording", "lower_runs", "recording_of", "run_notes"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the options of this input are read without the rest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
