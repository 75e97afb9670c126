"""Compares predictions with measurements: errors of rows, and of groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import mean, median

from foretrace.validate.training_runs import MemoryKind, SkippedRun


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured and a predicted quantity of one row, in one unit."""

    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Signed, as a share of what was measured: above 0 the prediction is too large."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class RowResult:
    """A predicted row.

    `step` is None where memory alone was measured. `memory` counts what `memory_kind` says on both sides, and
    `more_memory` holds the other kinds that were measured. `parts` are forward, backward and optimizer in seconds, if
    they were measured apart; `reason` says what the prediction depends on most.
    """

    id: str
    family: str
    grade: str
    gpu: str
    axes: tuple[str, ...]
    step: Compared | None
    band_s: tuple[float, float] | None
    memory: Compared | None
    parts: dict[str, Compared]
    fits: bool
    reason: str
    notes: tuple[str, ...]
    memory_kind: MemoryKind = "allocated"
    more_memory: dict[MemoryKind, Compared] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """The signed error of the step time; None where it was not measured."""
        return None if self.step is None else self.step.error

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the band; None where there is no band or no step time."""
        if self.band_s is None or self.step is None:
            return None
        return self.band_s[0] <= self.step.measured <= self.band_s[1]


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Rows with something in common and their errors of step time, as shares: mean absolute, mean signed, largest.

    Errors are None where no row has a step time. `rows` counts those without one too.
    """

    name: str
    rows: int
    mape: float | None
    bias: float | None
    worst: float | None
    coverage: float | None
    """The share of rows whose measurement lies in their band."""
    half_width: float | None
    """Half of the band over the prediction, median over rows."""
    memory_mape: float | None
    memory_rows: int


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows of a file, predicted or skipped."""

    rows: tuple[RowResult, ...]
    skipped: tuple[SkippedRun, ...]
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    """Assumptions about all rows."""

    def graded(self, grade: str) -> tuple[RowResult, ...]:
        """The rows of one grade."""
        return tuple(row for row in self.rows if row.grade == grade)

    @property
    def grades(self) -> tuple[str, ...]:
        """The grades there are, best first."""
        return tuple(sorted({row.grade for row in self.rows}))

    @property
    def best_grade(self) -> str | None:
        """The grade by which predictions are judged: A, and where no row has it the next; None without rows."""
        return next(iter(self.grades), None)

    def mean_of_families(self, grade: str) -> float | None:
        """The mean over families of each one's mean absolute error; None where no row of that grade has a time."""
        errors = [group.mape for group in by_family(self.graded(grade)) if group.mape is not None]
        return mean(errors) if errors else None

    @property
    def not_fitting(self) -> tuple[RowResult, ...]:
        """Rows that ran, and so did fit, of which the prediction says they do not."""
        return tuple(row for row in self.rows if not row.fits)

    @property
    def worst(self) -> tuple[RowResult, ...]:
        """The rows with a step time, furthest off first."""
        return tuple(sorted(self.timed, key=lambda row: -abs(row.error or 0.0)))

    @property
    def timed(self) -> tuple[RowResult, ...]:
        """The rows with a step time."""
        return tuple(row for row in self.rows if row.step is not None)


def group_of(name: str, rows: Iterable[RowResult]) -> ResultGroup:
    """The errors of rows together; there is at least one."""
    rows = tuple(rows)
    inside = [row.inside for row in rows if row.inside is not None]
    errors = [row.error for row in rows if row.error is not None]
    widths = [
        (row.band_s[1] - row.band_s[0]) / 2 / row.step.predicted
        for row in rows
        if row.band_s is not None and row.step is not None
    ]
    memory = [abs(row.memory.error) for row in rows if row.memory is not None]
    return ResultGroup(
        name=name,
        rows=len(rows),
        mape=mean(map(abs, errors)) if errors else None,
        bias=mean(errors) if errors else None,
        worst=max(errors, key=abs, default=None),
        coverage=mean(inside) if inside else None,
        half_width=median(widths) if widths else None,
        memory_mape=mean(memory) if memory else None,
        memory_rows=len(memory),
    )


def errors_by_quantity(rows: Iterable[RowResult]) -> dict[str, float]:
    """The mean absolute error of the step, of its parts and of peak memory, of those that were measured.

    `memory` is the peak that a source gives first; `reserved` and `used` are those that it gives next to that.
    """
    errors_of: dict[str, list[float]] = {}
    for row in rows:
        measured: dict[str, Compared | None] = {"step": row.step, "memory": row.memory}
        measured |= {**row.parts, **{str(kind): peak for kind, peak in row.more_memory.items()}}
        for name, compared in measured.items():
            if compared is not None:
                errors_of.setdefault(name, []).append(abs(compared.error))
    return {name: mean(errors) for name, errors in errors_of.items()}


def by_family(rows: Iterable[RowResult]) -> tuple[ResultGroup, ...]:
    """One group per source of measurements."""
    return _grouped(rows, lambda row: (row.family,))


def by_gpu(rows: Iterable[RowResult]) -> tuple[ResultGroup, ...]:
    """One group per GPU."""
    return _grouped(rows, lambda row: (row.gpu,))


def by_axis(rows: Iterable[RowResult]) -> tuple[ResultGroup, ...]:
    """One group per kind of parallelism; a row is in as many as it uses."""
    return _grouped(rows, lambda row: row.axes)


def _grouped(rows: Iterable[RowResult], names: Callable[[RowResult], tuple[str, ...]]) -> tuple[ResultGroup, ...]:
    members: dict[str, list[RowResult]] = {}
    for row in rows:
        for name in names(row):
            members.setdefault(name, []).append(row)
    return tuple(group_of(name, members[name]) for name in sorted(members))
