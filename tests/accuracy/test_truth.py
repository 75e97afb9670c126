"""Predictions of measured steps get no worse than they were when last recorded (benchmarks/truth/errors.json)."""

from __future__ import annotations

import json
from functools import lru_cache

import pytest

from foretrace.analysis.validate.results import RowResult, errors_by_quantity
from foretrace.analysis.validate.validate import validate
from foretrace.cost.compute.silicon import installed
from foretrace.formats.training_runs import read_training_runs
from shared_files import ROOT

TRUTH = ROOT / "benchmarks" / "truth"
ROWS = {"korthikanti.csv": 9, "h200_steps.jsonl": 8, "h200_more_steps.jsonl": 7}
SLACK = 0.003
"""How much worse a mean error may get: 0.3 percentage points."""

RECORDED = json.loads((TRUTH / "errors.json").read_text(encoding="utf-8"))
SILICON = pytest.mark.skipif(not installed(), reason="the extra [silicon] is not installed")
SOURCES = [pytest.param(True, id="with silicon", marks=SILICON), pytest.param(False, id="without silicon")]


@lru_cache
def rows_of(name: str, silicon: bool) -> tuple[RowResult, ...]:
    found = validate(read_training_runs(TRUTH / name), silicon=silicon, bands=False, workers=1)
    assert not found.skipped
    assert len(found.rows) == ROWS[name]
    return found.rows


@pytest.mark.parametrize("silicon", SOURCES)
@pytest.mark.parametrize("name", ROWS)
def test_errors_are_as_recorded_or_smaller(name: str, silicon: bool) -> None:
    """Also of forward, backward, optimizer and memory: a step may be right because its parts are wrong both ways."""
    recorded = RECORDED["with silicon" if silicon else "without silicon"][name]
    errors = errors_by_quantity(rows_of(name, silicon))
    assert errors.keys() == recorded.keys()
    worse = {one: error for one, error in errors.items() if error > recorded[one] + SLACK}
    assert not worse, f"recorded: {recorded}"


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_no_part_of_a_step_is_far_off(part: str) -> None:
    errors = [abs(row.parts[part].error) for row in rows_of("h200_steps.jsonl", False)]
    assert max(errors) < 0.10
