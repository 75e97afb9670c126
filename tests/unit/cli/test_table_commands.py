"""Profiler tables on the command line: inspect, explain, simulate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shared_files import ROOT, shared
from unit.cli.command_line import answer_of, call

FAIRSEQ = ROOT / "examples/moe_fairseq_profile.txt"
SIZES = ["--set", "moe.tokens=8192", "--set", "moe.hidden=2048", "--set", "params=2.5e8"]


def test_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "inspect", FAIRSEQ)
    (table,) = answer["tables"]
    assert answer["schema"] == "foretrace.tables/1" and len(table["rows"]) == 84 and table["device"] == "CUDA"
    assert call("inspect", FAIRSEQ) == 0
    assert "84 rows · device times of CUDA" in capsys.readouterr().out


def test_explain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = answer_of(capsys, "explain", FAIRSEQ, "-o", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == answer
    (table,) = answer["tables"]
    assert sum(table["by_kind_in_labels_s"].values()) == pytest.approx(46.271e-3)
    assert table["communication_recorded"] is False
    assert {one["name"]: one["device_s"] for one in table["communication"]}["nccl:all_to_all"] is None
    assert call("explain", FAIRSEQ) == 0
    screen = capsys.readouterr().out
    assert re.search(r"nccl:all_to_all +8 +739 µs +not recorded", screen)
    assert re.search(r"all +97.6 ms +100.0 % +46.3 ms +51.3 ms", screen)


def test_explain_says_what_is_of_all_steps_and_what_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", shared("data", "h200", "tinyllama_mbs4.table.txt")) == 0
    screen = capsys.readouterr().out
    assert "262 ms in 2 steps, 131 ms each" in screen and "176 ms in 2 steps" in screen
    assert re.search(r"device time by kind +2 steps +one step +share\n +gemm +133 ms +66.7 ms +51.0 %", screen)
    assert "what the 2 steps do" in screen and "131 ms of computation on the device a step" in screen
    assert "70.5 ms that the profiler counts twice are in these times" in screen


def test_words_of_kinds_are_those_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    (table,) = answer_of(capsys, "explain", FAIRSEQ)["tables"]
    assert call("explain", FAIRSEQ) == 0
    screen = capsys.readouterr().out
    for kind in table["by_kind_s"]:
        assert re.search(rf"\n  {kind} +[0-9.]+ (ms|µs) +[0-9.]+ %", screen), kind


def test_simulate_on_a_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", FAIRSEQ, "--cluster", "h100-dgx", "--mesh", "dp=64,ep=8", *SIZES, "--no-silicon"]
    answer = answer_of(capsys, *words)
    assert answer["world_size"] == 64 and answer["step_time_s"] > 0.0976
    assert any("left out" in note["message"] for note in answer["diagnostics"])


def test_simulate_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_of(capsys, "simulate", FAIRSEQ)["step_time_s"] == pytest.approx(97.573e-3)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["simulate", FAIRSEQ, "--cluster", "h100-dgx", "--mesh", "dp=8,ep=8"], 3, "set params"),
        (["simulate", FAIRSEQ, "--mesh", "dp=8,ep=8", *SIZES], 2, "[needs-cluster]"),
        (["explain", FAIRSEQ, "--cluster", "h100-dgx"], 2, "explained as it was recorded"),
        (["inspect", FAIRSEQ, FAIRSEQ], 2, "[several-inputs]"),
    ],
)
def test_errors(words: list[str | Path], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "explain", "simulate"])
@pytest.mark.parametrize("damage", ["no dashes", "no column", "cut"])
def test_a_broken_table_is_an_input_error_with_its_line(
    command: str, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = FAIRSEQ.read_text(encoding="utf-8").splitlines()
    if damage == "no dashes":
        lines = [line for line in lines if not line.startswith("-")]
    elif damage == "no column":
        lines = [line[:-14] for line in lines]
    else:
        lines = [*lines[:20], lines[20][:100]]
    (tmp_path / "t.txt").write_text("\n".join(lines), encoding="utf-8")
    assert call(command, tmp_path / "t.txt") == 3
    error = capsys.readouterr().err
    assert re.search(r"t\.txt:\d+: ", error) and "Traceback" not in error


def test_the_page_reads_tables_in_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/torch-tables.md").read_text(encoding="utf-8")
    read, explained = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(read, {})
    assert capsys.readouterr().out.split() == ["CUDA", "84", "train_step-0", "0.046271"]
    exec(explained, {})
    assert capsys.readouterr().out.startswith("unknown 97.6 ms of computation on the device")


def test_the_json_page_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    for command in ("inspect", "explain"):
        answer = answer_of(capsys, command, FAIRSEQ)
        for key in (*answer, *answer["tables"][0]):
            assert f"`{key}`" in page, key
