"""`foretrace predict` and `memory` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace import Plan
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.registry import open_model
from shared_files import ROOT
from unit.cli.command_line import answer_of, call

GIB = 2**30

JOB = ("llama3-8b", "--gpus", "16", "--cluster", "h100-dgx", "--tp", "2", "--pp", "2", "--gbs", "32")

TOO_LARGE = ("llama3-70b", "--gpus", "64", "--cluster", "h100-dgx", "--tp", "2", "--pp", "2", "--gbs", "64")


class TestPredict:
    def test_the_screen(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("predict", *JOB) == 0
        text = capsys.readouterr().out
        for words in ("Step ", "MFU ", "HFU ", "of 79.1 GiB", "where the time goes", "prices ", "foretrace memory"):
            assert words in text
        assert "zero 1" in text  # a default that changes the answer is printed

    def test_the_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = answer_of(capsys, "predict", *JOB)
        assert answer["schema"] == "foretrace.prediction/2"
        assert answer["plan"]["dp"] == 4
        assert answer["plan"]["microbatches"] == 8
        assert answer["plan"]["stack"] == "megatron-core@0.16"
        assert answer["memory"]["fits"] is True
        assert sum(answer["breakdown_s"].values()) == pytest.approx(answer["step_time_s"])

    def test_options_reach_the_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = ("--recompute", "full", "--recompute-layers", "4", "--overlap", "dp,tp", "--no-sp", "--zero", "0")
        more = ("--precision", "fp8", "--seq", "4096", "--documents", "1024,3072", "--cuda-graphs", "full")
        plan = answer_of(capsys, "predict", *JOB, *options, *more)["plan"]
        assert (plan["recompute"], plan["recompute_layers"], plan["zero"]) == ("full", 4, 0)
        assert (plan["grad_overlap"], plan["param_overlap"], plan["tp_overlap"]) == (True, True, True)
        assert (plan["sequence_parallel"], plan["precision"], plan["cuda_graphs"]) == (False, "fp8", "full")
        assert (plan["seq_len"], plan["documents"]) == (4096, [1024, 3072])

    @pytest.mark.parametrize(
        ("words", "fields"),
        [
            ("tp", {"tp_overlap": True, "moe_overlap": False}),
            ("moe,tp", {"tp_overlap": True, "moe_overlap": True}),
            ("grad,tp", {"grad_overlap": True, "param_overlap": False, "tp_overlap": True, "moe_overlap": False}),
            ("dp", {"grad_overlap": True, "param_overlap": True, "tp_overlap": False, "moe_overlap": False}),
            ("none", dict.fromkeys(("grad_overlap", "param_overlap", "tp_overlap", "moe_overlap"), False)),
            ("all", dict.fromkeys(("grad_overlap", "param_overlap", "tp_overlap", "moe_overlap"), True)),
        ],
    )
    def test_overlap_decides_what_it_speaks_of(self, words: str, fields: dict[str, bool]) -> None:
        said = open_model("llama3-8b", {"gpus": "8", "overlap": words})
        assert isinstance(said, ModelInput)
        assert said.plan == Plan(gpus=8, **fields)  # type: ignore[arg-type]

    def test_without_silicon_no_price_is_nvidias(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = answer_of(capsys, "predict", *JOB, "--no-silicon")
        assert not [one["source"] for one in answer["provenance"] if "NVIDIA" in one["source"]]
        memory = answer_of(capsys, "memory", *JOB, "--no-silicon")
        assert memory["peak_bytes"] == answer["memory"]["peak_bytes"]

    def test_what_if_and_files(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        trace, output = tmp_path / "out.pftrace", tmp_path / "out.json"
        assert call("predict", *JOB, "--what-if", "compute=2x", "--perfetto", trace, "-o", output) == 0
        assert "With   compute 2" in capsys.readouterr().out
        assert trace.stat().st_size > 1000
        answer = json.loads(output.read_text(encoding="utf-8"))
        assert answer["step_time_s"] < answer["unchanged_step_time_s"]

    def test_a_config_of_hugging_face(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
        config = {"model_type": "llama", **sizes, "num_key_value_heads": 8, "vocab_size": 128256}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**config, "max_position_embeddings": 8192}), encoding="utf-8")
        named = answer_of(capsys, "predict", *JOB)
        described = answer_of(capsys, "predict", path, *JOB[1:])
        assert described["step_time_s"] == pytest.approx(named["step_time_s"])

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (("llama3-70b", "--gpus", "8", "--cluster", "h100-dgx", "--gbs", "8"), 4, "GiB"),
            (("llama3-8b", "--cluster", "h100-dgx"), 2, "how many GPUs"),
            (("llama3-8b", "--gpus", "8"), 2, "[needs-cluster]"),
            (("lama3-8b", "--gpus", "8", "--cluster", "h100-dgx"), 3, "llama3-8b"),
            ((*JOB, "--overlap", "everything"), 2, "everything"),
            ((*JOB, "--precision", "fp7"), 2, "fp7"),
            ((*JOB, "--documents", "1,x"), 2, "whole numbers"),
            ((*JOB, "--tp", "3"), 3, "tp"),
            ((*JOB, "--zero", "7"), 3, "zero"),
            ((*JOB, "--mbs", "0"), 3, "mbs"),
            ((*JOB, "--ranks", "0"), 2, "--perfetto"),
            ((*JOB, "-o", "out.svg", "--heatmap", "out.svg"), 2, "[output-overwrites-input]"),
        ],
    )
    def test_errors(
        self, arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call("predict", *arguments) == code
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("error: ")
        assert words in printed.err

    def test_a_job_that_does_not_fit_can_be_timed(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("llama3-70b", "--gpus", "8", "--cluster", "h100-dgx", "--gbs", "8", "--even-if-oom")
        assert answer_of(capsys, "predict", *arguments)["memory"]["fits"] is False

    def test_twice_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("predict", *JOB) == 0
        first = capsys.readouterr().out
        assert call("predict", *JOB) == 0
        assert capsys.readouterr().out == first


class TestMemory:
    def test_the_screen(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("memory", *JOB) == 0
        text = capsys.readouterr().out
        for words in ("Peak ", "fits", "weights", "activations", "stage 0", "outside the allocator"):
            assert words in text

    def test_the_json_of_one_that_does_not_fit(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("memory", *TOO_LARGE, "--json") == 4
        answer = json.loads(capsys.readouterr().out)
        assert answer["schema"] == "foretrace.memory/2"
        assert not answer["fits"]
        assert answer["peak_bytes"] > answer["capacity_bytes"] == round(79.11 * 2**30)
        stage = answer["stages"][0]
        assert sum(stage["by_category_bytes"].values()) == stage["peak_bytes"]
        assert max(answer["worst"]["held_bytes"]) == answer["peak_bytes"]
        change = answer["would_fit"][0]
        changed = answer_of(capsys, "memory", *TOO_LARGE, *change["options"].split())
        assert (changed["fits"], changed["would_fit"]) == (True, [])
        for key in ("peak_bytes", "needed_bytes", "headroom_bytes"):
            assert changed[key] == change[key]

    def test_one_that_does_not_fit_ends_as_predict_does(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("memory", *TOO_LARGE) == 4
        shown = capsys.readouterr()
        assert "does not fit" in shown.out
        assert "activations" in shown.out
        assert "[out-of-memory]" in shown.err
        assert call("predict", *TOO_LARGE) == 4
        assert capsys.readouterr().err == shown.err

    def test_the_time_of_a_job_that_does_not_fit_has_a_warning(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = answer_of(capsys, "predict", *TOO_LARGE, "--even-if-oom")
        assert "out-of-memory" in [note["code"] for note in answer["diagnostics"] if note["level"] == "warning"]

    def test_changes_name_the_batch_where_it_was_not_given(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without a global batch, other axes would mean another one, and the step another time."""
        job = ("llama3-8b", "--gpus", "8", "--cluster", "h100-dgx")
        assert call("memory", *job, "--json") == 4
        changes = json.loads(capsys.readouterr().out)["would_fit"]
        change = next(each for each in changes if "--tp 2" in each["options"])
        assert "--gbs 8" in change["options"]
        changed = answer_of(capsys, "predict", *job, *change["options"].split())
        assert changed["step_time_s"] == pytest.approx(change["step_time_s"])

    def test_that_of_a_saved_answer(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = str(tmp_path / "large.answer")
        assert call("predict", *TOO_LARGE, "--even-if-oom", "--save", path) == 0
        capsys.readouterr()
        assert call("memory", path, "--json") == 4
        saved = json.loads(capsys.readouterr().out)
        assert call("memory", *TOO_LARGE, "--json") == 4
        asked = json.loads(capsys.readouterr().out)
        assert (saved["stages"], saved["outside"], saved["worst"]) == (
            asked["stages"],
            asked["outside"],
            asked["worst"],
        )

    def test_the_picture_and_a_snapshot(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        segments = [{"device": 0, "total_size": 40 * GIB, "allocated_size": 20 * GIB}]
        (tmp_path / "snapshot.json").write_text(json.dumps({"segments": segments}))
        files = ("--plot", tmp_path / "m.svg", "--snapshot", tmp_path / "snapshot.json")
        answer = answer_of(capsys, "memory", *JOB, *files)
        page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
        snapshot = answer["snapshot"]
        assert all(f"`{key}`" in page for key in snapshot)
        assert snapshot["allocated_error"] == pytest.approx(answer["peak_bytes"] / (20 * GIB) - 1)
        assert snapshot["reserved_error"] == pytest.approx(answer["reserved_bytes"] / (40 * GIB) - 1)
        assert "not-recorded" in [note["code"] for note in answer["diagnostics"]]
        assert (tmp_path / "m.svg").read_text().startswith("<svg")
        assert call("memory", *JOB, *files) == 0
        assert "difference" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "code", "error"),
        [
            (("--plot", "m.png"), 2, "bad-value"),
            (("--plot", "none/m.svg"), 3, "unwritable-file"),
            (("--snapshot", "none.pickle"), 3, "file-not-found"),
            (("--snapshot", "m.svg", "--plot", "m.svg"), 2, "output-overwrites-input"),
        ],
    )
    def test_files_that_cannot_be_used(
        self,
        arguments: tuple[str, ...],
        code: int,
        error: str,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert call("memory", *JOB, *arguments, "--json") == code
        assert error in capsys.readouterr().out
