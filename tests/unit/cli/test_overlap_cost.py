"""`--no-overlap-cost` as a person gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.models.presets import model
from foretrace.program.file import save
from foretrace.step import build_step
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec
from unit.cli.command_line import answer_of

JOB = ("llama3-8b", "--gpus", "16", "--cluster", "h100-dgx", "--zero", "3", "--gbs", "32")


def test_an_answer_says_what_overlap_costs(capsys: pytest.CaptureFixture[str]) -> None:
    on, off = (answer_of(capsys, "predict", *JOB, *options) for options in ((), ("--no-overlap-cost",)))
    assert off["overlap_cost_s"] == 0 < on["overlap_cost_s"]
    assert off["step_time_s"] < on["step_time_s"] < off["step_time_s"] + 1.5 * on["overlap_cost_s"]


def test_simulate_takes_it_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = tmp_path / "job.foretrace"
    save(build_step(step_spec(settle(model("llama3-8b"), Plan(gpus=16, zero=3, gbs=32)))), job)
    both = [("--cluster", "h100-dgx"), ("--cluster", "h100-dgx", "--no-overlap-cost")]
    on, off = (answer_of(capsys, "simulate", job, *options) for options in both)
    assert off["overlap_cost_s"] == 0 < on["overlap_cost_s"]
