"""Whether jobs fit in memory."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from foretrace.readings.answer import memory_fit
from foretrace.readings.answer.memory_fit import (
    EXPANDABLE_TENSORS,
    RESERVED_TENSORS,
    MemoryFit,
    MemoryPart,
    ProcessMemory,
    StageMemory,
)
from shared_files import ROOT

GIB = 2**30

OUTSIDE = (MemoryPart("CUDA", GIB // 2, "test"), MemoryPart("NCCL", GIB, "test"))
PROCESS = ProcessMemory(80 * GIB, OUTSIDE)


def stage(role: str, gib: float, largest_gib: float = 0.0, *, expandable: bool = False) -> StageMemory:
    peak_bytes = int(gib * GIB)
    process = ProcessMemory(80 * GIB, OUTSIDE, {role: int(largest_gib * GIB)}, expandable)
    return process.stage(role, 8, peak_bytes, {"weights": peak_bytes})


def fit_of(*gib: float) -> MemoryFit:
    return MemoryFit(tuple(stage(f"stage {number}", one) for number, one in enumerate(gib)), PROCESS)


def test_the_fullest_stage_decides_and_memory_outside_the_allocator_counts() -> None:
    assert fit_of(70.0, 78.4).fits
    assert not fit_of(78.6, 70.0).fits
    worst = fit_of(60.0, 78.0, 20.0).worst
    assert worst is not None
    assert worst.role == "stage 1"
    assert MemoryFit((), PROCESS).fits
    assert MemoryFit((), PROCESS).worst is None
    assert MemoryFit((), ProcessMemory(GIB, OUTSIDE)).verdict == "does not fit"


def test_large_tensors_leave_large_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "RESERVED_TENSORS", (0.5, 1.0, 2.0))
    monkeypatch.setattr(memory_fit, "RESERVED_SHARES", (0.0, 0.01, 0.05))
    assert stage("stage 0", 60.0, 3.0).reserved_band_bytes == (int(61.5 * GIB), 63 * GIB, 66 * GIB)
    assert stage("stage 0", 60.0).reserved_band_bytes == (60 * GIB, int(60.6 * GIB), 63 * GIB), "however small they are"


def test_segments_that_grow_leave_smaller_gaps() -> None:
    fixed, growing = (stage("stage 0", 60.0, 3.0, expandable=way).reserved_band_bytes for way in (False, True))
    assert fixed[0] == growing[0] == 60 * GIB
    assert growing[1] < fixed[1] and growing[2] < fixed[2]


@pytest.mark.parametrize(
    ("gib", "verdict"), [(40.0, "fits"), (75.0, "fits"), (75.1, "caution"), (78.4, "caution"), (78.6, "does not fit")]
)
def test_a_verdict_is_clear_only_where_the_whole_band_is_on_one_side(
    gib: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_fit, "RESERVED_TENSORS", (0.0, 0.5, 1.0))
    monkeypatch.setattr(memory_fit, "RESERVED_SHARES", (0.0, 0.0, 0.0))
    fit = MemoryFit((stage("stage 0", gib, 3.5),), PROCESS)
    low, middle, high = fit.needed_band_bytes
    assert fit.peak_bytes + fit.outside_bytes <= low <= middle <= high
    assert fit.headroom_bytes == fit.capacity_bytes - middle
    assert fit.verdict == verdict
    assert fit.fits == (verdict != "does not fit")
    codes = {"fits": None, "caution": "memory-tight", "does not fit": "out-of-memory"}
    assert (fit.warning.code if fit.warning else None) == codes[verdict]


def test_another_stage_may_need_most_where_it_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "RESERVED_TENSORS", (0.0, 1.0, 1.0))
    monkeypatch.setattr(memory_fit, "RESERVED_SHARES", (0.0, 0.0, 0.0))
    fit = MemoryFit((stage("stage 0", 60.0), stage("stage 1", 59.0, 25.0)), ProcessMemory(80 * GIB))
    assert fit.peak_bytes == 60 * GIB
    assert fit.needed_bytes == 84 * GIB
    assert fit.warning is not None
    assert "stage 1" in fit.warning.message


def test_what_no_measurement_supports_casts_doubt_but_does_not_refuse() -> None:
    unsure = ProcessMemory(80 * GIB, (MemoryPart("NCCL", 30 * GIB, "test", unsure_bytes=27 * GIB),))
    fit = MemoryFit((stage("stage 0", 60.0),), unsure)
    assert fit.needed_bytes > fit.capacity_bytes
    assert fit.verdict == "caution"


def test_gaps_are_those_that_were_measured() -> None:
    """The largest tensor of the measured steps is the fp32 logits."""
    truth = ROOT / "benchmarks" / "truth"
    steps = [json.loads(line) for line in (truth / "h200_memory.jsonl").read_text(encoding="utf-8").splitlines()]
    growing = json.loads((truth / "h200_process_memory.json").read_text(encoding="utf-8"))["expandable_segments"]

    def gap(step: dict[str, Any], measured: dict[str, Any]) -> float:
        logits_gib = step["mbs"] * step["seq"] * step["vocab"] * 4 / GIB
        return float(measured["reserved_gb"] - measured["peak_gb"]) / logits_gib

    fixed = [gap(step, step) for step in steps]
    grown = [gap(steps[measured["line"] - 1], measured) for measured in growing]
    for gaps, (_, usual, highest) in ((fixed, RESERVED_TENSORS), (grown, EXPANDABLE_TENSORS)):
        assert median(gaps) == pytest.approx(usual, abs=0.01)
        assert max(gaps) <= highest
