"""Profiler traces to a program: what the host and the device did, and what waited for what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretrace.lower.choices import Choices
    from foretrace.program.program import Program

__all__ = ["lower_profile"]


def lower_profile(paths: Sequence[str | Path], choices: Choices) -> Program:
    """The program of a job's traces, one of each rank: a steady step, as `choices` wants its host to run."""
    from foretrace.lower.profiler_trace.lower import lower_profile as lowered  # other rooms need its parts alone

    return lowered(paths, choices)
