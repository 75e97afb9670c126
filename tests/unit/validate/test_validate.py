"""Predictions of rows next to their measurements: memory is compared kind by kind."""

from __future__ import annotations

import pytest

from foretrace.readings.answer.model_figures import StepParts
from foretrace.validate.training_runs import RunConfig, RunMeasurement
from foretrace.validate.validate import RowPrediction, compare_row, rows_far_off

CONFIG = RunConfig("row", "runs.csv:2", "f", "A", "m", 1, 8, 32, 1, 1, 64, 8, "H100", 1, 1, 1)
PREDICTED = RowPrediction(
    gpu="h100-sxm",
    axes=("single",),
    step_s=1.0,
    band_s=None,
    parts=StepParts(0.3, 0.6, 0.1),
    memory_bytes={"allocated": 100, "reserved": 110, "used": 120},
    fits=True,
    reason="",
    notes=(),
)


@pytest.mark.parametrize(("kind", "predicted"), [("allocated", 100), ("reserved", 110), ("used", 120)])
def test_memory_is_compared_with_the_prediction_of_its_kind(kind: str, predicted: float) -> None:
    row = compare_row(CONFIG, PREDICTED, RunMeasurement(1.0, peak_bytes=100.0, memory_kind=kind))  # type: ignore[arg-type]
    assert row.memory is not None
    assert (row.memory_kind, row.memory.measured, row.memory.predicted) == (kind, 100, predicted)
    assert row.more_memory == {}


def test_all_kinds_that_were_measured_are_compared() -> None:
    measured = RunMeasurement(None, peak_bytes=90.0, reserved_bytes=100.0, used_bytes=110.0)
    row = compare_row(CONFIG, PREDICTED, measured)
    assert row.step is None
    assert row.memory is not None
    assert (row.memory_kind, row.memory.predicted) == ("allocated", 100)
    assert {kind: peak.predicted for kind, peak in row.more_memory.items()} == {"reserved": 110, "used": 120}


def test_nothing_is_compared_where_nothing_was_measured() -> None:
    row = compare_row(CONFIG, PREDICTED, RunMeasurement(1.0))
    assert (row.memory, row.more_memory) == (None, {})


@pytest.mark.parametrize(("measured_s", "told"), [(1.2, False), (9.0, False), (1000.0, True), (0.001, True)])
def test_a_unit_that_may_be_mistaken_is_told(measured_s: float, told: bool) -> None:
    notes = rows_far_off([compare_row(CONFIG, PREDICTED, RunMeasurement(measured_s))])
    assert bool(notes) is told and all("row" in note for note in notes)
