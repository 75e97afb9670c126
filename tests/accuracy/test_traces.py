"""How near predictions of recorded runs come. No prediction may read the run it is compared with.

The measured steps are in the reference on Megatron traces (§5); the shared folder has the traces.
"""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from foretrace import Answer, Machine, simulate
from foretrace.inputs.megatron_trace.format import read_runs
from foretrace.inputs.megatron_trace.options import MegatronTraceOptions
from foretrace.inputs.megatron_trace.program import recording_of
from foretrace.inputs.registry import open_input
from foretrace.program.columns import Phase
from shared_files import ROOT, shared

CLUSTER = ROOT / "examples" / "clusters" / "a100_2x8.yaml"
TWO_CAMPAIGNS = ("scaling_a", "scaling_b")

REAL_RUNS = {
    "dense4/real": 907.7,
    "dense8/tp2_pp4_real": 3851.4,
    "moe16/pp2_tp1_ep2_expn8_dp8_nl8_hs4096_sl1024/real": 754.0,
    "moe16/pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024/real": 729.0,
    "moe16/pp4_tp1_ep4_expn16_dp4_nl8_hs4096_sl1024/real": 769.0,
    "moe16/pp4_tp1_exp4_expn8_dp4_nl8_hs4096_sl4096/real": 1731.3,
}
"""Real steps in ms."""

MOE = {
    "pp2_tp1_ep2_expn8_dp8_nl8_hs4096_sl1024": (754.0, 8),
    "pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024": (729.0, 8),
    "pp4_tp1_ep4_expn16_dp4_nl8_hs4096_sl1024": (769.0, 16),
}
"""Real steps in ms, and microbatches."""

BEFORE_OPTIMIZER_MS = 868.3
"""The dense job up to the end of its gradient reductions; its real optimizer step was probably skipped."""


def predicted(folders: list[Path], microbatches: int | None = None, *, explain: bool = False) -> Answer:
    job = open_input(folders).with_options(microbatches=microbatches)
    collectives = shared("data", "collectives", "a100_2x8")
    return simulate(job, Machine(CLUSTER, collectives=collectives), explain=explain)


def moe_folder(job: str, campaign: str) -> Path:
    return shared("data", "traces", "moe16", job, campaign)


@lru_cache
def moe(job: str, *campaigns: str) -> Answer:
    folders = [moe_folder(job, campaign) for campaign in campaigns]
    return predicted(folders, MOE[job][1], explain=True)


@pytest.mark.parametrize(("run", "real_ms"), REAL_RUNS.items())
def test_a_real_run_replays_as_it_was(run: str, real_ms: float) -> None:
    """Its own step within 1 %, and half of all ops within 1 % of it of where they really began."""
    folder = shared("data", "traces", *run.split("/"))
    job = open_input([folder])
    recording, really = recording_of(read_runs([folder]), MegatronTraceOptions()), job.recorded()
    assert recording is not None
    assert really is not None
    assert recording.step_s * 1e3 == pytest.approx(real_ms, abs=0.06)
    found = simulate(job, explain=False, folded=False)
    assert found.step_time_s * 1e3 == pytest.approx(real_ms, rel=0.01)
    off = np.abs(found.timeline.start_s - really.start_s)
    assert np.median(off) <= 0.01 * recording.step_s


@pytest.mark.parametrize("job", MOE)
def test_experts_with_two_campaigns(job: str) -> None:
    found = moe(job, *TWO_CAMPAIGNS)
    assert found.step_time_s * 1e3 == pytest.approx(MOE[job][0], rel=0.03)
    low, high = found.step_time_band_s
    assert low * 1e3 <= MOE[job][0] <= high * 1e3


@pytest.mark.parametrize("campaign", TWO_CAMPAIGNS)
@pytest.mark.parametrize("job", MOE)
def test_experts_with_one_campaign(job: str, campaign: str) -> None:
    """The band has the real step in it, and says something: it is no wider than ± 20 %."""
    found = moe(job, campaign)
    low, high = found.step_time_band_s
    assert low * 1e3 <= MOE[job][0] <= high * 1e3
    assert low >= 0.8 * found.step_time_s
    assert high <= 1.2 * found.step_time_s


def test_a_dense_model() -> None:
    folders = [shared("data", "traces", "dense4", campaign) for campaign in TWO_CAMPAIGNS]
    timeline = predicted(folders, 1).timeline
    phase = timeline.graph.ops.ints("phase")[timeline.graph.op]
    begins_ms = timeline.start_s[phase == Phase.OPTIMIZER].max() * 1e3
    assert begins_ms == pytest.approx(BEFORE_OPTIMIZER_MS, rel=0.05)


@pytest.mark.parametrize("job", MOE)
def test_no_prediction_reads_the_real_run(job: str, tmp_path: Path) -> None:
    """Where there is no folder of the real run, the number is the same to the last bit."""
    for campaign in TWO_CAMPAIGNS:
        shutil.copytree(moe_folder(job, campaign), tmp_path / job / campaign)
    away = predicted([tmp_path / job / campaign for campaign in TWO_CAMPAIGNS], MOE[job][1])
    assert away.step_time_s == moe(job, *TWO_CAMPAIGNS).step_time_s


def test_thousands_of_ranks_from_one_of_each_stage() -> None:
    """8,192 ranks of which 64 were traced; no run to compare with, but it is an answer, and says what it stands on."""
    job = open_input([shared("data", "traces", "pp64_tp8_dp16")]).with_options(microbatches=128)
    found = simulate(job, Machine("h100-dgx"), explain=False)
    assert found.world_size == 8192
    assert np.isfinite(found.step_time_s)
    assert any("8,128 of 8,192 ranks have no trace" in one.message for one in found.diagnostics)
