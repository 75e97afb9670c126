"""What a demanding user gets wrong: every mistake ends in one error that says what would be right, and in time."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unit.cli.command_line import answer_of, call

JOB = ("llama3-8b", "--gpus", "16", "--cluster", "h100-dgx", "--tp", "2", "--pp", "2", "--gbs", "32")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
SCRIPT = (
    "torchrun pretrain_gpt.py --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 128 --max-position-embeddings 4096 --num-layers "
)


def refusal(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    """The error of a command that must fail so."""
    assert call(*arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    return printed.err


class TestSizes:
    @pytest.mark.parametrize(
        ("option", "value", "words"),
        [
            ("--gpus", "1000000000000", "more than any cluster has"),
            ("--gbs", "1000000000000", "more than can be run"),
            ("--vpp", "1000000000000", "cannot fill"),
            ("--seq", "1000000000", "cannot be meant"),
            ("--prefetch", "1000000000000", "cannot be meant"),
            ("--offload-layers", "33", "has 32 layers"),
            ("--schedule", "", "schedule"),
            ("--stack", "", "stack"),
        ],
    )
    def test_absurd_ones(self, option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert words in refusal(capsys, 3, "predict", *JOB, option, value)

    @pytest.mark.parametrize("flag", ["--stage-layers", "--documents"])
    def test_lists(self, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
        for text in ("1,x", "", "9" * 5000):
            error = refusal(capsys, 2, "predict", *JOB, flag, text)
            assert f"example: {flag} " in error
            assert ("4096" in error) == (flag == "--documents")

    def test_a_stage_may_have_no_layers(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert answer_of(capsys, "predict", *JOB, "--stage-layers", "0,32")["plan"]["stage_layers"] == [0, 32]


class TestWords:
    def test_the_case_of_a_word_does_not_matter(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert answer_of(capsys, "predict", *JOB, "--precision", "FP8-Block")["plan"]["precision"] == "fp8_block"

    def test_scales_of_blocks_need_units_for_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "no mxfp8 units" in refusal(capsys, 3, "predict", *JOB, "--precision", "mxfp8")
        assert call("predict", *JOB, "--precision", "mxfp8", "--cluster", "b200-dgx") == 0

    def test_what_has_no_effect_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = answer_of(capsys, "predict", *JOB, "--routing", "2", "--prefetch", "3", "--cp-comm", "a2a")
        (note,) = (one["message"] for one in answer["diagnostics"] if "without effect" in one["message"])
        for words in ("routing 2x (no experts)", "prefetch 3 (zero is 1)", "cp_comm a2a (cp is 1)"):
            assert words in note
        assert not any("busy" in one["message"] for one in answer["diagnostics"])

    def test_names_that_no_file_can_have(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "no model is called" in refusal(capsys, 3, "predict", "x" * 5000, *JOB[1:])


class TestStacks:
    @pytest.mark.parametrize(
        ("stack", "code"),
        [
            ("megatron-core@latest", "bad-value"),
            ("megatron-core@", "bad-value"),
            ("torch-eager@2.9", "bad-value"),
            ("megatron-cor@0.16", "unknown-name"),
        ],
    )
    def test_versions_that_cannot_be_meant(self, stack: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert f"[{code}]" in refusal(capsys, 3, "predict", *JOB, "--stack", stack)

    def test_another_version_is_another_step(self, capsys: pytest.CaptureFixture[str]) -> None:
        job = ("llama3-8b", "--gpus", "16", "--cluster", "b200-dgx", "--tp", "2", "--gbs", "32", "--stack")
        old, new = (answer_of(capsys, "predict", *job, f"megatron-core@{version}") for version in ("0.14", "0.16"))
        assert new["step_time_s"] < old["step_time_s"], "attention of an older cuDNN is slower"
        assert not {"nearest-version"} & {note["code"] for note in (*old["diagnostics"], *new["diagnostics"])}

    def test_a_version_that_is_not_known_is_warned_of(self, capsys: pytest.CaptureFixture[str]) -> None:
        nearest, known = (
            answer_of(capsys, "predict", *JOB, "--stack", f"megatron-core@{version}") for version in ("0.13", "0.14")
        )
        assert [note["code"] for note in nearest["diagnostics"] if note["level"] == "warning"] == ["nearest-version"]
        assert nearest["step_time_s"] == known["step_time_s"]
        (low, high), (known_low, known_high) = (one["step_time_band_s"] for one in (nearest, known))
        assert low < known_low and high > known_high

    def test_versions_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        listed = {one["name"]: one for one in answer_of(capsys, "list", "stacks")["stacks"]}
        bridge = listed["megatron-bridge"]
        assert (bridge["version"], bridge["versions"]) == ("26.04", ["25.11", "26.02", "26.04", "26.06", "26.08"])
        assert (listed["torch-eager"]["version"], listed["torch-eager"]["versions"]) == (None, [])


class TestFiles:
    def test_a_folder_stands_for_its_configuration(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        assert answer_of(capsys, "predict", tmp_path, *JOB[1:])["model"] == "llama 8.0B"

    @pytest.mark.parametrize(
        ("field", "value", "words"),
        [
            ("num_hidden_layers", 10**9, "expected 1 to 2,000"),
            ("hidden_size", 10**9, "cannot be meant"),
            ("num_attention_heads", 7, "hidden_size 4096 is no multiple of num_attention_heads 7"),
        ],
    )
    def test_configurations(
        self, field: str, value: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**CONFIG, field: value}), encoding="utf-8")
        assert words in refusal(capsys, 3, "predict", path, *JOB[1:])

    def test_a_script_with_a_billion_layers(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "train.sh"
        path.write_text(f"{SCRIPT} 1000000000\n", encoding="utf-8")
        assert "expected 1 to 2,000" in refusal(capsys, 3, "init", "--from-megatron", path)

    @pytest.mark.parametrize("plan", ["7", "", "[1]"])
    def test_a_plan_that_is_none(self, plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "job.yaml"
        path.write_text(f"model: llama3-8b\nplan: {plan}\ncluster: h100-dgx\n", encoding="utf-8")
        assert "job.yaml:2: expected a mapping of a plan's fields" in refusal(capsys, 3, "predict", path)

    def test_a_model_by_its_name_on_hugging_face(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert answer_of(capsys, "show", "meta-llama/Meta-Llama-3-70B-Instruct")["name"] == "llama3-70b"


class TestMemory:
    @pytest.mark.parametrize(
        "job",
        [
            "llama3-70b --gpus 64 --cluster h100-dgx --tp 2 --pp 2 --gbs 64",
            "llama3-8b --gpus 16 --cluster h100-dgx --mbs 8 --gbs 128 --recompute full --recompute-layers 1",
            "mixtral-8x7b --gpus 16 --cluster h100-dgx --ep 8 --gbs 32",
            "llama3-8b --gpus 8 --cluster a100-40g-dgx --zero 0 --gbs 32 --mbs 4",
        ],
    )
    def test_the_suggestion_fits(self, job: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("memory", *shlex.split(job), "--json") == 4
        change = json.loads(capsys.readouterr().out)["would_fit"][0]
        answer = answer_of(capsys, "predict", *shlex.split(f"{job} {change['options']}"))
        assert answer["memory"]["fits"] is True
        assert answer["step_time_s"] == pytest.approx(change["step_time_s"])


def test_standard_output_that_is_closed() -> None:
    command = (
        "import os, sys; os.close(1); sys.stdout = None; from foretrace.cli.main import run; run(['list', 'gpus'])"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "[unwritable-file]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_routing_by_layer_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("predict", "qwen3-30b-a3b", "--gpus", "8", "--ep", "8", "--cluster", "b200-dgx", "--routing")
    path = tmp_path / "routing.txt"
    path.write_text("# the last half is busier\n" + "1\n" * 24 + "1.4x\n" * 24)

    def step(routing: str | Path) -> float:
        return float(answer_of(capsys, *job, routing)["step_time_s"])

    assert step("balanced") < step(path) < step("1.4x")
    path.write_text("1\nmuch\n")
    assert f"{path}:2" in refusal(capsys, 3, *job, path)


def test_routing_that_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, 2, "predict", *JOB, "--routing", "nosuch.txt")
    assert "[bad-value]" in said and "--routing" in said
