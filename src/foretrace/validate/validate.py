"""Predicts every row of a table of measured runs, then compares it with the measurement."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrace.basics.errors import ForetraceError, shown
from foretrace.basics.processes import Workers
from foretrace.cost.kernels.plausible import MAX_OFF_MODEL
from foretrace.cost.machine import Machine
from foretrace.inputs.model.input import ModelInput
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.memory_fit import MemoryFit
from foretrace.readings.answer.model_figures import StepParts
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate_input import simulate_input
from foretrace.validate.results import Compared, RowResult, Validation
from foretrace.validate.rows import job_of
from foretrace.validate.training_runs import MemoryKind, RunConfig, RunMeasurement, SkippedRun, TrainingRuns

if TYPE_CHECKING:
    from foretrace.workload.setting import Setting

GRADES = ("A", "B")
"""Grades of the rows that are predicted; too much is unknown about the others."""

MAX_SERIAL_ROWS = 8
"""Up to this many rows, one process is faster than starting several."""

RowWatch = Callable[[int, int, str], None]
"""Called before each row with the number of rows done, the number of rows, and the name of the next."""


@dataclass(frozen=True, slots=True)
class RowPrediction:
    """The prediction of a row, without its measurement; plain values, so that a worker process can send it."""

    gpu: str
    axes: tuple[str, ...]
    step_s: float
    band_s: tuple[float, float] | None
    parts: StepParts
    memory_bytes: dict[MemoryKind, int]
    fits: bool
    reason: str
    notes: tuple[str, ...]


def validate(
    runs: TrainingRuns,
    machine: Machine | None = None,
    scenario: Scenario | None = None,
    *,
    bands: bool = True,
    workers: int | None = None,
    on_row: RowWatch | None = None,
) -> Validation:
    """Predicts the rows of grades A and B; rows that cannot be predicted are skipped with the reason.

    Args:
        runs: Measured runs.
        machine: Price sources, calibration and the like; each row names its own cluster.
        scenario: What is different from normal, for every row.
        bands: Whether to find the band of each step; without, it takes half as long.
        workers: Processes; None is one per core where there are many rows.
        on_row: Called before each row; an interrupt keeps the rows that are finished.
    """
    skipped = list(runs.skipped)
    ungraded = [run for run in runs.runs if run.config.grade not in GRADES]
    skipped += [_skipped(run.config, _ungraded(run.config.grade)) for run in ungraded]
    chosen = [run for run in runs.runs if run.config.grade in GRADES]
    rows, interrupted = list[RowResult](), False
    configs = [run.config for run in chosen]
    answers = predict_rows(configs, machine or Machine(), Scenario() if scenario is None else scenario, bands, workers)
    try:
        for number, run in enumerate(chosen):
            if on_row is not None:
                on_row(number, len(chosen), run.config.id)
            answer = next(answers)
            if isinstance(answer, SkippedRun):
                skipped.append(answer)
            else:
                rows.append(compare_row(run.config, answer, run.measurement))
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    finally:
        answers.close()
    return Validation(tuple(rows), tuple(skipped), interrupted, (*runs.notes, *rows_far_off(rows)))


def rows_far_off(rows: Sequence[RowResult]) -> tuple[str, ...]:
    """Returns a note on rows that took many times as long as predicted, or a small part of it."""
    times = {row.id: row.step.measured / row.step.predicted for row in rows if row.step and row.step.predicted > 0}
    far = [name for name, ratio in times.items() if not 1 / MAX_OFF_MODEL < ratio < MAX_OFF_MODEL]
    if not far:
        return ()
    worst = max(far, key=lambda name: max(times[name], 1 / max(times[name], 1e-30)))
    rows_text = "1 row is" if len(far) == 1 else f"{len(far):,} rows are"
    text = f"{rows_text} {MAX_OFF_MODEL:g} times off the prediction or more: {shown(worst)} takes "
    return (f"{text}{times[worst]:,.3g} times as long; a unit of the table may be mistaken",)


def _skipped(config: RunConfig, why: str) -> SkippedRun:
    return SkippedRun(config.id, config.where, why, config.family)


def _ungraded(grade: str) -> str:
    return f"grade {grade}: too much of the run is unknown" if grade else "the row has no grade"


def predict_rows(
    configs: Sequence[RunConfig],
    machine: Machine,
    scenario: Scenario,
    bands: bool = True,
    workers: int | None = None,
) -> Generator[RowPrediction | SkippedRun]:
    """Yields the prediction of each configuration, in order; measurements are not passed in.

    Args:
        configs: The rows to predict.
        machine: Price sources, calibration and the like; each row names its own cluster.
        scenario: What is different from normal, for every row.
        bands: Whether to find the band of each step.
        workers: Processes; None is one per core where there are many rows.
    """
    count = workers or (1 if len(configs) <= MAX_SERIAL_ROWS else os.cpu_count() or 1)
    with Workers(count, (machine, scenario, bands)) as pool:
        yield from pool.map(_predict_row, configs, chunk=2)


def _predict_row(how: tuple[Machine, Scenario, bool], config: RunConfig) -> RowPrediction | SkippedRun:
    machine, scenario, bands = how
    try:
        row = job_of(config)
        model = ModelInput(row.model, row.plan)
        answer = simulate_input(
            model, machine.with_(cluster=row.cluster), scenario, explain="band" if bands else False, even_if_oom=True
        )
    except ForetraceError as error:
        return _skipped(config, error.message)
    memory = answer.memory
    assert memory is not None
    return RowPrediction(
        gpu=row.cluster.gpu.name,
        axes=_axes(model.setting()),
        step_s=answer.step_time_s,
        band_s=answer.step_time_band_s,
        parts=answer.parts,
        memory_bytes=memory_by_kind(memory),
        fits=memory.fits,
        reason=_reason(answer),
        notes=row.notes,
    )


def memory_by_kind(memory: MemoryFit) -> dict[MemoryKind, int]:
    """Returns the predicted peak of the worst rank in bytes, as each kind of measurement counts it."""
    return {"allocated": memory.peak_bytes, "reserved": memory.reserved_bytes, "used": memory.needed_bytes}


def _axes(setting: Setting) -> tuple[str, ...]:
    """Returns the kinds of parallelism of a job; `single` where one GPU works alone."""
    plan = setting.plan
    sizes = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "ep": plan.ep}
    axes = [axis for axis, size in sizes.items() if size > 1]
    if setting.dp * plan.cp > 1:
        axes.append("fsdp" if setting.splits_parameters else "dp")
    return tuple(axes) or ("single",)


def _reason(answer: Answer) -> str:
    """Returns what a prediction depends on most: the largest parts of its step, and the main source of its prices."""
    parts = answer.breakdown.mean_s
    part, seconds = max(parts.items(), key=lambda item: item[1])
    words = f"{part} {100 * seconds / answer.step_time_s:.0f} %"
    second = sorted(parts.items(), key=lambda item: -item[1])[1:2]
    if second and second[0][1] > 0.05 * answer.step_time_s:
        words += f", {second[0][0]} {100 * second[0][1] / answer.step_time_s:.0f} %"
    source = max(answer.provenance, key=lambda entry: entry.share)
    return f"{words}; {100 * source.share:.0f} % of op time by {source.source}"


def compare_row(config: RunConfig, answer: RowPrediction, measured: RunMeasurement) -> RowResult:
    """Returns a prediction with its measurement."""
    parts = {
        name: Compared(measured_s, predicted_s)
        for name, measured_s, predicted_s in (
            ("forward", measured.forward_s, answer.parts.forward_s),
            ("backward", measured.backward_s, answer.parts.backward_s),
            ("optimizer", measured.optimizer_s, answer.parts.optimizer_s),
        )
        if measured_s is not None
    }
    memory = {
        kind: Compared(peak, float(answer.memory_bytes[kind]))
        for kind, peak in measured.memory_bytes.items()
        if answer.memory_bytes[kind]
    }
    return RowResult(
        id=config.id,
        family=config.family,
        grade=config.grade,
        gpu=answer.gpu,
        axes=answer.axes,
        step=None if measured.step_s is None else Compared(measured.step_s, answer.step_s),
        band_s=answer.band_s,
        memory=memory.pop(measured.memory_kind, None),
        parts=parts,
        fits=answer.fits,
        reason=answer.reason,
        notes=answer.notes,
        memory_kind=measured.memory_kind,
        more_memory=memory,
    )
