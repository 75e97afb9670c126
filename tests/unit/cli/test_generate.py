"""`foretrace generate` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unit.cli.command_line import answer_of, call

JOB = ("llama3-8b", "--gpus", "16", "--tp", "2", "--pp", "2", "--gbs", "32")
ON = ("--cluster", "h100-dgx")


class TestAicb:
    def test_a_file_that_simulates(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "job.txt"
        made = answer_of(capsys, "generate", *JOB, *ON, "-o", path)
        assert made["schema"] == "foretrace.generated/1"
        assert (made["format"], made["microbatches"], made["layers_per_stage"]) == ("aicb", 8, 16)
        assert made["traffic_bytes"]["step ALLGATHER"] == 2 * made["parameters_per_rank"]
        answer = answer_of(capsys, "simulate", path, *ON)
        assert answer["world_size"] == 16
        warnings = [one["message"] for one in answer["diagnostics"] if one["level"] == "warning"]
        assert len(warnings) == 1
        assert "computation takes what the file says" in warnings[0]

    def test_two_runs_write_the_same(self, tmp_path: Path) -> None:
        for name in ("a.txt", "b.txt"):
            assert call("generate", *JOB, *ON, "-o", tmp_path / name) == 0
        assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()

    def test_without_a_cluster(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert call("generate", *JOB, "-o", tmp_path / "job.txt") == 0
        text = capsys.readouterr().out
        assert "computation not priced" in text
        assert "warning: no cluster: every computation takes 1 ns" in text


class TestProgram:
    def test_has_the_host_of_its_cluster(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path, on = tmp_path / "job.foretrace", ("--cluster", "gb200-nvl72")
        small = ("llama3.2-1b", "--gpus", "1", "--gbs", "1", "--seq", "512")
        assert call("generate", *small, *on, "--format", "program", "-o", path) == 0
        capsys.readouterr()
        want = answer_of(capsys, "predict", *small, *on)["step_time_s"]
        assert answer_of(capsys, "simulate", path, *on)["step_time_s"] == pytest.approx(want, rel=1e-9)

    @pytest.mark.parametrize("detail", ["segment", "kernel"])
    def test_simulates_as_predicted(self, detail: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "job.foretrace"
        assert call("generate", *JOB, "--format", "program", "--detail", detail, "-o", path) == 0
        capsys.readouterr()
        want = answer_of(capsys, "predict", *JOB, *ON, "--no-overlap-cost")["step_time_s"]
        got = answer_of(capsys, "simulate", path, *ON, "--no-overlap-cost")["step_time_s"]
        assert got == pytest.approx(want, rel=1e-9)

    @pytest.mark.parametrize("detail", ["segment", "kernel"])
    def test_overlap_costs_nearly_the_same_in_both_details(
        self, detail: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """A segment loses what its kernels lose in the mean; kernels of their own each what they lose."""
        path = tmp_path / "job.foretrace"
        assert call("generate", *JOB, "--format", "program", "--detail", detail, "-o", path) == 0
        capsys.readouterr()
        want = answer_of(capsys, "predict", *JOB, *ON)
        assert want["overlap_cost_s"] > 0
        assert answer_of(capsys, "simulate", path, *ON)["step_time_s"] == pytest.approx(want["step_time_s"], rel=1e-3)


class TestTraces:
    def test_read_back_they_take_as_long(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        folder = tmp_path / "traces"
        job = (*JOB, *ON, "--overlap", "none")
        made = answer_of(capsys, "generate", *job, "--format", "megatron-trace", "-o", folder)
        answer = answer_of(capsys, "simulate", folder)
        assert answer["step_time_s"] == pytest.approx(made["step_time_s"], rel=0.01)
        assert answer["world_size"] == 16


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "code", "words"),
        [
            (("--format", "aicp", "-o", "x"), 2, "'aicb', 'megatron-trace', 'program'"),
            (("--detail", "kernels", "-o", "x"), 2, "'segment', 'kernel'"),
            ((), 2, "where to?"),
            (("-o", "no/such/folder/x.txt"), 3, "cannot be written"),
            (("--zero", "3", "--pp", "1", "-o", "x"), 3, "cannot express zero 3"),
            (("--format", "megatron-trace", "-o", "x"), 2, "[needs-cluster]"),
            (("--cluster", "a100-dgx", "--precision", "fp8", "-o", "x"), 3, "no fp8 units"),
        ],
    )
    def test_are_one_line(
        self, options: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call("generate", *JOB, *options) == code
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert words in error


class TestLaunch:
    def test_it_is_printed_or_written_with_its_files(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        words = ("generate", *JOB, *ON, "--format", "launch")
        assert call(*words) == 0
        printed = capsys.readouterr().out
        assert call(*words, "-o", tmp_path / "run.sh") == 0
        assert (tmp_path / "run.sh").read_text(encoding="utf-8") == printed
        capsys.readouterr()
        toml = ("generate", "llama3-8b", "--gpus", "16", "--stack", "fsdp", *ON, "--format", "launch")
        made = answer_of(capsys, *toml, "--framework", "torchtitan-toml", "-o", tmp_path / "train.sh")
        assert (made["format"], made["framework"]) == ("launch", "torchtitan-toml")
        assert (tmp_path / "train.toml").read_text(encoding="utf-8") == made["files"]["train.toml"]

    def test_neither_its_files_nor_the_input_are_written_over(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        job = tmp_path / "ds_config.json"
        sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
        text = json.dumps({"model_type": "llama", "vocab_size": 1024, **sizes})
        job.write_text(text, encoding="utf-8")
        words = ("--gpus", "16", "--stack", "torch-eager", *ON, "--format", "launch", "--framework", "deepspeed", "-o")
        assert call("generate", "llama3-8b", *words, tmp_path / "new" / ".." / "ds_config.json") == 2
        assert call("generate", job, *words, tmp_path / "train.sh") == 2
        assert capsys.readouterr().err.count("[output-overwrites-input]") == 2
        assert job.read_text(encoding="utf-8") == text and not (tmp_path / "train.sh").exists()

    @pytest.mark.parametrize(
        ("words", "code", "problem"),
        [
            (ON, 3, "unknown-name"),
            ((*ON, "--schedule", "zb-h1"), 3, "not-launchable"),
            ((), 2, "needs-cluster"),
            ((*ON, "--format", "aicb"), 2, "option-not-for-command"),
        ],
    )
    def test_mistakes(
        self, words: tuple[str, ...], code: int, problem: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        framework = "megatron-lm" if problem != "unknown-name" else "megatron-9"
        assert call("generate", *JOB, "--format", "launch", *words, "--framework", framework) == code
        assert f"[{problem}]" in capsys.readouterr().err
