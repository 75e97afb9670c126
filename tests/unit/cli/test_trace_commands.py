"""The commands on Megatron rank traces, as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared_files import ROOT, shared
from unit.cli.command_line import answer_of, call

REAL_RANK = ROOT / "examples" / "traces" / "gpt13b_real_rank0.txt"
EX_SITU_RANK = ROOT / "examples" / "traces" / "moe_ex_situ_rank2.txt"
CLUSTER = ROOT / "examples" / "clusters" / "a100_2x8.yaml"
PAIR = ("data", "traces", "moe16", "pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024")


def refusal(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    assert call(*arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error
    return error


def said(answer: dict[str, Any], words: str) -> bool:
    return any(words in one["message"] for one in answer["diagnostics"])


def test_one_real_rank_alone_is_its_own_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "simulate", REAL_RANK)
    # 863.90 + 43.56 ms from the first start to the end of the optimizer, as written in the file.
    assert answer["step_time_s"] == pytest.approx(0.90746, abs=2e-5)
    assert answer["step_time_is"] == "makespan of one step"
    assert answer["breakdown_s"]["optimizer"] == pytest.approx(43.56e-3)
    assert said(answer, "for the whole job give it") and said(answer, "cannot be told from")


def test_one_ex_situ_rank_alone_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "simulate", EX_SITU_RANK)
    assert answer["world_size"] == 1
    assert answer["breakdown_s"]["optimizer"] == pytest.approx(18.41e-3)
    assert said(answer, "communication takes no time here") and said(answer, "exp, dp, exp_dp")


def test_one_ex_situ_rank_with_a_mesh_is_a_whole_job(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = ["--mesh", "pp=2,ep=8,dp=8", "--pp-comm", "8MiB", "--cluster", "a100-dgx"]
    few, many = (
        answer_of(capsys, "simulate", EX_SITU_RANK, *mesh, "--microbatches", count)["step_time_s"] for count in "48"
    )
    answer = answer_of(capsys, "simulate", EX_SITU_RANK, *mesh, "--microbatches", "8")
    assert answer["world_size"] == 16 and said(answer, "15 of 16 ranks have no trace")
    # Two stages in steady state: four more microbatches cost four times forward and backward, 28.9 + 36.5 ms and more.
    assert 4 * 0.0654 < many - few < 4 * 0.0654 * 1.25


def test_inspecting_traces(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer_of(capsys, "inspect", EX_SITU_RANK)
    assert (found["schema"], found["kind"], found["ranks"]) == ("foretrace.traces/1", "ex situ", 1)
    assert found["mesh"] is None and found["expert_tokens"] == [6535]
    assert {one["op"]: one["lines"] for one in found["ops"]}["forward_step"] == 1
    assert call("inspect", REAL_RANK) == 0
    assert "times of communication include waiting" in capsys.readouterr().out


def test_any_job_can_be_written_as_traces_and_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    workload = ROOT / "examples" / "moe_128gpu.txt"
    written = answer_of(
        capsys, "simulate", workload, "--cluster", "h100-dgx", "--traces", tmp_path / "out", "--ranks", "0-127"
    )
    assert len(list((tmp_path / "out").iterdir())) == 128
    again = answer_of(capsys, "simulate", tmp_path / "out")
    assert again["mesh"] == written["mesh"]
    assert again["step_time_s"] == pytest.approx(written["step_time_s"], rel=1e-6)


def test_a_pair_by_the_command_line_of_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    pair, collectives = shared(*PAIR), shared("data", "collectives", "a100_2x8")
    options = ["--cluster", CLUSTER, "--collectives", collectives, "--microbatches", "8"]
    answer = answer_of(capsys, "simulate", pair / "scaling_a", pair / "scaling_b", *options)
    low, high = answer["step_time_band_s"]
    assert low < answer["step_time_s"] < high and answer["cluster"] == "a100-2x8"
    sources = {one["source"] for one in answer["provenance"]}
    assert {"measured collectives", "ex-situ computation", "host"} <= sources
    assert said(answer, "no all-to-all measurement") and said(answer, "campaigns")
    compared = answer_of(capsys, "compare", pair / "scaling_a", pair / "scaling_b", pair / "real", *options)
    assert compared["step"]["predicted_s"] == answer["step_time_s"]
    assert compared["step"]["measured_s"] == pytest.approx(0.72897, abs=2e-4)


def test_a_real_run_starts_every_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    real = shared(*PAIR) / "real"
    as_was = answer_of(capsys, "simulate", real)["step_time_s"]
    assert answer_of(capsys, "simulate", real, "--microbatches", "8")["step_time_s"] == as_was
    faster = answer_of(capsys, "simulate", real, "--what-if", "ep=2x")
    assert faster["unchanged_step_time_s"] == as_was and faster["step_time_s"] < as_was
    balanced = answer_of(capsys, "simulate", real, "--routing", "balanced")
    assert balanced["step_time_s"] < 0.75 * as_was and said(balanced, "not replayed")
    elsewhere = answer_of(capsys, "simulate", real, "--cluster", "a100-dgx")
    assert elsewhere["cluster"] == "a100-dgx" and said(elsewhere, "priced anew")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--routing", "0.5x"], 2, "from 1 (balanced)"),
        (["--microbatches", "0"], 2, "[out-of-range]"),
        (["--mesh", "pp=2,ep=8"], 3, "ep=8 does not divide"),
        (["--mesh", "pp=2,dp=8,xx=1"], 2, '"xx" is not known'),
        (["--zero", "1", "--mesh", "pp=2,ep=8,dp=8"], 2, "[option-not-for-input]"),
        (
            ["--schedule", "zb-v", "--microbatches", "4", "--mesh", "pp=2,ep=8,dp=8", "--pp-comm", "8MiB"],
            3,
            "ends of the model",
        ),
        (["--collectives", "x"], 2, "prices the network of a cluster"),
        (["--jitter", "-3%"], 2, "from 0 to 100 %"),
    ],
)
def test_wrong_choices(capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str) -> None:
    error = refusal(capsys, code, "simulate", EX_SITU_RANK, *words)
    assert message in error


def test_ex_situ_traces_need_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, 2, "simulate", EX_SITU_RANK, "--mesh", "pp=2,ep=8,dp=8", "--pp-comm", "8MiB")
    assert "[needs-cluster]" in error


def test_workloads_and_traces_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    workload = ROOT / "examples" / "moe_128gpu.txt"
    assert "only traces of one job" in refusal(capsys, 2, "simulate", workload, EX_SITU_RANK, "--cluster", "h100-dgx")
    assert "only traces of one job" in refusal(capsys, 2, "inspect", workload, EX_SITU_RANK)
    options = ["--cluster", "h100-dgx", "--routing", "balanced"]
    assert "[option-not-for-input]" in refusal(capsys, 2, "simulate", workload, *options)


def test_compare_takes_the_microbatches_of_the_measured_run(capsys: pytest.CaptureFixture[str]) -> None:
    pair = shared(*PAIR)
    found = answer_of(capsys, "compare", pair / "scaling_a", pair / "real", "--cluster", "a100-dgx")
    assert abs(found["error"]) < 0.1
    swapped = answer_of(capsys, "compare", pair / "real", pair / "scaling_a", "--cluster", "a100-dgx")
    assert swapped["step"] == found["step"], "the measured run is the measured one on either side"
    campaigns = answer_of(capsys, "compare", pair / "scaling_a", pair / "scaling_b", "--cluster", "a100-dgx")
    assert campaigns["schema"] == "foretrace.difference/1" and "measured" not in campaigns
    assert call("compare", pair / "scaling_a", pair / "real", "--cluster", "a100-dgx", "--microbatches", "2") == 0
    assert "not the same work: microbatches: 2 predicted, 8 measured" in capsys.readouterr().out


def test_a_real_run_cut_short_or_with_ranks_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for file in (shared(*PAIR) / "real").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (short,) = tmp_path.glob("*_rank5_*")
    whole = short.read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    short.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    error = refusal(capsys, 3, "simulate", tmp_path)
    assert "rank 5 goes forward" in error and short.name in error
    short.unlink()
    answer = answer_of(capsys, "simulate", tmp_path)
    # No other rank of stage 0 has the experts of rank 5; the busiest are still there, and set the pace.
    assert said(answer, "1 of 16 ranks have no trace") and said(answer, "none with the experts of rank 5")
    assert answer["step_time_s"] == pytest.approx(0.725, rel=0.02)


def test_traces_that_do_not_fit_together_are_a_deadlock_for_explain_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A line lost in every file: the same calls, in an order in which each waits for the other."""
    for file in (shared(*PAIR) / "real").iterdir():
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / file.name).write_text("".join(lines[:30] + lines[31:]), encoding="utf-8")
    for command in ("simulate", "explain"):
        assert "deadlock" in refusal(capsys, 5, command, tmp_path)


def test_a_batch_that_no_step_has(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = REAL_RANK.read_text(encoding="utf-8").replace("batch_id=0", "batch_id=999999999999")
    (tmp_path / "rank.txt").write_text(text, encoding="utf-8")
    assert "[out-of-range]" in refusal(capsys, 3, "simulate", tmp_path / "rank.txt")


def test_a_terminal_that_cannot_show_every_sign() -> None:
    """The answer comes all the same, with another sign."""
    environment = os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "foretrace", "simulate", str(EX_SITU_RANK)]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert b"Step" in done.stdout and b"Traceback" not in done.stderr
