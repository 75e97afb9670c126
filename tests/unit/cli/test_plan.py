"""`foretrace plan` as a person runs it, with a search that is written by hand."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import foretrace
from foretrace import load_cluster, load_model
from foretrace.basics.errors import Diagnostic, InfeasibleError, InputError
from foretrace.cli.plan import EXAMPLES
from foretrace.search.planner.asked_axes import space_of
from foretrace.search.planner.request import PlanRequest
from foretrace.search.planner.result import PlanSearch
from foretrace.workload.plan import Plan
from plan_searches import REQUEST, search
from unit.cli.command_line import answer_of, call

JOB = ("llama3-70b", "--gpus", "256", "--cluster", "h100-dgx", "--gbs", "1024")
Answer = Callable[[PlanRequest], PlanSearch]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PlanRequest]:
    """Stands in for the search, and returns what it is asked for."""
    requests: list[PlanRequest] = []
    answer_with(monkeypatch, lambda request: requests.append(request) or search())  # type: ignore[func-returns-value]
    return requests


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    def search_plans(model: Any, machine: Any, request: PlanRequest, *, progress: Any) -> PlanSearch:
        assert model.name == "llama3-70b" and machine.cluster is not None
        progress.begin("simulating", 2)
        progress.reach(1, best="9.41 s")
        return replace(answer(request), request=request)

    monkeypatch.setitem(sys.modules, "foretrace.search.planner.search", SimpleNamespace(search_plans=search_plans))


class TestRequest:
    def test_values_pin_and_widen_axes(self, asked: list[PlanRequest]) -> None:
        options = ["--tp", "4,8", "--pp", "1..8", "--mbs", "2", "--no-sp", "--overlap", "grad,param", "--no-offload"]
        assert call("plan", *JOB, "--seq", "8k", "--precision", "fp8", *options) == 0
        (request,) = asked
        assert request.plan == Plan(gpus=256, gbs=1024, seq_len=8192, precision="fp8")
        assert request.axes == {
            "tp": "4,8",
            "pp": "1..8",
            "mbs": "2",
            "sequence_parallel": "off",
            "grad_overlap": "on",
            "param_overlap": "on",
            "tp_overlap": "off",
            "moe_overlap": "off",
            "pp_overlap": "off",
            "offload_optimizer": "off",
            "offload_layers": "0",
            "offload_modules": "none",
        }

    def test_objective_and_limits(self, asked: list[PlanRequest]) -> None:
        limits = [
            "--gap",
            "0.5%",
            "--time",
            "10s",
            "--workers",
            "2",
            "--top",
            "3",
            "--objective",
            "cost",
            "--price",
            "2.5",
        ]
        assert call("plan", *JOB, *limits) == 0
        values = asked[0].gap, asked[0].time_s, asked[0].workers, asked[0].top, asked[0].objective
        assert values == (0.005, 10.0, 2, 3, "cost") and asked[0].price_per_gpu_hour == 2.5

    def test_the_smallest_cluster_for_a_deadline(self, asked: list[PlanRequest]) -> None:
        sizes = ["--gpus", "100,512..4096", "--tokens", "15T", "--days", "60"]
        assert call("plan", "llama3-70b", "--cluster", "h100-dgx", "--gbs", "1024", *sizes) == 0
        assert asked[0].gpu_counts == (100, 512, 1024, 2048, 4096)
        assert asked[0].axes == {} and asked[0].plan.gpus == 4096
        assert asked[0].tokens == 15 * 10**12 and asked[0].deadline_s == 60 * 86400

    def test_the_largest_batch(self, asked: list[PlanRequest]) -> None:
        assert call("plan", "llama3-70b", "--cluster", "h100-dgx", "--gpus", "256", "--largest", "gbs") == 0
        assert asked[0].largest == "gbs" and asked[0].plan.gbs is None

    def test_several_precisions_are_an_axis(self, asked: list[PlanRequest]) -> None:
        assert call("plan", *JOB, "--precision", "bf16,fp8") == 0
        assert asked[0].axes == {"precision": "bf16,fp8"}

    @pytest.mark.parametrize(
        ("options", "values"),
        [
            (("--recompute", "none,full"), "none,full"),
            (("--recompute-modules", "mlp+moe_act,none"), "mlp+moe_act,none"),
            (("--recompute-layers", "2,4"), "full:2,full:4"),
        ],
    )
    def test_recomputation_is_one_axis(self, options: tuple[str, ...], values: str, asked: list[PlanRequest]) -> None:
        assert call("plan", *JOB, *options) == 0
        assert asked[0].axes == {"recompute": values}

    @pytest.mark.parametrize(
        "options",
        [
            "--tp 4,8 --pp 1..8 --cp 1,2 --mbs 1..4 --vpp 1,2,5 --zero 1 --shard none --no-sp --cp-comm a2a",
            "--recompute none,full,mlp+layernorm --overlap grad,param --no-offload --precision bf16,fp8",
            "--recompute-layers 2,4 --schedule all --rank-order tp-cp-ep-pp-dp --offload-optimizer",
            "--recompute-modules mlp --account-for embedding+loss,none --offload-layers 0,2 --cuda-graphs none,full",
            "--first-stage-layers 18 --last-stage-layers 18 --offload-modules core_attn+attn_proj,none --seq 4k,8k",
        ],
    )
    def test_the_space_reads_every_axis(self, options: str, asked: list[PlanRequest]) -> None:
        assert call("plan", *JOB, *shlex.split(options)) == 0
        space = space_of(load_model("llama3-70b"), asked[0].plan, load_cluster("h100-dgx"), asked[0].axes)
        axes = {axis.name: axis for axis in space.axes}
        assert asked[0].axes.keys() <= axes.keys()
        assert all(len(axes[name].choices) > 1 for name, text in asked[0].axes.items() if "," in text)

    def test_a_job_file_gives_what_is_not_searched(
        self, asked: list[PlanRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job = tmp_path / "job.yaml"
        job.write_text("model: llama3-70b\nplan: {gpus: 256, gbs: 1024, tp: 8, pp: 16, zero: 1}\ncluster: h100-dgx\n")
        assert call("plan", job, "--json") == 0
        assert asked[0].plan == Plan(gpus=256, gbs=1024) and asked[0].axes == {}
        notes = json.loads(capsys.readouterr().out)["diagnostics"]
        assert ["tp, pp, zero" in note["message"] for note in notes if note["code"] == "field-ignored"] == [True]
        assert call("plan", job) == 0
        shown = capsys.readouterr().out.splitlines()[-1]
        assert "--tp 4" in shown and "--pp 4" in shown and "--gpus" not in shown and "--zero" not in shown

    @pytest.mark.parametrize("example", [line for line in EXAMPLES.splitlines() if line.startswith("foretrace")])
    def test_examples_run_as_they_are(
        self, example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        requests: list[PlanRequest] = []

        def search_plans(_model: Any, _machine: Any, request: PlanRequest, **_: Any) -> PlanSearch:
            requests.append(request)
            return replace(search(), request=request)

        stub = SimpleNamespace(search_plans=search_plans)
        monkeypatch.setitem(sys.modules, "foretrace.search.planner.search", stub)
        assert call(*shlex.split(example)[1:]) == 0
        assert requests and capsys.readouterr().out


@pytest.mark.usefixtures("asked")
class TestExits:
    @pytest.mark.parametrize(
        ("options", "code", "exit_code"),
        [
            (("--gap", "much"), "bad-value", 2),
            (("--time", "10"), "bad-value", 2),
            (("--gpus", "8..x"), "bad-value", 2),
            (("--plot", "x.png"), "bad-value", 2),
            (("--launch", "nothing"), "unknown-name", 3),
            (("--largest", "gbs"), "conflicting-values", 3),
            (("--tokens", "15T"), "conflicting-values", 3),
            (("--gap", "200%"), "out-of-range", 3),
            (("--no-offload", "--offload-layers", "2"), "conflicting-values", 3),
            (("--recompute", "full", "--recompute-layers", "2"), "conflicting-values", 3),
        ],
    )
    def test_what_cannot_be_meant(
        self,
        options: tuple[str, ...],
        code: str,
        exit_code: int,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert call("plan", *JOB, *options, "--json") == exit_code
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code

    @pytest.mark.parametrize(
        ("words", "code", "exit_code"),
        [
            (("llama3-70b", "--gpus", "8", "--gbs", "8"), "needs-cluster", 2),
            (("llama3-70b", "--cluster", "h100-dgx", "--gbs", "8"), "missing-argument", 2),
            (("llama3-70b", "--cluster", "h100-dgx", "--gpus", "8"), "missing-argument", 2),
            (("lama3-70b", "--cluster", "h100-dgx", "--gpus", "8", "--gbs", "8"), "unknown-name", 3),
        ],
    )
    def test_what_is_missing(
        self,
        words: tuple[str, ...],
        code: str,
        exit_code: int,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert call("plan", *words, "--json") == exit_code
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code

    def test_nothing_fits(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        answer_with(monkeypatch, lambda _: search(best=None, feasible=0, plans=(), front=(), why=None))
        assert call("plan", *JOB) == 4
        printed = capsys.readouterr()
        assert "13,171" in printed.out  # what was rejected
        assert "[nothing-fits]" in printed.err and "--recompute selective" in printed.err  # which lacks least
        assert call("plan", *JOB, "--json") == 4
        assert json.loads(capsys.readouterr().out)["best"] is None

    def test_nothing_meets_the_deadline(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        missed = Diagnostic("warning", "deadline-missed", "4,096 GPUs take 90 days")
        answer_with(monkeypatch, lambda _: search(best=None, diagnostics=(missed,)))
        assert call("plan", *JOB, "--tokens", "15T", "--days", "1") == 4
        printed = capsys.readouterr()
        assert "--days" in printed.err and "--recompute" not in printed.err  # less memory would not help

    @pytest.mark.parametrize(
        ("error", "exit_code"),
        [
            (InfeasibleError("nothing-fits", "nothing", hint="--gpus 512 would fit"), 4),
            (InputError("conflicting-values", "tp 8 of 4 GPUs"), 3),
            (InputError("bad-value", "x is no number", where="--tp"), 2),
        ],
    )
    def test_errors_of_the_search(
        self, error: Exception, exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(_: PlanRequest) -> PlanSearch:
            raise error

        answer_with(monkeypatch, refuse)
        assert call("plan", *JOB) == exit_code
        assert error.code in capsys.readouterr().err  # type: ignore[attr-defined]

    def test_an_interrupt_prints_what_is_finished(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        proof = replace(search().search, complete=False, stopped_by="interrupt", undecided=9)
        answer_with(monkeypatch, lambda _: search(search=proof))
        assert call("plan", *JOB) == 130
        assert "9.41 s" in capsys.readouterr().out

    def test_an_interrupt_before_the_first_simulation_shows_nothing_about_memory(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        proof = replace(search().search, complete=False, stopped_by="interrupt", simulations=0, lower_bound_s=None)
        answer_with(monkeypatch, lambda _: search(best=None, plans=(), search=proof))
        assert call("plan", *JOB) == 130
        assert "nothing has been simulated" in capsys.readouterr().out

    def test_an_interrupt_before_anything_is_finished(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(_: PlanRequest) -> PlanSearch:
            raise KeyboardInterrupt

        answer_with(monkeypatch, interrupt)
        assert call("plan", *JOB) == 130
        assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("asked")
class TestOutput:
    def test_json_and_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out, picture = tmp_path / "plan.json", tmp_path / "front.svg"
        assert call("plan", *JOB, "--json", "-o", out, "--plot", picture) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(out.read_text(encoding="utf-8"))
        assert picture.read_text(encoding="utf-8").startswith("<svg")

    def test_the_next_command_repeats_the_machine(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("plan", *JOB, "--no-silicon", "--prices", "model", "--nccl-algo", "ring,tree") == 0
        last = capsys.readouterr().out.splitlines()[-1]
        options = "--cluster h100-dgx --prices model --no-silicon --nccl-algo ring,tree"
        assert last.endswith(f"{search().best.options} {options}")  # type: ignore[union-attr]

    def test_the_launch_script_is_that_of_the_framework(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("plan", *JOB, "--launch", "megatron-bridge", "--json") == 0
        whole = json.loads(capsys.readouterr().out)
        (script,) = whole["launch"].values()
        assert list(whole["launch"]) == ["megatron-bridge"] and "model.tensor_model_parallel_size=4" in script
        assert call("plan", *JOB, "--launch", "megatron-bridge") == 0
        assert capsys.readouterr().out.endswith(f"{script}\n")

    def test_a_plan_that_no_launcher_has(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        best = search().plans[0]
        best = replace(best, plan=replace(best.plan, vpp=1, schedule="zb-h1"))
        answer_with(monkeypatch, lambda _: search(best=best))
        assert call("plan", *JOB, "--json") == 0
        whole = json.loads(capsys.readouterr().out)
        assert whole["launch"] == {}
        assert "not-launchable" in [note["code"] for note in whole["diagnostics"]]


def test_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, lambda _: search())
    result = foretrace.plan("llama3-70b", "h100-dgx", REQUEST)
    assert result.best is not None and result.best.step_time_s == 9.41


class TestTheSearch:
    """The search itself, in a space of a few plans."""

    SMALL = (
        "llama3.2-1b --gpus 8 --cluster h100-dgx --gbs 32 --tp 1,2 --cp 1 --pp 1,2 --mbs 1 --zero 1 --no-offload "
        "--recompute none --no-silicon"
    )

    def test_the_next_command_predicts_the_step_of_the_best(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call("plan", *self.SMALL.split(), "-o", tmp_path / "plan.json") == 0
        command = capsys.readouterr().out.splitlines()[-1].partition("foretrace ")[2]
        whole = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
        predicted = answer_of(capsys, *shlex.split(command))
        assert whole["best"]["step_time_s"] == pytest.approx(predicted["step_time_s"], rel=1e-9)
        assert whole["best"]["peak_memory_bytes"] == predicted["memory"]["peak_bytes"]
        assert whole["search"]["complete"] and whole["feasible"] <= whole["distinct"] <= whole["searched"]

    def test_two_runs_print_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        texts = []
        for _ in range(2):
            assert call("plan", *self.SMALL.split(), "--json") == 0
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1]
