"""What is known of measured collectives: single times, and what they come to for each kind of call."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic
from foretrace.program.columns import Collective


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured call: among how many GPUs on how many nodes, its size as nccl-tests counts it, its seconds."""

    collective: Collective
    gpus: int
    nodes: int
    size_bytes: int
    time_s: float
    file: str
    line: int

    @property
    def where(self) -> str:
        """`file:line`, for messages."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementTable:
    """What one collective takes among so many GPUs on so many nodes: sizes in rising order, and seconds that never fall
    from one to the next."""

    collective: Collective
    gpus: int
    nodes: int
    size_bytes: Floats
    time_s: Floats
    files: tuple[str, ...]
    """Those it was read from; where there are several, each time is the median of theirs."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """Everything that was read: the times as they stand in the files, and the tables made of them."""

    rows: tuple[Measurement, ...]
    tables: tuple[MeasurementTable, ...]
    spread: tuple[float, float] = (1.0, 1.0)
    """Where files repeat each other: nine in ten of their times lie between these factors of the median. (1, 1) where
    nothing is repeated."""
    diagnostics: tuple[Diagnostic, ...] = ()
    name: str = "measurements"
    source: str = "measured collectives"
    """What answers call it."""
    partial: bool = False
    """Whether everybody knows that they are of some calls only, so that no answer need say which are not among them."""
