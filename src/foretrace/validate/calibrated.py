"""Predicts measured runs without a calibration and with it, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.cost.calibration import Calibration
from foretrace.cost.machine import Machine
from foretrace.cost.mix import mix_of
from foretrace.program.expand import expand
from foretrace.readings.scenario import Scenario
from foretrace.step import build_step
from foretrace.validate.results import RowResult, Validation
from foretrace.validate.rows import job_of
from foretrace.validate.training_runs import RunConfig, SkippedRun, TrainingRuns
from foretrace.validate.validate import RowWatch, validate
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec

SAME_FLOPS: Final = 1e-3
SAME_PRODUCTS: Final = 0.02
"""A job with as many products and FLOPs as a step of a trace, within these shares, is taken to be that step."""


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A row predicted both ways; `own` where the calibration has seen its step."""

    before: RowResult
    after: RowResult
    own: bool


@dataclass(frozen=True, slots=True)
class CalibratedValidation:
    """Rows both ways; `validation` is of those with the calibration, less those that it has seen."""

    calibration: Calibration
    rows: tuple[BeforeAfter, ...]
    validation: Validation

    @property
    def counted(self) -> tuple[BeforeAfter, ...]:
        """The rows that the calibration has not seen."""
        return tuple(row for row in self.rows if not row.own)

    def mean_errors(self) -> dict[str, tuple[float, float]]:
        """Returns mean absolute errors before and after over counted rows, of the step and of each measured part."""
        errors: dict[str, list[tuple[float, float]]] = {}
        for row in self.counted:
            if row.before.error is not None and row.after.error is not None:
                errors.setdefault("step", []).append((abs(row.before.error), abs(row.after.error)))
            for name, part in row.before.parts.items():
                if name in row.after.parts:
                    errors.setdefault(name, []).append((abs(part.error), abs(row.after.parts[name].error)))
        return {name: (mean(a for a, _ in pairs), mean(b for _, b in pairs)) for name, pairs in errors.items()}


def validate_calibrated(
    runs: TrainingRuns,
    machine: Machine,
    scenario: Scenario | None = None,
    *,
    workers: int | None = None,
    on_row: RowWatch | None = None,
) -> CalibratedValidation:
    """Predicts rows without the machine's calibration and with it; rows that it was made of are marked, not counted.

    Args:
        runs: Measured runs.
        machine: A machine with a calibration; each row names its own cluster.
        scenario: What is different from normal, for every row.
        workers: Processes; None is one per core where there are many rows.
        on_row: Called before each row of either pass.

    Raises:
        InputError: The calibration was made of all rows.
    """
    fit = machine.calibration
    assert fit is not None
    # A row is known by its job alone: no measurement is looked at.
    own = {run.config.id for run in runs.runs if _has_seen(fit, run.config)}
    plain = machine.with_(calibration=None)
    before = validate(runs, plain, scenario, bands=False, workers=workers, on_row=on_row)
    after = validate(runs, machine, scenario, workers=workers, on_row=on_row)
    usual = {row.id: row for row in before.rows}
    rows = tuple(BeforeAfter(usual[row.id], row, row.id in own) for row in after.rows if row.id in usual)
    counted = tuple(row for row in after.rows if row.id not in own)
    if rows and not counted:
        raise InputError(
            "nothing-to-do",
            "the calibration was made of all of these rows",
            where=fit.path,
            hint="validate others",
        )
    skipped = tuple(
        SkippedRun(row.id, fit.path, "the calibration was made of it", row.family)
        for row in after.rows
        if row.id in own
    )
    interrupted = before.interrupted or after.interrupted
    whole = replace(after, rows=counted, skipped=(*after.skipped, *skipped), interrupted=interrupted)
    return CalibratedValidation(fit, rows, whole)


def _has_seen(calibration: Calibration, config: RunConfig) -> bool:
    """Returns whether the calibration was fitted to the file of a row, or to a trace of its step."""
    file = Path(config.where.rpartition(":")[0]).name
    if any(made.kind == "steps" and made.file == file for made in calibration.made_of):
        return True
    traced = [made for made in calibration.made_of if made.kind == "trace" and made.products]
    if not traced:
        return False
    try:
        job = job_of(config)
        calls = mix_of(expand(build_step(step_spec(settle(job.model, job.plan))))).calls
    except ForetraceError:
        return False
    ranks = max(config.gpus, 1)
    flops = sum(count * kernel.flops for kernel, count in calls.items()) / ranks
    products = sum(count for kernel, count in calls.items() if kernel.flops > 0) / ranks
    return any(
        abs(flops / made.flops - 1) <= SAME_FLOPS and abs(products / made.products - 1) <= SAME_PRODUCTS
        for made in traced
    )
