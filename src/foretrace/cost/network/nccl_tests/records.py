"""Holds measured collectives: single times, checked row by row, and the tables made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.numbers import real_field
from foretrace.program.columns import Collective

if TYPE_CHECKING:
    from foretrace.hardware.cluster import Cluster

US: Final = 1e-6
MAX_BYTES: Final = 2**60
MIN_US, MAX_US = 0.1, 3.6e9
"""A kernel takes a microsecond to start; a call that takes an hour is a mistake."""

_WHOLE_BUS: Final = (Collective.BROADCAST, Collective.REDUCE, Collective.TRANSFER)


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
    gpu: str = ""
    """The GPU as the file names it; empty where it does not."""

    @property
    def where(self) -> str:
        """`file:line`, for messages."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementTable:
    """The times of one collective for one number of GPUs and nodes: sizes in rising order, and seconds that never
    fall."""

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
    """The factors of the median between which nine in ten times lie, where files repeat each other; (1, 1) where
    nothing is repeated."""
    diagnostics: tuple[Diagnostic, ...] = ()
    name: str = "measurements"
    source: str = "measured collectives"
    """The name that answers use."""
    partial: bool = False
    """Whether it is generally known that they cover only some calls, so that no answer need list those that are
    missing."""
    measured_on: Cluster | None = None
    """The cluster that they were measured on, where its figures differ from those of the cluster that they price."""


def read_time_us(name: str, word: str, where: str, size_bytes: int) -> float:
    """Returns the microseconds of a call from the column `name`; only a call of 0 bytes may take none."""
    return real_field(name, word, where, least=0.0 if size_bytes == 0 else MIN_US, most=MAX_US)


def measurement(
    collective: Collective, ranks: tuple[int, int], size_bytes: int, time_us: float, place: tuple[str, int, str]
) -> Measurement:
    """Returns a row among (gpus, nodes) in (file, line, GPU); raises an error where these cannot be meant."""
    gpus, nodes = ranks
    file, line, gpu = place
    where = f"{file}:{line}"
    if not 1 <= nodes <= gpus:
        raise InputError(
            "conflicting-values",
            f"{gpus} GPUs cannot be on {nodes} nodes",
            where=where,
            hint="each node has at least one",
        )
    if time_us > MAX_US or (size_bytes and time_us < MIN_US):
        problem = f"a time of {time_us:.3g} µs cannot be meant"
        raise InputError("out-of-range", problem, where=where, hint=f"{MIN_US:g} to {MAX_US:g} µs")
    return Measurement(collective, gpus, nodes, size_bytes, time_us * US, file, line, gpu)


def bus_ratio(collective: Collective, gpus: int) -> float:
    """Returns bus over algorithm bandwidth (nccl-tests, PERFORMANCE.md)."""
    if collective in _WHOLE_BUS:
        return 1.0
    return (2.0 if collective is Collective.ALL_REDUCE else 1.0) * max(gpus - 1, 1) / gpus
