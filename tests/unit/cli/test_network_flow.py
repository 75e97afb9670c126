"""`--network flow` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared_files import ROOT
from unit.cli.command_line import answer_of, call

WORKLOAD = ROOT / "examples" / "llama405b_1024gpu.txt"
PREDICT = ("predict", "llama3.2-1b", "--gpus", "16", "--cluster", "h100-dgx", "--tp", "2", "--pp", "2", "--gbs", "8")


def test_an_answer_says_where_it_differs(capsys: pytest.CaptureFixture[str]) -> None:
    flow = answer_of(capsys, *PREDICT, "--network", "flow")
    alone = answer_of(capsys, *PREDICT)
    assert alone["network"] == {
        "mode": "analytic",
        "analytic_step_time_s": alone["step_time_s"],
        "slowed": [],
        "hot": [],
        "limits": alone["network"]["limits"],
    }
    use = flow["network"]
    assert use["mode"] == "flow"
    assert use["analytic_step_time_s"] == pytest.approx(alone["step_time_s"], rel=1e-9)
    assert {limit["axis"] for limit in use["limits"]} >= {"dp", "pp"}
    assert {one["resource"] for one in use["hot"]} == {"link", "nic"}
    assert all(0 < one["utilisation"] <= one["utilisation_in_use"] <= 1 + 1e-9 for one in use["hot"])


def test_the_screen_has_a_block_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*PREDICT, "--network", "flow") == 0
    shown = capsys.readouterr().out
    assert "links shared" in shown
    assert "nic of rank" in shown
    assert call(*PREDICT) == 0
    assert "links shared" not in capsys.readouterr().out


def test_a_workload_and_a_sweep_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--cluster", "h100-dgx", "--network", "flow", "--overlap", "dp", "--microbatches", "4")
    answer = answer_of(capsys, "simulate", WORKLOAD, *options)
    assert answer["network"]["mode"] == "flow"
    assert answer["step_time_s"] >= answer["network"]["analytic_step_time_s"] * (1 - 1e-9)
    swept = answer_of(capsys, "sweep", WORKLOAD, *options[:-2], "--over", "microbatches=4")
    assert swept["points"][0]["step_time_s"] == pytest.approx(answer["step_time_s"], rel=1e-9)


def test_flow_needs_a_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from foretrace import Mesh, ProgramBuilder
    from foretrace.program.file import save

    build = ProgramBuilder(Mesh())
    build.role("only", [0]).compute("work", 1.0)
    save(build.program(), tmp_path / "job.foretrace")
    assert call("simulate", tmp_path / "job.foretrace", "--network", "flow") == 2
    assert "name it with --cluster" in capsys.readouterr().err
