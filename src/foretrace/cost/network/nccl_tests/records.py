"""Holds measured collectives: single times, checked row by row, and the tables made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.program.columns import Collective

if TYPE_CHECKING:
    from foretrace.hardware.cluster import Cluster

US: Final = 1e-6
MAX_BYTES: Final = 2**60
MAX_US: Final = 1e12
"""A day is 8.64e10 µs; what is longer is no time of a collective."""


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


def whole(word: str, what: str, where: str) -> int:
    """A whole number of at least 0."""
    value = positive(word, what, where, zero=True)
    if value != int(value) or value > MAX_BYTES:
        raise InputError("bad-value", f'{what} "{word[:40]}" is not a whole number of bearable size', where=where)
    return int(value)


def positive(word: str, what: str, where: str, *, zero: bool = False) -> float:
    """A finite number above 0, or from 0 on."""
    try:
        value = float(word)
    except ValueError:
        raise InputError("bad-value", f'{what} "{word[:40]}" is not a number', where=where) from None
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        needed = "at least 0" if zero else "above 0"
        raise InputError("bad-value", f'{what} "{word[:40]}" is not a finite number {needed}', where=where)
    return value


def measurement(
    collective: Collective, ranks: tuple[int, int], size_bytes: int, time_us: float, place: tuple[str, int]
) -> Measurement:
    """A row among (gpus, nodes) in (file, line), once these can be meant."""
    gpus, nodes = ranks
    file, line = place
    where = f"{file}:{line}"
    if not 1 <= nodes <= gpus:
        raise InputError(
            "conflicting-values",
            f"{gpus} GPUs cannot be on {nodes} nodes",
            where=where,
            hint="each node has at least one",
        )
    if time_us > MAX_US:
        raise InputError(
            "out-of-range", f"a time of {time_us:g} µs cannot be meant", where=where, hint="times are microseconds"
        )
    return Measurement(collective, gpus, nodes, size_bytes, time_us * US, file, line)
