"""Predictions of measured steps get no worse than they were when last recorded (benchmarks/truth/errors.json)."""

from __future__ import annotations

import json

import pytest

from foretrace import Machine, PriceSources
from foretrace.cost.silicon import installed
from foretrace.validate.results import errors_by_quantity
from foretrace.validate.training_runs import read_training_runs
from foretrace.validate.validate import validate
from shared_files import ROOT

TRUTH = ROOT / "benchmarks" / "truth"
ROWS = {"korthikanti.csv": 9, "h200_steps.jsonl": 8, "h200_more_steps.jsonl": 7, "h200_memory.jsonl": 19}
SLACK = 0.003
"""How much worse a mean error may get: 0.3 percentage points."""

SILICON = pytest.mark.skipif(not installed(), reason="the extra [silicon] is not installed")


@pytest.mark.parametrize("source", [pytest.param("with silicon", marks=SILICON), "without silicon"])
@pytest.mark.parametrize("name", ROWS)
def test_errors_are_as_recorded_or_smaller(name: str, source: str) -> None:
    """Also of forward, backward, optimizer and memory: a step may be right because its parts are wrong both ways."""
    recorded = json.loads((TRUTH / "errors.json").read_text(encoding="utf-8"))[source][name]
    runs = read_training_runs(TRUTH / name)
    machine = Machine(prices=PriceSources(silicon=source == "with silicon"))
    found = validate(runs, machine, bands=False, workers=1)
    assert not found.skipped
    assert len(found.rows) == ROWS[name]
    errors = errors_by_quantity(found.rows)
    assert errors.keys() == recorded.keys()
    worse = {one: error for one, error in errors.items() if error > recorded[one] + SLACK}
    assert not worse, f"recorded: {recorded}"
