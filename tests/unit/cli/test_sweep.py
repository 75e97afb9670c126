"""`foretrace sweep` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace import Mesh, ProgramBuilder, api, save
from foretrace.basics.errors import ForetraceError, InputError, UsageError
from foretrace.cli import sweep
from foretrace.cli.main import app
from foretrace.search.axes import points_of, read_axes
from foretrace.search.sweep import Outcome, Sweep
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
        assert result["schema"] == "foretrace.sweep/2" and result["best"] == {"compute": 3.0}

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
        assert json.loads(out.read_text(encoding="utf-8"))["over"] == ["compute"]
        assert "efficiency" in capsys.readouterr().out

    def test_what_no_value_can_be(self, program: Path) -> None:
        with pytest.raises(InputError) as refused:
            call(program, "--over", "nothing=1x,2x")
        assert refused.value.code == "unknown-name"


class TestWorkload:
    def test_microbatches(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, MOE, "--over", "microbatches=2,4,8", "--cluster", "h100-dgx")
        assert steps(result) == sorted(steps(result))
        efficiency = [one["efficiency"] for one in result["points"]]
        assert efficiency[0] == 1.0 and efficiency == sorted(efficiency)  # the bubble's share shrinks
        assert result["best"] == {"microbatches": 8}

    def test_gpus_and_dp_say_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        gpus = answer(capsys, MOE, "--over", "gpus=128,256", "--cluster", "h100-dgx")
        dp = answer(capsys, MOE, "--over", "dp=4,8", "--cluster", "h100-dgx")
        assert steps(gpus) == steps(dp)
        assert [one["world_size"] for one in dp["points"]] == [128, 256]

    def test_one_value_that_cannot_be_leaves_the_others(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, MOE, "--over", "gpus=128,130", "--cluster", "h100-dgx")
        assert result["points"][0]["error"] is None
        assert result["points"][1]["error"]["code"] == "not-divisible"

    def test_clusters(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, MOE, "--over", "cluster=a100-dgx,h100-dgx")
        slow, fast = steps(result)
        assert fast < slow and result["best"] == {"cluster": "h100-dgx"}

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--over", "cluster=a100-dgx", "--cluster", "h100-dgx"], "names the values"),
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
    axes = read_axes(["compute=1x,2x,3x"])
    outcome = Outcome(points_of(axes)[0], 4, 4.0, None, None, None, None, None, 1.0, {})
    monkeypatch.setattr(sweep, "sweep", lambda *_: Sweep(axes, (outcome,), interrupted=True))
    assert exit_code("sweep", program, "--over", "compute=1x,2x,3x") == 130
    assert "interrupted: 1 of 3 values are finished" in capsys.readouterr().out


def test_an_interrupt_before_the_first_result_leaves_files_as_they_are(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "simulate", interrupted)
    outputs = {"--csv": tmp_path / "s.csv", "-o": tmp_path / "s.json", "--plot": tmp_path / "s.svg"}
    for file in outputs.values():
        file.write_text("earlier", encoding="utf-8")
    words = [word for pair in outputs.items() for word in pair]
    assert exit_code("sweep", program, "--over", "compute=1x,2x", *words, "--json") == 130
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "interrupted"
    assert {file.read_text(encoding="utf-8") for file in outputs.values()} == {"earlier"}


LLAMA = ("llama3-8b", "--cluster", "h100-dgx")


class TestModel:
    def test_values_that_do_not_fit_are_rows(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without tensor parallelism the model is too large, on 12 GPUs its batch cannot be divided."""
        words = (*LLAMA, "--gbs", "64", "--over", "gpus=8,12,16", "--over", "tp=1,2")
        result = answer(capsys, *words)
        codes = [point["error"] and point["error"]["code"] for point in result["points"]]
        assert codes == ["out-of-memory", None, "not-divisible", "not-divisible", "out-of-memory", None]
        assert result["over"] == ["gpus", "tp"] and result["scale"] == "strong"
        ran = [point for point in result["points"] if point["error"] is None]
        assert [point["values"] for point in ran] == [{"gpus": 8, "tp": 2}, {"gpus": 16, "tp": 2}]
        assert all(point["mfu"] > 0.3 and point["peak_memory_bytes"] > 1 << 30 for point in ran)
        assert ran[0]["efficiency"] == 1.0 and ran[1]["efficiency"] < 1.0
        assert ran[1]["step_time_s"] == pytest.approx(ran[0]["step_time_s"] / 2, rel=0.05)

    def test_nothing_fits(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert exit_code("sweep", *LLAMA, "--gbs", "64", "--over", "gpus=8,16") == 4
        out = capsys.readouterr()
        assert out.out.count("does not fit") == 2 and "--" in out.err
        assert exit_code("sweep", *LLAMA, "--gbs", "64", "--over", "gpus=8,16", "--json") == 4
        assert len(json.loads(capsys.readouterr().out)["points"]) == 2

    def test_weak_scaling(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = (*LLAMA, "--tp", "2", "--gbs", "16", "--over", "gpus=8,16", "--scale", "weak")
        result = answer(capsys, *words)
        first, second = steps(result)
        assert result["scale"] == "weak" and second == pytest.approx(first, rel=0.05)

    @pytest.mark.parametrize(
        "over",
        [
            "overlap=none,grad+param,all",
            "recompute=none,selective,full",
            "precision=bf16,fp8",
            "schedule=1f1b,gpipe",
            "stage-layers=8+8,7+9",
            "sp=yes,no",
            "zero=0,1",
            "vpp=1,2",
            "mbs=1:2",
            "seq=4096,8192",
            "stack=megatron-core,torch-eager",
            "cuda-graphs=none,full",
            "prices=best,model,roofline",
            "network=analytic,flow",
            "network=1x,2x",
            "recompute=none",
            "forward=1x,2x",
        ],
    )
    def test_any_option(self, over: str, capsys: pytest.CaptureFixture[str]) -> None:
        plan = ("llama3.2-1b", "--cluster", "h100-dgx", "--gpus", "8", "--tp", "2", "--pp", "2", "--gbs", "4")
        result = answer(capsys, *plan, "--over", over)
        assert all(point["step_time_s"] > 0 for point in result["points"])

    def test_routing(self, capsys: pytest.CaptureFixture[str]) -> None:
        plan = (
            "deepseek-v2-lite",
            "--cluster",
            "h200-dgx",
            "--gpus",
            "8",
            "--ep",
            "8",
            "--gbs",
            "8",
            "--cuda-graphs",
            "full",
        )
        points = answer(capsys, *plan, "--over", "routing=1x,1.3x")["points"]
        assert points[0]["step_time_s"] < points[1]["step_time_s"]

    def test_a_job_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        job = tmp_path / "job.yaml"
        job.write_text("model: llama3-8b\nplan: {gpus: 8, tp: 2, gbs: 16}\ncluster: h100-dgx\n", encoding="utf-8")
        result = answer(capsys, job, "--over", "gpus=16,32", "--scale", "weak")
        rates = [point["tokens_per_s_per_gpu"] for point in result["points"]]
        tokens = [
            rate * point["world_size"] * point["step_time_s"]
            for rate, point in zip(rates, result["points"], strict=True)
        ]
        assert tokens == pytest.approx([32 * 8192, 64 * 8192]), "gbs 16 is that of the 8 GPUs of the file"
        other = answer(capsys, job, "--over", "cluster=h100-dgx,h200-dgx")
        assert [point["values"]["cluster"] for point in other["points"]] == ["h100-dgx", "h200-dgx"]

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("--over", "compute=1,2"), "bad-value"),
            (("--over", "precision=bf16,fp9"), "unknown-name"),
            (("--over", "sp=perhaps"), "bad-value"),
            (("--over", "tp=2,4", "--scale", "weak"), "option-not-for-command"),
            (("--over", "mesh=tp=2"), "option-not-for-input"),
            (("--over", "gpus=8"), "conflicting-options"),
            (("--over", "prices=cheap"), "unknown-name"),
            (("--over", "tp=2", "--plot", "out.png"), "bad-value"),
        ],
    )
    def test_refusals(self, words: tuple[str, ...], code: str) -> None:
        with pytest.raises(UsageError) as refused:
            call(*LLAMA, "--gpus", "8", *words)
        assert refused.value.code == code

    def test_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        table, picture = tmp_path / "out.csv", tmp_path / "out.svg"
        words = ("--gpus", "8", "--gbs", "8", "--over", "tp=2,4", "--csv", table, "--plot", picture)
        assert exit_code("sweep", *LLAMA, *words) == 0
        assert "efficiency" in capsys.readouterr().out
        assert len(table.read_text(encoding="utf-8").splitlines()) == 3
        assert picture.read_text(encoding="utf-8").startswith("<svg")

    def test_prices_are_found_once(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """All points of a sweep ask one machine, or one for each cluster."""
        machines = set()

        def simulate(job: Any, machine: Any, scenario: Any, **options: Any) -> Any:
            machines.add(machine)
            return api.simulate(job, machine, scenario, **options)

        monkeypatch.setattr(sweep, "simulate", simulate)
        plan = ("--gpus", "8", "--gbs", "8")
        answer(capsys, *LLAMA, *plan, "--over", "tp=2,4", "--over", "compute=1x,2x")
        assert len(machines) == 1
        machines.clear()
        answer(capsys, "llama3-8b", *plan, "--over", "tp=2,4", "--over", "cluster=h100-dgx,h200-dgx")
        assert len(machines) == 2


class TestAProfile:
    """A host-bound step: the batch doubles at no cost, and graphs take it to its kernels."""

    def test_batches(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, PROFILE, "--over", "batch=1x,2x")
        assert [one["values"] for one in result["points"]] == [{"batch": 1}, {"batch": 2}]
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
        ("words", "code"),
        [
            (("--over", "gpu=nonsense"), "unknown-name"),
            (("--over", "batch=1,2", "--what-if", "batch=2x"), "repeated-option"),
        ],
    )
    def test_what_cannot_be_meant(self, words: tuple[str, ...], code: str) -> None:
        with pytest.raises(UsageError) as refused:
            call(PROFILE, *words)
        assert refused.value.code == code

    def test_other_jobs_have_neither(self, program: Path) -> None:
        with pytest.raises(UsageError) as refused:
            call(program, "--over", "batch=1x,2x")
        assert refused.value.code == "option-not-for-input"
