"""Fits one factor on all computation to whole steps, for what single kernels leave unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from foretrace.basics.errors import Diagnostic, ForetraceError, InputError
from foretrace.cost.calibration import Calibration, MadeOf, StepFit
from foretrace.cost.machine import Machine
from foretrace.inputs.model.input import ModelInput
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate_input import simulate_input
from foretrace.validate.rows import RowJob, job_of
from foretrace.validate.training_runs import read_training_runs

MIN_ROWS: Final = 2
"""Rows from which on a factor is fitted unasked: one row is met by any factor."""

PROBE: Final = 1.05
"""The factor at which a step is run again to see how much of it computation is."""


MIN_COMPUTE_SHARE: Final = 0.3
"""The part of a step that must be computation: what the host or the network sets the pace of says little about it."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A step as a logarithm: measured over predicted, and by how much that grows with the factor's."""

    error: float
    grows: float


def fit_steps(
    calibration: Calibration, paths: Sequence[Path], asked: bool | None
) -> tuple[Calibration, list[Diagnostic]]:
    """The calibration with a factor that these files' steps call for, and what was left out."""
    rows: list[_Row] = []
    notes: list[Diagnostic] = []
    made: list[MadeOf] = []
    for path in paths:
        file_rows, left_out = _rows_of(path, calibration)
        rows += file_rows
        notes += left_out
        made.append(MadeOf(path.name, "steps", rows=len(file_rows)))
    if not rows:
        raise InputError(
            "nothing-to-do",
            "no step of it can be predicted",
            where=str(paths[0]),
            hint=notes[0].message if notes else None,
        )
    calibration = replace(calibration, made_of=(*calibration.made_of, *made))
    if asked is False or (asked is None and len(rows) < MIN_ROWS):
        text = "a single whole step sets no factor (--step-factor asks for it)"
        return calibration, [
            *notes,
            Diagnostic("note", "price-source", text, str(paths[0])),
        ] if asked is None else notes
    fit = _fit(rows)
    text = f"all kernels take {fit.factor:.3f} times as long from here on, as {fit.rows} whole steps call for"
    return replace(calibration, steps=fit), [*notes, Diagnostic("note", "price-source", text, str(paths[0]))]


def _fit(rows: Sequence[_Row]) -> StepFit:
    """The factor with the least squared error of logarithms."""
    error, grows = (np.array([getattr(row, name) for row in rows]) for name in ("error", "grows"))
    factor = float((error * grows).sum() / max((grows**2).sum(), 1e-12))
    left = np.abs(np.expm1(factor * grows - error))
    return StepFit(float(np.exp(factor)), len(rows), float(left.mean()), float(np.abs(np.expm1(-error)).mean()))


def _rows_of(path: Path, calibration: Calibration) -> tuple[list[_Row], list[Diagnostic]]:
    runs = read_training_runs(path)
    left_out = [f"{row.id}: {row.why}" for row in runs.skipped]
    rows: list[_Row] = []
    for run in runs.runs:
        if run.measurement.step_s is None:
            left_out.append(f"{run.config.id}: no step time was measured")
            continue
        try:
            job = job_of(run.config)
            predicted = _step_s(job, calibration)
            probe = StepFit(PROBE, 0, 0.0, 0.0)
            grows = np.log(_step_s(job, replace(calibration, steps=probe)) / predicted) / np.log(PROBE)
        except ForetraceError as error:
            left_out.append(f"{run.config.id}: {error.message}")
            continue
        if grows < MIN_COMPUTE_SHARE:
            left_out.append(f"{run.config.id}: computation sets the pace of {grows:.0%} of it only")
            continue
        rows.append(_Row(float(np.log(run.measurement.step_s / predicted)), float(grows)))
    return rows, [Diagnostic("note", "rows-skipped", f"left out: {reason}", str(path)) for reason in left_out]


def _step_s(job: RowJob, calibration: Calibration) -> float:
    machine = Machine(job.cluster, calibration=calibration)
    model = ModelInput(job.model, job.plan)
    return simulate_input(model, machine, Scenario(), explain=False, even_if_oom=True).step_time_s
