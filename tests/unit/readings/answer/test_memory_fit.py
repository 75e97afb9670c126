"""Whether jobs fit in memory, and what would make them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.machine import Machine
from foretrace.models.model import Model
from foretrace.models.presets import model
from foretrace.readings.answer import memory_fit
from foretrace.readings.answer.memory_fit import MemoryFit, MemoryPart, StageMemory
from foretrace.readings.memory import MemoryTrack
from foretrace.simulation import relief
from foretrace.simulation.relief import Relief, find_relief
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

GIB = 2**30


OUTSIDE = (MemoryPart("CUDA", GIB // 2, "test"), MemoryPart("NCCL", GIB, "test"))


def stage(role: str, gib: float, varying_gib: float = 0.0) -> StageMemory:
    """A stage that holds weights throughout the step, and activations at its second moment."""
    weights, activations = int((gib - varying_gib) * GIB), int(varying_gib * GIB)
    held = np.array([[weights, 0, 0, 0, 0, 0], [weights, 0, 0, activations, 0, 0]])
    track = MemoryTrack(0, np.array([0.0, 1.0]), held, 0, 0)
    return StageMemory(role, 8, track.peak_bytes, track.at_peak(), track)


def fit_of(*gib: float) -> MemoryFit:
    return MemoryFit(tuple(stage(f"stage {number}", one) for number, one in enumerate(gib)), 80 * GIB, OUTSIDE)


def test_the_fullest_stage_decides_and_memory_outside_the_allocator_counts() -> None:
    assert fit_of(70.0, 78.4).fits
    assert not fit_of(78.6, 70.0).fits
    worst = fit_of(60.0, 78.0, 20.0).worst
    assert worst is not None
    assert worst.role == "stage 1"
    assert MemoryFit((), 80 * GIB, OUTSIDE).fits
    assert MemoryFit((), 80 * GIB, OUTSIDE).worst is None
    assert MemoryFit((), GIB, OUTSIDE).verdict == "does not fit"


def test_only_memory_that_comes_and_goes_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "RESERVED_SHARE", (0.01, 0.05, 0.2))
    half = stage("stage 0", 60.0, 30.0)
    assert half.varying_bytes == 30 * GIB
    assert [size / GIB for size in half.reserved_band_bytes] == pytest.approx([60.3, 61.5, 66.0], abs=1e-6)
    assert stage("stage 0", 60.0).reserved_band_bytes == (60 * GIB,) * 3


@pytest.mark.parametrize(
    ("gib", "verdict"), [(40.0, "fits"), (75.0, "fits"), (75.1, "caution"), (77.8, "caution"), (78.6, "does not fit")]
)
def test_a_verdict_is_clear_only_where_the_whole_band_is_on_one_side(
    gib: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_fit, "RESERVED_SHARE", (0.0, 0.05, 0.1))
    fit = MemoryFit((stage("stage 0", gib, 35.0),), 80 * GIB, OUTSIDE)
    low, middle, high = fit.needed_band_bytes
    assert fit.peak_bytes + fit.outside_bytes <= low <= middle <= high
    assert fit.headroom_bytes == fit.capacity_bytes - middle
    assert fit.verdict == verdict
    assert fit.fits == (verdict != "does not fit")
    assert (fit.warning is not None) == (verdict == "caution")


def test_another_stage_may_need_most_where_it_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "RESERVED_SHARE", (0.0, 0.5, 0.5))
    fit = MemoryFit((stage("stage 0", 60.0), stage("stage 1", 59.0, 50.0)), 80 * GIB, ())
    assert fit.peak_bytes == 60 * GIB
    assert fit.needed_bytes == 84 * GIB


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
        patch.setattr(relief, "outside_memory", lambda *_: OUTSIDE)
        patch.setattr(relief, "simulate_program", lambda changed, *_, **__: changed)
        patch.setattr(relief, "memory_fit", lambda changed, *_: fit_of(peaks.get(changed, 100.0)))
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
