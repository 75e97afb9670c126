"""Finds the GPU on which the times of a program were recorded, which its source of prices names."""

from __future__ import annotations

from typing import Final

from foretrace.program.program import Program, Source

RECORDED_ON: Final = "recorded on "
"""How the name of such a source begins."""

TABLE: Final = "profiler table"
"""The source of times that are a table's, which does not name its GPU."""


def recorded_source(gpu: str) -> Source:
    """Where the times of a trace come from; the GPU's name is in it, so that a program says on what it was recorded."""
    return Source(f"{RECORDED_ON}{gpu}" if gpu else "recorded")


def recorded_gpu(program: Program) -> str | None:
    """The GPU that a program's times were recorded on, as the profiler called it."""
    named = (source.name for source in program.sources if source.name.startswith(RECORDED_ON))
    return next((name.removeprefix(RECORDED_ON) for name in named), None)
