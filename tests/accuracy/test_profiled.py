"""Steps foretold from their profiler traces get no worse than when last recorded (truth/profiles/errors.json)."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType

import pytest

from shared_files import ROOT

PROFILES = ROOT / "benchmarks" / "truth" / "profiles"
RECORDED: dict[str, dict[str, float]] = json.loads((PROFILES / "errors.json").read_text(encoding="utf-8"))
SLACK = 0.005
REPLAY = 0.01
"""A replay takes the recorded step within 1 %."""


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("profiled_benchmark", ROOT / "benchmarks" / "profiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RECORDED)
def test_errors_are_as_recorded_or_smaller(name: str) -> None:
    benchmark = _benchmark()
    (case,) = (one for one in benchmark.cases(shared=False) if one.name == name)
    errors = benchmark.row(case).errors
    assert errors.keys() == RECORDED[name].keys()
    worse = {what: error for what, error in errors.items() if abs(error) > abs(RECORDED[name][what]) + SLACK}
    assert not worse, f"recorded: {RECORDED[name]}"
    assert abs(errors["replay"]) <= REPLAY


def test_every_trace_kept_is_judged() -> None:
    kept = {one.name.removesuffix(".json.gz") for one in PROFILES.glob("*.json.gz")}
    assert kept == set(RECORDED)


def test_what_is_foretold_without_the_profiler_is_near_in_the_mean() -> None:
    """Single steps of a host that shares its cores repeat to a tenth; their mean error tells of a bias."""
    errors = [one["unprofiled"] for one in RECORDED.values()]
    assert abs(sum(errors) / len(errors)) < 0.03
    assert sum(map(abs, errors)) / len(errors) < 0.06
