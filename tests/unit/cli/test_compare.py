"""`foretrace compare` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from foretrace import Mesh, ProgramBuilder, save
from shared_files import ROOT
from unit.cli.command_line import answer_of, call


def write(path: Path, compute_s: float, transfer_s: float = 1e-3) -> Path:
    """Two stages: the first computes and sends, the second receives and computes 2 ms."""
    build = ProgramBuilder(Mesh(pp=2), title=path.stem, repeats=False)
    pair = build.pair("pp", 0, 1)
    first, second = build.role("stage 0", [0]), build.role("stage 1", [1])
    done = first.compute("layer", compute_s, phase="forward", microbatch=0)
    first.transfer("send", pair, transfer_s, to=1, bytes=4096, after=done)
    received = second.transfer("receive", pair, transfer_s)
    second.compute("layer", 2e-3, phase="forward", microbatch=0, after=received)
    save(build.program(), path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / "predicted.foretrace", 3e-3), write(tmp_path / "measured.foretrace", 2e-3)]


def test_the_screen(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", *files) == 0
    out = capsys.readouterr()
    assert out.err == ""
    assert out.out.split()[:8] == ["Step", "A", "6.00", "ms,", "B", "5.00", "ms:", "−1.00"]
    assert "bubble" in out.out and "measured:" not in out.out


def test_json_to_the_screen_and_to_a_file(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answer_of(capsys, "compare", *files, "-o", tmp_path / "out.json")
    assert result["schema"] == "foretrace.difference/1"
    assert result["change"] == pytest.approx(-1 / 6)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == result


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("simulate saved.answer", "--no-overlap-cost"),
        ("explain saved.answer", "--prices model"),
        ("memory saved.answer", "--collectives nowhere.csv"),
        ("sweep saved.answer --over compute=1x,2x", "--network flow"),
        ("compare saved.answer saved.answer", "--no-silicon"),
        ("compare saved.answer saved.answer", "--cluster h100-dgx"),
        ("compare saved.answer --with cluster=b200-dgx", "--no-silicon"),
    ],
)
def test_options_that_would_not_change_a_saved_answer_are_refused(
    words: str,
    option: str,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("simulate", files[0], "--save", "saved.answer") == 0
    assert call(*words.split(), *option.split()) == 2
    assert "[option-not-for-input]" in capsys.readouterr().err


def test_an_answer_that_was_printed_is_not_a_job(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = tmp_path / "out.json"
    assert call("simulate", files[0], "-o", printed) == 0
    capsys.readouterr()
    for words in (("compare", files[0], printed), ("inspect", printed), ("show", printed)):
        assert call(*words, "--json") == 3
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "wrong-format" and "--save" in error["hint"]


def test_a_trace_of_both(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", *files, "--perfetto", tmp_path / "both.pftrace", "--ranks", "1") == 0
    assert "open it at ui.perfetto.dev" in capsys.readouterr().err
    trace = proto.Trace()
    trace.ParseFromString((tmp_path / "both.pftrace").read_bytes())
    processes = [packet.track_descriptor.process.process_name for packet in trace.packet]
    assert [name for name in processes if name] == ["A · rank 1 · stage 1", "B · rank 1 · stage 1"]


def test_options_are_those_of_both_jobs_and_changes_of_the_second(capsys: pytest.CaptureFixture[str]) -> None:
    workload = ROOT / "examples/moe_128gpu.txt"
    common = ("--cluster", "h100-dgx", "--microbatches", "4")
    same = answer_of(capsys, "compare", workload, workload, *common)
    assert same["a"]["cluster"] == same["b"]["cluster"] == "h100-dgx"
    assert same["step"]["difference_s"] == 0 and same["differences"] == []
    result = answer_of(capsys, "compare", workload, workload, *common, "--with", "microbatches=8")
    assert "different-microbatches" in [one["code"] for one in result["diagnostics"]]
    assert result["step"]["difference_s"] > 0
    for rows in (result["breakdown"], result["causes"]):
        assert sum(row["difference_s"] for row in rows) == pytest.approx(result["step"]["difference_s"])


LLAMA = ("llama3.2-1b", "--gpus", "16", "--tp", "2", "--gbs", "32", "--cluster", "h100-dgx")


class TestWith:
    """B is A with the options that --with names."""

    def test_a_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer_of(capsys, "compare", *LLAMA, "--with", "tp=4", "--with", "recompute=full")
        chosen = [(each["of"], each["name"], each["a"], each["b"]) for each in result["differences"]]
        assert chosen[:2] == [("plan", "tp", 2, 4), ("plan", "recompute", "none", "full")]
        (plain,) = [answer_of(capsys, "predict", *LLAMA[:3], *LLAMA[5:], "--tp", "4", "--recompute", "full")]
        assert result["b"]["step_time_s"] == plain["step_time_s"]
        for rows in (result["breakdown"], result["causes"]):
            assert sum(row["difference_s"] for row in rows) == pytest.approx(result["step"]["difference_s"], rel=1e-9)

    @pytest.mark.parametrize(
        ("change", "of"),
        [
            ("cluster=h200-dgx", "hardware"),
            ("stack=torch-eager", "stack"),
            ("compute=1.5x", "scenario"),
            ("prices=roofline", "prices"),
            ("overlap=none", "plan"),
        ],
    )
    def test_what_differs(self, change: str, of: str, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer_of(capsys, "compare", *LLAMA, "--with", change)
        assert result["differences"][0]["of"] == of and result["step"]["difference_s"] != 0

    def test_saved_answers_need_no_options(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before, after = tmp_path / "before.answer", tmp_path / "after.answer"
        assert call("predict", *LLAMA, "--save", before) == 0
        assert call("predict", *LLAMA, "--recompute", "full", "--save", after) == 0
        capsys.readouterr()
        result = answer_of(capsys, "compare", before, after)
        assert [(each["name"], each["b"]) for each in result["differences"]] == [("recompute", "full")]
        direct = answer_of(capsys, "compare", *LLAMA, "--with", "recompute=full")
        assert result["step"] == direct["step"] and result["causes"] == direct["causes"]
        mixed = answer_of(capsys, "compare", before, *LLAMA, "--recompute", "full")
        assert mixed["step"] == direct["step"]

    def test_job_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        texts = {"a": "plan: {gpus: 8, tp: 2, gbs: 16}", "b": "plan: {gpus: 8, tp: 4, gbs: 16}"}
        for name, plan in texts.items():
            text = f"model: llama3-8b\n{plan}\ncluster: {'h100-dgx' if name == 'a' else 'h200-dgx'}\n"
            (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        result = answer_of(capsys, "compare", tmp_path / "a.yaml", tmp_path / "b.yaml")
        assert [result[side]["cluster"] for side in ("a", "b")] == ["h100-dgx", "h200-dgx"]
        assert {each["name"] for each in result["differences"]} >= {"tp", "cluster", "gpu"}

    def test_two_models(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer_of(capsys, "compare", "qwen3-8b", *LLAMA)
        assert ("model", "name") in [(each["of"], each["name"]) for each in result["differences"]]

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("--with", "tp"), "bad-value"),
            (("--with", "tp=4", "--with", "tp=8"), "repeated-option"),
            (("--with", "compute=2"), "bad-value"),
            (("--with", "mesh=tp=2"), "option-not-for-input"),
            ((), "missing-argument"),
        ],
    )
    def test_refusals(self, words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("compare", *LLAMA, *words) == 2
        assert f"[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "options", "status", "says"),
    [
        (["predicted"], (), 2, "[missing-argument]"),
        (["predicted", "measured"], ("--ranks", "0"), 2, "--perfetto"),
        (["predicted", "measured"], ("-o", "measured.foretrace"), 2, "[output-overwrites-input]"),
        (["predicted", "measured"], ("--mesh", "tp=two"), 2, "--mesh"),
        (["predicted", "measured"], ("--microbatches", "0"), 2, "microbatches"),
        (["predicted", "measured"], ("--microbatches", "4"), 2, "[option-not-for-input]"),
        (["predicted", "predicted", "measured"], (), 2, "[several-inputs]"),
        (["predicted", "nothing"], (), 3, "nothing.foretrace"),
    ],
)
def test_refusals(
    names: list[str],
    options: tuple[str, ...],
    status: int,
    says: str,
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files[0].parent)
    assert call("compare", *(f"{name}.foretrace" for name in names), *options) == status
    out = capsys.readouterr()
    assert says in out.err
    assert out.out == ""
