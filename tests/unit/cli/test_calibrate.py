"""`foretrace calibrate`, `foretrace calibration show`, and --calibration in other commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from recorded_steps import trace_file
from shared_files import ROOT
from unit.cli.command_line import answer_of, call

JOB = ("llama3-8b", "--gpus", "1", "--stack", "torch-eager", "--no-silicon")
COLLECTIVES = "collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,400\nall_reduce,8,1,1073741824,9000\n"


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (tmp_path / "calls.csv").write_text(COLLECTIVES)
    assert call("calibrate", trace_file(tmp_path), tmp_path / "calls.csv", "-o", tmp_path / "my.yaml") == 0
    capsys.readouterr()
    return tmp_path / "my.yaml"


class TestCalibrate:
    def test_the_screen(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("calibrate", trace_file(tmp_path), "-o", tmp_path / "my.yaml") == 0
        printed = capsys.readouterr()
        assert "my.yaml of NVIDIA H200 (h200-sxm)" in printed.out
        assert "gemm bf16 tn" in printed.out
        assert printed.err.strip().endswith("my.yaml written")

    def test_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = answer_of(capsys, "calibrate", trace_file(tmp_path), "-o", tmp_path / "my.yaml")
        assert (found["schema"], found["gpu"], found["kernels"]) == ("foretrace.calibration/1", "h200-sxm", 2)
        assert found["made_of"][0]["kind"] == "trace"

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (("-o", "my.yaml"), 2, "INPUT"),
            (("step.json",), 2, "where is the calibration to go?"),
            (("step.json", "-o", "my.txt"), 2, "written as YAML"),
            (("step.json", "-o", ""), 2, "[missing-argument]"),
            (("step.json", "-o", "/"), 3, "[unwritable-file]"),
            (("step.json", "-o", ".yaml"), 2, "for example my.yaml"),
            (("", "-o", "my.yaml"), 2, "an argument is empty"),
            (("none.json", "-o", "my.yaml"), 3, "there is no such file"),
            (("empty.json", "-o", "my.yaml"), 3, "the file is empty"),
            (("step.json", "-o", "my.yaml", "--gpu", "b200"), 3, "measurements of h200-sxm and of b200"),
        ],
    )
    def test_errors(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        code: int,
        message: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        trace_file(tmp_path)
        (tmp_path / "empty.json").write_text("")
        assert call("calibrate", *arguments) == code
        assert message in capsys.readouterr().err
        assert not (tmp_path / "my.yaml").exists()


class TestShow:
    def test_a_gpu_that_nobody_knows(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        made.write_text(made.read_text().replace("gpu: h200-sxm", "gpu: nonsense"))
        assert call("calibration", "show", made) == 3
        assert 'no GPU is called "nonsense"' in capsys.readouterr().err

    def test_what_it_holds(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("calibration", "show", made) == 0
        printed = capsys.readouterr().out
        assert "2 kernels · 2 measured calls of collectives" in printed
        assert "all-reduce" in printed and "1.00 MiB to 1.00 GiB" in printed
        assert "Covers" not in printed

    def test_what_it_covers_of_a_job(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("calibration", "show", made, *JOB) == 0
        printed = capsys.readouterr().out
        assert "Covers        of Llama 3 8B" in printed
        assert "no family" in printed and "more in --json" in printed

    def test_the_model_as_an_option(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        one = answer_of(capsys, "calibration", "show", made, *JOB)
        other = answer_of(capsys, "calibration", "show", made, "--model", *JOB)
        assert one == other
        shares = one["coverage"]["shares"]
        assert sum(shares.values()) == pytest.approx(1.0)
        assert {row["how"].replace(" ", "_") for row in one["coverage"]["kernels"]} <= set(shares)

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (("hide", "my.yaml"), 2, '"hide" is not known'),
            (("show", "my.yaml", "llama3-8b", "--model", "llama3-8b"), 2, "one job at a time"),
            (("show", "my.yaml", "--gpus", "8"), 2, "of which model"),
            (("show", "none.yaml"), 3, "cannot read the calibration"),
            (("show", "calls.csv"), 3, "calibration"),
        ],
    )
    def test_errors(
        self,
        made: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        code: int,
        message: str,
    ) -> None:
        monkeypatch.chdir(made.parent)
        assert call("calibration", *arguments) == code
        assert message in capsys.readouterr().err


class TestOtherCommands:
    def test_predict(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("predict", *JOB, "--cluster", "h200-dgx", "--even-if-oom", "--mbs", "1", "--gbs", "1")
        usual = answer_of(capsys, *words)
        found = answer_of(capsys, *words, "--calibration", made)
        assert found["step_time_s"] != usual["step_time_s"]
        assert any("my.yaml" in one["source"] for one in found["provenance"])

    def test_network(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("network", "all-reduce", "1MiB", "--cluster", "h200-dgx", "--no-silicon", "--calibration", made)
        found = answer_of(capsys, *words)
        assert found["time_s"] == pytest.approx(400e-6)
        assert found["source"] == "calibration my.yaml (2 calls)"

    def test_simulate_a_workload(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("simulate", ROOT / "examples/moe_128gpu.txt", "--cluster", "h200-dgx", "--no-silicon")
        found = answer_of(capsys, *words, "--calibration", made)
        assert any("my.yaml" in one["source"] for one in found["provenance"])

    @pytest.mark.parametrize("command", ["simulate", "sweep", "explain"])
    def test_another_gpu_is_an_error_that_names_both(
        self, made: Path, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        over = ("--over", "microbatches=1,2") if command == "sweep" else ()
        words = (command, ROOT / "examples/moe_128gpu.txt", *over, "--cluster", "h100-dgx", "--calibration", made)
        assert call(*words) == 3
        assert "the calibration is of h200-sxm, the job runs on h100-sxm" in capsys.readouterr().err

    def test_it_needs_a_cluster(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("simulate", ROOT / "examples/moe_128gpu.txt", "--calibration", made) == 2
        assert "--calibration prices the GPUs of a cluster" in capsys.readouterr().err

    def test_validate(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("validate", ROOT / "benchmarks/truth/h200_more_steps.jsonl", "--prices", "model", "--workers", "1")
        assert call(*words, "--calibration", made) == 0
        printed = capsys.readouterr().out
        assert "without → with my.yaml" in printed and "mean absolute, 7 rows" in printed
        found = answer_of(capsys, *words, "--calibration", made)["calibration"]
        assert found["name"] == "my.yaml" and len(found["rows"]) == 7
        assert set(found["mean_absolute"]) == {"step", "forward", "backward", "optimizer"}
