"""Whether jobs fit in memory, and what would make them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.machine import Machine
from foretrace.models.model import Model
from foretrace.models.presets import model
from foretrace.readings.answer.memory_fit import MemoryFit, StageMemory
from foretrace.readings.memory import MemoryTrack
from foretrace.simulation import relief
from foretrace.simulation.relief import Relief, find_relief
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

GIB = 2**30


def stage(role: str, gib: float) -> StageMemory:
    track = MemoryTrack(0, np.array([0.0]), np.array([[int(gib * GIB), 0, 0, 0, 0, 0]]), 0, 0)
    return StageMemory(role, 8, track.peak_bytes, track.at_peak(), track)


def fit_of(*gib: float) -> MemoryFit:
    return MemoryFit(tuple(stage(f"stage {number}", one) for number, one in enumerate(gib)), 80 * GIB)


def test_the_fullest_stage_decides_and_the_overhead_counts() -> None:
    assert fit_of(70.0, 78.4).fits
    assert not fit_of(78.6, 70.0).fits
    worst = fit_of(60.0, 78.0, 20.0).worst
    assert worst is not None
    assert worst.role == "stage 1"
    assert MemoryFit((), 80 * GIB).fits
    assert MemoryFit((), 80 * GIB).worst is None


def found_by(peaks: dict[str, float], plan: Plan) -> Relief | None:
    """What helps where each plan's peak, by what it changes, is as listed, and otherwise too large."""
    setting = settle(model("llama3-8b"), plan)

    def changes(_model: Model, changed: Plan) -> str:
        differs = {
            f"{name}={getattr(changed, name)}"
            for name in ("zero", "mbs", "recompute", "tp", "pp")
            if getattr(changed, name) != getattr(plan, name)
        }
        if "pp=2" in differs:
            raise InputError("bad-plan", "no such plan")
        return " ".join(sorted(differs))

    # Nothing is simulated: what a plan changes stands for its setting, program and answer.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relief, "settle", changes)
        patch.setattr(relief, "step_spec", lambda changed: changed)
        patch.setattr(relief, "build_step", lambda changed: changed)
        patch.setattr(relief, "simulate_program", lambda changed, *_, **__: changed)
        patch.setattr(relief, "memory_fit", lambda changed, _capacity: fit_of(peaks.get(changed, 100.0)))
        return find_relief(setting, Machine("h100-dgx"))


PLAN = Plan(gpus=16, mbs=2, gbs=64, zero=1)


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ({"mbs=1": 70.0, "recompute=full": 30.0}, "--mbs 1"),
        ({"recompute=selective": 70.0, "recompute=full": 30.0}, "--recompute selective"),
        ({"recompute=full": 30.0, "tp=2": 30.0}, "--recompute full"),
        ({"tp=8": 30.0}, "--tp 8"),
        ({"pp=4": 30.0}, "--pp 4"),
        ({"recompute=full tp=4": 30.0}, "--recompute full --tp 4"),
        ({"zero=3": 30.0}, "--zero 3"),
    ],
)
def test_the_first_change_that_helps_is_named(peaks: dict[str, float], words: str) -> None:
    found = found_by(peaks, PLAN)
    assert found is not None
    assert found.words == words


def test_what_cannot_be_or_does_not_help_is_not_named() -> None:
    assert found_by({"pp=2": 30.0}, PLAN) is None
    assert found_by({"tp=16": 30.0}, PLAN) is None  # more than NVLink joins
    assert found_by({"mbs=1": 30.0}, replace(PLAN, mbs=1)) is None
