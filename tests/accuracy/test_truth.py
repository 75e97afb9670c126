"""Predictions of measured steps get no worse than they were when last recorded (benchmarks/truth/errors.json)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.analysis.validate.results import by_family
from foretrace.analysis.validate.validate import validate
from foretrace.formats.training_runs import read_training_runs
from shared_files import ROOT, shared

TRUTH = ROOT / "benchmarks" / "truth"
SLACK = 0.003
"""How much worse a family may get: 0.3 percentage points."""


def check(path: Path) -> None:
    recorded = json.loads((TRUTH / "errors.json").read_text(encoding="utf-8"))
    found = validate(read_training_runs(path), bands=False, workers=1)
    assert not found.skipped
    for group in by_family(found.rows):
        assert group.mape <= recorded[group.name] + SLACK, f"{group.name}: {group.mape:.2%}"


def test_published_steps_on_a100() -> None:
    check(TRUTH / "korthikanti.csv")


def test_steps_on_one_h200() -> None:
    check(shared("data", "h200", "single_gpu_steps.jsonl"))


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_parts_of_steps_on_one_h200(part: str) -> None:
    """A step that is right because its parts are wrong in opposite directions is not right."""
    found = validate(read_training_runs(shared("data", "h200", "single_gpu_steps.jsonl")), bands=False, workers=1)
    errors = [abs(row.parts[part].error) for row in found.rows]
    assert len(errors) == 8
    assert max(errors) < 0.10
