"""Checks a row of nccl-tests against itself: time, both bandwidths, GPUs and the check of its results.

A row whose results were wrong is left out. A ratio of bandwidths that belongs to another number of GPUs is an error,
since lines of the log are missing then. Anything else that does not agree is reported, since a unit may be mistaken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.numbers import NumberError, real_number
from foretrace.cost.network.nccl_tests.records import bus_ratio
from foretrace.program.columns import Collective

MAX_ERROR: Final = 0.1
"""Versions before 2.13 print the largest error of a result, which rounding makes up to 0.01 in half precision."""

TOLERANCE: Final = 0.1
"""By which part a bandwidth may differ from the size over the time: 10⁹ bytes or 2³⁰, a mean of other repeats."""

_ROUNDED: Final = 0.005
"""Bandwidths are printed with two decimals."""

_MAX_ROUNDING: Final = 0.02
"""The rounding up to which a ratio of bandwidths tells numbers of GPUs apart: those of 4 and 5 differ by 7 %."""


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Holds what a row states next to its size. `error` is the text of its check; a missing bandwidth is 0.

    `any_unit`: whether bandwidths may be in Gb/s as well as in GB/s.
    """

    time_us: float
    algorithm: float
    bus: float
    error: str
    where: str
    any_unit: bool = False

    @property
    def rounding(self) -> float:
        """Returns the part by which rounding may change the ratio of the bandwidths."""
        return _ROUNDED / self.algorithm + _ROUNDED / self.bus if self.algorithm > 0 and self.bus > 0 else math.inf


@dataclass(slots=True)
class Consistency:
    """Collects what does not agree in the rows of a file."""

    wrong: list[str] = field(default_factory=list)
    """Places of rows whose results were wrong."""
    off: list[tuple[float, str]] = field(default_factory=list)
    """Times over those that follow from the algorithm bandwidth, with their places."""
    ratios: list[tuple[float, str]] = field(default_factory=list)
    """Bus over algorithm bandwidths that no number of GPUs has, with their places."""

    def holds(self, collective: Collective, gpus: int, size_bytes: int, row: Bandwidths) -> bool:
        """Checks a row and returns whether it counts. Raises an error where it is of another number of GPUs."""
        if _is_wrong(row.error):
            self.wrong.append(row.where)
            return False
        if row.rounding < _MAX_ROUNDING and gpus > 1:
            self._check_ratio(collective, gpus, row)
        if row.algorithm >= 1 and size_bytes:
            factor = row.time_us * row.algorithm * 1e3 / size_bytes
            if abs(factor - 1) > TOLERANCE and not (row.any_unit and _is_other_unit(collective, factor)):
                self.off.append((factor, row.where))
        return True

    def _check_ratio(self, collective: Collective, gpus: int, row: Bandwidths) -> None:
        ratio, expected = row.bus / row.algorithm, bus_ratio(collective, gpus)
        tolerance = 1.5 * row.rounding + 1e-4  # both are rounded, and the ratio is that of rounded figures
        if abs(ratio / expected - 1) <= tolerance:
            return
        other = _gpus_of(collective, ratio)
        if other is not None and abs(ratio / bus_ratio(collective, other) - 1) <= tolerance:
            name = collective.name.lower().replace("_", "-")
            problem = f"{gpus:,} GPUs are stated, but busbw/algbw is {ratio:.4g}, that of an {name} of {other:,} GPUs"
            hint = "a line of a rank may be missing, or the column or the name of the file is wrong"
            raise InputError("conflicting-values", problem, where=row.where, hint=hint)
        self.ratios.append((ratio, row.where))

    def notes(self, name: str) -> list[Diagnostic]:
        """Returns what a user should know about the rows."""
        notes = []
        if self.wrong:
            text = f"{len(self.wrong):,} rows with wrong results are not used: the measured machine is at fault"
            notes.append(Diagnostic("warning", "rows-skipped", text, self.wrong[0]))
        if self.off:
            factor, where = max(self.off, key=lambda row: abs(math.log(max(row[0], 1e-300))))
            text = (
                f"{len(self.off):,} times are not size over algbw, but up to {factor:.3g} times that: a unit of {name}?"
            )
            notes.append(Diagnostic("warning", "conflicting-values", text, where))
        if self.ratios:
            ratio, where = self.ratios[0]
            text = f"{len(self.ratios):,} rows have a busbw/algbw that their collective has not, such as {ratio:.4g}"
            notes.append(Diagnostic("warning", "conflicting-values", text, where))
        return notes


def ratio_of(rows: Iterable[tuple[float, float]]) -> float:
    """Returns bus over algorithm bandwidth of the row where both have the most digits; 0 where none is above 0."""
    algorithm, bus = max(rows)
    return bus / algorithm if algorithm > 0 else 0.0


def _is_other_unit(collective: Collective, factor: float) -> bool:
    """Returns whether Gb/s explain the factor, or the time of a send and a receive, which covers both ways."""
    units = (2.0, 8.0, 16.0) if collective in (Collective.TRANSFER, Collective.EXCHANGE) else (8.0,)
    return any(abs(factor / unit - 1) <= TOLERANCE for unit in units)


def _is_wrong(error: str) -> bool:
    if error in ("", "0"):
        return False
    try:
        return real_number(error) > MAX_ERROR
    except NumberError as problem:
        return problem.code == "out-of-range"  # nan, or more wrong elements than can be counted


def _gpus_of(collective: Collective, ratio: float) -> int | None:
    """Returns the number of GPUs that a ratio of bandwidths belongs to; None where there is no such number."""
    part = ratio / (2.0 if collective is Collective.ALL_REDUCE else 1.0)
    if bus_ratio(collective, 1) == bus_ratio(collective, 2) == 1.0 or not 0.4 < part < 1:
        return None
    gpus = round(1 / (1 - part))
    return gpus if 2 <= gpus <= MAX_GPUS else None
