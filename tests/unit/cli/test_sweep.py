"""`foretrace sweep` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace import Mesh, ProgramBuilder, save
from foretrace.basics.errors import ForetraceError, InputError, UsageError
from foretrace.cli import sweep
from foretrace.cli.main import app
from foretrace.search.sweep import Outcome, Sweep, parse_axis
from shared_files import ROOT
from unit.cli.command_line import call as exit_code

PROFILE = ROOT / "benchmarks" / "truth" / "profiles" / "gpt_small.shapes.json.gz"
MOE = ROOT / "examples" / "moe_128gpu.txt"


def call(*arguments: str | Path) -> None:
    app(["sweep", *map(str, arguments)], standalone_mode=False)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    call(*arguments, "--json")
    return dict(json.loads(capsys.readouterr().out))


def steps(result: dict[str, Any]) -> list[float]:
    return [one["step_time_s"] for one in result["points"]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Four ranks that compute 3 s and reduce for 1 s."""
    build = ProgramBuilder(Mesh(dp=4))
    role, dp = build.role("all", range(4)), build.communicator("dp")
    role.compute("update", 1e-9, after=role.collective("all_reduce", dp, 1.0, after=role.compute("work", 3.0)))
    save(build.program(), tmp_path / "job.foretrace")
    return tmp_path / "job.foretrace"


class TestProgram:
    def test_what_ifs(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, program, "--over", "compute=1x,1.5x,3x")
        assert steps(result) == pytest.approx([4.0, 3.0, 2.0])
        assert result["schema"] == "foretrace.sweep/1" and result["best"] == 3.0

    def test_the_network(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert steps(answer(capsys, program, "--over", "network=1x,2x")) == pytest.approx([4.0, 3.5])

    def test_together_with_what_is_fixed(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert steps(answer(capsys, program, "--over", "dp=1x,2x", "--what-if", "compute=3x")) == pytest.approx(
            [2.0, 1.5]
        )

    def test_a_straggler(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert steps(answer(capsys, program, "--over", "straggler:2=1x,2x")) == pytest.approx([4.0, 7.0])

    def test_jitter(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The largest of four normals lies 1.0294 above the mean."""
        result = answer(capsys, program, "--over", "jitter=0,10%")
        assert steps(result) == pytest.approx([4.0, 4.0 + 1.02938 * 0.3], rel=1e-5)

    def test_what_is_settled_is_refused(self, program: Path) -> None:
        with pytest.raises(UsageError) as refused:
            call(program, "--over", "microbatches=2,4")
        assert refused.value.code == "option-not-for-input"

    def test_a_file_with_the_answer(self, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "sweep.json"
        call(program, "--over", "compute=1x,2x", "-o", out)
        assert json.loads(out.read_text(encoding="utf-8"))["over"] == "compute"
        assert "efficiency" in capsys.readouterr().out

    def test_what_no_value_can_be(self, program: Path) -> None:
        with pytest.raises(InputError, match=r"no value of nothing can be run.*names no ops"):
            call(program, "--over", "nothing=1x,2x")


class TestWorkload:
    def test_microbatches(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, MOE, "--over", "microbatches=2,4,8", "--cluster", "h100-dgx")
        assert steps(result) == sorted(steps(result))
        efficiency = [one["efficiency"] for one in result["points"]]
        assert efficiency[0] == 1.0 and efficiency == sorted(efficiency)  # the bubble's share shrinks
        assert result["best"] == 8

    def test_gpus_and_dp_say_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        gpus = answer(capsys, MOE, "--over", "gpus=128,256", "--cluster", "h100-dgx")
        dp = answer(capsys, MOE, "--over", "dp=4,8", "--cluster", "h100-dgx")
        assert steps(gpus) == steps(dp)
        assert [one["world_size"] for one in dp["points"]] == [128, 256]

    def test_one_value_that_cannot_be_leaves_the_others(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, MOE, "--over", "gpus=128,130", "--cluster", "h100-dgx")
        assert result["points"][0]["error"] is None
        assert "130 GPUs cannot be divided" in result["points"][1]["error"]

    def test_clusters(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, MOE, "--over", "cluster=a100-dgx,h100-dgx")
        slow, fast = steps(result)
        assert fast < slow and result["best"] == "h100-dgx"

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--over", "cluster=a100-dgx", "--cluster", "h100-dgx"], "names the clusters"),
            (["--over", "pp=2,4", "--cluster", "h100-dgx"], "for its own pp"),
            (["--over", "jitter=0,1%", "--cluster", "h100-dgx", "--jitter", "200%"], "expected a share"),
            (["--over", "jitter=0,1%", "--cluster", "h100-dgx", "--jitter", "nan"], "expected a share"),
            (["--over", "what", "--cluster", "h100-dgx"], "a name and values"),
            (["--over", "microbatches=2,4", "--cluster", "h100-dgx", "-o", str(MOE)], "would be written over"),
        ],
    )
    def test_options_that_cannot_be_meant(self, options: list[str], says: str) -> None:
        with pytest.raises(UsageError, match=says):
            call(MOE, *options)

    def test_without_a_cluster(self) -> None:
        with pytest.raises(ForetraceError, match="no cluster is named"):
            call(MOE, "--over", "microbatches=2,4")


def test_an_interrupt_prints_what_is_finished(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = Sweep(parse_axis("compute=1x,2x,3x"), (Outcome(1.0, "1×", 4, 4.0, None, None, 1.0, {}),), interrupted=True)
    monkeypatch.setattr(sweep, "sweep", lambda *_: part)
    assert exit_code("sweep", program, "--over", "compute=1x,2x,3x") == 130
    assert "interrupted: 1 of 3 values are finished" in capsys.readouterr().out


class TestAProfile:
    """A host-bound step: the batch doubles at no cost, and graphs take it to its kernels."""

    def test_batches(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, PROFILE, "--over", "batch=1,2")
        assert [one["value"] for one in result["points"]] == [1.0, 2.0]
        assert result["points"][1]["efficiency"] == pytest.approx(2.0, rel=0.01)
        (note,) = (one["message"] for one in result["warnings"] if one["level"] == "note")
        assert "--what-if unprofiled" in note

    def test_without_the_profiler(self, capsys: pytest.CaptureFixture[str]) -> None:
        recorded = answer(capsys, PROFILE, "--over", "host=1x,2x")
        without = answer(capsys, PROFILE, "--over", "host=1x,2x", "--what-if", "unprofiled")
        assert all(one < 0.7 * other for one, other in zip(steps(without), steps(recorded), strict=True))
        assert not without["warnings"]
        low, high = without["points"][0]["step_time_band_s"]
        assert low < steps(without)[0] < high

    def test_gpus_as_graphs(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, PROFILE, "--over", "gpu=h200-sxm,b200", "--what-if", "cuda-graphs")
        assert steps(result)[1] < steps(result)[0]

    def test_what_is_set(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("--over", "gpus=2,8", "--cluster", "h200-dgx", "--set", "params=1e8")
        assert [one["world_size"] for one in answer(capsys, PROFILE, *words)["points"]] == [2, 8]

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("--over", "gpu=nonsense"), "no GPU is called"),
            (("--over", "batch=1,2", "--what-if", "batch=2x"), "names them all"),
        ],
    )
    def test_what_cannot_be_meant(self, words: tuple[str, ...], says: str) -> None:
        with pytest.raises(UsageError, match=says):
            call(PROFILE, *words)

    def test_other_jobs_have_neither(self, program: Path) -> None:
        with pytest.raises(UsageError) as refused:
            call(program, "--over", "batch=1,2")
        assert refused.value.code == "option-not-for-input"
